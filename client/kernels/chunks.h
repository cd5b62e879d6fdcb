/* SPDX-License-Identifier: Apache-2.0
 * Copies chunks, and reduces them in vectors of 16 bytes. */
#ifndef KERNELS_CHUNKS_H
#define KERNELS_CHUNKS_H

#include "transfer.h"
#include "values.h"

#include "proto/ncclsvc_types.h"

#define COPIED 8 /* vectors that a thread loads before it stores the first one */

DEVICE void chunk_copy(uint64_t to, uint64_t from, uint32_t n)
{
	const uint32_t vectors = (to | from) & 15 ? 0 : n / 16;
	ROLLED for (uint32_t v = lane(); v < vectors; v += WARP * COPIED)
	{
		uint64_t x[COPIED][2] = {{0}};
		UNROLLED for (uint32_t u = 0; u < COPIED; u++) if (v + u * WARP < vectors)
			vector_load(from + (v + u * WARP) * 16, x[u]);
		UNROLLED for (uint32_t u = 0; u < COPIED; u++) if (v + u * WARP < vectors)
			vector_store(to + (v + u * WARP) * 16, x[u]);
	}
	ROLLED for (uint32_t i = vectors * 16 + lane() * 8; i < n; i += WARP * 8)
	{
		const uint32_t m = n - i < 8 ? n - i : 8;
		bytes_store(to + i, bytes_load(from + i, m), m);
	}
}

/* ---- Reductions: in rank order, so that all ranks get the same bits ---- */

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

/* Vectors of chunk k. */
struct reduction {
	uint64_t own, dst; /* where the chunk starts in this rank's data, and in the result */
	uint32_t k, first, past;
};

/* Address of the chunk of rank p. */
DEVICE uint64_t reduction_from(const struct work *w, const struct transfer *t,
			       const struct reduction *r, unsigned p)
{
	return p == w->call->rank ? r->own : slot_at(w, t, DATA, w->call->rank, p, r->k);
}

/* For each of a thread's U vectors, which are one warp apart. */
#define EACH_VECTOR(U) UNROLLED for (uint32_t u = 0; u < (U); u++) if (v + u * WARP < r->past)

#define EACH_VALUE(U, N)                                                                           \
	UNROLLED for (uint32_t u = 0; u < (U); u++) UNROLLED for (uint32_t k = 0; k < (N); k++)

#define LOAD(U, p, x)                                                                              \
	do {                                                                                       \
		const uint64_t from_ = reduction_from(w, t, r, p) + v * 16;                        \
		EACH_VECTOR(U) vector_load(from_ + u * WARP * 16, (x)[u].bits);                    \
	} while (0)

/* A vector has N elements of type T in its `field`; sums have type S, which wraps. Each thread
 * loads U vectors of a rank at a time, and those of the next rank before it reduces this rank's. */
#define REDUCE(T, S, N, U, field, GET, PUT, SCALE, AFTER)                                          \
	ROLLED for (uint32_t v = r->first + lane(); v < r->past; v += WARP * (U))                  \
	{                                                                                          \
		T all[U][N];                                                                       \
		union vector_values x[U] = {{{0}}}, y[U] = {{{0}}};                                \
		LOAD(U, 0, x);                                                                     \
		if (c->nranks > 1)                                                                 \
			LOAD(U, 1, y);                                                             \
		EACH_VALUE(U, N) all[u][k] = AVERAGED(GET(x[u].field[k]), SCALE);                  \
		ROLLED for (unsigned p = 1; p < c->nranks; p++)                                    \
		{                                                                                  \
			switch (c->redop) {                                                        \
			case NCCLSVC_PROD:                                                         \
				EACH_VALUE(U, N)                                                   \
				all[u][k] = (T)((S)all[u][k] * (S)GET(y[u].field[k]));             \
				break;                                                             \
			case NCCLSVC_MAX:                                                          \
				EACH_VALUE(U, N)                                                   \
				all[u][k] = LARGER(all[u][k], GET(y[u].field[k]));                 \
				break;                                                             \
			case NCCLSVC_MIN:                                                          \
				EACH_VALUE(U, N)                                                   \
				all[u][k] = SMALLER(all[u][k], GET(y[u].field[k]));                \
				break;                                                             \
			default:                                                                   \
				EACH_VALUE(U, N)                                                   \
				all[u][k] = (T)((S)all[u][k] +                                     \
						(S)AVERAGED(GET(y[u].field[k]), SCALE));           \
			}                                                                          \
			if (p + 1 < c->nranks)                                                     \
				LOAD(U, p + 1, y);                                                 \
		}                                                                                  \
		EACH_VALUE(U, N) x[u].field[k] = PUT(AFTER(all[u][k]));                            \
		EACH_VECTOR(U) vector_store(r->dst + (v + u * WARP) * 16, x[u].bits);              \
		ROLLED for (unsigned i = 0; t->two_steps && i + 1 < c->nranks; i++)                \
		{                                                                                  \
			const unsigned p = peer(c, i);                                             \
			const uint64_t to = slot_at(w, t, RESULTS, p, c->rank, r->k) + v * 16;     \
			EACH_VECTOR(U) vector_store(to + u * WARP * 16, x[u].bits);                \
		}                                                                                  \
	}                                                                                          \
	break

DEVICE void vectors_reduce(const struct work *w, const struct transfer *t,
			   const struct reduction *r)
{
	const struct peer_call *c = w->call;
	const float scale = 1.0f / (float)c->nranks;
	const double dscale = 1.0 / c->nranks;
	switch (c->type) {
	case NCCLSVC_FLOAT32:
		REDUCE(float, float, 4, 4, f32, SAME, SAME, scale, SAME);
	case NCCLSVC_FLOAT16:
		REDUCE(float, float, 8, 2, u16, half_float, float_half, scale, SAME);
	case NCCLSVC_BFLOAT16:
		REDUCE(float, float, 8, 2, u16, bf16_float, float_bf16, scale, SAME);
	case NCCLSVC_FLOAT64:
		REDUCE(double, double, 2, 4, f64, SAME, SAME, dscale, SAME);
	case NCCLSVC_INT8:
		REDUCE(int8_t, uint32_t, 16, 1, i8, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_UINT8:
		REDUCE(uint8_t, uint32_t, 16, 1, u8, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_INT32:
		REDUCE(int32_t, uint32_t, 4, 2, i32, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_UINT32:
		REDUCE(uint32_t, uint32_t, 4, 2, u32, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_INT64:
		REDUCE(int64_t, uint64_t, 2, 2, i64, SAME, SAME, 1, DIVIDED);
	default:
		REDUCE(uint64_t, uint64_t, 2, 2, u64, SAME, SAME, 1, DIVIDED);
	}
}

#endif
