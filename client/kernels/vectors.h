/* SPDX-License-Identifier: Apache-2.0
 * Copies and reduces spans. */
#ifndef KERNELS_VECTORS_H
#define KERNELS_VECTORS_H

#include "span.h"

#include "proto/ncclsvc_types.h"

#define COPIED 8 /* vectors that a thread loads before it stores the first one */

union vector_values {
	uint64_t bits[2];
	uint64_t u64[2];
	int64_t i64[2];
	double f64[2];
	uint32_t u32[4];
	int32_t i32[4];
	float f32[4];
	uint16_t u16[8];
	uint8_t u8[16];
	int8_t i8[16];
};

/* Whether the span is already where it goes. */
DEVICE bool is_in_place(const struct span *s, const struct offers *o, unsigned p)
{
	return !s->from_chunks && !s->to_chunks &&
	       o->dst[p] + s->dst_at == o->src[s->from] + s->src_at;
}

/* Copies the span of one rank to all its receivers, starting with the rank after this one. */
DEVICE void span_copy(const struct span *s, const struct offers *o)
{
	const unsigned n = s->to_past - s->to;
	BATCHES_BEGIN;
#define COPY(HOW, U)                                                                               \
	{                                                                                          \
		union vector_values x[U] = {{{0}}};                                                \
		LOAD(HOW, U, s->from, x);                                                          \
		ROLLED for (unsigned i = 0; i < n; i++)                                            \
		{                                                                                  \
			const unsigned p = n > 1 ? (s->rank + 1 + i) % s->nranks : s->to;          \
			if (!is_in_place(s, o, p))                                                 \
				STORE(HOW, U, p, x);                                               \
		}                                                                                  \
	}
	BATCHES(COPIED, COPY);
}

/* ---- Reductions: in rank order, so that all ranks get the same bits ---- */

#define EACH_VALUE(U, N)                                                                           \
	UNROLLED for (uint32_t u = 0; u < (U); u++) UNROLLED for (uint32_t i = 0; i < (N); i++)

/* Multiplies rank p's elements by its scalar. */
#define PREMULTIPLY(T, S, N, U, field, GET, PUT, x, p)                                             \
	if (c->redop == PEER_PREMULSUM) {                                                          \
		const union vector_values by_ = {.bits = {o->scalar[p]}};                          \
		EACH_VALUE(U, N)                                                                   \
		(x)[u].field[i] = PRODUCT(T, S, GET, PUT, (x)[u].field[i], by_.field[0]);          \
	}

/* A vector has N elements of type T in its `field`; sums have type S, which wraps. FACTOR: applied
 * to each element of a sum; AFTER: to the sum. The next rank's vectors are loaded ahead. */
#define REDUCE(HOW, T, S, N, U, field, GET, PUT, FACTOR, AFTER)                                    \
	{                                                                                          \
		T all[U][N];                                                                       \
		union vector_values x[U] = {{{0}}}, y[U] = {{{0}}};                                \
		LOAD(HOW, U, 0, x);                                                                \
		if (c->nranks > 1)                                                                 \
			LOAD(HOW, U, 1, y);                                                        \
		PREMULTIPLY(T, S, N, U, field, GET, PUT, x, 0)                                     \
		EACH_VALUE(U, N) all[u][i] = FACTOR(GET(x[u].field[i]));                           \
		ROLLED for (unsigned p = 1; p < c->nranks; p++)                                    \
		{                                                                                  \
			PREMULTIPLY(T, S, N, U, field, GET, PUT, y, p)                             \
			switch (c->redop) {                                                        \
			case NCCLSVC_PROD:                                                         \
				EACH_VALUE(U, N)                                                   \
				all[u][i] = (T)((S)all[u][i] * (S)GET(y[u].field[i]));             \
				break;                                                             \
			case NCCLSVC_MAX:                                                          \
				EACH_VALUE(U, N)                                                   \
				all[u][i] = LARGER(all[u][i], GET(y[u].field[i]));                 \
				break;                                                             \
			case NCCLSVC_MIN:                                                          \
				EACH_VALUE(U, N)                                                   \
				all[u][i] = SMALLER(all[u][i], GET(y[u].field[i]));                \
				break;                                                             \
			default:                                                                   \
				EACH_VALUE(U, N)                                                   \
				all[u][i] = (T)((S)all[u][i] + (S)FACTOR(GET(y[u].field[i])));     \
			}                                                                          \
			if (p + 1 < c->nranks)                                                     \
				LOAD(HOW, U, p + 1, y);                                            \
		}                                                                                  \
		EACH_VALUE(U, N) x[u].field[i] = PUT(AFTER(all[u][i]));                            \
		ROLLED for (unsigned p = s->to; p < s->to_past; p++) STORE(HOW, U, p, x);          \
	}

