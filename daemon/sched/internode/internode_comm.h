/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators whose members are on several nodes.
 *
 *   internode_comm.c which nodes and ranks, their messages, and the end
 *   node_match.c     where the nodes' tasks match: votes; node_match_messages.c: other nodes'
 *                    votes; node_match_pair.c: a Send and its Recv; disseminate.c: votes that nodes
 *                    pass on
 *   transport/internode moves the bytes of matched tasks in chunks, by the carrier; small.c: bytes
 *                    that fit into a message
 *   unexpected.c     messages about a communicator before it has begun here
 *   deadlock.c       deadlocks of members on several nodes
 *   sequence.c       for GPUs: this node's requests to the sequencer (coord/sequencer.h), and
 *                    launches in one order on all nodes
 *
 * A collective of members on several nodes matches on each node first. Then each node tells every
 * other one its vote: READY, with the record (and the bytes, if they are few), or FAILED, with the
 * status. More than DISSEMINATE_DIRECT_NODES nodes pass READY votes on to each other, unless the
 * bytes are different for each node. A node that has said READY can take nothing back: its tasks
 * run. A collective happens if all nodes have said READY and the records agree; if any has said
 * FAILED, it fails on all nodes, with the same status. A node that hears FAILED before it has voted
 * says FAILED, too, unless the records of that node's members differ: only all records tell which
 * rank is the odd one out, so all wait for them (NODE_ANSWER_NS at most), and each node draws the
 * same conclusion. A node that wants to give up after READY (for a deadline, say) asks the nodes
 * that have not voted: they answer FAILED, or have said READY meanwhile. So all nodes come to the
 * same end, and no node decides. A Send and its Recv do the same, between two nodes.
 *
 * The end of an epoch is part of the same message order: operations for which all nodes voted READY
 * before their OVER still run on all nodes, so that no member loses a result that others get.
 *
 * Bytes that do not fit into the vote are sent in chunks. The receiver of a chunk posts the
 * receive, and then gives the sender a credit for it. The sender answers every credit with one
 * message: the bytes, or an empty one if it has given up.
 *
 * On GPUs, NCCL moves the bytes, and nodes do not vote. A node requests what has matched locally,
 * with everything connected to it through task groups, from the communicator's leader: the node of
 * rank 0. Its sequencer matches the nodes' requests, and all agree on the order of launches. A node
 * that fails an operation before requesting it tells the sequencer; to give up afterwards, it asks
 * the sequencer. At the end of an epoch a node leaves, and when all have left, the sequencer closes
 * the communicator: all nodes have launched the same operations, and other epochs can reuse NCCL's
 * communicator. */
#ifndef SCHED_INTERNODE_COMM_H
#define SCHED_INTERNODE_COMM_H

#include "base/hash.h"
#include "channel/carrier.h"
#include "coord/vote.h"
#include "internode_message.h"
#include "internode_state.h"
#include "sched/base/state.h"

#define INTERNODE_EAGER_BYTES 8192 /* from one node to another */

struct chunk;
struct carrier;
struct node_match;
struct op;
struct deadlock;
struct kept_vote;

struct credit_note {
	uint64_t chunk;
	uint32_t phase;
	int32_t tag;
};

#define INTERNODE_BODY_MAX (sizeof(struct svc_record) + INTERNODE_EAGER_BYTES)

_Static_assert(INTERNODE_BODY_MAX > sizeof(struct failed_note), "a failure fits into a message");
_Static_assert(sizeof(struct internode_header) + INTERNODE_BODY_MAX + 8 <= CARRIER_MESSAGE_MAX,
	       "a message fits into a packet");

/* A credit that this node is not ready for yet. */
struct credit {
	struct credit *prev, *next;
	struct operation_key key;
	uint32_t node; /* its index */
	struct credit_note note;
};

struct internode_comm {
	uint64_t id;
	struct comm *comm;
	UT_hash_handle hh;
	uint32_t nnodes, me;
	uint32_t *nodes;   /* [nnodes]: numbers in the cluster, in the order of their first ranks */
	uint32_t *counts;  /* [nnodes]: ranks there */
	uint32_t *first;   /* index of each node's first rank in ranks */
	uint32_t *ranks;   /* [nranks]: node by node */
	uint32_t *node_of; /* [nranks]: index of its node */
	uint32_t most;	   /* the largest count */
	/* [2 * counts[me] * nranks]: pairs begun, then those of the plan; NULL before the first */
	uint64_t *sent, *received;
	struct node_match *matches;
	struct op *ops;
	struct credit *credits;
	struct deadlock *deadlock; /* NULL: it was never needed */
	struct kept_vote *kept;	   /* likewise: disseminate.c */
	/* The epoch's end, from the supervisor's request on: */
	bool over;	 /* this node has sent OVER */
	bool any_over;	 /* a node has */
	uint64_t *overs; /* [nnodes]: 1 + key.seq of the node's OVER; 0: none yet */
	bool *waits;	 /* [nnodes]: the node expects GONE */
	ncclsvc_status end;
	uint64_t due_ns; /* for the others' OVERs, then for the end of ops */
	struct internode_comm *prev_ending, *next_ending; /* in the scheduler's endings */
	/* On GPUs: */
	bool requested;	   /* some of its operations may have been launched */
	bool left, closed; /* the sequencer was told, and has answered */
	bool unled;	   /* its launches on other nodes are unknown */
};

static inline uint32_t internode_comm_local_count(const struct internode_comm *s)
{
	return s->counts[s->me];
}

static inline const uint32_t *internode_comm_locals(const struct internode_comm *s)
{
	return s->ranks + s->first[s->me];
}

/* ---- internode_comm.c ---- */

void internode_comm_create(struct scheduler *sched, struct comm *c, const struct command *cmd);
/* Are its tasks launched by a sequencer? */
bool internode_comm_is_sequenced(const struct internode_comm *s);
/* The index of a node of the cluster; UINT32_MAX: it has no member. */
uint32_t internode_comm_node_index(const struct internode_comm *s, int node);
/* The epoch cannot continue in order, so the supervisor ends it on all nodes. node_index: the node
 * at fault; UINT32_MAX: none. */
void internode_comm_give_up(struct scheduler *sched, struct comm *c, int result,
			    uint32_t node_index);
/* Likewise; node: its number in the cluster, -1: none. */
void internode_comm_give_up_for(struct scheduler *sched, struct comm *c, int result, int32_t node);
/* Queues a message for that node; it is sent with the others of this round. */
void internode_comm_send(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			 enum internode_kind kind, const struct operation_key *key,
			 const void *body, size_t bytes, const void *more, size_t more_bytes);
/* Have all members of that node left? */
bool internode_comm_all_left(const struct internode_comm *s, uint32_t node_index);
/* Tells that node that this one has forgotten the epoch. */
void internode_comm_say_gone(struct scheduler *sched, uint64_t id, uint32_t node);
/* Answers an unused credit with an empty message. */
void internode_comm_refuse_credit(struct scheduler *sched, int node, int32_t tag);

/* Like internode_comm_send, to any node; this node handles its own messages a little later. */
void internode_comm_send_node(struct scheduler *sched, uint32_t node,
			      const struct internode_header *h, const void *body);
/* At the end of a round: hands the packets for other nodes to the carrier. */
void internode_comm_flush(struct scheduler *sched);
/* Takes the oldest packet for that node, which the caller frees; NULL: none. */
struct internode_packet *internode_comm_take_packet(struct scheduler *sched, uint32_t node);

#endif
