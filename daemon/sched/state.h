/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler's own data. Everything here belongs to its thread.
 *
 *   member.h    tasks, members and communicators; session.h: trainers
 *   loop.c      the thread, its rounds and its sleep; commands.c: what the supervisor asks
 *   engine.c    beginning and end, queues to and from the supervisor, the memory of tasks
 *   ingest.c    ring and socket records -> tasks; streams/trigger.c: when a
 *               stream says so
 *   order.c     whose turn it is on a communicator; match.c: which tasks match; release.h: those
 *               that fail; task_state.c: what these share; fast_path.c: past the queue
 *   plan.c      planned tasks, held until their group is whole
 *   pending.c   what members have pending, for the supervisor to look at
 *   set.c       what is launched as one, for transports that do so
 *   transport.h what moves the bytes
 *   complete.c  telling the clients; streams/timeline.c: what their
 *               streams wait for
 *   internode/  communicators on several nodes: internode_comm.h
 */
#ifndef SCHED_STATE_H
#define SCHED_STATE_H

#include <pthread.h>

#include "account/task_table.h"
#include "base/deadlines.h"
#include "base/pool.h"
#include "engine.h"
#include "member.h"
#include "session.h"
#include "spin.h"
#include "transport.h"

#define ENGINE_DEVICES 16

/* Long work is cut by steps, of some 10 ns each: looking at one task is one. */
#define STEP_RECORD 16	  /* taking a record in */
#define STEP_END    32	  /* ending a task */
#define STEP_SLICE  8192  /* of one member, session or command before others have their turn */
#define STEP_ROUND  16384 /* of all members before rings are polled again */

struct announced;
struct unexpected;
struct giver;
struct grant;
struct launch_request;
struct message;
struct sequencer;
struct worker_queue;

/* A GPU, as its worker is reached. */
struct device {
	struct worker_queue *queue; /* NULL: none */
	int doorbell;
	uint32_t wanted;
	uint32_t triggering; /* communicators with operations in CUDA graphs */
	uint64_t head;	     /* of what is written; the queue's own is what the worker may see */
	uint32_t generation; /* of its worker, if that only copies; 0: there is none */
	uint64_t copies[2];  /* seq of each slot's last */
};

/* How far the cancellation under way has come. */
struct cancelling {
	bool found, forbidden;
	uint64_t count;	   /* of tasks */
	uint32_t rank;	   /* whose tasks are looked at */
	uint32_t slot;	   /* of its plan, the next */
	struct task *last; /* of its queue; NULL: none yet */
	uint64_t last_uid;
};

struct engine {
	struct executor executor;
	struct engine_config config;
	executor_notify *notify;
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

