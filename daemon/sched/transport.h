/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport moves the bytes of tasks that have matched. The scheduler knows transports by this
 * table alone. The command that starts a communicator's epoch names its transport; whoever creates
 * the engine passes all of them (struct engine_config).
 *
 * The engine's thread calls all functions, and none of them blocks: work that takes longer goes on
 * in the pool, on a GPU or in flight, and poll sees it end. A transport ends the tasks that it has
 * started by release_end. Memory that a started operation cannot do without is allocated in start,
 * which may fail; an operation that fails later fails its tasks.
 */
#ifndef SCHED_TRANSPORT_H
#define SCHED_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "executor.h"

struct comm;
struct credit_note;
struct engine;
struct node_match;
struct operation_key;
struct internode_comm;
struct svc_record;
struct task;

/* ---- What a transport does itself ---- */

/* Its tasks are work of their streams: the GPU waits for their inputs and raises their timelines.
 * So they are started before their inputs are there. */
#define TRANSPORT_ON_STREAMS  1u
/* It launches the tasks of a task group, and all that matched them, as one set; and sets with tasks
 * on other nodes in one order on all nodes. Its start is set_add (set.h); reserve and launch follow
 * when the set is whole. */
#define TRANSPORT_GROUPS      2u
/* It also reduces float8, and with the operations that premulsum makes. */
#define TRANSPORT_REDUCES_ALL 4u

/* ---- Starting ---- */

/* Tasks that matched. */
struct match {
	struct comm *comm;
	/* By rank, NULL for those of other nodes; or a Send and its Recv. The array is not kept. */
	struct task *const *tasks;
	uint32_t ntasks;
	const struct operation_key *at; /* which operation, if other nodes have tasks of it */
	struct part *part;		/* NULL: the tasks themselves are ended */
};

/* Tasks that one transport has another one run as part of its own. They are not ended; this is
 * called, once, unless start returned BEGUN_DONE or BEGUN_NO_MEMORY. */
struct part {
	void (*over)(struct engine *e, struct part *part, bool aborted);
};

enum begun {
	BEGUN_DONE,    /* it was small, and is over: the caller ends the tasks */
	BEGUN_RUNNING, /* the transport ends the tasks */
	BEGUN_NO_MEMORY,
};

/* What becomes of a set of tasks that is to be launched. */
enum room {
	ROOM_NOW,
	ROOM_LATER, /* a queue is full: it is tried again in the next round */
	ROOM_HELD,  /* until some of what its members have in flight has ended */
	ROOM_NEVER, /* it is too large */
};

/* A transport leaves functions that it does not need NULL, but for start. c is a communicator whose
 * epoch has this transport. */
struct transport {
	unsigned flags;	    /* TRANSPORT_ */
	size_t state_bytes; /* what e->transport_state points to, zero at first */

	/* ---- A communicator's epoch ---- */

	/* It begins: the members of this node are known. */
	void (*epoch_begin)(struct engine *e, struct comm *c);
	/* It is over, c->end says why: nothing more is started. What runs ends by itself or is
	 * broken off; all of it before the communicator is freed. */
	void (*epoch_end)(struct engine *e, struct comm *c);
	/* COMMAND_EPOCH_RELEASE: tasks of an ended epoch that still run wait for inputs no more. */
	void (*release)(struct engine *e, struct comm *c);
	/* COMMAND_EPOCH_DEAD: workers have broken off all tasks that ran on GPUs. The epoch may end
	 * a little later. */
	void (*dead)(struct engine *e, struct comm *c);

	/* ---- Tasks ---- */

	/* Runs what matched. */
	enum begun (*start)(struct engine *e, const struct match *m);
	/* Is there room for these tasks, launched together? promised: other nodes have been told
	 * that they will be, so only queues count. On ROOM_NOW, launch follows at once. */
	enum room (*reserve)(struct engine *e, struct task *const *tasks, uint32_t n,
			     bool promised);
	void (*launch)(struct engine *e, struct task *const *tasks, uint32_t n);

	/* ---- The engine ---- */

	/* Moves on all that is under way, and returns true if anything happened. Called in each
	 * round while the bit of the transport's kind is set in e->polled: the transport sets it
	 * when it has something to look after, and clears it. */
	bool (*poll)(struct engine *e);
	/* A command about GPUs or their workers: all transports get it, and each does its part.
	 */
	void (*command)(struct engine *e, const struct command *cmd);
	/* The engine ends, and its pool has: frees what the state points to. */
	void (*finish)(struct engine *e);

	/* ---- Several nodes ---- */

	/* Do the bytes of such tasks travel with the nodes' records? p2p: a Send and its Recv. */
	bool (*eager)(const struct internode_comm *s, const struct svc_record *r, bool p2p);
	/* If so, the bytes that this node has for the one at that place, at most
	 * INTERNODE_EAGER_BYTES; returns how many. tasks: as in a match. */
	size_t (*pack)(const struct internode_comm *s, struct task *const *tasks, uint32_t place,
		       bool p2p, char *out);
	/* Does the operation with the bytes of all nodes. False: a node sent too few. */
	bool (*unpack)(const struct internode_comm *s, struct task *const *tasks,
		       const struct node_match *j);
	/* Another node is ready to receive a part of an operation. */
	void (*credit)(struct engine *e, struct internode_comm *s, uint32_t place,
		       const struct operation_key *key, const struct credit_note *note);
	/* Of a transport that has another one send its parts: will it start a part of that key? */
	bool (*expects)(const struct engine *e, const struct comm *c,
			const struct operation_key *key);
	/* Breaks off what goes on between nodes: the operation of that key with all its parts, or
	 * everything (NULL). */
	void (*break_off)(struct engine *e, struct comm *c, const struct operation_key *key);
	/* The node at that place is lost: what is in flight to or from it never ends. */
	void (*node_lost)(struct engine *e, struct comm *c, uint32_t place);
};

#endif
