/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler's own data. Everything here belongs to its thread.
 *
 *   base/       member.h: tasks, members and communicators; sched_session.h: trainers;
 *               tasks.c: memory of tasks; task_state.c: their turns and what inspection shows;
 *               pending.c: for the supervisor; timeline.c: the words that streams wait for;
 *               supervisor.c: queues to and from the supervisor; nodes.h: other nodes
 *   queue/      order.c: turns on a communicator; match.c: which tasks match;
 *               set.c: tasks launched as one; plan.c: tasks held until their group is whole;
 *               captured_groups.c: tasks started by a stream; release.h: how tasks end;
 *               complete.c: reports to clients
 *   internode/  communicators on several nodes: internode_comm.h; launch.c: sets are launched
 *   ./          loop.c: the thread, its rounds and its sleep; ingest.c: records -> tasks;
 *               commands.c: the supervisor's commands; scheduler.c: start and stop
 */
#ifndef SCHED_STATE_H
#define SCHED_STATE_H

#include <pthread.h>

#include "account/task_table.h"
#include "base/deadlines.h"
#include "base/pool.h"
#include "member.h"
#include "proto/spin.h"
#include "sched/api/scheduler.h"
#include "sched/api/transport.h"
#include "sched_session.h"

#define SCHEDULER_DEVICES 16

/* Long work is split by steps of about 10 ns; looking at one task is one step. */
#define STEP_RECORD 16	  /* taking a record in */
#define STEP_END    32	  /* ending a task */
#define STEP_SLICE  8192  /* of one member, session or command before others have their turn */
#define STEP_ROUND  16384 /* of all members before rings are polled again */

struct cancellation;
struct internode_state;
struct nodes_ops;
struct sequence;
struct sets;
struct unexpected_messages;
struct worker_queue;

/* A GPU, as its worker is reached. */
struct device {
	struct worker_queue *queue; /* NULL: none */
	int doorbell;
	uint32_t wanted;
	uint32_t captured_comms; /* communicators with operations in CUDA graphs */
	uint64_t head;		 /* what is written; the worker sees only the queue's own head */
	uint32_t generation;	 /* of its worker, if that only copies; 0: there is none */
	uint64_t copies[2];	 /* seq of the last copy in each slot */
};

struct scheduler {
	struct scheduler_config config;
	scheduler_notify_fn *notify;
	void *notify_arg;
	pthread_t thread;
	struct pool *pool;

	/* Shared with the supervisor's thread. */
	pthread_mutex_t lock;
	struct queued_command *commands;
	_Atomic uint64_t commands_queued; /* so far */
	struct queued_event *events;
	_Atomic bool asleep; /* the command eventfd must be written */
	int wake_fd;

	/* Private to the scheduler's thread. */
	int epoll_fd;
	uint64_t now;
	uint64_t steps;			   /* of work so far: see STEP_ */
	uint64_t commands_run;		   /* so far */
	uint64_t ends;			   /* of epochs, so far */
	struct cancellation *cancellation; /* commands.c */
	bool pinged;			   /* the supervisor waits for a reply */
	uint64_t ping_turns;		   /* ... which follows after this many turns of members */
	struct user *users;
	struct sched_session **sessions; /* by slot */
	struct comm **comms;		 /* by slot */
	struct sched_session *dirty;
	uint32_t nactive, cores;
	bool crowded;	   /* more pollers than cores, so they yield in every round */
	uint32_t ready;	   /* members */
	uint64_t turns;	   /* turns of members so far */
	struct user *turn; /* the user of the last turn */
	struct sched_session *captured_sessions; /* sessions with captured groups */
	uint64_t captured_ns;			 /* when one of them last started a task */
	struct task *inputs;
	uint32_t ninputs, inputs_due; /* due: not checked since a session went to sleep */
	struct deadlines deadlines;
	struct task_table table;
	struct task *tasks;	 /* [table.size] */
	struct task *free;	 /* a stack, linked by `next` */
	uint32_t fresh;		 /* tasks from here on were never used */
	struct task **published; /* buckets by the low bits of uid, one per value of the mask */
	uint32_t published_mask;
	struct task **decided; /* decision.c: as many buckets */
	struct sched_session *leaving;
	uint64_t uids;
	uint64_t live; /* tasks whose client has not been told their end */
	uint32_t groups;
	uint32_t jobs;			   /* in the pool */
	uint32_t polled;		   /* bitmap of transports with work in progress */
	void *transport_state[TRANSPORTS]; /* by transport; NULL: it has no state */
	struct spin spin;
	uint64_t round_ns;				/* when the current round began */
	uint64_t busy_ns;				/* when there was last work */
	uint64_t looked_ns;				/* when the doorbells were last checked */
	bool draining, quiet, finishing, drained, stop; /* in this order */
	uint64_t drain_ns;				/* since when it is draining */
	struct device devices[SCHEDULER_DEVICES];
	uint32_t gpu_inputs; /* tasks waiting for a word that a GPU writes: their timelines */
	uint64_t inputs_ns;  /* when inputs of launched tasks were last checked */
	struct sets *sets;   /* queue/set.h */
	/* Other nodes: */
	const struct nodes_ops *nodes;		/* nodes.h */
	struct internode_state *internode;	/* internode/internode_comm.h */
	struct sequence *sequence;		/* internode/sequence.c */
	struct unexpected_messages *unexpected; /* internode/unexpected.c */

	uint32_t nunpublished;
	/* They may end before anybody could look, and their slots be reused. */
	struct {
		struct task *task;
		uint64_t uid;
	} unpublished[256];
};

/* loop.c; the eventfd's number in epoll's data, where other numbers are sessions' slots */
#define SCHEDULER_WAKES UINT64_MAX
/* The thread; runs until COMMAND_STOP. Returns NULL. */
void *scheduler_main(void *arg);
/* For tests, without the thread: does the work there is to do now. */
void scheduler_settle(struct scheduler *sched);

#endif
