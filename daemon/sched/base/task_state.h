/* SPDX-License-Identifier: Apache-2.0
 * One task on its communicator: its turn, its state in inspection, and whom it may match. */
#ifndef SCHED_TASK_STATE_H
#define SCHED_TASK_STATE_H

#include "proto/names.h"
#include "proto/operation.h"
#include "state.h"

static inline struct member *member_of(const struct task *t)
{
	return t->member;
}

/* Counts the members that only other members can unblock. */
static inline void member_update_blocked(struct member *m)
{
	bool blocked = m->posted && !m->running && !m->inputs && !m->ready;
	if (blocked == m->blocked)
		return;
	m->blocked = blocked;
	m->comm->blocked += blocked ? 1 : -1;
}

/* Its queue may advance; order_move_ready visits it. */
void member_make_ready(struct scheduler *sched, struct member *m);
/* t is posted, or has ended; the next task to post of its member is behind it. */
static inline void task_skip_unposted(struct task *t)
{
	const bool p2p = svc_op_is_p2p(t->record.op);
	struct task **unposted = &t->member->unposted[p2p], *next = t->next;
	if (*unposted != t)
		return;
	while (next && next->stage >= AT_HEAD && svc_op_is_p2p(next->record.op) != p2p)
		next = next->next;
	*unposted = next && next->stage >= AT_HEAD ? next : NULL;
}
void task_show_published(struct scheduler *sched, struct task *t);
/* Sets the state of a task that inspection already shows. */
void task_show_as(struct scheduler *sched, struct task *t, uint32_t state);
/* Reports a change of state to inspection, if it shows the task at all. */
static inline void task_show(struct scheduler *sched, struct task *t)
{
	if (t->published)
		task_show_published(sched, t);
}
/* Pins or unpins the regions of a task. by: 1 or -1. */
void task_pin(struct task *t, int by);
void task_stop_input_wait(struct scheduler *sched, struct task *t);

void task_publish(struct scheduler *sched, struct task *t);

/* A Send or Recv is posted and may match; or it runs or has ended, and may not match any more. */
void task_offer(struct task *t);
void task_withdraw(struct task *t);
/* Returns the posted task that this one may match, or NULL; and applies the result once both are
 * posted. */
struct task *task_find_peer(struct scheduler *sched, const struct task *t);

#endif
