/* SPDX-License-Identifier: Apache-2.0
 * Operations on host memory between nodes: their schedules, chunks, and transfers by the carrier.
 */
#ifndef INTERNODE_H
#define INTERNODE_H

#include "sched/api/transport.h"
#include "sched/internode/internode_comm.h"

/* ---- schedule.c ---- */

/* One chunk of an operation: count units, from lo on in its block. */
struct segment {
	bool reduces;	    /* every node contributes, and the owner reduces */
	bool spreads;	    /* then every node gets the result; otherwise only the node `to` */
	bool exchanges;	    /* AllToAll: owner and `to` swap; within a node: alone */
	uint32_t owner, to; /* node_indexes */
	uint32_t block;
	uint64_t lo, count, bytes;
};

struct schedule {
	const struct internode_comm *internode;
	struct task *const *tasks;
	struct svc_record record;
	bool p2p;
	int32_t a, b;	       /* of a Send and its Recv */
	bool raw;	       /* each rank's bytes go to the owner, without a reduction before */
	uint64_t unit;	       /* bytes */
	uint64_t share;	       /* bytes of count elements */
	uint32_t blocks, wide; /* wide: blocks processed in parallel */
	uint64_t block_units, chunk_units;
	uint64_t chunks;
};

void schedule_make(struct schedule *p, const struct internode_comm *s, struct task *const *tasks,
		   int32_t a, int32_t b);
/* AllToAll: the two ranks of a block, the lower one first. */
void schedule_pair(uint32_t pair, uint32_t *a, uint32_t *b);
/* False: there is nothing to do in this chunk. */
bool schedule_segment(const struct schedule *p, uint64_t chunk, struct segment *x);
/* Does this node take part in it? */
bool schedule_involved(const struct schedule *p, const struct segment *x);
/* Number of vectors that that node contributes to the reduction. */
uint32_t schedule_contributions(const struct schedule *p, uint32_t node_index);
/* This rank's vector in the reduction, or the owner's data to be sent. */
const char *schedule_source(const struct schedule *p, const struct segment *x, uint32_t rank);
/* The rank that has the data, if nothing is reduced. */
uint32_t schedule_sender(const struct schedule *p, const struct segment *x);
/* The destinations of this node's ranks; returns how many. out: room for all local ranks. */
uint32_t schedule_targets(const struct schedule *p, const struct segment *x, char **out);
/* Combines this node's contribution in one place. */
void schedule_contribute(const struct schedule *p, const struct segment *x, char *out);
/* others: the contribution of each other node, in order of node_indexes. */
void schedule_reduce(const struct schedule *p, const struct segment *x, const char *others);
/* The same with each node's contribution in its own node_index; this node's entry is not used. */
void schedule_reduce_parts(const struct schedule *p, const struct segment *x,
			   const char *const *parts);
/* Are the ranks' own vectors sent, instead of their node's reduction, which would round twice? */
bool schedule_uses_raw(const struct internode_comm *s, const struct svc_record *r);

/* ---- Operations ---- */

extern const struct transport internode_transport;

#define BUFFERS_KEPT 64

struct internode {
	char *buffers[BUFFERS_KEPT];
	uint32_t nbuffers;
	int32_t *tags; /* a stack of free tags */
	uint32_t ntags, tags_room, fresh_tags;
};

static inline struct internode *internode_of(const struct scheduler *sched)
{
	return sched->transport_state[TRANSPORT_INTERNODE];
}

enum phase { GATHER = 1, RESULT };

enum stage {
	STAGE_PREPARE, /* this node's contribution is prepared */
	STAGE_GATHER,  /* contributions are sent to the owner */
	STAGE_REDUCE,
	STAGE_RESULT, /* the owner's data is sent to its recipients */
	STAGE_SHARE,  /* the result is copied to this node's other ranks */
	STAGE_OVER,
};

struct transfer {
	struct flight flight; /* must come first */
	bool send, begun, over;
	enum phase phase;
	uint32_t node; /* its index */
	int32_t tag;
	char *at;
	uint64_t bytes;
	struct block_chunk *chunk;
};

struct block_chunk {
	struct job job; /* must come first, since the pool returns it */
	struct op *op;
	struct block_chunk *prev, *next;
	uint64_t index;
	struct segment x;
	enum stage stage;
	bool working; /* the pool works on it */
	char *mine;   /* this node's contribution, or its half of a swap; NULL: not needed */
	char *others; /* the other nodes' contributions, or the received half of a swap */
	uint32_t ntransfers;
	struct transfer transfers[];
};

struct op {
	struct comm *comm;
	struct operation_key key;
	struct subop *subop; /* as in a match */
	struct schedule schedule;
	uint64_t next_chunk;
	uint32_t under_way;
	bool aborted, advancing;
	struct block_chunk *chunks;
	struct op *prev, *next;
	uint32_t ntasks;
	struct task *tasks[]; /* as in a match */
};

/* ---- internode.c ---- */

/* A send or receive of a chunk has ended. */
void internode_flow_over(struct scheduler *sched, struct flight *flight, size_t bytes, bool failed);
/* The pool has finished a chunk's work. */
void internode_work_over(struct job *job, void *scheduler);

/* ---- transfer.c ---- */

void transfer_credit(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		     const struct operation_key *key, const struct credit_note *note);

/* Posts the receive, and sends a credit for it. */
void transfer_receive(struct scheduler *sched, struct transfer *f);
/* Sends it if the receiver has already given credit. */
void transfer_offer(struct scheduler *sched, struct transfer *f);
/* No more messages come with this tag. */
void transfer_tag_put(struct scheduler *sched, int32_t tag);
/* Refuses the credits for which those(the credit's key, key) is true. */
void transfer_refuse_credits(struct scheduler *sched, struct internode_comm *s,
			     const struct operation_key *key,
			     bool (*those)(const struct operation_key *a,
					   const struct operation_key *b));
/* The operation has failed: starts no more of it, and answers nodes that have given credit for it.
 */
void transfer_abort_op(struct scheduler *sched, struct op *op);

/* ---- chunk.c ---- */

void chunk_begin(struct scheduler *sched, struct op *op, uint64_t index, const struct segment *x);
/* Advances the chunk as far as possible now. True if it has ended and was freed. */
bool chunk_advance(struct scheduler *sched, struct block_chunk *p);

/* ---- small.c ---- */

/* Do the bytes of such tasks fit into the votes of every node? */
bool small_fits(const struct internode_comm *s, const struct svc_record *r, bool p2p);
/* This node's data for that node: at most INTERNODE_EAGER_BYTES. Returns how many. */
size_t small_pack(const struct internode_comm *s, struct task *const *tasks, uint32_t node_index,
		  bool p2p, char *out);
/* Completes it with the bytes of all nodes. False: a node sent too few. */
bool small_finish(const struct internode_comm *s, struct task *const *tasks,
		  const struct node_match *j);

#endif
