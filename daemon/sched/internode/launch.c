/* SPDX-License-Identifier: Apache-2.0
 * Launches sets of tasks (set.h), on several nodes in the order of all nodes. */
#include "launch.h"

#include <utlist.h>

#include "node_match.h"
#include "sched/base/status.h"
#include "sched/queue/order.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"
#include "sequence.h"

/* Later tasks on its communicator must not overtake it, since they may need its result. */
static void hold(struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		sched->sets->visited[i]->comm->held = sched->sets->launch_round;
}

static bool any_held(const struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		if (sched->sets->visited[i]->comm->held == sched->sets->launch_round)
			return true;
	return false;
}

/* Tasks connected to it are no longer connected. */
static void part_visited(struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++) {
		struct task *t = sched->sets->visited[i];
		t->next_in_group = NULL;
		if (t->match)
			set_dissolve(sched, t->match);
	}
}

/* They can never be launched, and later launches would wait forever. */
static void refuse_visited(struct scheduler *sched, ncclsvc_result result)
{
	ncclsvc_status st = status_of(result);
	part_visited(sched);
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		release_end(sched, sched->sets->visited[i], &st);
}

static bool crosses(const struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		if (sched->sets->visited[i]->match->node_match)
			return true;
	return false;
}

static const struct transport *transport_of_visited(const struct scheduler *sched)
{
	return sched->sets->visited[0]->comm->transport;
}

static enum room reserve(struct scheduler *sched, bool promised)
{
	return transport_of_visited(sched)->reserve(sched, sched->sets->visited,
						    sched->sets->nvisited, promised);
}

static void launch_visited(struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		if (sched->sets->visited[i]->node_match)
			node_match_launched(sched, sched->sets->visited[i]->node_match);
	transport_of_visited(sched)->launch(sched, sched->sets->visited, sched->sets->nvisited);
	part_visited(sched);
}

/* Launches shared with other nodes, in the order that all nodes were told: no launch overtakes
 * another, or waits for a later one. The workers drain their queues. */
static void launch_ordered(struct scheduler *sched)
{
	struct set_match *m;
	while (sequence_next(sched, &m)) {
		sched->sets->pass = sched->sets->visit + 1;
		/* It was complete when it was requested. If it were not any more, the other nodes
		 * would launch it without this one, and its epochs end. */
		if (m && !set_collect(sched, m->tasks[0])) {
			sequence_give_up(sched, m->request);
			continue;
		}
		if (m ? reserve(sched, true) != ROOM_NOW : !sequence_launch_creation(sched)) {
			sched->sets->changed = true;
			return;
		}
		if (m)
			launch_visited(sched);
		sequence_launched(sched);
	}
}

/* Launches complete sets that may be launched now; checks the others again later. */
static void launch_or_wait(struct scheduler *sched)
{
	const enum room room = any_held(sched) ? ROOM_HELD : reserve(sched, false);
	if (room == ROOM_HELD) {
		hold(sched);
	} else if (crosses(sched)) {
		sequence_request(sched, room != ROOM_NEVER && room != ROOM_GONE);
	} else if (room == ROOM_NOW) {
		launch_visited(sched);
	} else if (room == ROOM_NEVER) {
		refuse_visited(sched, NCCLSVC_LIMIT);
	} else if (room == ROOM_GONE) {
		refuse_visited(sched, NCCLSVC_INVALID_ARGUMENT);
	} else {
		sched->sets->changed = true;
	}
}

/* Their requests were void, and the nodes that asked for their failure no longer ask. */
static void withdraw_asked(struct scheduler *sched)
{
	struct set_match *m, *next;
	DL_FOREACH_SAFE2 (sched->sets->looked_at, m, next, next_look)
		if (m->node_match && m->node_match->asked && !m->request)
			node_match_withdraw(sched, m->node_match);
}

void launch_sets(struct scheduler *sched)
{
	struct set_match *m, *next;
	sched->sets->changed = false;
	sched->sets->launch_round++;
	withdraw_asked(sched);
	launch_ordered(sched);
	sched->sets->pass = sched->sets->visit + 1;
	for (m = sched->sets->looked_at; m; m = next) {
		next = m->next_look;
		if (!m->request && m->comm->held == sched->sets->launch_round)
			continue;
		if (m->request || m->tasks[0]->visit >= sched->sets->pass ||
		    !set_collect(sched, m->tasks[0])) {
			set_look_no_more(sched, m);
			continue;
		}
		/* Other matches are launched with it. */
		while (next && next->tasks[0]->visit == sched->sets->visit)
			next = next->next_look;
		launch_or_wait(sched);
	}
	launch_ordered(sched); /* the sequencer may run in this scheduler */
}

/* In most rounds, no member is ready. */
void launch_run_ready(struct scheduler *sched)
{
	const uint64_t enough = sched->steps + STEP_ROUND;
	while (sched->ready && sched->steps < enough) {
		order_move_ready(sched, enough);
		if (sched->sets->changed && !sched->ready)
			launch_sets(sched);
	}
}
