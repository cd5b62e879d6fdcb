/* SPDX-License-Identifier: Apache-2.0
 * What across.c, flow.c and piece.c share. */
#ifndef ENGINE_ACROSS_H
#define ENGINE_ACROSS_H

#include "sched/span.h"

enum phase { GIVING = 1, RESULT };

enum stage {
	STAGE_PREPARE, /* this node's contribution is put together */
	STAGE_GIVE,    /* contributions go to the owner */
	STAGE_REDUCE,
	STAGE_RESULT, /* what the owner has goes to whom it is for */
	STAGE_SHARE,  /* it is copied to this node's other ranks */
	STAGE_OVER,
};

struct flow {
	enum in_flight kind; /* first: what MPI gives back */
	bool send, begun, over;
	enum phase phase;
	uint32_t node; /* place */
	int32_t tag;
	char *at;
	uint64_t bytes;
	struct piece *piece;
};

struct piece {
	struct job job; /* first: what the pool gives back */
	struct op *op;
	struct piece *prev, *next;
	uint64_t index;
	struct stretch x;
	enum stage stage;
	bool working; /* the pool has it */
	char *mine;   /* this node's contribution, or what it swaps; NULL: not needed */
	char *others; /* the others' contributions, or what came to swap */
	uint32_t nflows;
	struct flow flows[];
};

struct op {
	struct comm *comm;
	struct junction_key key;
	struct task **tasks;
	struct chunk *chunk; /* that it is part of; NULL: none */
	struct course course;
	uint64_t next_piece;
	uint32_t under_way;
	bool aborted, advancing;
	struct piece *pieces;
	struct op *prev, *next;
};

/* ---- flow.c ---- */

/* Has MPI receive it, and gives credit for it. */
void flow_receive(struct engine *e, struct flow *f);
/* Sends it if the receiver has given credit already. */
void flow_offer(struct engine *e, struct flow *f);
/* Nothing more comes with this tag. */
void flow_tag_put(struct engine *e, int32_t tag);
/* Refuses the credits of which those(the credit's key, key) is true. */
void flow_refuse_credits(struct engine *e, struct span *s, const struct junction_key *key,
			 bool (*those)(const struct junction_key *a, const struct junction_key *b));
/* It can't be done: nothing more of it begins, and who has given credit for it is told. */
void flow_abort_op(struct engine *e, struct op *op);

/* ---- piece.c ---- */

void piece_begin(struct engine *e, struct op *op, uint64_t index, const struct stretch *x);
/* Takes it as far as it goes now. True if it is over, and freed. */
bool piece_advance(struct engine *e, struct piece *p);

#endif
