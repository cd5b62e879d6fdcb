/* SPDX-License-Identifier: Apache-2.0
 * The end of one task, and of the tasks that end with it: release.h. */
#include <stdlib.h>
#include <utlist.h>

#include "complete.h"
#include "plan_slots.h"
#include "release.h"
#include "sched/base/nodes.h"
#include "sched/base/task_state.h"
#include "sched/base/tasks.h"
#include "set.h"

/* Cleanup that simple tasks do not need. */
static void leave_all(struct scheduler *sched, struct task *t)
{
	struct member *m = member_of(t);
	if (t->next_in_group)
		set_leave(sched, t);
	if (t->waits_input)
		task_stop_input_wait(sched, t);
	if (m->collective == t)
		m->collective = NULL;
	if (t->record.plan)
		plan_task_ended(t);
}

/* The task has ended and its client knows; frees it. */
static void retire(struct scheduler *sched, struct task *t)
{
	struct member *m = member_of(t);
	struct comm *c = t->comm;
	if (!t->tombstone || t->in_flight)
		task_pin(t, -1);
	if (!t->simple)
		leave_all(sched, t);
	decision_forget(sched, t);
	task_withdraw(t);
	if (t->stage == POSTED)
		m->posted--;
	if (t->stage == RUNNING) {
		m->running--;
		c->running--;
	}
	if (t->stage == AT_HEAD)
		task_skip_unposted(t);
	if (t->stage >= AT_HEAD && !t->in_flight)
		m->head_tasks--;
	deadlines_remove(&sched->deadlines, &t->deadline);
	if (t->in_flight)
		DL_DELETE(m->in_flight, t);
	else if (t->stage != IN_PLAN)
		DL_DELETE(m->queue, t);
	c->pending--;
	atomic_store_explicit(&m->progress->completed, ++m->completed, memory_order_relaxed);
	member_update_blocked(m);
	/* An empty head makes room for the next; a group's next collective may now be posted; and
	 * perhaps no member can continue. */
	if (!m->queue)
		atomic_store_explicit(&m->progress->head_ns, 0, memory_order_relaxed);
	else if (!c->ended &&
		 (!m->head_tasks || !svc_op_is_p2p(t->record.op) || c->blocked == c->nranks))
		member_make_ready(sched, m);
	task_free(sched, t);
}

void release_early(struct scheduler *sched, struct task *t, const ncclsvc_status *st)
{
	if (t->tombstone)
		return;
	const ncclsvc_status *decided = decision_of(sched, t);
	t->tombstone = true;
	t->end = decided ? *decided : *st;
	decision_keep(sched, t);
	t->end.done_ns = sched->now;
	complete_task(sched, t, &t->end);
	if (!t->in_flight)
		task_pin(t, -1);
	if (t->next_in_group)
		set_leave(sched, t);
	if (t->waits_input) {
		task_stop_input_wait(sched, t);
		member_make_ready(sched, member_of(t));
	}
	deadlines_remove(&sched->deadlines, &t->deadline);
	task_show(sched, t);
}

void release_end(struct scheduler *sched, struct task *t, const ncclsvc_status *st)
{
	if (!t->tombstone)
		complete_task(sched, t, st);
	retire(sched, t);
}

void release_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *st)
{
	const ncclsvc_status *decided = decision_current(sched, c);
	c->poison = decided ? *decided : *st;
	c->poisoned = true;
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->collective[k])
			release_early(sched, c->collective[k], &c->poison);
}

static void fail_set(struct scheduler *sched, struct task *t, const ncclsvc_status *st)
{
	struct set_match *m = t->match;
	sched->steps += m->ntasks * STEP_END;
	set_remove(sched, m);
	for (uint32_t i = 0; i < m->ntasks; i++)
		release_end(sched, m->tasks[i], st);
	free(m);
}

void release_fail(struct scheduler *sched, struct task *t, const ncclsvc_status *why)
{
	struct comm *c = t->comm;
	const ncclsvc_status *decided = decision_of(sched, t), *st = decided ? decided : why;
	if (t->node_match)
		sched->nodes->ask(sched, t, st);
	if (set_may_fail(sched, t)) {
		fail_set(sched, t, st);
		return;
	}
	if (t->stage == RUNNING || t->tombstone)
		return;
	if (c->collective[t->rank] == t) {
		if (c->poisoned || !nodes_fail_collective(sched, c, st))
			release_collective(sched, c, st);
		return;
	}
	release_early(sched, t, st);
}

bool release_set(struct scheduler *sched, struct task *t, const ncclsvc_status *st)
{
	struct set_match *m = t->match;
	if (m->node_match && !m->comm->ended)
		return false;
	if (m->request)
		sched->nodes->drop_request(sched, m);
	if (m->node_match)
		set_dissolve(sched, m);
	else
		fail_set(sched, t, st);
	return true;
}
