/* SPDX-License-Identifier: Apache-2.0
 * Launches sets of tasks (set.h), on several nodes in the sequencer's order. */
#include "launch.h"

#include <utlist.h>

#include "node_match.h"
#include "sched/base/status.h"
#include "sched/queue/order.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"
#include "sequence.h"

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

/* Tasks connected to it are no longer connected. */
static void part_visited(struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++) {
		struct task *t = e->visited[i];
		t->next_in_group = NULL;
		if (t->match)
			set_dissolve(e, t->match);
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
		if (m && !set_collect(e, m->tasks[0])) {
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

void launch_sets(struct engine *e)
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
		if (m->request || m->tasks[0]->visit >= e->pass || !set_collect(e, m->tasks[0])) {
			set_look_no_more(e, m);
			continue;
		}
		/* Other matches are launched with it. */
		while (next && next->tasks[0]->visit == e->visit)
			next = next->next_look;
		launch_or_wait(e);
	}
	launch_ordered(e); /* the sequencer may run in this engine */
}

/* In most rounds, no member is ready. */
void launch_run_ready(struct engine *e)
{
	const uint64_t enough = e->steps + STEP_ROUND;
	while (e->ready && e->steps < enough) {
		order_move_ready(e, enough);
		if (e->matched_new && !e->ready)
			launch_sets(e);
	}
}
