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
	uint8_t redop;	/* the program's number of a reduction that it has created; or 0 */
};

/* The comparison of one communicator. */
struct exchange {
	ncclsvc_comm *comm;
	struct history own;
	struct chunk *chunk; /* every rank's part */
	size_t bytes;	     /* of one rank's part */
	struct call call;
	bool begun;
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
/* Compares the histories of n communicators with their other members: for all at once, since the
 * members may have joined them in different orders. DAEMON_LOST: the daemon has ended again.
 * Locked; yields. */
ncclsvc_result exchange_all(ncclsvc_session *s, struct exchange *x, size_t n, uint64_t deadline);
/* A member may have waited until then for the members of another communicator. */
uint64_t exchange_deadline(const ncclsvc_session *s);
/* Ends the communicator's tasks that are not to be submitted again. Locked. */
void exchange_settle(ncclsvc_session *s, struct exchange *x);
void exchange_free(ncclsvc_session *s, struct exchange *x);
/* The communicator is not continued. It can be rejoined, unless it is a split. Locked. */
void comm_leave_behind(ncclsvc_session *s, ncclsvc_comm *comm, ncclsvc_result result);
/* Ends the call that *at links. Locked. */
void call_answer(struct call **at, int result);
/* After a JOIN: if the epoch continues one of the previous daemon, compares with the other members
 * what they have done. Not locked. */
ncclsvc_result comm_compare(ncclsvc_comm *comm);

#endif
