/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files that order tasks: order.c, task_state.c and match.c; and release.h. */
#ifndef ENGINE_ORDER_H
#define ENGINE_ORDER_H

#include "coord/mismatch.h"
#include "names.h"
#include "release.h"
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

/* ---- order.c ---- */

/* Counts the task for its member from now on. */
void order_admit(struct engine *e, struct task *t);
/* Appends the task to its member's queue. */
void order_append(struct engine *e, struct task *t);
void order_enqueue(struct engine *e, struct task *first, uint32_t n);
void order_publish(struct engine *e, struct task *t);
void order_move_ready(struct engine *e);
/* In most rounds, none is. Some may be left for the next round. */
static inline void order_run_ready(struct engine *e)
{
	if (e->ready)
		order_move_ready(e);
}
/* Visits some of them, in turn. */
void order_check_inputs(struct engine *e);
void order_free_comm(struct engine *e, struct comm *c);

/* ---- fast_path.c ---- */

/* Can a group of n simple tasks of this single member be posted at once? Otherwise order_enqueue.
 */
bool fast_path_may(const struct task *first, uint32_t n);
void fast_path_post(struct engine *e, struct task *first, uint32_t n);

/* ---- task_state.c ---- */

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
void order_name_ranks(const struct comm *c, ncclsvc_status *st, int32_t a, int32_t b);
/* Fills in PEER_GONE, because of this rank. */
ncclsvc_status order_gone_status(const struct comm *c, int32_t rank);

/* ---- match.c ---- */

/* Does this task say that its member refuses the other members' operation? */
ncclsvc_status order_refused_status(const struct task *t);
/* The records of these tasks, by rank; NULL: the member has not posted one. */
void order_collect_records(const struct comm *c, struct task *const *tasks, struct mismatch *m);
/* As mismatch_status, with pids. */
bool order_mismatch_status(const struct comm *c, const struct mismatch *m, ncclsvc_status *st);
void order_post_collective(struct engine *e, struct task *t);
void order_post_p2p(struct engine *e, struct task *t);
/* A posted task runs; its transport owns it. */
void order_set_running(struct task *t);
/* A Send or Recv is posted and may match; or it runs or has ended, and may not match any more. */
void order_offer(struct task *t);
void order_withdraw(struct task *t);
/* Returns the posted task that this one may match, or NULL; and applies the result once both are
 * posted. */
struct task *order_find_peer(struct engine *e, const struct task *t);
void order_match_pair(struct engine *e, struct task *t, struct task *u);
/* Ends the current collective on every member that has posted it. */
void order_end_collective(struct engine *e, struct comm *c, const ncclsvc_status *how);

#endif
