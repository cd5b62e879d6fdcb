/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between the supervisor, which knows sessions, users and communicators, and the
 * scheduler, a thread of this process that runs their tasks. The supervisor sends commands, and the
 * scheduler reports events; a command owns the memory it points to until the matching event, or as
 * noted.
 *
 * The supervisor names sessions and communicators by slot: small integers that it reuses only after
 * the scheduler's GONE event for them. So a command never sees a stale pointer.
 */
#ifndef SCHED_SCHEDULER_H
#define SCHED_SCHEDULER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "command.h"
#include "event.h"
#include "proto/abi/peer_staging.h"
#include "proto/ring.h"

struct carrier;
struct scheduler;
struct task_table;
struct transport;

/* One member's progress in the current epoch. The scheduler writes it; inspection reads it. */
struct member_progress {
	_Atomic uint64_t submitted, completed;
	_Atomic uint64_t
		collectives;	  /* collectives whose turn has come at this member; for a member of
				     another node, those that its node was ready for */
	_Atomic uint64_t head_ns; /* when the task whose turn it is arrived; 0: none */
};

/* The pending tasks (other than kernels) of a member of a communicator whose members' kernels
 * communicate directly: the first of each kind, as its slot in the task table + 1; 0: none. The
 * scheduler writes and the supervisor reads; by then, the slot may hold another task. */
enum pending_kind {
	PENDING_COLLECTIVE_QUEUED, /* or failed, but still to be matched */
	PENDING_COLLECTIVE_WAITS,  /* for other members to submit it */
	PENDING_COLLECTIVE_LAUNCHED,
	PENDING_MESSAGE_WAITS, /* a Send or Recv, by its direction (PEER_DIR_) */
	PENDING_KINDS_EACH = PENDING_MESSAGE_WAITS + PEER_DIRS,
};

/* Added to a kind. No kind is 0. */
#define PENDING_IN_NO_GRAPH 1
#define PENDING_IN_GRAPH    (PENDING_IN_NO_GRAPH + PENDING_KINDS_EACH)
#define PENDING_KINDS	    (PENDING_IN_GRAPH + PENDING_KINDS_EACH)

struct member_pending {
	_Atomic uint32_t first[PENDING_KINDS];
};

/* The result in COMMAND_EPOCH_END's status if the epoch is suspended: its tasks that have not run
 * are held (sched/base/held.h). */
#define EPOCH_SUSPENDED 100

struct scheduler_config {
	unsigned threads;	 /* that move data, including the scheduler's own; >= 1 */
	uint32_t tasks_max;	 /* alive at once */
	uint32_t user_tasks_max; /* per user */
	int spin_us; /* how long to poll after the last record before sleeping; -1: choose */
	uint32_t sessions_max, comms_max;
	const struct carrier *carrier; /* NULL: one node */
	uint32_t node, nodes;
	const struct transport *const *transports; /* [TRANSPORTS] */
};

/* Called by the scheduler's thread whenever scheduler_next_event has something. */
typedef void scheduler_notify_fn(void *arg);

/* The supervisor's thread alone calls these functions, except scheduler_table. */

/* Address space that scheduler_create uses, including stacks. */
uint64_t scheduler_bytes(const struct scheduler_config *config);
/* Returns NULL with errno set. */
struct scheduler *scheduler_create(const struct scheduler_config *config,
				   scheduler_notify_fn *notify, void *arg);
/* Stops it and frees everything. */
void scheduler_destroy(struct scheduler *sched);
void scheduler_command(struct scheduler *sched, const struct command *c);
bool scheduler_next_event(struct scheduler *sched, struct event *event);
/* Queued tasks, readable at any time from any thread. */
const struct task_table *scheduler_table(const struct scheduler *sched);
/* How many threads move data. */
unsigned scheduler_threads(const struct scheduler *sched);

#endif
