/* SPDX-License-Identifier: Apache-2.0
 * Spans of the ranks' buffers, in vectors of 16 bytes. */
#ifndef KERNELS_SPAN_H
#define KERNELS_SPAN_H

#include "elements.h"
#include "offers.h"
#include "realign.h"
#include "variant.h"

/* A span of the buffers: it comes from a range of ranks, and goes to another. Vector number n of it
 * belongs to one thread of one block, the same on all ranks. */
struct span {
	enum peer_variant variant;
	uint8_t rank, nranks, type, redop; /* as in the call */
	uint8_t from, from_past, to, to_past;
	uint64_t src_at, dst_at; /* where it starts in the ranks' buffers */
	uint64_t bytes;
	/* In the staged way, peers' data is in chunks (chunk_at), and so are copies for them. Of
	 * each thread's vectors, a chunk holds those from `first` to `past`. */
	bool from_chunks, to_chunks;
	uint32_t part; /* of the chunk */
	uint32_t step; /* number of the chunk */
	uint32_t first, past;
};

/* ---- Addresses ---- */

/* The number of a thread's kth vector. Operations have less than 2^32 bytes: peer_bytes. */
DEVICE uint32_t vector_number(uint32_t k)
{
	return (k * blocks() + block()) * movers() + thread();
}

/* Where the owner's part of a chunk starts, for this thread. */
DEVICE uint64_t chunk_at(const struct span *s, const struct offers *o, unsigned owner)
{
	const uint32_t i = (block() * 2 + (s->step & 1)) * PEER_CHUNK;
	const uint32_t vectors = s->part * (s->past - s->first) * movers() + thread();
	return o->chunks[owner] + i + (uint64_t)vectors * 16;
}

/* A thread's kth vector in a buffer or chunk, and the distance to the next. */
struct strided {
	uint64_t at;
	uint64_t stride;
};

DEVICE struct strided strided_at(const struct span *s, const struct offers *o, uint64_t buffer,
				 unsigned owner, bool chunk, uint32_t k)
{
	const uint64_t stride = (uint64_t)movers() * 16;
	if (chunk)
		return (struct strided){chunk_at(s, o, owner) + (k - s->first) * stride, stride};
	return (struct strided){buffer + (uint64_t)vector_number(k) * 16, stride * blocks()};
}

DEVICE struct strided src_of(const struct span *s, const struct offers *o, unsigned p, uint32_t k)
{
	return strided_at(s, o, o->src[p] + s->src_at, p, s->from_chunks && p != s->rank, k);
}

DEVICE struct strided dst_of(const struct span *s, const struct offers *o, unsigned p, uint32_t k)
{
	return strided_at(s, o, o->dst[p] + s->dst_at, p, s->to_chunks, k);
}

/* The vectors of the thread whose first one is that: how many are complete, and whether one more is
 * not. */
struct vectors {
	uint32_t complete;
	bool rest;
};

DEVICE struct vectors vectors_of(const struct span *s, uint32_t first)
{
	const uint32_t step = blocks() * movers();
	const uint32_t n = (uint32_t)(s->bytes / 16);
	struct vectors v = {0, false};
	if (first <= n) {
		v.complete = (n - first + step - 1) / step;
		v.rest = s->bytes % 16 && first + v.complete * step == n;
	}
	return v;
}

/* ---- Loads and stores of a thread's U vectors from the kth on, all in flight at once ---- */

enum how {
	ALIGNED,    /* complete, and all addresses are aligned */
	MISALIGNED, /* complete for all threads of the warp, at any addresses */
	TAIL,	    /* one that may be incomplete */
};

#define EACH_VECTOR(U) UNROLLED for (uint32_t u = 0; u < (U); u++) if (k + u < past)

DEVICE void tail_load(const struct span *s, uint64_t from, uint32_t k, uint64_t *v)
{
	const uint64_t left = s->bytes - (uint64_t)vector_number(k) * 16;
	v[0] = bytes_load(from, left < 8 ? (uint32_t)left : 8);
	v[1] = left > 8 ? bytes_load(from + 8, left < 16 ? (uint32_t)left - 8 : 8) : 0;
}

