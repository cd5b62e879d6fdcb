/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a communicator's epoch: for each member, groups of Sends and Recvs, known before the
 * first of them runs. The supervisor gathers and matches it, then lends it to the scheduler until
 * EVENT_PLAN_GONE. The scheduler holds tasks until their group is whole
 * (sched/queue/planned_tasks.c).
 *
 *   plan_make.c        one member's plan; plan_match.c: whether all match
 *   plan_progress.c    a member's position, for inspection; comm/plan.c: requests and answers
 */
#ifndef COORD_PLAN_H
#define COORD_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/wire.h"

struct account;
struct task;

/* The scheduler's. */
struct plan_slot {
	struct task *task;  /* held; NULL: none */
	uint64_t iteration; /* in which it was last enqueued, from 1 */
};

struct plan_member {
	uint32_t handle; /* in its session; 0: not committed, or not on this node */
	uint32_t ngroups, ntasks;
	bool continues;		     /* a plan of the previous daemon */
	struct svc_plan_task *tasks; /* by group */
	uint32_t *first;	     /* [ngroups + 1]: the first task of each group */
	/* The scheduler's: */
	struct plan_slot *slots; /* [ntasks] */
	uint32_t held;		 /* slots with a task */
	uint32_t *missing;	 /* [ngroups]: tasks not enqueued in this iteration */
	uint32_t group;		 /* the first that is not whole */
	uint64_t iteration;	 /* the current one, from 1 */
	/* The scheduler writes, inspection reads. */
	_Atomic uint64_t enqueued, ended; /* tasks, over all iterations */
	_Atomic uint64_t *stamps;	  /* [ntasks]: slots' iterations */
	_Atomic bool left;
	bool dropped; /* the supervisor's: the scheduler was told to drop it */
};

struct plan {
	struct plan *prev, *next; /* the server's */
	uint64_t uid;
	uint32_t nranks;
	uint32_t number; /* with other nodes: in this epoch, from 1, the same on all; otherwise 0 */
	uint32_t nheld;	 /* members on this node; of others, the node only knows which have left */
	bool whole_groups; /* GPUs: a group starts when all groups connected to it can */
	uint32_t nleft;	   /* the scheduler's */
	/* The supervisor's: */
	uint32_t ndropped;
	uint32_t quota; /* tasks and groups, charged to its owner */
	struct account *account;
	uint32_t comm; /* slot */
	uint64_t since_ns;
	struct plan_member members[];
};

#define PLAN_TEXT	SVC_TEXT_BYTES
#define PLAN_NUMBER_MAX 0x3fffff

#define PLAN_GONE_TEXT                                                                             \
	"rank %d (pid %d) of communicator %s left or died before the plan was committed"
#define PLAN_LATE_TEXT                                                                             \
	"of communicator %s, these ranks had not committed their plan by the deadline: %s"

/* Zeroed members; NULL: out of memory. */
struct plan *plan_create(uint32_t nranks);
void plan_free(struct plan *p);
/* Takes ownership of tasks, which is malloc'ed, as `rank`'s plan, after checking each task by
 * itself. continues: it is in the middle of an iteration, whose tasks say whether they are done.
 * Returns 0, or a negative result with a sentence in text. */
int plan_set(struct plan *p, uint32_t rank, uint32_t ngroups, uint32_t ntasks,
	     struct svc_plan_task *tasks, bool continues, char text[PLAN_TEXT]);
/* Frees what plan_set created. */
void plan_unset(struct plan *p, uint32_t rank);
/* Do the plans of all members match, and can they be carried out? Returns as plan_set. steps: the
 * number of steps taken, of about 20 ns each; at most plan_match_steps. */
#define PLAN_MATCH_STEPS 12 /* for each task, group and rank */
int plan_match(const struct plan *p, char text[PLAN_TEXT], uint64_t *steps);
uint64_t plan_match_steps(const struct plan *p);

/* plan_progress.c: a member's position. Fills what the plan knows. */
void plan_info(const struct plan *p, uint32_t rank, ncclsvc_plan_info *info);
/* Its i-th task. False: there is none. */
bool plan_task_info(const struct plan *p, uint32_t rank, uint32_t i, ncclsvc_plan_task_info *info);

#endif
