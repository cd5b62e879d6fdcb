/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport moves the bytes of matched tasks. This table is the scheduler's only interface to
 * transports. The command that starts a communicator's epoch names its transport; the creator of
 * the scheduler passes all of them (struct scheduler_config).
 *
 * The scheduler's thread calls all functions, and none of them blocks: longer work continues in the
 * pool, on a GPU or in flight, and poll detects its end. A transport ends its started tasks through
 * release_end. It allocates the memory that an operation needs in start, which may fail; an
 * operation that fails later fails its tasks.
 */
#ifndef SCHED_TRANSPORT_H
#define SCHED_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler.h"

struct comm;
struct credit_note;
struct scheduler;
struct node_match;
struct operation_key;
struct internode_comm;
struct svc_record;
struct task;

/* ---- Capabilities of a transport ---- */

/* The GPU waits for its tasks' inputs and raises their timelines, as part of their streams. So
 * tasks are started before their inputs are ready. */
#define TRANSPORT_ON_STREAMS  1u
/* It launches a task group, with everything that matched it, as one set; and sets with tasks on
 * other nodes in the same order on all nodes. Its start is set_add (set.h); reserve and launch
 * follow when the set is complete. */
#define TRANSPORT_GROUPS      2u
/* It also reduces float8, and supports reductions created as premulsum. */
#define TRANSPORT_REDUCES_ALL 4u

/* ---- Starting ---- */

/* A match. */
struct match {
	struct comm *comm;
	/* By rank, NULL for those of other nodes; or a Send and its Recv. The array is only valid
	 * during start. */
	struct task *const *tasks;
	uint32_t ntasks;
	const struct operation_key *at; /* the operation's key, if other nodes have tasks of it */
	struct subop *subop;		/* NULL: the tasks themselves are to be ended */
};

/* Tasks that one transport runs through another as part of its own. Instead of ending them, the
 * other calls this once, unless start returned BEGUN_DONE or BEGUN_NO_MEMORY. */
struct subop {
	void (*done)(struct scheduler *sched, struct subop *subop, bool aborted);
};

enum begun {
	BEGUN_DONE,    /* it was small, and has completed: the caller ends the tasks */
	BEGUN_RUNNING, /* the transport ends the tasks */
	BEGUN_NO_MEMORY,
};

/* Whether a set of tasks can be launched. */
enum room {
	ROOM_NOW,
	ROOM_LATER, /* a queue is full; try again in the next round */
	ROOM_HELD,  /* not until some of its members' tasks in flight have ended */
	ROOM_NEVER, /* the set is too large */
	ROOM_GONE,  /* the memory of a task is gone */
};

/* All functions except start are optional, and may be NULL. c is a communicator whose epoch has
 * this transport. */
struct transport {
	unsigned flags;	    /* TRANSPORT_ */
	size_t state_bytes; /* size of e->transport_state, which starts zeroed */

	/* ---- A communicator's epoch ---- */

	/* The epoch begins; the local members are known. */
	void (*epoch_begin)(struct scheduler *sched, struct comm *c);
	/* The epoch has ended with status c->end: nothing more is started. Running tasks end by
	 * themselves or are aborted, all of them before the communicator is freed. */
	void (*epoch_end)(struct scheduler *sched, struct comm *c);
	/* COMMAND_EPOCH_RELEASE: running tasks of an ended epoch no longer wait for inputs. */
	void (*release)(struct scheduler *sched, struct comm *c);
	/* COMMAND_EPOCH_DEAD: workers have aborted all tasks that ran on GPUs. The epoch may end a
	 * little later. */
	void (*dead)(struct scheduler *sched, struct comm *c);

	/* ---- Tasks ---- */

	/* Runs a match. */
	enum begun (*start)(struct scheduler *sched, const struct match *m);
	/* Is there room to launch these tasks together? promised: other nodes have been told that
	 * they will be launched, so only queues count. After ROOM_NOW, launch follows at once. */
	enum room (*reserve)(struct scheduler *sched, struct task *const *tasks, uint32_t n,
			     bool promised);
	void (*launch)(struct scheduler *sched, struct task *const *tasks, uint32_t n);

	/* ---- The scheduler ---- */

	/* Makes progress with running work; returns true if anything happened. Called in each round
	 * while the bit of the transport's kind is set in e->polled: the transport sets it while it
	 * has running work, and clears it afterwards. */
	bool (*poll)(struct scheduler *sched);
	/* Whether tasks run that a daemon that shuts down must wait for, although their sessions
	 * are left to the next one. */
	bool (*runs)(struct scheduler *sched);
	/* A command about GPUs or their workers, which is passed to all transports. */
	void (*command)(struct scheduler *sched, const struct command *cmd);
	/* The scheduler and its pool have ended: frees the contents of the state. */
	void (*finish)(struct scheduler *sched);

	/* ---- Several nodes ---- */

	/* Do the bytes of such tasks travel with the nodes' votes? p2p: a Send and its Recv. */
	bool (*eager)(const struct internode_comm *s, const struct svc_record *r, bool p2p);
	/* If so, this node's bytes for that node, at most INTERNODE_EAGER_BYTES;
	 * returns how many. tasks: as in a match. */
	size_t (*pack)(const struct internode_comm *s, struct task *const *tasks,
		       uint32_t node_index, bool p2p, char *out);
	/* Performs the operation with the bytes of all nodes. False: a node sent too few. */
	bool (*unpack)(const struct internode_comm *s, struct task *const *tasks,
		       const struct node_match *j);
	/* Another node is ready to receive a subop of an operation. */
	void (*credit)(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		       const struct operation_key *key, const struct credit_note *note);
	/* For a transport that sends its subops through another: will it start a subop of that key?
	 */
	bool (*expects)(const struct scheduler *sched, const struct comm *c,
			const struct operation_key *key);
	/* Aborts transfers between nodes: the operation of that key with all its subops, or
	 * everything (NULL). */
	void (*break_off)(struct scheduler *sched, struct comm *c, const struct operation_key *key);
	/* The node is lost: transfers to or from it never end. */
	void (*node_lost)(struct scheduler *sched, struct comm *c, uint32_t node_index);
};

#endif
