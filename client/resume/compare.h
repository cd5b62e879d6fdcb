/* SPDX-License-Identifier: Apache-2.0
 * After a restart of the daemon, the members of a communicator compare what each has submitted and
 * seen end (history.h), in two AllGathers. Unfinished tasks are then done, failed, or to be
 * submitted again (resume.c). */
#ifndef CLIENT_RESUME_COMPARE_H
#define CLIENT_RESUME_COMPARE_H

#include "core/call.h"
#include "core/task_slot.h"
#include "history.h"

/* A task that has not been submitted to the next daemon yet. */
struct carried {
	uint64_t task;
	struct svc_record record;
	uint32_t group; /* tasks of one task group have the same number */
	bool damaged;	/* the daemon was overwriting its input; on a GPU: it may be half done */
	bool held;	/* by the daemon, which still runs: another node's has ended */
	uint8_t redop;	/* the program's number of a reduction that it has created; or 0 */
};

enum exchange_phase {
	EXCHANGE_JOIN,
	EXCHANGE_SUMMARIES, /* the two AllGathers */
	EXCHANGE_LINES,
	EXCHANGE_COMPARED,
	EXCHANGE_PLAN,	    /* its plan is being committed */
	EXCHANGE_SUSPENDED, /* again, says an operation; the event follows */
	EXCHANGE_OVER,
};

/* A member's progress in continuing one communicator. Communicators are continued independently,
 * since another member may wait for any of them. */
struct exchange {
	ncclsvc_comm *comm;
	enum exchange_phase phase;
	uint64_t deadline; /* of the phase */
	struct history own;
	struct chunk *chunk; /* every rank's part */
	int32_t *nodes;	     /* [nranks]: as in struct histories */
	size_t bytes;	     /* of one rank's part */
	struct call call;
	bool begun;
	uint64_t again_ns;     /* when its JOIN is tried again; 0: it is not */
	uint64_t done;	       /* on a GPU: what NCCL has done (carry.h) */
	ncclsvc_result result; /* the communicator is not continued */
};

/* The task's slot; NULL: the task has ended. */
struct slot *carried_slot(const ncclsvc_session *s, const struct carried *c);
#define PLANS_DIFFER                                                                               \
	"members were committing or terminating a plan, or in an iteration of a plan with lists"
/* As the plan layer's in_force. Locked. */
uint64_t plan_in_force(const ncclsvc_session *s, const ncclsvc_comm *comm);
/* Whether tasks of the communicator are left that belong to a plan which does not continue. Locked.
 */
bool carried_plan_is_over(const ncclsvc_session *s, const ncclsvc_comm *comm);
/* The communicator is not continued, for the first reason given. */
void exchange_fail(struct exchange *x, ncclsvc_result result, const char *why);
/* Begins to compare its history with the other members'. Locked; yields. */
void exchange_begin(ncclsvc_session *s, struct exchange *x);
/* Goes on with it, up to EXCHANGE_COMPARED, if the phase's answer is there, or overdue. Locked;
 * yields. */
void exchange_step(ncclsvc_session *s, struct exchange *x);
/* A member may have waited until then for the members of another communicator. */
uint64_t exchange_deadline(const ncclsvc_session *s);
/* Ends the communicator's tasks that are not to be submitted again. Locked; yields. */
void exchange_settle(ncclsvc_session *s, struct exchange *x);
/* The communicator is not continued: ends its tasks that the daemon holds. Locked; yields. */
void exchange_drop_held(ncclsvc_session *s, const ncclsvc_comm *comm);
/* Ends its call, and frees what it holds; it may begin again. Locked; yields. */
void exchange_reset(ncclsvc_session *s, struct exchange *x);
/* The communicator is not continued. It can be rejoined, unless it is a split. Locked. */
void comm_leave_behind(ncclsvc_session *s, ncclsvc_comm *comm, ncclsvc_result result);
/* Ends the call that *at links. Locked. */
void call_answer(struct call **at, int result);
/* After a JOIN: if the epoch continues one of the previous daemon, compares with the other members
 * what they have done. Not locked. */
ncclsvc_result comm_compare(ncclsvc_comm *comm);

#endif
