/* SPDX-License-Identifier: Apache-2.0
 * Planned tasks, held until their group is whole. */
#ifndef SCHED_PLAN_H
#define SCHED_PLAN_H

#include "member.h"

void plan_add(struct engine *e, struct comm *c, struct plan *p);
void plan_drop(struct engine *e, const struct command *cmd);
/* The number of its plan, with other nodes; otherwise 0. */
uint32_t plan_number(const struct task *t);
/* Does the plan have this task in its place? Its rank is set. */
int plan_check(const struct task *t, const struct comm *c, const char **text);
/* Does its rank have the plan that it names? */
bool plan_known(const struct task *t, const struct comm *c);
void plan_hold(struct engine *e, struct task *t);
/* The planned task's label; NULL: it has none, or its plan is over. */
const char *plan_label(const struct task *t);
/* Returns the task held in a place of this member's plan, or NULL. False: there is no such place.
 */
bool plan_held(const struct member *m, uint32_t place, struct task **t);
void plan_task_ended(struct task *t);
/* Ends a member's held tasks, for up to this many steps. False: there are more. */
bool plan_clear(struct engine *e, const struct comm *c, int32_t rank, const ncclsvc_status *st,
		uint64_t enough);
/* No task of the plan runs any more. */
void plan_end(struct engine *e, struct comm *c);
bool plan_peer_left(const struct task *t);
ncclsvc_status plan_left_status(const struct comm *c, int32_t rank);
/* No other member need wait for its planned tasks. */
void plan_member_left(struct engine *e, struct comm *c, int32_t rank, const ncclsvc_status *st);

#endif
