/* SPDX-License-Identifier: Apache-2.0
 * Elements as the kernels load, compute and store them. */
#ifndef KERNELS_ELEMENTS_H
#define KERNELS_ELEMENTS_H

#include "platform.h"

/* ---- Buffers: any alignment, n of eight bytes ---- */

DEVICE uint64_t bytes_load(uint64_t from, uint32_t n)
{
	if (n == 8 && !(from & 7))
		return *(const uint64_t *)from;
	uint64_t v = 0;
	const bool words = !((from | n) & 3);
	ROLLED for (uint32_t i = 0; i < n; i += words ? 4 : 1) v |=
		(words ? (uint64_t) * (const uint32_t *)(from + i) : *(const uint8_t *)(from + i))
		<< 8 * i;
	return v;
}

DEVICE void bytes_store(uint64_t to, uint64_t v, uint32_t n)
{
	if (n == 8 && !(to & 7)) {
		*(uint64_t *)to = v;
		return;
	}
	const bool words = !((to | n) & 3);
	ROLLED for (uint32_t i = 0; i < n; i += words ? 4 : 1)
	{
		if (words)
			*(uint32_t *)(to + i) = (uint32_t)(v >> 8 * i);
		else
			*(uint8_t *)(to + i) = (uint8_t)(v >> 8 * i);
	}
}

/* ---- Types ---- */

union line_values {
	uint64_t bits;
	uint64_t u64[1];
	int64_t i64[1];
	double f64[1];
	uint32_t u32[2];
	int32_t i32[2];
	float f32[2];
	uint16_t u16[4];
	uint8_t u8[8];
	int8_t i8[8];
};

DEVICE float bf16_float(uint16_t b)
{
	union line_values v = {.u32 = {(uint32_t)b << 16}};
	return v.f32[0];
}

DEVICE uint16_t float_bf16(float f)
{
#ifdef CONVERTS_BF16
	return convert_bf16(f);
#else
	union line_values v = {.f32 = {f}};
	const uint32_t u = v.u32[0];
	if ((u & 0x7fffffff) > 0x7f800000)
		return 0x7fff;
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
}

#define SAME(x)	      (x)
#define LARGER(a, b)  ((a) > (b) || (b) != (b) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (b) != (b) ? (a) : (b))

/* Averages, computed as NCCL does: floats are scaled before they are added, integer sums are
 * divided. */
#define AVERAGED(x, scale) (c->redop == NCCLSVC_AVG ? (x) * (scale) : (x))
#define DIVIDED(x)	   (c->redop == NCCLSVC_AVG ? (x) / c->nranks : (x))

/* PEER_PREMULSUM: each rank's elements are multiplied by its scalar, and the products are rounded
 * to the type, before they are added. */
#define PRODUCT(T, S, GET, PUT, x, scalar) PUT((T)((S)GET(x) * (S)GET(scalar)))

#endif
