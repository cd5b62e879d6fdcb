/* SPDX-License-Identifier: Apache-2.0
 * Communicators as the user sees them. */
#ifndef NCCL_HANDLE_H
#define NCCL_HANDLE_H

#include "nccl_session.h"

#define COMM_MAGIC UINT64_C(0x6e63636c73766331)

enum comm_state { COMM_STARTING, COMM_READY, COMM_FAILED, COMM_LEFT };

/* A user-made reduction. It is kept after its user destroys it, for the next one with the same
 * scalar. */
struct user_redop {
	int service; /* an ncclsvc_redop; 0: the entry is free */
	ncclDataType_t type;
	unsigned users;
	unsigned queued; /* unsubmitted operations that use its number */
	uint8_t scalar[8];
};
#define USER_REDOPS 48

/* Memory that the user has registered with a communicator: memory.c. */
struct registration {
	struct registration *next;
	bool window;
	const char *base;
	size_t bytes;
};

struct ncclComm {
	uint64_t magic;
	unsigned generation; /* generation of the process */
	atomic_uint refs;    /* held by its user, and by groups and threads that use it */
	int device;
	bool blocking;
	char name[64];
	unsigned max_ctas; /* as in its config */
	bool zero_ctas;
	ncclUniqueId id; /* the id it was joined with; ids of shrunk and grown communicators derive
			    from it */

	pthread_mutex_t redops_lock; /* taken before `lock` */
	struct user_redop redops[USER_REDOPS];

	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* Protected by the lock: */
	enum comm_state state;
	int nranks, rank;
	struct gpu_session *session;
	ncclsvc_comm *service; /* NULL unless READY */
	bool joining;	       /* a join of it is being sent to the daemon */
	ncclsvc_joining *join; /* the join that waits in the daemon; NULL: none */
	unsigned users;	       /* calls inside, which keep `service` alive */
	bool freed;	       /* its user has freed it; protected by freed_lock */
	unsigned pending;      /* running starts and ends whose parent it is */
	bool revoked, finalized, suspended;
	atomic_bool aborted;		 /* aborted or destroyed; also read without the lock */
	uint64_t shrinks, grows, splits; /* splits: those since it was revoked */
	uint64_t splits_called,
		splits_ended; /* splits before that, which run in the order of the calls */
	struct registration *registrations;
	ncclsvc_task newest;
	ncclResult_t async; /* the first failure, which stays */
	char text[768];
};

/* A handle in state STARTING. NULL: out of memory. The caller holds its only reference. */
ncclComm_t handle_new(int device, bool blocking, const char *name);
ncclComm_t handle_ref(ncclComm_t comm);
void handle_unref(ncclComm_t comm);
/* Checks that it is a handle of this process that has not been destroyed. */
ncclResult_t handle_check(ncclComm_t comm, const char *function);

/* Keeps comm->service alive until handle_exit. Fails if the handle is not READY. */
ncclResult_t handle_enter(ncclComm_t comm, const char *function);
void handle_exit(ncclComm_t comm);
/* Whether handle_enter would succeed. */
ncclResult_t handle_usable(ncclComm_t comm, const char *function);
/* Marks it as failed, to be reported to its user. Keeps the first sentence. */
void handle_latch(ncclComm_t comm, ncclResult_t result, const char *text);
/* Asks the service for failures, and latches them. Call inside. */
void handle_look(ncclComm_t comm);
/* True once no call should wait for the communicator any more. */
bool handle_over(ncclComm_t comm);
/* Cancels its join, so that another process may take the rank. */
void handle_cancel_join(ncclComm_t comm);
/* Ends operations that wait inside GPUs, also for threads inside a call. */
void handle_break_off(ncclComm_t comm);
/* Waits until nobody is inside, and leaves the service's communicator. The user's reference
 * remains. */
ncclResult_t handle_leave(ncclComm_t comm);

/* ---- mps.c ---- */

/* Reports once whether this process uses the communicator's GPU through the same MPS server as the
 * worker; warns if only one of the two uses MPS. */
void mps_check(ncclComm_t comm);

#endif
