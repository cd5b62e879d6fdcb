/* SPDX-License-Identifier: Apache-2.0
 * Planned tasks, held until their group is whole. */
#ifndef SCHED_PLANNED_TASKS_H
#define SCHED_PLANNED_TASKS_H

#include "sched/base/member.h"

void plan_add(struct scheduler *sched, struct comm *c, struct plan *p);
void plan_drop(struct scheduler *sched, const struct command *cmd);
void plan_hold(struct scheduler *sched, struct task *t);
/* Ends a member's held tasks, for up to this many steps. False: there are more. */
bool plan_clear(struct scheduler *sched, const struct comm *c, int32_t rank,
		const ncclsvc_status *st, uint64_t enough);
/* No other member need wait for its planned tasks. */
void plan_member_left(struct scheduler *sched, struct comm *c, int32_t rank,
		      const ncclsvc_status *st);

#endif
