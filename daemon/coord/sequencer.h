/* SPDX-License-Identifier: Apache-2.0
 *
 * The sequencer of the communicators that this node leads (those whose rank 0 is here): which of
 * their operations on GPUs of several nodes are launched, and in which order.
 *
 * NCCL would hang if two nodes launched two operations on the same GPUs in different orders, or if
 * one launched an operation that another does not have. So a communicator's leader decides what is
 * launched, and the order follows from times that the nodes propose. A node requests sets of a
 * communicator's operations to launch together: those that its own members have posted and agree
 * on, with all others connected to them through task groups. A request means READY, and carries the
 * records. When the requests of all nodes for a connected set have come and the records agree, it
 * is launched; otherwise the operation fails on all of them, with one status.
 *
 * Launches are ordered by Lamport times, as in Skeen's atomic multicast: the sequencer asks the
 * nodes of a set for a time (PREPARE), each proposes one later than any it knows of (PROPOSE), and
 * all launch the set at the latest of them (LAUNCH). A node launches in the order of these times,
 * and waits for any set for which it has proposed an earlier time and whose final time is not known
 * yet. So any two nodes launch what they have in common in the same order, without a common leader.
 * Only nodes that are ready propose; so a launch waits for other daemons, never for a trainer.
 *
 * To give up an operation (after a deadline, say), a node withdraws it here. If the node has not
 * requested it yet, this is its vote; otherwise it is a wish, which is granted unless the operation
 * is being launched. The sequencer asks the nodes that have not voted: they fail the operation,
 * naming their missing members, or have requested it meanwhile. A withdrawn operation fails once
 * all have voted.
 *
 * When a leader is lost, all its communicators have lost a member: they end, and no node takes
 * over.
 *
 * A pure state machine (see coord.h) for one thread. It allocates only when a message comes; if
 * there is no memory, the epochs that the message is about end.
 */
#ifndef COORD_SEQUENCER_H
#define COORD_SEQUENCER_H

#include "node_operation.h"

#define REQUEST_ENTRIES_MAX 65536
#define OPERATION_MAKE	    UINT64_MAX

/* A launch entry: an operation; or, with OPERATION_MAKE as the key's subop, an NCCL communicator to
 * create, whose number is internode_id. */
struct request_entry {
	uint64_t internode_id;
	struct operation_key key;
	uint32_t nvoters; /* of a creation: nodes that take part; all of them request it */
	uint32_t count;	  /* members on this node */
	int32_t rank;	  /* the lowest of them */
	uint32_t reserved;
	/* Rises with each post of the node's members, also when a void request is repeated. */
	uint64_t order;
	struct svc_record record;
};

static inline bool entry_makes(const struct request_entry *at)
{
	return at->key.subop == OPERATION_MAKE;
}

/* A set's place in the order of launches, the same on all nodes. */
struct launch_time {
	uint64_t time;
	uint64_t internode_id, set; /* tell sets of the same time apart */
};

/* Filled in by the owner. Called from within the functions below. They send messages, perhaps to
 * this very node, and return without calling any of the functions below. Messages between two nodes
 * stay in order. Nodes may be lost. */
struct sequencer_ops {
	/* Propose a time for the request of that number: sequencer_propose. */
	void (*prepare)(void *arg, uint32_t node, uint64_t number);
	/* The node launches its request of that number at that time. */
	void (*launch)(void *arg, uint32_t node, uint64_t number, const struct launch_time *at);
	/* The operation fails. The node's request for it is void, and the rest of that request must
	 * be requested again. */
	void (*failed)(void *arg, uint32_t node, uint64_t internode_id,
		       const struct operation_key *key, const struct failed_note *note);
	/* Fail it, unless you have requested it. */
	void (*ask)(void *arg, uint32_t node, uint64_t internode_id,
		    const struct operation_key *key, const ncclsvc_status *why);
	/* No operation of the communicator is launched any more. */
	void (*closed)(void *arg, uint32_t node, uint64_t internode_id);
	/* The operation waits: so far, n nodes have requested it, with these places. */
	void (*waiting)(void *arg, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, const uint32_t *places, uint32_t n);
};

/* A communicator's nodes: the place of each rank's node among them. */
struct sequencer_comm {
	uint64_t internode_id;
	uint32_t nnodes, nranks;
	const uint32_t *nodes;	 /* [nnodes] */
	const uint32_t *node_of; /* [nranks] */
};

struct sequencer;

/* arg is passed to the ops. NULL: no memory. */
struct sequencer *sequencer_create(const struct sequencer_ops *ops, void *arg);
void sequencer_free(struct sequencer *q);

/* This node leads the communicator from now on, until all its nodes have left. The arrays are
 * copied. Aborts the daemon if memory runs out, as the start of an epoch does. */
void sequencer_lead(struct sequencer *q, const struct sequencer_comm *c);

/* A node requests to launch these together. A long list comes in several messages, all but the last
 * with more. number: the node's own, never used before. The entries are copied. */
void sequencer_request(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t number,
		       bool more, const struct request_entry *entries, uint32_t n);
/* A node's answer to prepare: the earliest time at which it may launch the request; 0: it has
 * dropped it. */
void sequencer_propose(struct sequencer *q, uint32_t node, uint64_t number, uint64_t time);
#define WAITS_NO_MORE UINT64_MAX

/* A node fails the operation (number is 0), or wants it to fail though it has requested it under
 * that number. If the node fails it because its members' records differ, the others are not asked
 * until that node withdraws once more, with WAITS_NO_MORE. */
void sequencer_withdraw(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, uint64_t number,
			const struct failed_note *note);
/* Cancels a node's request to create a communicator, unless it is being created. */
void sequencer_forget(struct sequencer *q, uint32_t node, uint64_t number);
/* The node makes no more requests of the communicator. When all surviving nodes have left, or have
 * waited EPOCH_CLOSE_NS for the others, they are told that it is closed. */
void sequencer_leave(struct sequencer *q, uint32_t node, uint64_t internode_id);
/* The node sends nothing more about what it has sent so far. */
void sequencer_lose_node(struct sequencer *q, uint32_t node);
/* Reports who waits for whom, and ends operations that a silent node holds up. Call it
 * periodically. */
void sequencer_look(struct sequencer *q, uint64_t now_ns);
/* May nodes send requests at any time? */
bool sequencer_awaited(const struct sequencer *q);

#endif
