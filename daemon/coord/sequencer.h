/* SPDX-License-Identifier: Apache-2.0
 *
 * The sequencer: which operations on GPUs of several nodes are launched, and in which order.
 *
 * NCCL would wait for ever if two nodes launched two operations on the same GPUs in different
 * orders, or if one launched what another has not got. So one node says what is launched. A node
 * requests what is to be launched together there: what its own members have posted and agree on,
 * with all that hangs together with it through task groups. A request means READY, and takes the
 * records along. When all nodes' requests are there for what hangs together on all of them, and the
 * records agree, all are told to launch; else the operation fails on all of them, with one status.
 *
 * Who wants to give up an operation (a deadline, say) withdraws it here. Before the node has
 * requested it, that is its vote; afterwards it asks for that, which happens unless the operation
 * was launched meanwhile. Nodes that have not spoken are asked: they fail it, naming those of their
 * members that are missing, or have requested it meanwhile. An operation that was withdrawn, and of
 * which all have spoken, fails.
 *
 * When its node is lost, the next one succeeds it. All that live report what they were last told to
 * launch: what some were told and others were not, those are told by the successor, in the same
 * order. Then it goes on. Only epochs with members on the lost node end.
 *
 * A pure state machine: see coord.h. One thread. What it allocates, it allocates when a message
 * comes; if there is no memory, the epochs that the message is about end, in order.
 */
#ifndef COORD_SEQUENCER_H
#define COORD_SEQUENCER_H

#include "operation.h"

#define REQUEST_ENTRIES_MAX 65536
#define OPERATION_MAKE	    UINT64_MAX

/* What is to be launched: an operation; or, with OPERATION_MAKE as the key's part, an NCCL
 * communicator that is to be made, of which internode_id is the serial. */
struct request_entry {
	uint64_t internode_id;
	struct operation_key key;
	uint32_t nparts; /* nodes that take part, all of which request it */
	uint32_t place;	 /* of this node among them; any, if it makes */
	int32_t rank;	 /* the lowest of the node's members */
	uint32_t count;	 /* members there */
	/* Rises with what the node's members post, also where a request was void and comes again.
	 */
	uint64_t order;
	struct svc_record record;
};

static inline bool entry_makes(const struct request_entry *at)
{
	return at->key.part == OPERATION_MAKE;
}

/* Filled in by whoever runs it. Called from within the functions below; they send messages, perhaps
 * to this very node, and come back: none of the functions below is called meanwhile. Order holds
 * between two nodes. */
struct sequencer_ops {
	/* The node launches what it has requested under that number, after what it was told before.
	 * grant: rises, and is the same for all that hangs together. */
	void (*launch)(void *arg, uint32_t node, uint64_t number, uint64_t grant);
	/* The operation fails. The node's request for it is void: what else was in it is to be
	 * requested again. */
	void (*failed)(void *arg, uint32_t node, uint64_t internode_id,
		       const struct operation_key *key, const struct failed_note *note);
	/* Fail it, if you have not requested it. */
	void (*ask)(void *arg, uint32_t node, uint64_t internode_id,
		    const struct operation_key *key, const ncclsvc_status *why);
	/* Nothing of the communicator is launched any more. */
	void (*closed)(void *arg, uint32_t node, uint64_t internode_id);
	/* The operation waits: so far, n nodes have requested it, with these places. */
	void (*waiting)(void *arg, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, const uint32_t *places, uint32_t n);
	/* This is the sequencer now, and goes on. */
	void (*goes_on)(void *arg, uint32_t node);
};

/* A node was told to launch this. */
struct grant {
	uint64_t number, internode_id;
	struct operation_key key;
};

struct sequencer;

/* arg is the ops'. nodes: of the cluster. active: it is the sequencer; others keep what they are
 * told until they are. NULL: no memory. */
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
/* A node is not to make what it has requested: it may have been told to meanwhile. */
void sequencer_forget(struct sequencer *q, uint32_t node, uint64_t number);
/* The node requests nothing more of the communicator. nodes: all of the communicator's. When all
 * that live have left, or the others have waited EPOCH_CLOSE_NS, they are told that it is closed.
 */
void sequencer_leave(struct sequencer *q, uint32_t node, uint64_t internode_id,
		     const uint32_t *nodes, uint32_t n);
/* succeeds: it was the sequencer, and this is now, when all that live have reported. */
void sequencer_lose_node(struct sequencer *q, uint32_t node, bool succeeds);
/* The sequencer is lost: a node says what that has told it to launch, of late. Then it says again
 * what it has requested and was not told to launch, has withdrawn, or has left; and last, that this
 * was all: without more. */
void sequencer_report(struct sequencer *q, uint32_t node, const struct grant *grants, uint32_t n,
		      bool more);
/* Says who waits for whom, and ends what a silent node holds up. From time to time. */
void sequencer_look(struct sequencer *q, uint64_t now_ns);
/* Nodes may have requests any time. */
bool sequencer_awaited(const struct sequencer *q);

#endif
