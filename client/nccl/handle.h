/* SPDX-License-Identifier: Apache-2.0
 * Communicators as the user has them: comm.c. */
#ifndef NCCL_HANDLE_H
#define NCCL_HANDLE_H

#include "session.h"

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
	bool joining;	       /* a join of it is on its way to the daemon */
	ncclsvc_joining *join; /* that waits there; NULL: none */
	unsigned users;	       /* calls inside, which keep `service` alive */
	bool freed;	       /* it has no user; under freed_lock */
	unsigned pending;      /* starts and ends under way that it is the parent of */
	bool revoked, finalized, suspended;
	atomic_bool aborted;		      /* or destroyed; it is read without the lock, too */
	uint64_t shrinks, grows, splits;      /* splits: since it was revoked */
	uint64_t splits_called, splits_ended; /* before: they go in the order of the calls */
	struct registration *registrations;   /* memory.c's */
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
/* Cancels its join, so that another one may have the rank. */
void handle_cancel_join(ncclComm_t comm);
/* Waits until everybody is outside, and leaves. The user's reference stays. */
/* Operations that wait inside GPUs end, also for threads that are inside a call. */
void handle_break_off(ncclComm_t comm);
ncclResult_t handle_leave(ncclComm_t comm);

/* ---- memory.c ---- */

void registrations_free(struct ncclComm *comm);

/* ---- mps.c ---- */

/* Tells, once, whether this process uses the communicator's GPU through the MPS server of the
 * worker there: warns if only one of both does. */
void mps_check(ncclComm_t comm);

#endif
