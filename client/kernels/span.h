/* SPDX-License-Identifier: Apache-2.0
 * Spans of the ranks' buffers, in vectors of 16 bytes. */
#ifndef KERNELS_SPAN_H
#define KERNELS_SPAN_H

#include "elements.h"
#include "offers.h"
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

/* A thread's vectors in the span: how many are complete, and whether one more is not. */
struct vectors {
	uint32_t complete;
	bool rest;
};

DEVICE struct vectors vectors_of(const struct span *s)
{
	const uint32_t first = vector_number(0), step = blocks() * movers();
	const uint32_t n = (uint32_t)(s->bytes / 16);
	struct vectors v = {0, false};
	if (first <= n) {
		v.complete = (n - first + step - 1) / step;
		v.rest = s->bytes % 16 && first + v.complete * step == n;
	}
	return v;
}

/* ---- Loads and stores of a thread's U vectors from the kth on. WHOLE ones, which are complete and
 * aligned, are all in flight at once; others come one by one. ---- */

#define EACH_VECTOR(U) UNROLLED for (uint32_t u = 0; u < (U); u++) if (k + u < past)

DEVICE void part_load(const struct span *s, uint64_t from, uint32_t k, uint64_t *v)
{
	const uint64_t left = s->bytes - (uint64_t)vector_number(k) * 16;
	v[0] = bytes_load(from, left < 8 ? (uint32_t)left : 8);
	v[1] = left > 8 ? bytes_load(from + 8, left < 16 ? (uint32_t)left - 8 : 8) : 0;
}

DEVICE void part_store(const struct span *s, uint64_t to, uint32_t k, const uint64_t *v)
{
	const uint64_t left = s->bytes - (uint64_t)vector_number(k) * 16;
	bytes_store(to, v[0], left < 8 ? (uint32_t)left : 8);
	if (left > 8)
		bytes_store(to + 8, v[1], left < 16 ? (uint32_t)left - 8 : 8);
}

#define LOAD(WHOLE, U, p, x)                                                                       \
	do {                                                                                       \
		const struct strided from_ = src_of(s, o, p, k);                                   \
		if (!(WHOLE))                                                                      \
			part_load(s, from_.at, k, (x)[0].bits);                                    \
		else                                                                               \
			EACH_VECTOR(U) vector_load(from_.at + u * from_.stride, (x)[u].bits);      \
	} while (0)

#define STORE(WHOLE, U, p, x)                                                                      \
	do {                                                                                       \
		const struct strided to_ = dst_of(s, o, p, k);                                     \
		if (!(WHOLE))                                                                      \
			part_store(s, to_.at, k, (x)[0].bits);                                     \
		else                                                                               \
			EACH_VECTOR(U) vector_store(to_.at + u * to_.stride, (x)[u].bits);         \
	} while (0)

/* Whether all addresses of the span are aligned to vectors. */
DEVICE bool is_aligned(const struct span *s, const struct offers *o)
{
	uint64_t all = 0;
	ROLLED for (unsigned p = s->from; p < s->from_past; p++) all |= o->src[p] + s->src_at;
	ROLLED for (unsigned p = s->to; p < s->to_past; p++) all |= o->dst[p] + s->dst_at;
	return !(all & 15);
}

/* ---- All of a thread's vectors: whole ones U at a time, then the others ---- */

DEVICE uint32_t lesser(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The numbers before which a thread's vectors are whole, and exist. */
#define BATCHES_BEGIN                                                                              \
	const struct vectors all_ = vectors_of(s);                                                 \
	const uint32_t end_ = lesser(all_.complete + all_.rest, s->past);                          \
	const uint32_t whole_ = is_aligned(s, o) ? lesser(all_.complete, s->past) : 0

#define BATCHES(U, DO)                                                                             \
	do {                                                                                       \
		uint32_t past = whole_;                                                            \
		ROLLED for (uint32_t k = s->first; k < past; k += (U)) DO(1, U);                   \
		past = end_;                                                                       \
		ROLLED for (uint32_t k = s->first > whole_ ? s->first : whole_; k < past; k++)     \
			DO(0, 1);                                                                  \
	} while (0)

#endif