/* The same for two ranks. It needs fewer registers, so a thread can have more vectors in flight. */
#define REDUCE_PAIR(HOW, N, U, field, GET, PUT, FACTOR)                                            \
	{                                                                                          \
		union vector_values x[U] = {{{0}}}, y[U] = {{{0}}};                                \
		LOAD(HOW, U, 0, x);                                                                \
		LOAD(HOW, U, 1, y);                                                                \
		switch (c->redop) {                                                                \
		case NCCLSVC_PROD:                                                                 \
			EACH_VALUE(U, N)                                                           \
			x[u].field[i] = PUT(GET(x[u].field[i]) * GET(y[u].field[i]));              \
			break;                                                                     \
		case NCCLSVC_MAX:                                                                  \
			EACH_VALUE(U, N)                                                           \
			x[u].field[i] = PUT(LARGER(GET(x[u].field[i]), GET(y[u].field[i])));       \
			break;                                                                     \
		case NCCLSVC_MIN:                                                                  \
			EACH_VALUE(U, N)                                                           \
			x[u].field[i] = PUT(SMALLER(GET(x[u].field[i]), GET(y[u].field[i])));      \
			break;                                                                     \
		default:                                                                           \
			EACH_VALUE(U, N)                                                           \
			x[u].field[i] =                                                            \
				PUT(FACTOR(GET(x[u].field[i])) + FACTOR(GET(y[u].field[i])));      \
		}                                                                                  \
		ROLLED for (unsigned p = s->to; p < s->to_past; p++) STORE(HOW, U, p, x);          \
	}

#define SCALED(x)	  ((x)*factor)
#define FLOATS(W, U)	  REDUCE(W, float, float, 4, U, f32, SAME, SAME, SCALED, SAME)
#define HALVES(W, U)	  REDUCE(W, float, float, 8, U, u16, half_float, float_half, SCALED, SAME)
#define BFLOATS(W, U)	  REDUCE(W, float, float, 8, U, u16, bf16_float, float_bf16, SCALED, SAME)
#define TWO_FLOATS(W, U)  REDUCE_PAIR(W, 4, U, f32, SAME, SAME, SCALED)
#define TWO_HALVES(W, U)  REDUCE_PAIR(W, 8, U, u16, half_float, float_half, SCALED)
#define TWO_BFLOATS(W, U) REDUCE_PAIR(W, 8, U, u16, bf16_float, float_bf16, SCALED)

/* Reduces floats of 16 and 32 bits. */
DEVICE void floats_reduce(const struct span *s, const struct offers *o)
{
	const struct span *c = s;
	const float factor = c->redop == NCCLSVC_AVG ? 1.0f / (float)c->nranks : 1.0f;
	const bool two = c->nranks == 2 && c->redop != PEER_PREMULSUM;
	BATCHES_BEGIN;
	if (s->variant == PEER_FLOAT32 && two)
		BATCHES(8, TWO_FLOATS);
	else if (s->variant == PEER_FLOAT32)
		BATCHES(4, FLOATS);
	else if (s->variant == PEER_BFLOAT16 && two)
		BATCHES(6, TWO_BFLOATS);
	else if (s->variant == PEER_BFLOAT16)
		BATCHES(4, BFLOATS);
	else if (two)
		BATCHES(6, TWO_HALVES);
	else
		BATCHES(4, HALVES);
}

#define DOUBLES(W, U)	 REDUCE(W, double, double, 2, U, f64, SAME, SAME, SCALED, SAME)
#define INTS8(W, U)	 REDUCE(W, int8_t, uint32_t, 16, U, i8, SAME, SAME, SAME, DIVIDED)
#define UNSIGNED8(W, U)	 REDUCE(W, uint8_t, uint32_t, 16, U, u8, SAME, SAME, SAME, DIVIDED)
#define INTS32(W, U)	 REDUCE(W, int32_t, uint32_t, 4, U, i32, SAME, SAME, SAME, DIVIDED)
#define UNSIGNED32(W, U) REDUCE(W, uint32_t, uint32_t, 4, U, u32, SAME, SAME, SAME, DIVIDED)
#define INTS64(W, U)	 REDUCE(W, int64_t, uint64_t, 2, U, i64, SAME, SAME, SAME, DIVIDED)
#define UNSIGNED64(W, U) REDUCE(W, uint64_t, uint64_t, 2, U, u64, SAME, SAME, SAME, DIVIDED)

/* Reduces the span across all ranks. */
DEVICE void span_reduce(const struct span *s, const struct offers *o)
{
	const struct span *c = s;
	if (s->variant != PEER_OTHER || c->type == NCCLSVC_FLOAT16) {
		floats_reduce(s, o);
		return;
	}
	const double factor = c->redop == NCCLSVC_AVG ? 1.0 / c->nranks : 1.0;
	BATCHES_BEGIN;
	switch (c->type) {
	case NCCLSVC_FLOAT64:
		BATCHES(4, DOUBLES);
		break;
	case NCCLSVC_INT8:
		BATCHES(1, INTS8);
		break;
	case NCCLSVC_UINT8:
		BATCHES(1, UNSIGNED8);
		break;
	case NCCLSVC_INT32:
		BATCHES(2, INTS32);
		break;
	case NCCLSVC_UINT32:
		BATCHES(2, UNSIGNED32);
		break;
	case NCCLSVC_INT64:
		BATCHES(2, INTS64);
		break;
	default:
		BATCHES(2, UNSIGNED64);
	}
}

#endif
