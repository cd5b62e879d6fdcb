/* SPDX-License-Identifier: Apache-2.0
 * Sets of tasks that are launched as one: a match, and all matches connected to it through task
 * groups. For transports with TRANSPORT_GROUPS. */
#ifndef SCHED_SET_H
#define SCHED_SET_H

#include "internode/internode_comm.h"
#include "order.h"
#include "transport.h"

/* Tasks that have matched and are not launched yet. */
struct set_match {
	struct set_match *prev, *next;
	struct set_match *prev_look, *next_look;
	bool looked_at; /* by the next set_launch */
	struct comm *comm;
	struct node_match *node_match;	/* the match across nodes, if any */
	struct launch_request *request; /* known to the sequencer; NULL: not yet, or not needed */
	uint64_t order;			/* of the match on this node */
	uint32_t ntasks;
	struct task *tasks[];
};

/* A transport's start: the tasks are launched when everything connected to them has matched. Never
 * BEGUN_DONE. */
enum begun set_add(struct engine *e, const struct match *match);
/* first: a list of tasks, which are one task group. Links those whose transport launches groups. */
void set_link(struct task *first);
/* Is t in a group (t->next_in_group)? */
void set_leave(struct engine *e, struct task *t);
/* t has matched, but part of its group or of its peers' groups has not: it may still fail, with
 * everything that it matched. */
bool set_may_fail(struct engine *e, struct task *t);
void set_fail(struct engine *e, struct task *t, const ncclsvc_status *st);
/* It is no longer to be launched; the caller ends its tasks. */
void set_dissolve(struct engine *e, struct set_match *m);
/* A matched task that is not launched: its member has left, or the epoch has ended. Ends it and the
 * tasks it matched; for operations known to other nodes, the communicator ends the tasks. False:
 * other nodes may launch it, which one member cannot take back. */
bool set_drop(struct engine *e, struct task *t, const ncclsvc_status *st);
/* The match may have become ready to launch. */
void set_look(struct engine *e, struct set_match *m);
/* Launches those matches to be checked that can be launched: new ones, complete ones that had no
 * room, and those that lost a connected match. Takes as many steps as there are tasks connected to
 * them, visiting each once. */
void set_launch(struct engine *e);
/* The engine ends. */
void set_finish(struct engine *e);
/* For transports, while they launch: moves the task from its member's queue to its tasks in flight.
 */
void set_launched(struct engine *e, struct task *t);

#endif
