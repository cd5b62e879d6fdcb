/* SPDX-License-Identifier: Apache-2.0
 * Each member's pending tasks, by kind, published for the supervisor (scheduler.h). */
#ifndef SCHED_PENDING_H
#define SCHED_PENDING_H

#include "member.h"

/* The epoch's members share it from now on; NULL: the supervisor does not read it. */
void pending_begin(struct comm *c, struct member_pending *shared);
/* No task of the communicator is left. */
void pending_end(struct comm *c);
/* The task table shows the task in that state. Takes constant time. */
void pending_show(struct task *t, uint32_t state);
/* The task table will not show the task any more. */
void pending_hide(struct task *t);

#endif
