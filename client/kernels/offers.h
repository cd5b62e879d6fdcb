/* SPDX-License-Identifier: Apache-2.0
 * The handshake of a large collective's blocks: each offers its peers where its rank's buffers are,
 * and tells them which shares the rank has mapped (proto/abi/peer_staging.h). A block communicates
 * only with the same block of each other rank, so all ranks decide alike for a block, and different
 * blocks may decide differently. */
#ifndef KERNELS_OFFERS_H
#define KERNELS_OFFERS_H

#include "mapped_shares.h"
#include "waiting.h"

enum offer {
	OFFER_HEADER, /* this to OFFER_SCALAR: as in peer_call.offer */
	OFFER_SRC,    /* the share with the buffer */
	OFFER_SRC_AT,
	OFFER_DST,
	OFFER_DST_AT,
	OFFER_SCALAR,
	OFFER_MAPPED, /* of two ranks in each word */
	OFFER_WORDS = OFFER_MAPPED + PEER_RANKS / 2,
};

/* Shared by the block's threads. */
struct offers {
	uint64_t own[OFFER_WORDS]; /* this rank's */
	uint64_t scalar[PEER_RANKS];
	/* The ranks' buffers, and their chunks for this block, as mapped here. */
	uint64_t src[PEER_RANKS], dst[PEER_RANKS], chunks[PEER_RANKS];
};

/* ---- Addresses ---- */

DEVICE uint64_t offer_at(const struct work *w, unsigned owner, unsigned sender, unsigned word)
{
	const uint32_t row =
		((w->coll_launch_seq & 1) * PEER_BLOCKS + block()) * PEER_RANKS + sender;
	return w->call->staging[owner] + PEER_OFFERS +
	       (row * PEER_OFFER_LINES + word) * sizeof(struct ll_line);
}

/* ---- Which ranks take part ---- */

DEVICE bool has_data(const struct peer_call *c, unsigned p)
{
	return p >= c->from && p < c->from_past;
}

DEVICE bool gets_data(const struct peer_call *c, unsigned p)
{
	return p >= c->to && p < c->to_past;
}

/* ---- Making offers ---- */

/* Loads what does not depend on other ranks. Called before work_begin, where the movers would only
 * wait. */
DEVICE void offers_begin(const struct peer_call *c, struct offers *o)
{
	const peer_atomic64 *mapped =
		(const peer_atomic64 *)(c->staging[c->rank] + PEER_MAPPED) - OFFER_MAPPED;
	for (uint32_t i = thread(); i < OFFER_WORDS; i += movers())
		o->own[i] = i < OFFER_MAPPED ? c->offer[i] : load64(mapped + i);
	if (!thread()) {
		o->src[c->rank] = c->src;
		o->dst[c->rank] = c->dst;
	}
}

/* A rank also sends its offer to itself, so that taking offers needs no special case. */
DEVICE void offers_put(const struct work *w, const struct offers *o)
{
	const struct peer_call *c = w->call;
	for (uint32_t i = thread(); i < PEER_RANKS * PEER_OFFER_LINES; i += movers()) {
		const uint32_t p = i / PEER_OFFER_LINES, word = i % PEER_OFFER_LINES;
		if (p < c->nranks && word < OFFER_WORDS)
			ll_store(offer_at(w, p, c->rank, word), w->coll_launch_seq, o->own[word]);
	}
}

/* ---- Taking offers ---- */

/* The words of offers that one thread needs. */
struct offered {
	uint64_t mapped; /* from rank p: how many shares of ranks q and q ^ 1 it has mapped */
	uint64_t src, src_at, dst, dst_at; /* of rank q */
};

/* Issues all loads before it waits. False: the block was stopped. */
DEVICE bool offered_take(struct work *w, unsigned p, unsigned q, struct offered *t)
{
	const uint32_t flag = w->coll_launch_seq;
	const uint64_t mapped = offer_at(w, w->call->rank, p, OFFER_MAPPED + q / 2);
	const uint64_t of = offer_at(w, w->call->rank, q, 0);
	bool all = false;
	while (!all) {
		all = ll_ready(mapped, flag, &t->mapped);
		all &= ll_ready(of + OFFER_SRC * sizeof(struct ll_line), flag, &t->src);
		all &= ll_ready(of + OFFER_SRC_AT * sizeof(struct ll_line), flag, &t->src_at);
		all &= ll_ready(of + OFFER_DST * sizeof(struct ll_line), flag, &t->dst);
		all &= ll_ready(of + OFFER_DST_AT * sizeof(struct ll_line), flag, &t->dst_at);
		if (!all && mover_waited(w))
			return false;
	}
	return true;
}

