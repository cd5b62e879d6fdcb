/* SPDX-License-Identifier: Apache-2.0
 * Tasks that are launched as one: what matched, and all that hangs together with it through task
 * groups. For transports with TRANSPORT_GROUPS. */
#ifndef SCHED_SET_H
#define SCHED_SET_H

#include "internode/internode_comm.h"
#include "order.h"
#include "transport.h"

/* Tasks that have matched, and are not launched yet. */
struct set_match {
	struct set_match *prev, *next;
	struct set_match *prev_look, *next_look;
	bool looked_at; /* by the next set_launch */
	struct comm *comm;
	struct node_match *node_match;	/* where, if with other nodes */
	struct launch_request *request; /* the sequencer knows; NULL: not yet, or it need not */
	uint64_t order;			/* of what has matched on this node */
	uint32_t ntasks;
	struct task *tasks[];
};

/* A transport's start: the tasks are launched when all that belongs to them has matched. Never
 * BEGUN_DONE. */
enum begun set_add(struct engine *e, const struct match *match);
/* first: a list of tasks that are one task group. Links those whose transport starts groups. */
void set_link(struct task *first);
/* t is in one: t->next_in_group. */
void set_leave(struct engine *e, struct task *t);
/* It has matched, but something of its group, or of its peers', has not: it may still fail, and all
 * that it matched with it. */
bool set_may_fail(struct engine *e, struct task *t);
void set_fail(struct engine *e, struct task *t, const ncclsvc_status *st);
/* It is launched no more: its tasks are the caller's to end. */
void set_dissolve(struct engine *e, struct set_match *m);
/* The task has matched, and is not launched: its member has left, or the epoch is over. It ends
 * with what it has matched; of what other nodes know, the communicator ends the tasks. False: other
 * nodes may launch it, which cannot be taken back because of one member. */
bool set_drop(struct engine *e, struct task *t, const ncclsvc_status *st);
/* It may have become possible to launch the match. */
void set_look(struct engine *e, struct set_match *m);
/* Launches what may be launched of the matches that are to be looked at: new ones, those that were
 * whole but had no room, and those that something has left which they hung together with. In as
 * many steps as there are tasks that hang together with these, each once. */
void set_launch(struct engine *e);
/* The engine ends. */
void set_finish(struct engine *e);
/* For transports, while they launch: the task goes from its member's queue to what is in flight. */
void set_launched(struct engine *e, struct task *t);

#endif
