/* SPDX-License-Identifier: Apache-2.0
 * One task on its communicator: its turn, its state in inspection, and whom it may match. */
#ifndef SCHED_TASK_STATE_H
#define SCHED_TASK_STATE_H

#include "names.h"
#include "operation.h"
#include "state.h"

static inline struct member *member_of(const struct task *t)
{
	return t->member;
}

/* Counts the members that only other members can unblock. */
static inline void order_update_blocked(struct member *m)
{
	bool blocked = m->posted && !m->running && !m->inputs && !m->ready;
	if (blocked == m->blocked)
		return;
	m->blocked = blocked;
	m->comm->blocked += blocked ? 1 : -1;
}

/* Its queue may advance; order_run_ready visits it. */
void order_make_ready(struct engine *e, struct member *m);
/* t is posted, or has ended; the next task to post of its member is behind it. */
static inline void order_skip_unposted(struct task *t)
{
	const bool p2p = svc_op_is_p2p(t->record.op);
	struct task **unposted = &t->member->unposted[p2p], *next = t->next;
	if (*unposted != t)
		return;
	while (next && next->place >= AT_HEAD && svc_op_is_p2p(next->record.op) != p2p)
		next = next->next;
	*unposted = next && next->place >= AT_HEAD ? next : NULL;
}
void order_show_published(struct engine *e, struct task *t);
/* Sets the state of a task that inspection already shows. */
void order_show_as(struct engine *e, struct task *t, uint32_t state);
/* Reports a change of state to inspection, if it shows the task at all. */
static inline void order_show_state(struct engine *e, struct task *t)
{
	if (t->published)
		order_show_published(e, t);
}
/* Pins or unpins the regions of a task. by: 1 or -1. */
void order_pin(struct task *t, int by);
void order_stop_input_wait(struct engine *e, struct task *t);

void order_publish(struct engine *e, struct task *t);

/* A Send or Recv is posted and may match; or it runs or has ended, and may not match any more. */
void order_offer(struct task *t);
void order_withdraw(struct task *t);
/* Returns the posted task that this one may match, or NULL; and applies the result once both are
 * posted. */
struct task *order_find_peer(struct engine *e, const struct task *t);

#endif
