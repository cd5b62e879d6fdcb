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
	OFFER_HEADER,
	OFFER_SRC, /* the share with the buffer */
	OFFER_SRC_AT,
	OFFER_DST,
	OFFER_DST_AT,
	OFFER_SCALAR,
	OFFER_MAPPED, /* of two ranks in each word */
	OFFER_WORDS = OFFER_MAPPED + PEER_RANKS / 2,
};

/* Shared by the block's threads. */
struct offers {
	uint64_t words[PEER_RANKS][OFFER_WORDS];
	/* The ranks' buffers, and their chunks for this block, as mapped here. */
	uint64_t src[PEER_RANKS], dst[PEER_RANKS], chunks[PEER_RANKS];
};

DEVICE unsigned peer(const struct peer_call *c, unsigned index)
{
	const unsigned p = c->rank + 1 + index;
	return p < c->nranks ? p : p - c->nranks;
}

/* ---- Addresses ---- */

DEVICE uint64_t offer_at(const struct work *w, unsigned owner, unsigned sender, unsigned word)
{
	const uint32_t row =
		((w->coll_launch_seq & 1) * PEER_BLOCKS + block()) * PEER_RANKS + sender;
	return w->call->staging[owner] + PEER_OFFERS +
	       (row * PEER_OFFER_LINES + word) * sizeof(struct ll_line);
}

/* ---- Offers ---- */

/* Loads what does not depend on the operation. Called before work_begin, where the movers would
 * only wait. */
DEVICE void offers_begin(const struct peer_call *c, struct offers *o)
{
	const peer_atomic64 *mapped =
		(const peer_atomic64 *)(c->staging[c->rank] + PEER_MAPPED) - OFFER_MAPPED;
	for (uint32_t i = thread(); i < OFFER_WORDS; i += movers())
		if (i >= OFFER_MAPPED)
			o->words[c->rank][i] = load64(mapped + i);
}

DEVICE uint64_t offer_word(const struct work *w, const struct offers *o, unsigned word)
{
	const struct peer_call *c = w->call;
	switch (word) {
	case OFFER_HEADER:
		return c->header;
	case OFFER_SRC:
		return c->src_share;
	case OFFER_SRC_AT:
		return c->src_at;
	case OFFER_DST:
		return c->dst_share;
	case OFFER_DST_AT:
		return c->dst_at;
	case OFFER_SCALAR:
		return c->scalar;
	default:
		return o->words[c->rank][word];
	}
}

DEVICE void offers_put(const struct work *w, struct offers *o)
{
	const struct peer_call *c = w->call;
	for (uint32_t i = thread(); i < OFFER_WORDS; i += movers()) {
		const uint64_t word = offer_word(w, o, i);
		o->words[c->rank][i] = word;
		ROLLED for (unsigned k = 0; k + 1 < c->nranks; k++)
			ll_store(offer_at(w, peer(c, k), c->rank, i), w->coll_launch_seq, word);
	}
}

/* Waits for all ranks' offers. False: a rank does something else, or will not come. */
DEVICE bool offers_take(struct work *w, struct offers *o)
{
	const struct peer_call *c = w->call;
	bool good = true;
	for (uint32_t i = thread(); i < c->nranks * OFFER_WORDS; i += movers()) {
		const uint32_t p = i / OFFER_WORDS, word = i % OFFER_WORDS;
		uint64_t got = 0;
		if (p == c->rank)
			continue;
		const uint64_t from = offer_at(w, c->rank, p, word);
		while (good && !ll_acquired(from, w->coll_launch_seq, &got))
			good = !mover_waited(w);
		o->words[p][word] = got;
		if (word == OFFER_HEADER && good) {
			header_compare(w, got);
			good = got == c->header;
		}
	}
	return threads_all(movers(), good);
}

DEVICE bool has_data(const struct peer_call *c, unsigned p)
{
	return p >= c->from && p < c->from_past;
}

DEVICE bool gets_data(const struct peer_call *c, unsigned p)
{
	return p >= c->to && p < c->to_past;
}

/* Whether rank p has mapped what it needs of rank q. */
DEVICE bool is_mapped(const struct peer_call *c, const struct offers *o, unsigned p, unsigned q)
{
	const uint64_t *of = o->words[q];
	const uint32_t mapped = (uint32_t)(o->words[p][OFFER_MAPPED + q / 2] >> (q % 2 ? 32 : 0));
	if (p == q)
		return true;
	return (!has_data(c, q) || (of[OFFER_SRC] && mapped >= (uint32_t)of[OFFER_SRC])) &&
	       (!gets_data(c, q) || (of[OFFER_DST] && mapped >= (uint32_t)of[OFFER_DST]));
}

/* Whether the rank's parts for others may be overwritten by what it receives. */
DEVICE bool overlaps(const struct peer_call *c, const uint64_t *of)
{
	const uint64_t bytes = c->bytes * c->nranks, distance = of[OFFER_DST_AT] - of[OFFER_SRC_AT];
	return c->parts == (PEER_PART_FOR_EACH | PEER_PART_OF_EACH) &&
	       of[OFFER_SRC] == of[OFFER_DST] && (distance < bytes || -distance < bytes);
}

/* True: the data can be moved directly, as all ranks have mapped all buffers. Their addresses are
 * known afterwards. The loads from the table do not wait for that. */
DEVICE bool buffers_find(const struct work *w, struct offers *o)
{
	const struct peer_call *c = w->call;
	bool mapped = true;
	for (uint32_t p = thread(); p < c->nranks; p += movers()) {
		const bool other = p != c->rank, has = has_data(c, p), gets = gets_data(c, p);
		const uint64_t src = other && has ? share_base(w, p, o->words[p][OFFER_SRC]) : 0;
		const uint64_t dst = other && gets ? share_base(w, p, o->words[p][OFFER_DST]) : 0;
		o->src[p] = other ? src : c->src;
		o->dst[p] = other ? dst : c->dst;
	}
	for (uint32_t i = thread(); i < (uint32_t)c->nranks * c->nranks; i += movers())
		mapped &= is_mapped(c, o, i / c->nranks, i % c->nranks) &&
			  !overlaps(c, o->words[i % c->nranks]);
	if (!threads_all(movers(), mapped))
		return false;
	for (uint32_t p = thread(); p < c->nranks; p += movers()) {
		if (p != c->rank && has_data(c, p))
			o->src[p] = peer_address(o->src[p] + o->words[p][OFFER_SRC_AT]);
		if (p != c->rank && gets_data(c, p))
			o->dst[p] = peer_address(o->dst[p] + o->words[p][OFFER_DST_AT]);
	}
	return threads_all(movers(), true);
}

#endif
