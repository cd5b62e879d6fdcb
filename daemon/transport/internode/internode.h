/* SPDX-License-Identifier: Apache-2.0
 * Operations on host memory between nodes: their schedules, chunks, and transfers by MPI. */
#ifndef INTERNODE_H
#define INTERNODE_H

#include "sched/internode/internode_comm.h"
#include "sched/transport.h"

/* ---- schedule.c ---- */

/* One chunk of an operation: count units, from lo on in its block. */
struct segment {
	bool reduces;	    /* every node contributes, and the owner reduces */
	bool spreads;	    /* then every node gets it; else only the node `to` */
	bool exchanges;	    /* AllToAll: owner and `to` swap; within a node: by itself */
	uint32_t owner, to; /* places */
	uint32_t block;
	uint64_t lo, count, bytes;
};

struct schedule {
	const struct internode_comm *internode;
	struct task *const *tasks;
	struct svc_record record;
	bool p2p;
	int32_t a, b;	       /* of a pair */
	bool raw;	       /* each rank's bytes go to the owner, none are reduced before */
	uint64_t unit;	       /* bytes */
	uint64_t share;	       /* bytes of count elements */
	uint32_t blocks, wide; /* wide: blocks that are worked on side by side */
	uint64_t block_units, chunk_units;
	uint64_t chunks;
};

void schedule_make(struct schedule *p, const struct internode_comm *s, struct task *const *tasks,
		   int32_t a, int32_t b);
/* AllToAll: which two ranks a block is for; the first is the lower. */
void schedule_pair(uint32_t pair, uint32_t *a, uint32_t *b);
/* False: nothing to do in this chunk. */
bool schedule_segment(const struct schedule *p, uint64_t chunk, struct segment *x);
/* Has this node a part in it? */
bool schedule_involved(const struct schedule *p, const struct segment *x);
/* Vectors that the node at that place contributes to what is reduced. */
uint32_t schedule_contributions(const struct schedule *p, uint32_t place);
/* Where this rank has its part of what is reduced, or the owner what it gives away. */
const char *schedule_source(const struct schedule *p, const struct segment *x, uint32_t rank);
/* The rank that has it, if nothing is reduced. */
uint32_t schedule_sender(const struct schedule *p, const struct segment *x);
/* Where this node's ranks want it; returns how many. out: room for all local ranks. */
uint32_t schedule_targets(const struct schedule *p, const struct segment *x, char **out);
/* This node's contribution, into one place. */
void schedule_contribute(const struct schedule *p, const struct segment *x, char *out);
/* others: of each node but this one its contribution, in order of places. */
void schedule_reduce(const struct schedule *p, const struct segment *x, const char *others);
/* The same with each node's contribution where it is; this node's entry is not used. */
void schedule_reduce_parts(const struct schedule *p, const struct segment *x,
			   const char *const *parts);
/* Are the ranks' own vectors sent, not their node's reduction? That would round twice. */
bool schedule_uses_raw(const struct internode_comm *s, const struct svc_record *r);

/* ---- Operations ---- */

extern const struct transport internode_transport;

#define BUFFERS_KEPT 64

struct internode {
	char *buffers[BUFFERS_KEPT];
	uint32_t nbuffers;
	int32_t *tags; /* stack of those that are free */
	uint32_t ntags, tags_room, fresh_tags;
};

static inline struct internode *internode_of(const struct engine *e)
{
	return e->transport_state[TRANSPORT_INTERNODE];
}

enum phase { GATHER = 1, RESULT };

enum stage {
	STAGE_PREPARE, /* this node's contribution is put together */
	STAGE_GATHER,  /* contributions go to the owner */
	STAGE_REDUCE,
	STAGE_RESULT, /* what the owner has goes to whom it is for */
	STAGE_SHARE,  /* it is copied to this node's other ranks */
	STAGE_OVER,
};

struct transfer {
	struct flight flight; /* first */
	bool send, begun, over;
	enum phase phase;
	uint32_t node; /* place */
	int32_t tag;
	char *at;
	uint64_t bytes;
	struct block_chunk *chunk;
};

struct block_chunk {
	struct job job; /* first: what the pool gives back */
	struct op *op;
	struct block_chunk *prev, *next;
	uint64_t index;
	struct segment x;
	enum stage stage;
	bool working; /* the pool has it */
	char *mine;   /* this node's contribution, or what it swaps; NULL: not needed */
	char *others; /* the others' contributions, or what came to swap */
	uint32_t ntransfers;
	struct transfer transfers[];
};

struct op {
	struct comm *comm;
	struct operation_key key;
	struct part *part; /* as in a match */
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
void internode_flow_over(struct engine *e, struct flight *flight, size_t bytes, bool failed);
/* The pool is through with a chunk's work. */
void internode_work_over(struct job *job, void *engine);

/* ---- transfer.c ---- */

void transfer_credit(struct engine *e, struct internode_comm *s, uint32_t place,
		     const struct operation_key *key, const struct credit_note *note);

/* Has MPI receive it, and gives credit for it. */
void transfer_receive(struct engine *e, struct transfer *f);
/* Sends it if the receiver has given credit already. */
void transfer_offer(struct engine *e, struct transfer *f);
/* Nothing more comes with this tag. */
void transfer_tag_put(struct engine *e, int32_t tag);
/* Refuses the credits of which those(the credit's key, key) is true. */
void transfer_refuse_credits(struct engine *e, struct internode_comm *s,
			     const struct operation_key *key,
			     bool (*those)(const struct operation_key *a,
					   const struct operation_key *b));
/* It can't be done: nothing more of it begins, and who has given credit for it is told. */
void transfer_abort_op(struct engine *e, struct op *op);

/* ---- chunk.c ---- */

void chunk_begin(struct engine *e, struct op *op, uint64_t index, const struct segment *x);
/* Takes it as far as it goes now. True if it is over, and freed. */
bool chunk_advance(struct engine *e, struct block_chunk *p);

/* ---- small.c ---- */

/* Do the bytes of such tasks fit into the votes, on every node? */
bool small_fits(const struct internode_comm *s, const struct svc_record *r, bool p2p);
/* What this node has for the one at that place: at most INTERNODE_EAGER_BYTES. Returns how many. */
size_t small_pack(const struct internode_comm *s, struct task *const *tasks, uint32_t place,
		  bool p2p, char *out);
/* Ends it with everybody's bytes. False: somebody sent too few. */
bool small_finish(const struct internode_comm *s, struct task *const *tasks,
		  const struct node_match *j);

#endif
