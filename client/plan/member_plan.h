/* SPDX-License-Identifier: Apache-2.0
 * One member's part of a plan, as its process sees it. Bottom up:
 *
 *   bounce.c     copies in GPU memory
 *   again.c      what the daemon gets, and committing it to the next daemon, in the middle of an
 *                iteration
 *   build.c      planning
 *   commit.c     committing it to the daemon, again after a rejoin; the launch
 *   slot.c       the slots of one iteration
 *   wait.c       groups and iterations; giving the plan up
 *   submit.c     tasks in slots
 *   list_slot.c  slots of lists */
#ifndef CLIENT_MEMBER_PLAN_H
#define CLIENT_MEMBER_PLAN_H

#include "core/op.h"
#include "core/session_handle.h"
#include "proto/task.h"

#define PLAN_SLOT_FREE	UINT64_C(0)
#define PLAN_SLOT_TAKEN UINT64_MAX /* its task is being submitted */

enum plan_phase { PLAN_OPEN, PLAN_ENDED, PLAN_COMMITTED, PLAN_LAUNCHED };

/* GPU memory, kept for the slot's next task. */
struct bounce {
	unsigned long long at; /* CUdeviceptr */
	uint64_t bytes;	       /* 0: none */
	bool copying;	       /* the stream may not have reached the last copy yet */
	unsigned long long stream;
	const void *context; /* needed because a default stream's id is not unique */
	struct bounce *next; /* next retired buffer */
};

struct ncclsvc_plan {
	ncclsvc_session *session;
	ncclsvc_plan *next; /* next plan of the session */
	ncclsvc_comm *comm; /* NULL: the communicator was left */
	enum plan_phase phase;
	bool group_open;
	bool busy;	/* a thread is committing or resetting the plan */
	bool strict;	/* set by ncclsvc_plan_set_strict */
	bool over;	/* its user has given it up, but it is not freed yet */
	unsigned calls; /* calls in progress: the plan stays until they have returned */
	struct svc_plan_task *tasks;
	uint32_t ngroups, ntasks, room;

	/* From plan_end on. A slot is an index into tasks. */
	uint32_t *first; /* [ngroups + 1]: the first slot of each group */
	uint32_t *alike; /* slots sorted by operation, peer, and order */
	uint32_t *full;	 /* at the first of several alike: how many of them are known to be taken */
	/* Where and when it was committed: */
	uint32_t handle, epoch, generation;
	uint64_t uid;
	uint64_t birth;	 /* the first uid in the epoch's lineage: the same on all ranks */
	uint32_t counts; /* the counters of its orders: comm->counts; 0: taken back */
	/* After a restart of the daemon (again.c): */
	uint64_t in_force;  /* until the session is back; 0: it was not in force */
	struct call *again; /* the commit under way; NULL: none */

	/* For this iteration: */
	uint64_t *numbers; /* [ntasks]: of the task in each slot */
	uint64_t *orders;  /* [ntasks]: the slots' numbers among the communicator's planned Sends
			      to a rank, or Recvs from it */
	uint32_t *missing; /* [ngroups]: number of tasks not yet submitted */
	uint32_t group;	   /* the first group that misses tasks */
	uint32_t nsubmitted;
	uint64_t failures; /* the session's count when the iteration began */
	uint64_t base;	   /* counts groups over all plans and iterations of the session */
	uint64_t iterations;
	uint64_t iteration;	/* since the commit: equal on all ranks */
	struct bounce *bounces; /* [ntasks]; NULL: none yet */
	struct bounce *retired; /* freed with the plan */
	int bounce_device;
	struct list_slot *list_slots; /* slots taken by lists whose data is not yet submitted */
};

/* A list of tensors (client/tensors) whose shapes go ahead takes its slot before its data can be
 * submitted. */
struct list_slot {
	ncclsvc_session *session;
	struct list_slot *next; /* next one of the plan */
	ncclsvc_plan *plan;	/* NULL: none, or the plan was terminated */
	uint32_t index;
	uint64_t iteration; /* the plan's base when the slot was taken */
	const void *stream; /* the GPU stream on which its data will be */
};

/* OK, or INVALID_ARGUMENT with a sentence that begins with the function's name. Another thread may
 * leave the communicator whenever the session is not locked. */
