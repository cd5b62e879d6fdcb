/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of tasks that are launched as one, for transports that start a task group as one.
 *
 * A match waits until everything connected to it through task groups has matched, too, so that no
 * launched task waits on a GPU for one that has not come. A launched task leaves its member's
 * queue, which continues at once; the transport keeps the order.
 */
#include "set.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "sched/base/task_state.h"
#include "sched/base/timeline.h"

/* ---- Matches ---- */

void set_look(struct engine *e, struct set_match *m)
{
	e->matched_new = true;
	if (m->looked_at)
		return;
	m->looked_at = true;
	DL_APPEND2(e->looked_at, m, prev_look, next_look);
}

void set_look_no_more(struct engine *e, struct set_match *m)
{
	if (!m->looked_at)
		return;
	m->looked_at = false;
	DL_DELETE2(e->looked_at, m, prev_look, next_look);
}

void set_remove(struct engine *e, struct set_match *m)
{
	for (uint32_t i = 0; i < m->ntasks; i++)
		m->tasks[i]->match = NULL;
	set_look_no_more(e, m);
	DL_DELETE(e->matched, m);
}

void set_dissolve(struct engine *e, struct set_match *m)
{
	set_remove(e, m);
	free(m);
}

enum begun set_add(struct engine *e, const struct match *match)
{
	struct set_match *m = calloc(1, sizeof(*m) + match->ntasks * sizeof(m->tasks[0]));
	if (!m)
		return BEGUN_NO_MEMORY;
	m->comm = match->comm;
	m->order = ++e->nmatched;
	for (uint32_t i = 0; i < match->ntasks; i++) {
		struct task *t = match->tasks[i];
		if (!t)
			continue;
		m->tasks[m->ntasks++] = t;
		m->node_match = t->node_match;
		t->match = m;
		t->matched_ns = e->now;
	}
	DL_APPEND(e->matched, m);
	set_look(e, m);
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
	struct task *t, *begin = NULL, *last = NULL;
	DL_FOREACH (first, t) {
		if (!(t->comm->transport->flags & TRANSPORT_GROUPS))
			continue;
		if (last)
			join(last, t);
		else
			begin = t;
		last = t;
	}
	if (last != begin)
		join(last, begin);
}

void set_leave(struct engine *e, struct task *t)
{
	struct task *before = t->prev_in_group, *after = t->next_in_group;
	t->next_in_group = NULL;
	if (before == after)
		before->next_in_group = NULL;
	else
		join(before, after);
	/* The rest of the set may be complete without it. */
	if (before->match)
		set_look(e, before->match);
}

/* ---- Sets launched together ---- */

/* False: t is in a set that this pass could not launch. */
static bool push(struct engine *e, struct task *t)
{
	if (t->visit == e->visit)
		return true;
	if (t->visit >= e->pass)
		return false;
	t->visit = e->visit;
	e->visited[e->nvisited++] = t;
	return true;
}

bool set_collect(struct engine *e, struct task *t)
{
	e->visit++;
	e->nvisited = 0;
	bool good = push(e, t);
	for (uint32_t i = 0; good && i < e->nvisited; i++) {
		const struct task *at = e->visited[i];
		if (!at->match || at->comm->ended)
			good = false;
		else if (at->next_in_group)
			good = push(e, at->next_in_group);
		for (uint32_t k = 0; good && k < at->match->ntasks; k++)
			good = push(e, at->match->tasks[k]);
	}
	e->steps += e->nvisited;
	return good;
}

bool set_may_fail(struct engine *e, struct task *t)
{
	if (!t->match || t->in_flight || t->match->node_match)
		return false;
	e->pass = e->visit + 1;
	return !set_collect(e, t);
}

/* ---- Launching ---- */

void set_launched(struct engine *e, struct task *t)
{
	struct member *m = t->member;
	DL_DELETE(m->queue, t);
	m->head_tasks--;
	DL_APPEND(m->in_flight, t);
	deadlines_remove(&e->deadlines, &t->deadline);
	t->in_flight = true;
	t->started_ns = e->now;
	if (t->record.timeline)
		timeline_flies(t);
	order_show_state(e, t);
	if (m->queue)
		order_make_ready(e, m);
}

void set_finish(struct engine *e)
{
	struct set_match *m, *next;
	DL_FOREACH_SAFE (e->matched, m, next)
		free(m);
}
