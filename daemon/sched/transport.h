/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport moves the bytes of tasks that have matched. The scheduler knows transports by this
 * table alone; which one a communicator has, the command that starts its epoch says.
 *
 * All functions run in the engine's thread, and none of them may block: what takes longer goes on
 * in the pool, on a GPU or in flight, and poll looks after it. A transport ends the tasks that it
 * has started by release_end; and what it cannot do without memory, after start has returned, it
 * reserves before.
 */
#ifndef SCHED_TRANSPORT_H
#define SCHED_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "executor.h"

struct comm;
struct credit_note;
struct engine;
struct junction;
struct junction_key;
struct region;
struct span;
struct svc_record;
struct task;

/* ---- What a transport does itself ---- */

/* Its tasks are work of their streams: it waits for their inputs, and raises their timelines, on the
 * GPU. So they are started before their inputs are there. */
#define TRANSPORT_ON_STREAMS 1u
/* It starts the tasks of a task group, and all that matched them, as one; and what other nodes start
 * too, in the same order on all nodes. Its start is set_add; reserve and launch follow (set.h). */
#define TRANSPORT_GROUPS     2u

/* It reduces float8, too, and with what premulsum makes. */
#define TRANSPORT_REDUCES_ALL 4u

/* ---- Starting ---- */

/* Tasks that matched. */
struct match {
	struct comm *comm;
	/* By rank, NULL for those of other nodes; or a Send and its Recv. The array is not kept. */
	struct task *const *tasks;
	uint32_t ntasks;
	const struct junction_key *at; /* which operation, if other nodes have tasks of it */
	struct part *part;	       /* NULL: the tasks themselves are ended */
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

/* Functions that a transport does not need are NULL, but for start. c is always a communicator whose
 * epoch has this transport. */
struct transport {
	const char *name;
	unsigned flags; /* TRANSPORT_ */
	/* Of e->transport_state, all zero at first. */
	size_t state_bytes;

	/* ---- A communicator's epoch ---- */

	/* It begins: the members of this node are known. */
	void (*epoch_begin)(struct engine *e, struct comm *c);
	/* It is over, c->end says why: nothing more is started. What runs ends by itself or is broken
	 * off; all of it before the communicator is freed. */
	void (*epoch_end)(struct engine *e, struct comm *c);
	/* What still runs of an ended epoch is not to wait for inputs any more. */
	void (*release)(struct engine *e, struct comm *c);
	/* Workers have broken off what ran: nothing of the communicator runs on any GPU. The epoch
	 * may end a little later. */
	void (*dead)(struct engine *e, struct comm *c);
	/* A member has left: no collective of all members comes any more. */
	void (*member_left)(struct engine *e, struct comm *c);

	/* ---- Tasks ---- */

	/* Runs what matched. */
	enum begun (*start)(struct engine *e, const struct match *m);
	/* Is there room for these tasks, launched together? promised: other nodes have been told that
	 * they will be, so only queues count. On ROOM_NOW, launch follows at once. */
	enum room (*reserve)(struct engine *e, struct task *const *tasks, uint32_t n,
			     bool promised);
	void (*launch)(struct engine *e, struct task *const *tasks, uint32_t n);

	/* ---- The engine ---- */

	/* Moves everything on, and returns true if anything happened. Called in each round while the
	 * transport's bit in e->polled is set, which it sets and clears itself. */
	bool (*poll)(struct engine *e);
	/* A command about GPUs and their workers, which the scheduler does not know more of: each
	 * transport takes its own. Returns 0 or -ENOMEM. */
	int (*command)(struct engine *e, const struct command *cmd);
	/* The region's memory, perhaps of tasks that have ended, goes. */
	void (*region_gone)(struct engine *e, const struct region *r);
	/* The engine ends: nothing runs in the pool any more. */
	void (*finish)(struct engine *e);

	/* ---- Several nodes ---- */

	/* Do the bytes of such tasks go along with the nodes' records? p2p: a Send and its Recv. */
	bool (*eager)(const struct span *s, const struct svc_record *r, bool p2p);
	/* Then: what this node has for the one at that place, at most SPAN_EAGER_BYTES; returns how
	 * many. tasks: as in a match. */
	size_t (*pack)(const struct span *s, struct task *const *tasks, uint32_t place, bool p2p,
		       char *out);
	/* And does the operation with what came from all nodes. False: a node sent too few. */
	bool (*unpack)(const struct span *s, struct task *const *tasks, const struct junction *j);
	/* Another node is ready to receive a part of an operation. */
	void (*credit)(struct engine *e, struct span *s, uint32_t place,
		       const struct junction_key *key, const struct credit_note *note);
	/* Is there to be a part of that key that it has not started yet? */
	bool (*expects)(const struct engine *e, const struct comm *c,
			const struct junction_key *key);
	/* What goes on between nodes is broken off: the operation of that key with all its parts,
	 * or everything (NULL). */
	void (*break_off)(struct engine *e, struct comm *c, const struct junction_key *key);
	/* The node at that place is lost: what is in flight to or from it never ends. */
	void (*node_lost)(struct engine *e, struct comm *c, uint32_t place);
};

#endif