	/* The engine thread's. */
	int epoll_fd;
	uint64_t now;
	uint64_t steps;	       /* of work so far: see STEP_ */
	uint64_t commands_run; /* so far */
	uint64_t ends;	       /* of epochs, so far */
	struct cancelling cancelling;
	bool pinged;	     /* the supervisor waits for a sign of life */
	uint64_t ping_turns; /* ... and is answered after as many turns of members */
	struct user *users;
	struct session **sessions; /* by slot */
	struct comm **comms;	   /* by slot */
	struct session *dirty;
	uint32_t nactive, cores;
	bool crowded;		    /* more pollers than cores: they yield at every round */
	uint32_t ready;		    /* members */
	uint64_t turns;		    /* that they have had so far */
	struct user *turn;	    /* whose it was last */
	struct session *triggering; /* that have triggers */
	uint64_t triggered_ns;	    /* when one of them last started */
	struct task *inputs;
	uint32_t ninputs, inputs_due; /* due: have not been looked at since a session fell asleep */
	struct deadlines deadlines;
	struct task_table table;
	struct task *tasks;	 /* [table.size] */
	struct task *free;	 /* stack, by `next` */
	uint32_t fresh;		 /* from here on none was ever used */
	struct task **published; /* by the low bits of their uid, as many as the mask has */
	uint32_t published_mask;
	struct task **decided; /* decision.c: as many places */
	struct session *leaving;
	uint64_t uids;
	uint64_t live; /* tasks whose client does not know yet how they ended */
	uint32_t groups;
	uint32_t jobs;			   /* in the pool */
	uint32_t polled;		   /* bits: transports that have something under way */
	void *transport_state[TRANSPORTS]; /* theirs; NULL: it has none */
	struct spin spin;
	uint64_t round_ns;  /* when the loop's round began */
	uint64_t busy_ns;   /* when there last was work */
	uint64_t looked_ns; /* when the doorbells were last looked at */
	bool draining, drained, stop;
	struct device devices[ENGINE_DEVICES];
	uint32_t gpu_inputs;	     /* tasks that wait for what a GPU writes: their timelines */
	struct set_match *matched;   /* in the order in which they matched */
	struct set_match *looked_at; /* of these, by the next set_launch: by next_look */
	uint64_t nmatched;	     /* so far: their order */
	bool matched_new;	     /* something may be launched */
	struct launch_request *requests, *due; /* to the sequencer; and those that are due */
	uint64_t nrequests;		       /* so far */
	struct grant *granted;		       /* [tasks_max]: launched of late */
	uint64_t ngranted;		       /* so far */
	uint32_t lost_sequencer;
	uint64_t succession_due_ns;  /* when the next one is to go on; 0: it does */
	struct sequencer *sequencer; /* this node's, if it has to be the one */
	uint64_t sequenced_ns;	     /* when somebody last said something to it */
	uint64_t launch_round;
	uint64_t inputs_ns;    /* when launched tasks' were last looked at */
	uint64_t visit, pass;  /* the pass's first visit */
	struct task **visited; /* [table.size] */
	uint32_t nvisited;
	/* Other nodes: internode_comm.h */
	struct internode_comm *internode_comms; /* by id */
	uint32_t flights;			/* what MPI works on */
	uint32_t ops;				/* that move bytes between nodes */
	uint32_t committed;			/* tasks that wait for other nodes */
	uint64_t nodes_ns;			/* when another node was last heard of */
	uint64_t listened_ns;			/* when it was last listened for */
	uint64_t deadlock_ns; /* when to look for members that wait for each other */
	struct node_match *asked;
	struct internode_comm *endings, *ended; /* ended: on GPUs, for EPOCH_CLOSE_NS */
	struct message *messages;
	struct message *own;	       /* from this node's sequencer to this node, and back */
	struct unexpected *unexpected; /* by time */
	size_t unexpected_bytes;
	struct announced *announced; /* unexpected.c */
	struct announced *expected;
	struct giver *givers;
	bool *lost; /* [nodes] */

	uint32_t nunpublished;
	/* They may be over before anybody could look, and their places be others'. */
	struct {
		struct task *task;
		uint64_t uid;
	} unpublished[256];
};

/* loop.c; the number is the eventfd's in epoll's data, where others are sessions' slots */
#define ENGINE_WAKES UINT64_MAX
/* The thread, until COMMAND_STOP. Returns NULL. */
void *engine_main(void *arg);
/* The same without the thread, which was never started: does what there is to do now. For tests. */
void engine_settle(struct engine *e);

/* engine.c */
/* The next command; false: none waits. It stays until engine_command_done. */
bool engine_next_command(struct engine *e, struct command *c);
void engine_command_done(struct engine *e);
/* Inspection is to see the task, if it is not over soon; and now it sees all those. */
void engine_publish_later(struct engine *e, struct task *t);
void engine_publish(struct engine *e);
/* NULL: the user, or the table, has no room. */
struct task *task_alloc(struct engine *e, struct session *s);
void task_free(struct engine *e, struct task *t);
/* The task of that id, if inspection knows it; else NULL. */
struct task *task_find(const struct engine *e, uint64_t uid);
void engine_event(struct engine *e, const struct event *event);

#endif
