/* SPDX-License-Identifier: Apache-2.0
 *
 * The drop-in libnccl.so.2: what its files share. NCCL's functions, each in the file of its
 * subject, are thin: they check, and hand over to the session of their GPU.
 *
 *   error.c    sentences, NCCL_DEBUG        session.c  a session for each GPU; fork
 *   comm.c     handles: who is inside       config.c   ncclConfig_t, field by field
 *   start.c    joins, splits, in threads    init.c     the functions that begin communicators
 *   end.c      the functions that end them  info.c     what they tell
 *   group.c    ncclGroupStart and End       submit.c   operations to sessions
 *   ops.c      the operations               redop.c    reductions that the user makes
 *   memory.c   lent memory, registration    suspend.c  suspended ones, and what memory they take
 *   device.c   the device API, and
 *   onesided.c one-sided operations, which are refused
 *   params.c   NCCL's variables, which are the daemon's
 *   connections.c, mps.c  what CUDA reads in the environment when it is initialized
 *
 * Every exported function is weak and has a twin whose name begins with p, as in NCCL, for tools
 * that wrap the one and call the other. */
#ifndef DROPIN_H
#define DROPIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ncclsvc.h"
#include "proto/nccl_abi.h"

#define NCCL_ABI_VERSION 23203 /* whose nccl.h this is */

/* Declares and exports a function of nccl_abi.h, under both of its names. */
#define NCCL_EXPORT(function, type, parameters)                                                    \
	__attribute__((visibility("default"), weak)) type function parameters;                     \
	__attribute__((visibility("default"))) type p##function parameters;
