/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives run in rounds: each rank copies a chunk of its input to its box, waits until all
 * ranks have, and reads what it needs from the other boxes. Each rank has two boxes, so that a fast
 * rank can post the next chunk before slow ranks have read the last one. The ranks compare their
 * calls' parameters with the first chunk.
 */
#include <string.h>

#include "nccl_fake.h"

/* Waits until all ranks have posted (or taken) this round. False: the launch was stopped. */
static bool all_at(struct launch *l, uint64_t round, bool taken)
{
	struct shared *b = l->comm->shared;
	unsigned n = 0;
	for (int r = 0; r < l->comm->nranks; r++) {
		_Atomic uint64_t *at = taken ? &b->slots[r].taken : &b->slots[r].posted;
		while (atomic_load_explicit(at, memory_order_acquire) < round) {
			if (!launch_on(l))
				return false;
			fake_pause(&n);
		}
	}
	return true;
}

static bool agree(const struct launch *l, uint64_t round)
{
	const struct shared *b = l->comm->shared;
	const struct call *mine = &b->slots[l->comm->rank].calls[round % 2];
	for (int r = 0; r < l->comm->nranks; r++) {
		if (memcmp(&b->slots[r].calls[round % 2], mine, sizeof(*mine)) != 0)
			return false;
	}
	return true;
}

static bool splits(int kind)
{
	return kind == NCCLSVC_REDUCE_SCATTER || kind == NCCLSVC_ALL_TO_ALL ||
	       kind == NCCLSVC_SCATTER;
}

static bool rooted_input(int kind)
{
	return kind == NCCLSVC_BROADCAST || kind == NCCLSVC_SCATTER;
}

static bool rooted_output(int kind)
{
	return kind == NCCLSVC_REDUCE || kind == NCCLSVC_GATHER;
}

/* One chunk: `bytes` at offset `at` of every block of `block` bytes. In a box, the chunk's blocks
 * are `room` bytes apart. */
struct chunk {
	size_t at, bytes, block, room;
};

static void show(struct launch *l, const struct work *w, const struct chunk *p, uint64_t round)
{
	struct ncclComm *c = l->comm;
	if (rooted_input(w->call.kind) && w->call.root != c->rank)
		return;
	char *box = shared_box(c, c->rank, round);
	int blocks = splits(w->call.kind) ? c->nranks : 1;
	for (int i = 0; i < blocks; i++)
		memcpy(box + (size_t)i * p->room, w->src_pin.at + (size_t)i * p->block + p->at,
		       p->bytes);
	for (int i = 0; i < blocks && w->call.redop == FAKE_PREMULSUM; i++)
		nccl_scale(box + (size_t)i * p->room, p->bytes / nccl_width(w->call.type),
			   w->call.type, w->scalar);
}

static void take(struct launch *l, const struct work *w, const struct chunk *p, uint64_t round)
{
	struct ncclComm *c = l->comm;
	int kind = w->call.kind;
	if (rooted_output(kind) && w->call.root != c->rank)
		return;
	char *boxes[RANKS_MAX];
	for (int r = 0; r < c->nranks; r++)
		boxes[r] = shared_box(c, r, round) + (splits(kind) ? (size_t)c->rank * p->room : 0);
	char *to = w->dst_pin.at + p->at;
	switch (kind) {
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE:
	case NCCLSVC_REDUCE_SCATTER:
		nccl_reduce(to, boxes, c->nranks, p->bytes / nccl_width(w->call.type), w->call.type,
			    w->call.redop);
		break;
	case NCCLSVC_BROADCAST:
	case NCCLSVC_SCATTER:
		memcpy(to, boxes[w->call.root], p->bytes);
		break;
	case NCCLSVC_ALL_TO_ALL:
		/* NCCL accepts in-place AllToAll, but its result is undefined: fill it with
		 * garbage. */
		for (int r = 0; w->src_pin.at == w->dst_pin.at && r < c->nranks; r++)
			memset(boxes[r], 0xee, p->bytes);
		__attribute__((fallthrough));
	default: /* AllGather, Gather, AllToAll: one block per rank */
		for (int r = 0; r < c->nranks; r++)
			memcpy(to + (size_t)r * p->block, boxes[r], p->bytes);
	}
}

bool collective_run(struct launch *l, struct work *w)
{
	struct ncclComm *c = l->comm;
	struct member_slot *self = &c->shared->slots[c->rank];
	struct chunk p = {.block = w->call.count * nccl_width(w->call.type)};
	p.room = splits(w->call.kind) ? BOX / (size_t)c->nranks / 64 * 64 : BOX;
	for (; p.at < p.block; p.at += p.bytes) {
		uint64_t round = c->round + 1;
		p.bytes = p.block - p.at < p.room ? p.block - p.at : p.room;
		if (!all_at(l, round < 2 ? 0 : round - 2, true))
			return false;
		self->calls[round % 2] = w->call;
		show(l, w, &p, round);
		atomic_store_explicit(&self->posted, round, memory_order_release);
		if (!all_at(l, round, false))
			return false;
		if (p.at == 0 && !agree(l, round)) {
			launch_fail(l, ncclInvalidUsage);
			return false;
		}
		take(l, w, &p, round);
		c->round = round;
		atomic_store_explicit(&self->taken, round, memory_order_release);
	}
	return true;
}