DEVICE void tail_store(const struct span *s, uint64_t to, uint32_t k, const uint64_t *v)
{
	const uint64_t left = s->bytes - (uint64_t)vector_number(k) * 16;
	vector_begin_store(to, v, left < 16 ? (uint32_t)left : 16);
}

#define EACH_LOAD(U, from, by, x)                                                                  \
	{                                                                                          \
		EACH_VECTOR(U) vector_load((from).at + (by) + u * (from).stride, x);               \
	}

#define MISALIGNED_LOAD(U, from, x)                                                                \
	{                                                                                          \
		const uint32_t by_ = (from).at & 15;                                               \
		uint64_t next_[U][2] = {{0}};                                                      \
		EACH_LOAD(U, from, -(uint64_t)by_, (x)[u].bits)                                    \
		if (by_ && thread() % WARP == WARP - 1)                                            \
			EACH_LOAD(U, from, 16 - by_, next_[u])                                     \
		EACH_VECTOR(U) vector_realign(by_, (x)[u].bits, next_[u]);                         \
	}

#define LOAD(HOW, U, p, x)                                                                         \
	do {                                                                                       \
		const struct strided from_ = src_of(s, o, p, k);                                   \
		if ((HOW) == TAIL)                                                                 \
			tail_load(s, from_.at, k, (x)[0].bits);                                    \
		else if ((HOW) == MISALIGNED)                                                      \
			MISALIGNED_LOAD(U, from_, x)                                               \
		else                                                                               \
			EACH_LOAD(U, from_, 0, (x)[u].bits)                                        \
	} while (0)

#define EACH_STORE(U, to, store, x)                                                                \
	{                                                                                          \
		EACH_VECTOR(U) store((to).at + u * (to).stride, (x)[u].bits);                      \
	}

#define STORE(HOW, U, p, x)                                                                        \
	do {                                                                                       \
		const struct strided to_ = dst_of(s, o, p, k);                                     \
		if ((HOW) == TAIL)                                                                 \
			tail_store(s, to_.at, k, (x)[0].bits);                                     \
		else if ((HOW) == MISALIGNED)                                                      \
			EACH_STORE(U, to_, misaligned_store, x)                                    \
		else                                                                               \
			EACH_STORE(U, to_, vector_store, x)                                        \
	} while (0)

/* Whether all addresses of the span are aligned to vectors. */
DEVICE bool is_aligned(const struct span *s, const struct offers *o)
{
	uint64_t all = 0;
	ROLLED for (unsigned p = s->from; p < s->from_past; p++) all |= o->src[p] + s->src_at;
	ROLLED for (unsigned p = s->to; p < s->to_past; p++) all |= o->dst[p] + s->dst_at;
	return !(all & 15);
}

/* ---- All of a thread's vectors ---- */

#define MISALIGNED_AT_ONCE 3

DEVICE uint32_t lesser(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

DEVICE uint32_t greater(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The numbers before which vectors are whole, complete for all threads of the warp, and exist. The
 * kernel for other types than the usual ones would have too much code if it had MISALIGNED vectors.
 */
#define BATCHES_BEGIN                                                                              \
	const struct vectors all_ = vectors_of(s, vector_number(0));                               \
	const uint32_t complete_ =                                                                 \
		s->variant == PEER_OTHER                                                           \
			? 0                                                                        \
			: lesser(vectors_of(s, vector_number(0) | (WARP - 1)).complete, s->past);  \
	const uint32_t end_ = lesser(all_.complete + all_.rest, s->past);                          \
	const uint32_t whole_ = is_aligned(s, o) ? lesser(all_.complete, s->past) : 0

#define BATCHES(U, DO)                                                                             \
	do {                                                                                       \
		uint32_t past = whole_;                                                            \
		ROLLED for (uint32_t k = s->first; k < past; k += (U)) DO(ALIGNED, U);             \
		const uint32_t from_ = greater(s->first, whole_);                                  \
		past = complete_;                                                                  \
		ROLLED for (uint32_t k = from_; k < past; k += MISALIGNED_AT_ONCE)                 \
			DO(MISALIGNED, MISALIGNED_AT_ONCE);                                        \
		past = end_;                                                                       \
		ROLLED for (uint32_t k = greater(from_, complete_); k < past; k++) DO(TAIL, 1);    \
	} while (0)

#endif
