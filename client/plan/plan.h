/* SPDX-License-Identifier: Apache-2.0
 *
 * One member's part of a plan, as its process sees it.
 *
 *   build.c    planning
 *   commit.c   handing it to the daemon, again after a rejoin; giving it up
 *   submit.c   places and tasks; bounce.c: copies in GPUs' memory; claim.c: places of lists
 *   wait.c     the launch, groups and iterations
 */
#ifndef CLIENT_PLAN_H
#define CLIENT_PLAN_H

#include "core/op.h"
#include "core/session.h"
#include "proto/task.h"

#define PLACE_FREE  UINT64_C(0)
#define PLACE_TAKEN UINT64_MAX /* its task is being submitted */

enum plan_phase { PLAN_OPEN, PLAN_ENDED, PLAN_COMMITTED, PLAN_LAUNCHED };

/* Memory of a GPU's, kept for the place's next task. */
struct bounce {
	unsigned long long at; /* CUdeviceptr */
	uint64_t bytes;	       /* 0: none */
	bool copying;	       /* the stream may still come to the last copy */
	unsigned long long stream;
	const void *context; /* a default stream's id is not enough */
	struct bounce *next; /* of those that went out of use */
};

struct ncclsvc_plan {
	ncclsvc_session *session;
	ncclsvc_plan *next; /* of the session */
	ncclsvc_comm *comm; /* NULL: it was left */
	enum plan_phase phase;
	bool group_open;
	bool busy;	/* a thread commits or resets it */
	bool strict;	/* ncclsvc_plan_set_strict */
	bool over;	/* its user gives it up, or has it no more, but it is not freed yet */
	unsigned calls; /* that are inside: it stays until they have returned */
	struct svc_plan_task *tasks;
	uint32_t ngroups, ntasks, room;

	/* From plan_end on. A place is an index of tasks. */
	uint32_t *first; /* [ngroups + 1]: the first place of each group */
	uint32_t *alike; /* places by operation, peer, and order */
	uint32_t *full;	 /* at the first of several alike: how many of them were seen to be taken */
	/* With the daemon that has it: */
	uint32_t handle, epoch, generation;
	uint64_t uid;

	/* This iteration's: */
	uint64_t *numbers; /* [ntasks]: of the task in each place */
	uint32_t *missing; /* [ngroups]: tasks not submitted */
	uint32_t group;	   /* the first with such */
	uint32_t nsubmitted;
	uint64_t failures; /* of the session when it began */
	uint64_t base;	   /* counts groups over all plans and iterations of the session */
	uint64_t iterations;
	uint64_t round;		/* iterations since it was committed: alike on all ranks */
	struct bounce *bounces; /* [ntasks]; NULL: none yet */
	struct bounce *retired; /* they go with the plan */
	int bounce_device;
	struct plan_claim *claims; /* places taken by lists whose data is not submitted */
};

/* A list of tensors (client/tensors) with its shapes ahead takes its place before its data can be
 * submitted. */
struct plan_claim {
	ncclsvc_session *session;
	struct plan_claim *next; /* of the plan */
	ncclsvc_plan *plan;	 /* NULL: none, or it was terminated */
	uint32_t place;
	uint64_t iteration; /* the plan's base when it was taken */
	const void *stream; /* of a GPU, on which its data will be */
};

/* OK, or INVALID_ARGUMENT with a sentence that begins with the function. Another thread may leave
 * the communicator whenever the session is not locked. */
