/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of tasks that are launched as one, for transports that start a task group as one.
 *
 * A match waits until everything connected to it through task groups has matched, too, so that no
 * launched task waits on a GPU for one that has not come. Only tasks of one communicator are
 * connected: those of different ones run on streams of their own, and need not begin together. A
 * launched task leaves its member's queue, which continues at once; the transport keeps the order.
 */
#include "set.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "sched/base/task_state.h"
#include "sched/base/timeline.h"

bool set_init(struct scheduler *sched)
{
	sched->sets = calloc(1, sizeof(*sched->sets));
	if (sched->sets)
		sched->sets->visited =
			calloc(sched->config.tasks_max, sizeof(*sched->sets->visited));
	return sched->sets && sched->sets->visited;
}

/* ---- Matches ---- */

void set_look(struct scheduler *sched, struct set_match *m)
{
	sched->sets->changed = true;
	if (m->looked_at)
		return;
	m->looked_at = true;
	DL_APPEND2(sched->sets->looked_at, m, prev_look, next_look);
}

void set_look_no_more(struct scheduler *sched, struct set_match *m)
{
	if (!m->looked_at)
		return;
	m->looked_at = false;
	DL_DELETE2(sched->sets->looked_at, m, prev_look, next_look);
}

void set_remove(struct scheduler *sched, struct set_match *m)
{
	for (uint32_t i = 0; i < m->ntasks; i++)
		m->tasks[i]->match = NULL;
	set_look_no_more(sched, m);
	DL_DELETE(sched->sets->matched, m);
}

void set_dissolve(struct scheduler *sched, struct set_match *m)
{
	set_remove(sched, m);
	free(m);
}

enum begun set_add(struct scheduler *sched, const struct match *match)
{
	struct set_match *m = calloc(1, sizeof(*m) + match->ntasks * sizeof(m->tasks[0]));
	if (!m)
		return BEGUN_NO_MEMORY;
	m->comm = match->comm;
	m->order = ++sched->sets->nmatched;
	for (uint32_t i = 0; i < match->ntasks; i++) {
		struct task *t = match->tasks[i];
		if (!t)
			continue;
		m->tasks[m->ntasks++] = t;
		m->node_match = t->node_match;
		t->match = m;
		t->matched_ns = sched->now;
	}
	DL_APPEND(sched->sets->matched, m);
	set_look(sched, m);
	return BEGUN_RUNNING;
}

/* ---- Task groups ---- */

static void join(struct task *t, struct task *next)
{
	t->next_in_group = next;
	next->prev_in_group = t;
}

void set_link(struct task *first)
{
	struct task *t;
	DL_FOREACH (first, t) {
		struct comm *c = t->comm;
		if (!(c->transport->flags & TRANSPORT_GROUPS))
			continue;
		if (c->link_last)
			join(c->link_last, t);
		else
			c->link_first = t;
		c->link_last = t;
	}
	DL_FOREACH (first, t) {
		struct comm *c = t->comm;
		if (c->link_last != c->link_first)
			join(c->link_last, c->link_first);
		c->link_first = c->link_last = NULL;
	}
}

void set_leave(struct scheduler *sched, struct task *t)
{
	struct task *before = t->prev_in_group, *after = t->next_in_group;
	t->next_in_group = NULL;
	if (before == after)
		before->next_in_group = NULL;
	else
		join(before, after);
	/* The rest of the set may be complete without it. */
	if (before->match)
		set_look(sched, before->match);
}

/* ---- Sets launched together ---- */

/* False: t is in a set that this pass could not launch. */
static bool push(struct scheduler *sched, struct task *t)
{
	if (t->visit == sched->sets->visit)
		return true;
	if (t->visit >= sched->sets->pass)
		return false;
	t->visit = sched->sets->visit;
	sched->sets->visited[sched->sets->nvisited++] = t;
	return true;
}

bool set_collect(struct scheduler *sched, struct task *t)
{
	sched->sets->visit++;
	sched->sets->nvisited = 0;
	bool good = push(sched, t);
	for (uint32_t i = 0; good && i < sched->sets->nvisited; i++) {
		const struct task *at = sched->sets->visited[i];
		if (!at->match || at->comm->ended)
			good = false;
		else if (at->next_in_group)
			good = push(sched, at->next_in_group);
		for (uint32_t k = 0; good && k < at->match->ntasks; k++)
			good = push(sched, at->match->tasks[k]);
	}
	sched->steps += sched->sets->nvisited;
	return good;
}

/* Does a set that is complete have to wait, perhaps for long? */
static bool waits_for_nccl(const struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		if (sched->sets->visited[i]->comm->comm_slot == EPOCH_WITHOUT_NCCL)
			return true;
	return false;
}

bool set_may_fail(struct scheduler *sched, struct task *t)
{
	if (!t->match || t->in_flight || t->match->node_match)
		return false;
	sched->sets->pass = sched->sets->visit + 1;
	return !set_collect(sched, t) || waits_for_nccl(sched);
}

/* ---- Launching ---- */

void set_launched(struct scheduler *sched, struct task *t)
{
	struct member *m = t->member;
	DL_DELETE(m->queue, t);
	m->head_tasks--;
	DL_APPEND(m->in_flight, t);
	deadlines_remove(&sched->deadlines, &t->deadline);
	t->in_flight = true;
	t->started_ns = sched->now;
	if (t->record.timeline)
		timeline_flies(t);
	task_show(sched, t);
	if (m->queue)
		member_make_ready(sched, m);
}

void set_finish(struct scheduler *sched)
{
	struct set_match *m, *next;
	if (!sched->sets)
		return;
	DL_FOREACH_SAFE (sched->sets->matched, m, next)
		free(m);
	free(sched->sets->visited);
	free(sched->sets);
}
