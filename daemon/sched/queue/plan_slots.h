/* SPDX-License-Identifier: Apache-2.0
 * A plan's slots, and the task that is, or belongs, in each. */
#ifndef SCHED_PLAN_SLOTS_H
#define SCHED_PLAN_SLOTS_H

#include "coord/plan.h"
#include "sched/base/state.h"

/* Number of the group's tasks. */
static inline uint32_t plan_tasks_of(const struct plan_member *m, uint32_t group)
{
	return m->first[group + 1] - m->first[group];
}

/* The plan of the task's member that the task is part of; NULL: none, or it is over. */
struct plan_member *plan_of(const struct task *t);
/* The number of its plan, with other nodes; otherwise 0. */
uint32_t plan_number(const struct task *t);
/* Does the plan have this task in its slot? Its rank is set. */
int plan_check(const struct task *t, const struct comm *c, const char **text);
/* Does its rank have the plan that it names? */
bool plan_known(const struct task *t, const struct comm *c);
/* The planned task's label; NULL: it has none, or its plan is over. */
const char *plan_label(const struct task *t);
/* Returns the task held in a slot of this member's plan, or NULL. False: there is no such slot.
 */
bool plan_held(const struct member *m, uint32_t slot, struct task **t);
void plan_task_ended(struct task *t);
/* No task of the plan runs any more. */
void plan_end(struct scheduler *sched, struct comm *c);
bool plan_peer_left(const struct task *t);
ncclsvc_status plan_left_status(const struct comm *c, int32_t rank);

#endif
