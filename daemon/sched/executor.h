/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between the supervisor, which knows sessions, users and communicators, and an
 * executor, which runs their tasks: the host engine (a thread of this process), and one worker
 * process per GPU. Both take the same commands and report the same events; a command owns the
 * memory it points to until the executor's matching event, or as noted.
 *
 * The supervisor names sessions and communicators by slot: small integers that it reuses only after
 * the executor's GONE event for them. So a command never sees a stale pointer.
 */
#ifndef SCHED_EXECUTOR_H
#define SCHED_EXECUTOR_H

#include <stdatomic.h>
#include <stdint.h>

#include "abi/peer_staging.h"
#include "command.h"
#include "event.h"
#include "ring.h"

struct task_table;

/* One member's progress in the current epoch. The executor writes it; inspection reads it. */
struct member_progress {
	_Atomic uint64_t submitted, completed;
	_Atomic uint64_t
		collectives;	  /* collectives whose turn has come at this member; for a member of
				     another node, those that its node was ready for */
	_Atomic uint64_t head_ns; /* when the task whose turn it is arrived; 0: none */
};

/* The pending tasks (other than kernels) of a member of a communicator whose members' kernels
 * communicate directly: the first of each kind, as its slot in the task table + 1; 0: none. The
 * executor writes and the supervisor reads; by then, the slot may hold another task. */
enum pending_kind {
	PENDING_COLLECTIVE_QUEUED, /* or failed, but still to be matched */
	PENDING_COLLECTIVE_WAITS,  /* for other members to submit it */
	PENDING_COLLECTIVE_LAUNCHED,
	PENDING_MESSAGE_WAITS, /* a Send or Recv, by its direction (PEER_DIR_) */
	PENDING_KINDS_OF_PLACE = PENDING_MESSAGE_WAITS + PEER_DIRS,
};

/* Added to a kind. No kind is 0. */
#define PENDING_IN_NO_GRAPH 1
#define PENDING_IN_GRAPH    (PENDING_IN_NO_GRAPH + PENDING_KINDS_OF_PLACE)
#define PENDING_KINDS	    (PENDING_IN_GRAPH + PENDING_KINDS_OF_PLACE)

struct member_pending {
	_Atomic uint32_t first[PENDING_KINDS];
};

/* An executor. command and next_event are called by the supervisor's thread alone; notify (given at
 * creation) is called by the executor's, whenever next_event has something. */
struct executor {
	void (*command)(struct executor *x, const struct command *c);
	bool (*next_event)(struct executor *x, struct event *e);
	/* Queued tasks, readable at any time from any thread. */
	const struct task_table *(*table)(const struct executor *x);
	/* Stops it and frees everything; commands are no longer allowed. */
	void (*destroy)(struct executor *x);
	unsigned threads;
};

static inline void executor_command(struct executor *x, const struct command *c)
{
	x->command(x, c);
}

typedef void executor_notify(void *arg);

#endif
