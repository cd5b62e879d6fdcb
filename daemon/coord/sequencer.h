/* SPDX-License-Identifier: Apache-2.0
 *
 * The sequencer: which operations on GPUs of several nodes are launched, and in which order.
 *
 * NCCL would hang if two nodes launched two operations on the same GPUs in different orders, or if
 * one launched an operation that another does not have. So one node decides what is launched. A
 * node requests sets of operations to launch together: those that its own members have posted and
 * agree on, with all others connected to them through task groups. A request means READY, and
 * carries the records. When the requests of all nodes for a connected set have come and the records
 * agree, the sequencer tells all nodes to launch; otherwise the operation fails on all of them,
 * with one status.
 *
 * To give up an operation (after a deadline, say), a node withdraws it here. If the node has not
 * requested it yet, this is its vote; otherwise it is a wish, which is granted unless the operation
 * was launched meanwhile. The sequencer asks the nodes that have not voted: they fail the
 * operation, naming their missing members, or have requested it meanwhile. A withdrawn operation
 * fails once all have voted.
 *
 * When its node is lost, the next node succeeds it. All surviving nodes report their latest
 * launches. If the old sequencer told only some nodes to launch an operation, the successor tells
 * the others, in the same order. Then it continues. Only epochs with members on the lost node end.
 *
 * A pure state machine (see coord.h) for one thread. It allocates only when a message comes; if
 * there is no memory, the epochs that the message is about end, in order.
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
	uint32_t nvoters; /* nodes that take part; all of them request it */
	uint32_t place;	  /* index of this node among them; any, for a creation */
	int32_t rank;	  /* the lowest of this node's members */
	uint32_t count;	  /* members on this node */
	/* Rises with each post of the node's members, also when a void request is repeated. */
	uint64_t order;
	struct svc_record record;
};

static inline bool entry_makes(const struct request_entry *at)
{
	return at->key.subop == OPERATION_MAKE;
}

/* Filled in by the owner. Called from within the functions below. They send messages, perhaps to
 * this very node, and return without calling any of the functions below. Messages between two nodes
 * stay in order. */
struct sequencer_ops {
	/* The node launches its request of that number, after all earlier launches. grant: rises,
	 * and is the same for a connected set. */
	void (*launch)(void *arg, uint32_t node, uint64_t number, uint64_t grant);
	/* The operation fails. The node's request for it is void, and the rest of that request must
	 * be requested again. */
	void (*failed)(void *arg, uint32_t node, uint64_t internode_id,
		       const struct operation_key *key, const struct failed_note *note);
	/* Fail it, unless you have requested it. */
	void (*ask)(void *arg, uint32_t node, uint64_t internode_id,
		    const struct operation_key *key, const ncclsvc_status *why);
	/* No operation of the communicator is launched any more. */
	void (*closed)(void *arg, uint32_t node, uint64_t internode_id);
	/* The operation waits: so far, n nodes have requested it, with these indices. */
	void (*waiting)(void *arg, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, const uint32_t *places, uint32_t n);
	/* This is the sequencer now, and continues. */
	void (*goes_on)(void *arg, uint32_t node);
};

/* A node was told to launch this. */
struct grant {
	uint64_t number, internode_id;
	struct operation_key key;
};

struct sequencer;

/* arg is passed to the ops. nodes: of the cluster. active: this is the sequencer; others keep what
 * they are told until they become it. NULL: no memory. */
struct sequencer *sequencer_create(const struct sequencer_ops *ops, void *arg, uint32_t nodes,
				   bool active);
void sequencer_free(struct sequencer *q);

/* A node requests to launch these together. A long list comes in several messages, all but the last
 * with more. number: the node's own, ascending. The entries are copied. */
void sequencer_request(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t number,
		       bool more, const struct request_entry *entries, uint32_t n);
#define FAILED_BEFORE UINT64_MAX
#define WAITS_NO_MORE (UINT64_MAX - 1)

/* A node fails the operation (number is 0), or wants it to fail though it has requested it under
 * that number. If the node fails it because its members' records differ, the others are not asked
 * until that node withdraws once more, with WAITS_NO_MORE. With FAILED_BEFORE, a sequencer that was
 * lost since has failed it. nodes: all that take part, by place. */
void sequencer_withdraw(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, uint64_t number,
			const struct failed_note *note, const uint32_t *nodes, uint32_t n);
/* Cancels a node's request to create a communicator, unless the node was told to create it
 * meanwhile. */
void sequencer_forget(struct sequencer *q, uint32_t node, uint64_t number);
/* The node makes no more requests of the communicator. nodes: all of the communicator's. When all
 * surviving nodes have left, or have waited EPOCH_CLOSE_NS for the others, they are told that it is
 * closed.
 */
void sequencer_leave(struct sequencer *q, uint32_t node, uint64_t internode_id,
		     const uint32_t *nodes, uint32_t n);
/* succeeds: the node ran the sequencer, and this one takes over when all surviving nodes have
 * reported. */
void sequencer_lose_node(struct sequencer *q, uint32_t node, bool succeeds);
/* After the loss of the sequencer, a node reports which operations that sequencer recently told it
 * to launch. Then it repeats its other requests, its withdrawals and the communicators it has left.
 * The last report, without more, ends this. */
void sequencer_report(struct sequencer *q, uint32_t node, const struct grant *grants, uint32_t n,
		      bool more);
/* Reports who waits for whom, and ends operations that a silent node holds up. Call it
 * periodically. */
void sequencer_look(struct sequencer *q, uint64_t now_ns);
/* May nodes send requests at any time? */
bool sequencer_awaited(const struct sequencer *q);

#endif
