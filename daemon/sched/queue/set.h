/* SPDX-License-Identifier: Apache-2.0
 * Sets of tasks that are launched as one: a match, and all matches of its communicator that are
 * connected to it through task groups. For transports with TRANSPORT_GROUPS. */
#ifndef SCHED_SET_H
#define SCHED_SET_H

#include "sched/base/state.h"

/* Tasks that have matched and are not launched yet. */
struct set_match {
	struct set_match *prev, *next;
	struct set_match *prev_look, *next_look;
	bool looked_at; /* by the next launch_sets */
	struct comm *comm;
	struct node_match *node_match;	/* the match across nodes, if any */
	struct launch_request *request; /* known to the sequencer; NULL: not yet, or not needed */
	uint64_t order;			/* of the match on this node */
	uint32_t ntasks;
	struct task *tasks[];
};

struct sets {
	struct set_match *matched;   /* in match order */
	struct set_match *looked_at; /* to be checked by launch_sets: linked by next_look */
	uint64_t nmatched;	     /* matches so far, which gives their order */
	bool changed;		     /* a launch may have become possible */
	uint64_t launch_round;
	uint64_t visit, pass; /* the pass's first visit */
	/* The tasks that set_collect has collected. */
	struct task **visited; /* [tasks_max] */
	uint32_t nvisited;
};

/* False: out of memory; set_finish frees. */
bool set_init(struct scheduler *sched);
/* A transport's start: the tasks are launched when everything connected to them has matched. Never
 * BEGUN_DONE. */
enum begun set_add(struct scheduler *sched, const struct match *match);
/* first: a list of tasks, which are one task group. Links those of each communicator whose
 * transport launches groups. */
void set_link(struct task *first);
/* Is t in a group (t->next_in_group)? */
void set_leave(struct scheduler *sched, struct task *t);
/* t has matched, but part of its group or of its peers' groups has not: it may still fail, with
 * everything that it matched. */
bool set_may_fail(struct scheduler *sched, struct task *t);
/* The match is no longer to be launched; the caller ends its tasks, and frees it. */
void set_remove(struct scheduler *sched, struct set_match *m);
/* Likewise, and frees it. */
void set_dissolve(struct scheduler *sched, struct set_match *m);
/* The match may have become ready to launch. */
void set_look(struct scheduler *sched, struct set_match *m);
/* The match is not checked again until it, or one that it depends on, changes. */
void set_look_no_more(struct scheduler *sched, struct set_match *m);
/* Collects everything that must be launched with t in e->visited. False: part of it has not
 * matched.
 */
bool set_collect(struct scheduler *sched, struct task *t);
/* The scheduler ends. */
void set_finish(struct scheduler *sched);
/* For transports, while they launch: moves the task from its member's queue to its tasks in flight.
 */
void set_launched(struct scheduler *sched, struct task *t);

#endif