/* Whether rank p has mapped what it needs of rank q. */
DEVICE bool is_mapped(const struct peer_call *c, const struct offered *t, unsigned q)
{
	const uint32_t mapped = (uint32_t)(t->mapped >> (q % 2 ? 32 : 0));
	return (!has_data(c, q) || (t->src && mapped >= (uint32_t)t->src)) &&
	       (!gets_data(c, q) || (t->dst && mapped >= (uint32_t)t->dst));
}

/* Whether what a rank receives may overwrite parts that others have yet to take. t: its offer. */
DEVICE bool overlaps(const struct peer_call *c, const struct offered *t)
{
	const uint64_t bytes = c->bytes * c->nranks, distance = t->dst_at - t->src_at;
	return c->parts == (PEER_PART_FOR_EACH | PEER_PART_OF_EACH) && t->src == t->dst &&
	       (distance < bytes || -distance < bytes);
}

/* Records where rank q's buffers are mapped here. Called once the count of mapped shares includes
 * them: the library writes it after the table. */
DEVICE void buffers_find(const struct work *w, const struct offered *t, unsigned q,
			 struct offers *o)
{
	const struct peer_call *c = w->call;
	const bool has = has_data(c, q), gets = gets_data(c, q);
	const uint64_t src = has ? share_base(w, q, t->src) : 0;
	const uint64_t dst = gets ? share_base(w, q, t->dst) : 0; /* issued before src is used */
	o->src[q] = has ? peer_address(src + t->src_at) : 0;
	o->dst[q] = gets ? peer_address(dst + t->dst_at) : 0;
}

/* Waits for the offers of ranks p and q, and clears *direct unless they allow moving the data
 * directly. False: the block was stopped. */
DEVICE bool pair_take(struct work *w, struct offers *o, unsigned p, unsigned q, bool *direct)
{
	const struct peer_call *c = w->call;
	struct offered t;
	if (!offered_take(w, p, q, &t))
		return false;
	*direct &= p == q ? !overlaps(c, &t) : is_mapped(c, &t, q);
	if (p == c->rank && p != q && is_mapped(c, &t, q))
		buffers_find(w, &t, q, o);
	return true;
}

/* Acquires rank p's header: later loads see what p stored before its offer. False: the block was
 * stopped, or the headers differ. */
DEVICE bool header_take(struct work *w, struct offers *o, unsigned p)
{
	const struct peer_call *c = w->call;
	const uint64_t from = offer_at(w, c->rank, p, 0);
	uint64_t header, scalar = 0;
	while (!ll_acquired(from, w->coll_launch_seq, &header) ||
	       !ll_ready(from + OFFER_SCALAR * sizeof(struct ll_line), w->coll_launch_seq, &scalar))
		if (mover_waited(w))
			return false;
	o->scalar[p] = scalar;
	header_compare(w, header);
	return header == c->header;
}

/* Waits for all ranks' offers. False: a rank does something else, or will not come. *direct: all
 * ranks have mapped the buffers that they need, none overlap, and o has their addresses. */
DEVICE bool offers_take(struct work *w, struct offers *o, bool *direct)
{
	const struct peer_call *c = w->call;
	bool good = true, fit = true;
	for (uint32_t i = thread(); good && i < PEER_RANKS * (PEER_RANKS + 1); i += movers()) {
		const uint32_t p = i / PEER_RANKS, q = i % PEER_RANKS;
		if (q >= c->nranks)
			continue;
		if (p == PEER_RANKS)
			good = header_take(w, o, q);
		else if (p < c->nranks)
			good = pair_take(w, o, p, q, &fit);
	}
	*direct = threads_all(movers(), good && fit);
	return *direct || threads_all(movers(), good);
}

#endif
