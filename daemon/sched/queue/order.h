/* SPDX-License-Identifier: Apache-2.0
 * The order of turns on a communicator. */
#ifndef SCHED_ORDER_H
#define SCHED_ORDER_H

#include "sched/base/state.h"

/* Counts the task for its member from now on. */
void order_admit(struct scheduler *sched, struct task *t);
/* Appends the task to its member's queue. */
void order_append(struct scheduler *sched, struct task *t);
/* Likewise with these n tasks, which are one group. */
void order_group(struct scheduler *sched, struct task *first, uint32_t n);
/* Members that are ready have their turn, until none is, or so many steps have been taken. */
void order_move_ready(struct scheduler *sched, uint64_t enough);
/* Visits some of the tasks that wait for input, in turn. */
void order_check_inputs(struct scheduler *sched);

#endif
