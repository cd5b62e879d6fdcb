/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators whose members are on several nodes.
 *
 *   internode_comm.c which nodes and ranks, their messages, and the end
 *   node_match.c     where the nodes' tasks match: votes; node_match_messages.c: other nodes'
 *                    votes; node_match_pair.c: a Send and its Recv
 *   transport/internode moves the bytes of what matched, in chunks, by MPI; small.c: what fits
 *                    into a message
 *   unexpected.c     messages about a communicator before it has begun here
 *   deadlock.c       deadlocks: members of several nodes that all wait for each other
 *   sequence.c       on GPUs instead: what this node requests of the sequencer
 *                    (coord/sequencer.h), which launches in one order on all nodes
 *
 * A collective of members on several nodes matches on each node first. Then each node sends every
 * other one its vote: READY, with the record (and the bytes, if they are few), or FAILED, with
 * the status. A node that has said READY can take nothing back: its tasks run. A collective
 * happens if all nodes have said READY and the records agree; if any has said FAILED, it fails on
 * all nodes, with the same status. A node that hears FAILED before it has voted says FAILED, too,
 * unless the records of that node's members differ: only all records tell which rank is the odd one
 * out, so all wait for them (NODE_ANSWER_NS at most), and each node draws the same conclusion. A
 * node that wants to give up after READY (for a deadline, say) asks the nodes that have not voted:
 * they answer FAILED, or have said READY meanwhile. So all nodes come to the same end, and no node
 * decides. A Send and its Recv do the same, between two nodes.
 *
 * The end of an epoch is told in the same order: what all nodes were READY for before their OVERs
 * still happens, on all of them. So nobody loses what others have got, because a process ended.
 *
 * Bytes that do not fit into the vote go in chunks. The receiver of a chunk posts the receive, and
 * then gives credit for it to the sender, which answers every credit with exactly one message: the
 * bytes, or none if it has given up. So no message is sent that no receive waits for.
 *
 * On GPUs, NCCL moves the bytes, and nodes do not tell each other: what has matched here is
 * requested, with all that hangs together with it through task groups, and the sequencer matches it
 * with the other nodes' requests and says in which order all launch. A node that fails an operation
 * before it has requested it tells the sequencer; one that wants to give up afterwards asks it. At
 * the end of an epoch a node leaves, and when all have left, the sequencer closes the communicator:
 * nothing of it is launched from then on. So all nodes have launched the same, and NCCL's
 * communicator is as good as new for others.
 */
#ifndef SCHED_INTERNODE_COMM_H
#define SCHED_INTERNODE_COMM_H

#include "base/hash.h"
#include "coord/vote.h"
#include "sched/state.h"

#define INTERNODE_EAGER_BYTES 8192 /* of one node, for one other */
#define INTERNODE_MAGIC	      UINT32_C(0x6e617073)

struct chunk;
struct failed_operation;
struct mpi_api;
struct node_match;
struct op;
struct deadlock;

enum internode_kind {
	/* Between nodes; on GPUs, the sequencer tells them READY, FAILED and ASK. */
	INTERNODE_READY = 1, /* a record, and bytes; the sequencer's: which places are ready */
	INTERNODE_FAILED,    /* a struct failed_note; the sequencer's: it fails on all nodes */
	INTERNODE_ASK,	     /* a status: fail, if nothing has been said */
	INTERNODE_CREDIT,    /* a struct credit_note */
	INTERNODE_OVER,	     /* the sender has ended the epoch: it says READY no more */
	INTERNODE_DEADLOCK,  /* a node and the first: do all members wait? A struct deadlock_note */
	/* Node -> sequencer */
	INTERNODE_REQUEST,  /* request entries; key.seq is its number, key.a: more follow */
	INTERNODE_WITHDRAW, /* of what key.part says: an operation, a creation, or all */
	/* Sequencer -> node */
	INTERNODE_LAUNCH, /* what the request key.seq is about; key.part is the grant */
	INTERNODE_CLOSED, /* no launch of the communicator follows */
	/* Node -> the sequencer that succeeds a lost one, and its answer; key.a says which */
	INTERNODE_SUCCESSION,
	INTERNODE_END,
};

/* The steps of a succession, in their order. */
enum succession_step {
	SUCCESSION_GRANTS = 1, /* what the node was told to launch of late: struct grants */
	SUCCESSION_REPORTED,   /* the node has said all again */
	SUCCESSION_GOES_ON,    /* the successor: all nodes have, and it goes on */
};

/* Between engines, by MPI. They are one program on one kind of machine. */
struct internode_header {
	uint32_t magic;
	uint16_t kind;
	uint16_t reserved;
	uint64_t internode_id;
	struct operation_key key;
	uint64_t bytes; /* that follow */
};

