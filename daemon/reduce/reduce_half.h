/* SPDX-License-Identifier: Apache-2.0
 * float16 and bfloat16, which are accumulated in two vectors of float32. */
#ifndef REDUCE_HALF_H
#define REDUCE_HALF_H

#include "reduce_ops.h"

VEC_PARTS_OP(half_add, pair_f32, 2, f32_add)
VEC_PARTS_OP(half_mul, pair_f32, 2, f32_mul)
VEC_PARTS_OP(half_min, pair_f32, 2, f32_min)
VEC_PARTS_OP(half_max, pair_f32, 2, f32_max)

VEC_INLINE pair_f32 half_divide(pair_f32 v, unsigned nsrc)
{
	v.part[0] /= (float)nsrc;
	v.part[1] /= (float)nsrc;
	return v;
}

/* bfloat16 is the upper half of a float32: even elements shift up, odd ones are in place. */
VEC_INLINE pair_f32 bf16_in(vec v)
{
	vec_u32 u = (vec_u32)v;
	return (pair_f32){{(vec_f32)(u << 16), (vec_f32)(u & 0xffff0000u)}};
}

VEC_INLINE vec_u32 bf16_round(vec_f32 v)
{
	vec_u32 u = (vec_u32)f32_clean(v);
	vec_u32 up = u + 0x7fff + ((u >> 16) & 1);
	return (vec_u32)vec_select((vec)(v != v), (vec)u, (vec)up);
}

VEC_INLINE vec bf16_out(pair_f32 v, unsigned nsrc)
{
	(void)nsrc;
	return (vec)(bf16_round(v.part[0]) >> 16 | (bf16_round(v.part[1]) & 0xffff0000u));
}

VEC_INLINE vec bf16_out_avg(pair_f32 v, unsigned nsrc)
{
	return bf16_out(half_divide(v, nsrc), nsrc);
}

#if defined(__F16C__) && VEC_BYTES == 64

VEC_INLINE pair_f32 f16_in(vec v)
{
	return (pair_f32){{(vec_f32)_mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)v)),
			   (vec_f32)_mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)v, 1))}};
}

VEC_INLINE vec f16_out(pair_f32 v, unsigned nsrc)
{
	__m256i low = _mm512_cvtps_ph((__m512)f32_clean(v.part[0]), _MM_FROUND_TO_NEAREST_INT);
	__m256i high = _mm512_cvtps_ph((__m512)f32_clean(v.part[1]), _MM_FROUND_TO_NEAREST_INT);

	(void)nsrc;
	return (vec)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

#elif defined(__F16C__) && VEC_BYTES == 32

VEC_INLINE pair_f32 f16_in(vec v)
{
	return (pair_f32){{(vec_f32)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)v)),
			   (vec_f32)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)v, 1))}};
}

VEC_INLINE vec f16_out(pair_f32 v, unsigned nsrc)
{
	__m128i low = _mm256_cvtps_ph((__m256)f32_clean(v.part[0]), _MM_FROUND_TO_NEAREST_INT);
	__m128i high = _mm256_cvtps_ph((__m256)f32_clean(v.part[1]), _MM_FROUND_TO_NEAREST_INT);

	(void)nsrc;
	return (vec)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

#else

/* Signed lanes, since SSE2 has no unsigned compare. */
#define F16_REBIAS   (112 << 23) /* float32's exponent bias less float16's, in place */
#define F16_NORMAL   0x38800000	 /* 2^-14 as float32: the smallest normal float16 */
#define F16_OVERFLOW 0x47800000	 /* 2^16: infinity from here on; rounding is handled below */

VEC_INLINE vec_f32 f16_widen(vec_u32 h)
{
	vec_i32 magnitude = (vec_i32)((h & 0x7fff) << 13), normal = magnitude + F16_REBIAS;
	/* A subnormal's bits with the exponent of 2^-14 represent a value that is 2^-14 too large.
	 */
	vec_f32 subnormal = (vec_f32)(magnitude + F16_NORMAL) - 0x1p-14f;
	vec_i32 infinite = normal + F16_REBIAS;
	vec v = vec_select((vec)(magnitude < 1 << 23), (vec)subnormal, (vec)normal);

	v = vec_select((vec)(magnitude >= 31 << 23), (vec)infinite, v);
	return (vec_f32)((vec_u32)v | (h & 0x8000) << 16);
}

VEC_INLINE vec_u32 f16_narrow(vec_f32 f)
{
	vec_u32 u = (vec_u32)f;
	vec_i32 magnitude = (vec_i32)(u & 0x7fffffff);
	vec_i32 normal = (magnitude - F16_REBIAS + 0xfff + ((magnitude >> 13) & 1)) >> 13;
	/* The last bit of 0.5 has the value of the last bit of a subnormal float16. */
	vec_i32 subnormal = (vec_i32)((vec_f32)magnitude + 0.5f) - 0x3f000000;
	vec_i32 infinity = (vec_i32){0} + 0x7c00, nan = (vec_i32){0} + 0x7e00;
	vec v = vec_select((vec)(magnitude < F16_NORMAL), (vec)subnormal, (vec)normal);

	v = vec_select((vec)(magnitude >= F16_OVERFLOW), (vec)infinity, v) |
	    (vec)((u >> 16) & 0x8000);
	return (vec_u32)vec_select((vec)(f != f), (vec)nan, v);
}

VEC_INLINE pair_f32 f16_in(vec v)
{
	vec_u32 u = (vec_u32)v;
	return (pair_f32){{f16_widen(u & 0xffff), f16_widen(u >> 16)}};
}

VEC_INLINE vec f16_out(pair_f32 v, unsigned nsrc)
{
	(void)nsrc;
	return (vec)(f16_narrow(v.part[0]) | f16_narrow(v.part[1]) << 16);
}

#endif

VEC_INLINE vec f16_out_avg(pair_f32 v, unsigned nsrc)
{
	return f16_out(half_divide(v, nsrc), nsrc);
}

#endif