ncclsvc_result plan_usable(const ncclsvc_plan *p, const char *function);
/* The same; on OK the session is locked, and the plan exists until plan_unlock. */
ncclsvc_result plan_lock(ncclsvc_plan *p, const char *function);
void plan_unlock(ncclsvc_plan *p);
/* The same, and neither the session nor the epoch is over. Locked. */
ncclsvc_result plan_live(const ncclsvc_plan *p, const char *function);
/* The same, and the plan is launched in the current epoch. Locked. */
ncclsvc_result plan_running(const ncclsvc_plan *p, const char *function);
/* Whether the plan's epoch is over. Locked. */
bool plan_stale(const ncclsvc_plan *p);
/* Marks all of this iteration as not submitted. Locked. */
void plan_begin_iteration(ncclsvc_plan *p);
/* build.c: computes the fields that plan_end adds. Not locked. */
ncclsvc_result plan_complete(ncclsvc_plan *p);
void plan_free(ncclsvc_plan *p);
/* commit.c. Locked; yields. */
ncclsvc_result plan_commit(ncclsvc_plan *p, uint64_t deadline);
/* The plan in a new memfd, which the caller owns. again: with what has run in this iteration. */
ncclsvc_result plan_write(const ncclsvc_plan *p, bool again, int *fd);
/* again.c: gives the slots of the iteration that begins their orders. Locked. */
void plan_count(ncclsvc_plan *p);
/* again.c: takes back the numbers of an iteration if nothing of it has been submitted. Locked. */
void plan_give_back(ncclsvc_plan *p);
/* Whether nothing of this iteration has been submitted. Locked. */
bool plan_is_fresh(const ncclsvc_plan *p);
/* As in struct plan_callbacks. */
void plans_away(ncclsvc_session *s);
uint64_t plan_in_force_on(const ncclsvc_session *s, const ncclsvc_comm *comm);
bool plan_rests_on(const ncclsvc_session *s, const ncclsvc_comm *comm);
void plan_drop_on(const ncclsvc_session *s, const ncclsvc_comm *comm);
bool plan_continues(const ncclsvc_session *s, const ncclsvc_comm *comm, uint32_t handle);
bool plans_history(const ncclsvc_session *s, const ncclsvc_comm *comm, struct history *h);
void plan_commit_again(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline);
bool plan_committed_again(ncclsvc_session *s, ncclsvc_comm *comm, uint64_t deadline);
void plans_back(ncclsvc_session *s);
/* bounce.c: copies the source and sends the copy. Locked; yields. */
ncclsvc_result bounce_copy(ncclsvc_plan *p, uint32_t slot, struct op *op, uint64_t deadline);
void bounces_free(ncclsvc_plan *p);
/* Describes a slot: 'Send "label" to rank 1 in group 3'. */
#define SLOT_TEXT 160
const char *slot_text(const ncclsvc_plan *p, uint32_t slot, char text[SLOT_TEXT]);
/* The same without the group, for any task of that kind: a list shares no kind with a plain task,
 * or with lists of another mode or tag. */
const char *kind_text(const struct svc_plan_task *task, char text[SLOT_TEXT]);
int plan_compare_kinds(const struct svc_plan_task *a, const struct svc_plan_task *b);
/* Adds a task to the open group. Not locked. */
ncclsvc_result plan_add(ncclsvc_plan *p, const struct svc_plan_task *task, const char *function);
/* slot.c: plan_slot_take takes the earliest free slot of that kind, in the given group or
 * (NCCLSVC_PLAN_FIRST) in any; plan_slot_give_back gives it back. Locked. */
ncclsvc_result plan_slot_take(ncclsvc_plan *p, const struct svc_plan_task *kind, uint32_t group,
			      uint32_t *slot);
void plan_slot_give_back(ncclsvc_plan *p, uint32_t slot);
void list_slot_unlink(struct list_slot *c); /* locked */
/* Takes all slots from their lists, because the plan is terminated. Locked. */
void list_slots_forget(ncclsvc_plan *p);
/* Whether lists hold slots of this iteration. Locked. */
bool list_slots_held(const ncclsvc_plan *p);
/* BUSY: a list of an earlier group will use this stream. Locked. */
ncclsvc_result list_slots_precede(const ncclsvc_plan *p, uint32_t slot, const void *stream);

/* submit.c: submits the task of a taken slot, already checked. If that does not become a task, the
 * slot stays taken. Locked; yields. */
ncclsvc_result plan_slot_submit(ncclsvc_plan *p, uint32_t slot, struct op *op, uint64_t deadline);

/* list_slot.c. Not locked. Takes the slot of a list of this kind and agreement on the
 * communicator, whose data will be on the stream. INVALID_ARGUMENT: there is no such slot, or
 * another list was planned there. */
ncclsvc_result list_slot_take(ncclsvc_plan *p, struct list_slot *c, const ncclsvc_comm *comm,
			      const struct svc_plan_task *task, const void *stream,
			      const char *function);
/* Gives the slot back, unless its task was submitted or its iteration is over. */
void list_slot_drop(struct list_slot *c);
/* OK: announce the shapes of its group's lists now. IN_PROGRESS: some of these lists have no slot
 * yet, or an earlier group is not completely submitted. Otherwise the plan is over for this list.
 */
ncclsvc_result list_slot_turn(const struct list_slot *c);
/* A number that both sides derive for the list, unique on this communicator. */
uint64_t list_slot_number(const struct list_slot *c);
uint32_t list_slot_group(const struct list_slot *c);
/* Submits the data. If that becomes a task, even a failed one, the list has no slot any more. */
ncclsvc_result list_slot_submit(struct list_slot *c, struct op *op);

/* wait.c: waits until another thread has launched the plan. Locked; yields. */
ncclsvc_result launch_wait(ncclsvc_plan *p, uint64_t deadline, const char *function);
/* Waits for a whole group; `own` is the slot of a submitted task. Returns the first failure in the
 * group, or only that of `own`, and then waits for no other. Locked; yields. */
ncclsvc_result group_wait(ncclsvc_plan *p, uint32_t own, bool own_only, uint64_t deadline);

#endif
