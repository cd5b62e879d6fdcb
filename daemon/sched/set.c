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

#include "complete.h"
#include "internode/node_match.h"
#include "internode/sequence.h"
#include "streams/timeline.h"

/* ---- Matches ---- */

void set_look(struct engine *e, struct set_match *m)
{
	e->matched_new = true;
	if (m->looked_at)
		return;
	m->looked_at = true;
	DL_APPEND2(e->looked_at, m, prev_look, next_look);
}

/* The set is not checked again until it, or one that it depends on, changes. */
static void look_no_more(struct engine *e, struct set_match *m)
{
	if (!m->looked_at)
		return;
	m->looked_at = false;
	DL_DELETE2(e->looked_at, m, prev_look, next_look);
}

static void forget_match(struct engine *e, struct set_match *m)
{
	for (uint32_t i = 0; i < m->ntasks; i++)
		m->tasks[i]->match = NULL;
	look_no_more(e, m);
	DL_DELETE(e->matched, m);
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

/* Collects everything that must be launched with t. False: part of it has not matched. */
static bool collect(struct engine *e, struct task *t)
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
	return !collect(e, t);
}

/* Later tasks on its communicator must not overtake it, since they may need its result. */
static void hold(struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++)
		e->visited[i]->comm->held = e->launch_round;
}

static bool any_held(const struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++)
		if (e->visited[i]->comm->held == e->launch_round)
			return true;
	return false;
}

void set_dissolve(struct engine *e, struct set_match *m)
{
	forget_match(e, m);
}

void set_fail(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	struct set_match *m = t->match;
	DL_DELETE(e->matched, m);
	look_no_more(e, m);
	e->steps += m->ntasks * STEP_END;
	for (uint32_t i = 0; i < m->ntasks; i++) {
		m->tasks[i]->match = NULL;
		release_end(e, m->tasks[i], st);
	}
	free(m);
}

/* Without it, no part of the request is launched. */
static void drop_request(struct engine *e, const struct set_match *m)
{
	if (m->request && m->node_match && sequence_was_closed(m->comm))
		sequence_void(e, m->request);
	else if (m->request)
		sequence_give_up(e, m->request);
}

bool set_drop(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	struct set_match *m = t->match;
	if (m->node_match && !m->comm->ended)
		return false;
	drop_request(e, m);
	if (m->node_match)
		forget_match(e, m);
	else
		set_fail(e, t, st);
	return true;
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

/* Tasks connected to it are no longer connected. */
static void part_visited(struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++) {
		struct task *t = e->visited[i];
		t->next_in_group = NULL;
		if (t->match)
			forget_match(e, t->match);
	}
}

/* No queue could ever hold them, and later launches would wait forever. */
static void refuse_visited(struct engine *e)
{
	ncclsvc_status st = status_of(NCCLSVC_LIMIT);
	part_visited(e);
	for (uint32_t i = 0; i < e->nvisited; i++)
		release_end(e, e->visited[i], &st);
}

static bool crosses(const struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++)
		if (e->visited[i]->match->node_match)
			return true;
	return false;
}

static const struct transport *transport_of_visited(const struct engine *e)
{
	return e->visited[0]->comm->transport;
}

static enum room reserve(struct engine *e, bool promised)
{
	return transport_of_visited(e)->reserve(e, e->visited, e->nvisited, promised);
}

static void launch_visited(struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++)
		if (e->visited[i]->node_match)
			node_match_launched(e, e->visited[i]->node_match);
	transport_of_visited(e)->launch(e, e->visited, e->nvisited);
	part_visited(e);
}

/* Launches shared with other nodes, in the order that all nodes were told: no launch overtakes
 * another, or waits for a later one. The workers drain their queues. */
static void launch_ordered(struct engine *e)
{
	struct set_match *m;
	while (sequence_next(e, &m)) {
		e->pass = e->visit + 1;
		/* It was complete when it was requested. If it were not any more, the other nodes
		 * would launch it without this one, and its epochs end. */
		if (m && !collect(e, m->tasks[0])) {
			sequence_give_up(e, m->request);
			continue;
		}
		if (m ? reserve(e, true) != ROOM_NOW : !sequence_launch_creation(e)) {
			e->matched_new = true;
			return;
		}
		if (m)
			launch_visited(e);
		sequence_launched(e);
	}
}

/* Launches complete sets that may be launched now; checks the others again later. */
static void launch_or_wait(struct engine *e)
{
	const enum room room = any_held(e) ? ROOM_HELD : reserve(e, false);
	if (room == ROOM_HELD) {
		hold(e);
	} else if (crosses(e)) {
		sequence_request(e, room != ROOM_NEVER);
	} else if (room == ROOM_NOW) {
		launch_visited(e);
	} else if (room == ROOM_NEVER) {
		refuse_visited(e);
	} else {
		e->matched_new = true;
	}
}

/* Their requests were void, and the nodes that asked for their failure no longer ask. */
static void withdraw_asked(struct engine *e)
{
	struct set_match *m, *next;
	DL_FOREACH_SAFE2 (e->looked_at, m, next, next_look)
		if (m->node_match && m->node_match->asked && !m->request)
			node_match_withdraw(e, m->node_match);
}

void set_launch(struct engine *e)
{
	struct set_match *m, *next;
	e->matched_new = false;
	e->launch_round++;
	withdraw_asked(e);
	launch_ordered(e);
	e->pass = e->visit + 1;
	for (m = e->looked_at; m; m = next) {
		next = m->next_look;
		if (!m->request && m->comm->held == e->launch_round)
			continue;
		if (m->request || m->tasks[0]->visit >= e->pass || !collect(e, m->tasks[0])) {
			look_no_more(e, m);
			continue;
		}
		/* Other matches are launched with it. */
		while (next && next->tasks[0]->visit == e->visit)
			next = next->next_look;
		launch_or_wait(e);
	}
	launch_ordered(e); /* the sequencer may run in this engine */
}

void set_finish(struct engine *e)
{
	struct set_match *m, *next;
	DL_FOREACH_SAFE (e->matched, m, next)
		free(m);
}