ncclsvc_result plan_usable(const ncclsvc_plan *p, const char *function);
/* The same; on OK the session is locked, and the plan stays until plan_unlock. */
ncclsvc_result plan_lock(ncclsvc_plan *p, const char *function);
void plan_unlock(ncclsvc_plan *p);
/* The same, and session and epoch are not over. Locked. */
ncclsvc_result plan_live(const ncclsvc_plan *p, const char *function);
/* The same, launched and of the present epoch. Locked. */
ncclsvc_result plan_running(const ncclsvc_plan *p, const char *function);
/* Of an epoch that is over? Locked. */
bool plan_stale(const ncclsvc_plan *p);
/* Nothing of this iteration is submitted. Locked. */
void plan_begin_iteration(ncclsvc_plan *p);
/* build.c: what plan_end adds. Not locked. */
ncclsvc_result plan_complete(ncclsvc_plan *p);
void plan_free(ncclsvc_plan *p);
/* commit.c: what the session tells its plans. */
extern const struct plan_hooks plan_hooks;
/* Locked; yields. */
ncclsvc_result plan_commit(ncclsvc_plan *p, uint64_t deadline);
/* bounce.c: copies what is sent, and sends that. Locked; yields. */
ncclsvc_result bounce_copy(ncclsvc_plan *p, uint32_t place, struct op *op, uint64_t deadline);
void bounces_free(ncclsvc_plan *p);
/* 'Send "label" to rank 1 in group 3' of a place. */
#define PLACE_TEXT 160
const char *place_text(const ncclsvc_plan *p, uint32_t place, char text[PLACE_TEXT]);
/* The same without the group, of a task of that kind: a list has no kind in common with a plain
 * task, nor with lists of another mode or tag. */
const char *kind_text(const struct svc_plan_task *task, char text[PLACE_TEXT]);
int plan_compare_kinds(const struct svc_plan_task *a, const struct svc_plan_task *b);
/* Adds a task to the open group. Not locked. */
ncclsvc_result plan_add(ncclsvc_plan *p, const struct svc_plan_task *task, const char *function);
/* submit.c: takes the earliest free place of that kind, or the group's (NCCLSVC_PLAN_FIRST: of
 * any); gives it back; submits its task, which is checked. If that becomes no task, the place stays
 * taken. Locked; plan_submit_at yields. */
ncclsvc_result plan_take_place(ncclsvc_plan *p, const struct svc_plan_task *kind, uint32_t group,
			       uint32_t *place);
void plan_give_back(ncclsvc_plan *p, uint32_t place);
ncclsvc_result plan_submit_at(ncclsvc_plan *p, uint32_t place, struct op *op, uint64_t deadline);

/* claim.c. Not locked, but for the last. Takes the place of a list of this kind and agreement on
 * the communicator, whose data will be on the stream; INVALID_ARGUMENT: there is none, or another
 * list was planned there. */
ncclsvc_result plan_claim(ncclsvc_plan *p, struct plan_claim *c, const ncclsvc_comm *comm,
			  const struct svc_plan_task *task, const void *stream,
			  const char *function);
/* Gives the place back, unless its task was submitted, or its iteration is over. */
void plan_claim_drop(struct plan_claim *c);
/* OK: the shapes of its group's lists are to be announced now. IN_PROGRESS: not all of these lists
 * have their places taken, or a former group is not submitted whole. Else the plan is over for it.
 */
ncclsvc_result plan_claim_turn(const struct plan_claim *c);
/* A number that both sides derive for the list, and no other list of this communicator has. */
uint64_t plan_claim_number(const struct plan_claim *c);
uint32_t plan_claim_group(const struct plan_claim *c);
/* Submits the data. The claim is dropped if that becomes a task, though it be with an error. */
ncclsvc_result plan_claim_submit(struct plan_claim *c, struct op *op);
/* The plan is terminated. Locked. */
void plan_claims_forget(ncclsvc_plan *p);
/* Of this iteration. Locked. */
bool plan_has_claims(const ncclsvc_plan *p);
/* BUSY: a list of a former group will come to this stream. Locked. */
ncclsvc_result plan_claims_precede(const ncclsvc_plan *p, uint32_t place, const void *stream);

/* wait.c: until another thread has launched it. Locked; yields. */
ncclsvc_result launch_wait(ncclsvc_plan *p, uint64_t deadline, const char *function);
/* Waits for a whole group; own is the place of one that was submitted. Gives the first failure in
 * it, or only its own, for which no other is waited then. Locked; yields. */
ncclsvc_result group_wait(ncclsvc_plan *p, uint32_t own, bool own_only, uint64_t deadline);

#endif