NCCL_FUNCTIONS(NCCL_EXPORT)
NCCL_MORE_FUNCTIONS(NCCL_EXPORT)
/* Behind a function's definition: its second name. */
#define NCCL_TWIN(function)                                                                        \
	__attribute__((visibility("default"), alias(#function))) __typeof__(function) p##function

/* A fork waits until nobody has that lock of the file's: its child would never get it. Registered
 * early, so that it is taken behind session.c's; no other is taken within it. */
#define FREE_IN_CHILDREN(lock)                                                                     \
	static void before_fork(void)                                                              \
	{                                                                                          \
		pthread_mutex_lock(&lock);                                                         \
	}                                                                                          \
	static void after_fork(void)                                                               \
	{                                                                                          \
		pthread_mutex_unlock(&lock);                                                       \
	}                                                                                          \
	__attribute__((constructor(102))) static void watch_forks(void)                            \
	{                                                                                          \
		pthread_atfork(before_fork, after_fork, after_fork);                               \
	}

/* ---- error.c ---- */

/* Leaves the sentence for ncclGetLastError and the open group, and returns result. */
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t result, const char *format,
							...);
/* The same of a call of libncclsvc that failed: its sentence, and NCCL's nearest result. */
ncclResult_t fail_service(ncclsvc_result result);
ncclResult_t result_of(ncclsvc_result result);
/* The sentence of the process's last failure. Of the calling thread until its next call. */
const char *last_sentence(void);
/* A line of NCCL_DEBUG=WARN, that fails nothing. */
__attribute__((format(printf, 1, 2))) void warn(const char *format, ...);
/* A line of NCCL_DEBUG=INFO. */
__attribute__((format(printf, 1, 2))) void inform(const char *format, ...);

/* What a thread has. In the heap: a library that is opened late has little thread-local room. */
struct own {
	char sentence[1024]; /* of last_sentence */
	char text[768];	     /* of ncclGetLastError */
	struct group *group; /* NULL before the first */
};
struct own *own(void);

/* ---- connections.c ---- */

/* Warns, once, of an environment in which streams hold each other up. */
void connections_check(void);

/* ---- mps.c ---- */

/* Tells, once, whether this process uses the communicator's GPU through the MPS server of the
 * worker there: warns if only one of both does. */
void mps_check(ncclComm_t comm);

/* ---- session.c ---- */

/* A session of this process: all its communicators and memory on one GPU. It lives as long as the
 * process, unless its daemon is lost; what is joined afterwards has a new one. */
struct gpu_session {
	ncclsvc_session *service;
	int device;
	atomic_bool lost;
	_Atomic ncclsvc_task newest;
	atomic_long swept_ms;
	struct gpu_session *next;
};

#define RING_ENTRIES 4096 /* also the largest task group */

/* The device that is current on this thread, as cudaGetDevice says it. */
ncclResult_t device_current(int *device);
ncclResult_t session_get(int device, struct gpu_session **session);
/* NCCL's version behind the daemon. */
ncclResult_t session_nccl_version(int *version);
/* The daemon, or one of its workers: it would ask itself. */
bool process_is_daemon(void);
/* Which process this is: a forked one is another. */
unsigned process_generation(void);

/* ---- comm.c ---- */

#define COMM_MAGIC UINT64_C(0x6e63636c73766331)

enum comm_state { COMM_STARTING, COMM_READY, COMM_FAILED, COMM_LEFT };

/* A reduction that was made; it stays, for the next that has the same scalar. */
struct made {
	int service; /* ncclsvc_redop; 0: the place is free */
	ncclDataType_t type;
	unsigned users;
	unsigned queued; /* operations that have its number and are not submitted */
	uint8_t scalar[8];
};
#define REDOPS_MADE 48

struct ncclComm {
	uint64_t magic;
	unsigned generation; /* of the process */
	atomic_uint refs;    /* its user's, and what works on it: groups, threads */
	int device;
	bool blocking;
	char name[64];
	ncclUniqueId id; /* as joined: whence those of its shrunk and grown ones come */

	pthread_mutex_t redops_lock; /* taken before the other */
	struct made redops[REDOPS_MADE];

	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* Under the lock: */
	enum comm_state state;
	int nranks, rank;
	struct gpu_session *session;
	ncclsvc_comm *service; /* NULL unless READY */
	unsigned users;	       /* calls inside, which keep `service` alive */
	bool buried;	       /* under the graves' lock */
	unsigned pending;      /* starts and ends under way that it is the parent of */
	bool revoked, finalized, suspended;
	atomic_bool aborted;		      /* or destroyed; it is read without the lock, too */
	uint64_t shrinks, grows, splits;      /* splits: since it was revoked */
	uint64_t splits_called, splits_ended; /* before: they go in the order of the calls */
	struct registration *registrations;   /* memory.c's */
	atomic_uint nwindows;		      /* of them; it is read without the lock */
	bool windowed; /* its next tasks may use windows: of who submits, one at a time */
	ncclsvc_task newest;
	ncclResult_t async; /* the first failure, for good */
	char text[768];
};

/* A handle that is STARTING. NULL: no memory. The caller holds its only reference. */
ncclComm_t handle_new(int device, bool blocking, const char *name);
ncclComm_t handle_ref(ncclComm_t comm);
void handle_unref(ncclComm_t comm);
/* Is it a handle of this process, and has not been destroyed? */
ncclResult_t handle_check(ncclComm_t comm, const char *function);

/* Keeps comm->service alive until handle_exit. Fails if it is not READY. */
ncclResult_t handle_enter(ncclComm_t comm, const char *function);
void handle_exit(ncclComm_t comm);
/* Could it be entered? */
ncclResult_t handle_usable(ncclComm_t comm, const char *function);
/* It has failed, and its user will be told. Keeps the first sentence. */
void handle_latch(ncclComm_t comm, ncclResult_t result, const char *text);
/* Asks the service for failures, and latches what it says. Inside. */
void handle_look(ncclComm_t comm);
/* True once no call is to wait for the communicator any more. */
bool handle_over(ncclComm_t comm);
/* Waits until everybody is outside, and leaves. The user's reference stays. */
ncclResult_t handle_leave(ncclComm_t comm);

/* ---- config.c ---- */

struct config {
	bool blocking;
	char name[64];
};

/* config may be NULL: then as `parent`, or NCCL's defaults if that is NULL, too. */
ncclResult_t config_read(const ncclConfig_t *config, const struct ncclComm *parent,
			 const char *function, struct config *out);
/* config may be NULL. *launched: to be recorded when the operation is launched; NULL: none. */
ncclResult_t coll_config_read(const ncclCollConfig_t *config, const char *function,
			      CUevent *launched);

/* ---- start.c ---- */

enum start_kind { START_JOIN, START_SPLIT };

/* A communicator that begins. The start holds references to both. */
struct start {
	enum start_kind kind;
	ncclComm_t comm;   /* NULL: a split that this rank is no part of */
	ncclComm_t parent; /* of a split; NULL else */
	ncclUniqueId id;
	int nranks, rank; /* of a join */
	int colour, key;  /* of a split */
	uint64_t number;  /* of a split that waits for its parent's earlier ones; 0: of none */
	bool anew;	  /* its parent's ranks join another one first, by the id */
	bool nonblocking;
	ncclResult_t result;
	char text[768];
	ncclComm_t *out; /* the user's handle: set back to NULL if a blocking start fails */
	struct start *next;
};

/* Runs it, or keeps it for ncclGroupEnd; takes it over. */
ncclResult_t start_begin(struct start *start);
/* Those of a group; takes them over. ncclInProgress if one goes on in the background. */
ncclResult_t starts_run(struct start *list);
/* Of a group that failed before: its communicator, if it is one that its user keeps, has failed. */
void start_drop(struct start *start, ncclResult_t why, const char *text);
/* Milliseconds for joins. */
int start_timeout_ms(void);
/* A thread that takes no signals. False: there can be none. */
bool thread_run(void *(*main)(void *), void *arg, pthread_t *thread);

/* ---- group.c ---- */

/* An operation: a reference to its communicator, and what will be submitted. */
struct job {
	ncclComm_t comm;
	CUstream stream;
	unsigned op; /* ncclsvc_op */
	const void *src;
	void *dst;
	size_t count;
	int type, redop, peer;
	int made;	  /* the place of a reduction that was made, from 1; 0: none */
	CUevent launched; /* of its configuration; NULL: none */
	ncclsvc_task task;
	bool done;
};

struct group;
bool group_is_open(void);
void group_free(struct group *group);
/* Keeps it for ncclGroupEnd. */
ncclResult_t group_add_job(const struct job *job);
void group_add_start(struct start *start);
/* The open group has failed: ncclGroupEnd says so. */
void group_note(ncclResult_t result);

/* ---- memory.c ---- */

/* Is it in memory that was made the communicator's window? */
bool windows_cover(ncclComm_t comm, const void *p);
void registrations_free(struct ncclComm *comm);

/* ---- submit.c ---- */

/* Enters the communicators, submits everything, and waits for room if there is none. */
ncclResult_t jobs_submit(struct job *jobs, unsigned n);
/* Until everything that was submitted on it has ended, or it is over. */
void handle_flush(ncclComm_t comm);

/* ---- redop.c ---- */

/* Gives the job the service's number for the reduction, which is its own until it is released. */
ncclResult_t redop_take(struct job *job, ncclRedOp_t op);
void redop_release(const struct job *job);

#endif