struct credit_note {
	uint64_t chunk;
	uint32_t phase;
	int32_t tag;
};

#define INTERNODE_BODY_MAX (sizeof(struct svc_record) + INTERNODE_EAGER_BYTES)

_Static_assert(INTERNODE_BODY_MAX > sizeof(struct failed_note), "a failure fits into a message");

/* A credit that nothing here is ready for yet. */
struct credit {
	struct credit *prev, *next;
	struct operation_key key;
	uint32_t node; /* place */
	struct credit_note note;
};

struct internode_comm {
	uint64_t id;
	struct comm *comm;
	UT_hash_handle hh;
	uint32_t nnodes, me;
	uint32_t *nodes;   /* [nnodes]: numbers in the cluster, in the order of their first ranks */
	uint32_t *counts;  /* [nnodes]: ranks there */
	uint32_t *first;   /* [nnodes]: where they begin in ranks */
	uint32_t *ranks;   /* [nranks]: node by node */
	uint32_t *node_of; /* [nranks]: place of its node */
	uint32_t most;	   /* the largest of counts */
	/* [2 * counts[me] * nranks]: pairs begun, then the plan's; NULL before the first */
	uint64_t *sent, *received;
	struct node_match *matches;
	struct op *ops;
	struct credit *credits;
	struct deadlock *deadlock; /* NULL: it never was */
	/* The epoch's end, from when the supervisor asks for it: */
	bool over;   /* this node has said so */
	bool *overs; /* [nnodes]: they have */
	ncclsvc_status end;
	uint64_t due_ns; /* for the others to say so, then for ops to end */
	/* In the engine's endings, then in ended. */
	struct internode_comm *prev_ending, *next_ending;
	/* On GPUs: */
	bool requested;			 /* something of it may have been launched */
	bool left, closed;		 /* the sequencer was told, and has answered */
	bool unled;			 /* a node is gone: nobody knows what was launched there */
	struct failed_operation *failed; /* by the sequencer, of late; the oldest first */
	uint32_t nfailed;
};

/* Something that MPI works on: the first member of what MPI gives back when it is over. */
struct flight {
	void (*over)(struct engine *e, struct flight *f, size_t bytes, bool failed);
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

void internode_comm_create(struct engine *e, struct comm *c, const struct command *cmd);
void internode_comm_free(struct engine *e, struct comm *c);
/* Is it a member of this node? */
bool internode_comm_is_here(const struct comm *c, int32_t rank);
/* Are its tasks launched in the sequencer's order? */
bool internode_comm_is_sequenced(const struct internode_comm *s);
/* Tells the other nodes. release_epoch follows, when they have said so too, or soon. False: there
 * are none. */
bool internode_comm_begin_end(struct engine *e, struct comm *c, const ncclsvc_status *end);
/* Lets go of what waits; ops end later. */
void internode_comm_end_epoch(struct engine *e, struct comm *c);
/* The place of a cluster's node; UINT32_MAX: none of it. */
uint32_t internode_comm_place(const struct internode_comm *s, int node);
/* The epoch can't go on in order: the supervisor ends it on all nodes. place: whose fault it is;
 * UINT32_MAX: nobody's. */
void internode_comm_give_up(struct engine *e, struct comm *c, int result, uint32_t place);
/* The same; node: its number in the cluster, -1: nobody's fault. */
void internode_comm_give_up_for(struct engine *e, struct comm *c, int result, int32_t node);
/* Sends a message to the node at that place. */
void internode_comm_send(struct engine *e, struct internode_comm *s, uint32_t place,
			 enum internode_kind kind, const struct operation_key *key,
			 const void *body, size_t bytes, const void *more, size_t more_bytes);
/* Handles a message of that node. Its epoch may not have begun here. */
void internode_comm_dispatch(struct engine *e, const struct internode_header *h, const char *body,
			     int node);
/* An empty message for a credit that is not used. */
void internode_comm_refuse_credit(struct engine *e, int node, int32_t tag);
/* Moves everything on. True if anything happened. */
bool internode_comm_poll(struct engine *e);
/* The node is lost: sends to it, and receives from it, never end. */
void internode_comm_node_lost(struct engine *e, uint32_t node);
/* A loop that has nothing to do may sleep that long. */
uint64_t internode_comm_sleep_ns(struct engine *e);
void internode_comm_finish_all(struct engine *e);

/* As internode_comm_send, to any node; this one handles it a little later. */
void internode_comm_send_node(struct engine *e, uint32_t node, const struct internode_header *h,
			      const void *body);

#endif
