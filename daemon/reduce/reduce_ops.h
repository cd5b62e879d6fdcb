/* SPDX-License-Identifier: Apache-2.0
 * What one vector of each type does: into an accumulator, combined with the next rank's, and back.
 *
 * NaN: a result is NaN if any operand is, in min and max too, and then it is the canonical quiet
 * NaN (sign clear, first mantissa bit set), because the hardware's choice of sign and payload
 * differs between instruction sets. Equal operands of min and max, -0 and +0 among them, keep the
 * lower rank's. A single source is copied as it is. */
#ifndef ENGINE_REDUCE_OPS_H
#define ENGINE_REDUCE_OPS_H

#include "reduce_vector.h"
#include "svc_limits.h"

/* Narrow types accumulate in wider lanes. Lane i of a part need not be element i: what counts is
 * that the way back undoes the way in. */
typedef struct pair_f32 {
	vec_f32 part[2];
} pair_f32;
typedef struct pair_u64 {
	vec_u64 part[2];
} pair_u64;
typedef struct quad_u32 {
	vec_u32 part[4];
} quad_u32;

#define VEC_INTEGER_OPS(lane, type)                                                                \
	VEC_INLINE type lane##_in(vec v)                                                           \
	{                                                                                          \
		return (type)v;                                                                    \
	}                                                                                          \
	VEC_INLINE type lane##_min(type a, type b)                                                 \
	{                                                                                          \
		return (type)vec_select((vec)(b < a), (vec)b, (vec)a);                             \
	}                                                                                          \
	VEC_INLINE type lane##_max(type a, type b)                                                 \
	{                                                                                          \
		return (type)vec_select((vec)(b > a), (vec)b, (vec)a);                             \
	}                                                                                          \
	VEC_INLINE vec lane##_out(type v, unsigned nsrc)                                           \
	{                                                                                          \
		(void)nsrc;                                                                        \
		return (vec)v;                                                                     \
	}

VEC_INTEGER_OPS(u8, vec_u8)
VEC_INTEGER_OPS(i8, vec_i8)
VEC_INTEGER_OPS(u32, vec_u32)
VEC_INTEGER_OPS(i32, vec_i32)
VEC_INTEGER_OPS(u64, vec_u64)
VEC_INTEGER_OPS(i64, vec_i64)

/* Unsigned lanes for signed types too: sums and products wrap, and the bits are the same. */
#define VEC_WRAPPING_OPS(lane, type)                                                               \
	VEC_INLINE type lane##_add(type a, type b)                                                 \
	{                                                                                          \
		return a + b;                                                                      \
	}                                                                                          \
	VEC_INLINE type lane##_mul(type a, type b)                                                 \
	{                                                                                          \
		return a * b;                                                                      \
	}

VEC_WRAPPING_OPS(u8, vec_u8)
VEC_WRAPPING_OPS(u32, vec_u32)
VEC_WRAPPING_OPS(u64, vec_u64)

#define VEC_FLOAT_OPS(lane, type, bits, quiet_nan)                                                 \
	VEC_INLINE type lane##_in(vec v)                                                           \
	{                                                                                          \
		return (type)v;                                                                    \
	}                                                                                          \
	VEC_INLINE type lane##_add(type a, type b)                                                 \
	{                                                                                          \
		return a + b;                                                                      \
	}                                                                                          \
	VEC_INLINE type lane##_mul(type a, type b)                                                 \
	{                                                                                          \
		return a * b;                                                                      \
	}                                                                                          \
	VEC_INLINE type lane##_min(type a, type b)                                                 \
	{                                                                                          \
		return (type)vec_select((vec)(b < a) | (vec)(b != b), (vec)b, (vec)a);             \
	}                                                                                          \
	VEC_INLINE type lane##_max(type a, type b)                                                 \
	{                                                                                          \
		return (type)vec_select((vec)(b > a) | (vec)(b != b), (vec)b, (vec)a);             \
	}                                                                                          \
	VEC_INLINE type lane##_clean(type v)                                                       \
	{                                                                                          \
		bits nan = (bits){0} + (quiet_nan);                                                \
		return (type)vec_select((vec)(v != v), (vec)nan, (vec)v);                          \
	}                                                                                          \
	VEC_INLINE vec lane##_out(type v, unsigned nsrc)                                           \
	{                                                                                          \
		(void)nsrc;                                                                        \
		return (vec)lane##_clean(v);                                                       \
	}

VEC_FLOAT_OPS(f32, vec_f32, vec_u32, 0x7fc00000u)
VEC_FLOAT_OPS(f64, vec_f64, vec_u64, UINT64_C(0x7ff8000000000000))

VEC_INLINE vec f32_out_avg(vec_f32 v, unsigned nsrc)
{
	return (vec)f32_clean(v / (float)nsrc);
}

VEC_INLINE vec f64_out_avg(vec_f64 v, unsigned nsrc)
{
	return (vec)f64_clean(v / (double)nsrc);
}

/* Applies a lane function to every part of an accumulator. */
#define VEC_PARTS_OP(name, type, count, op)                                                        \
	VEC_INLINE type name(type a, type b)                                                       \
	{                                                                                          \
		for (unsigned i = 0; i < (count); i++)                                             \
			a.part[i] = op(a.part[i], b.part[i]);                                      \
		return a;                                                                          \
	}

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

/* Signed lanes, because SSE2 compares no others. */
#define F16_REBIAS   (112 << 23) /* float32's exponent bias less float16's, in place */
#define F16_NORMAL   0x38800000	 /* 2^-14 as float32: the smallest normal float16 */
#define F16_OVERFLOW 0x47800000	 /* 2^16: from here on infinity; rounding takes care below */

VEC_INLINE vec_f32 f16_widen(vec_u32 h)
{
	vec_i32 magnitude = (vec_i32)((h & 0x7fff) << 13), normal = magnitude + F16_REBIAS;
	/* A subnormal's bits under the exponent of 2^-14 stand for 2^-14 too much. */
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
	/* The last bit of 0.5 is worth what the last bit of a subnormal float16 is. */
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

/* Integer averages: an exact sum in wider lanes, then a division towards zero. A float quotient of
 * exact operands never rounds up to an integer that it does not reach, so truncating it is right
 * while sums fit the mantissa: 2^24 for 8-bit types, 2^53 for 32-bit ones. */
_Static_assert(SVC_RANKS_MAX <= 65536, "sums of 8-bit elements must stay below 2^24");

VEC_PARTS_OP(sum8_add, quad_u32, 4, u32_add)
VEC_PARTS_OP(sum32_add, pair_u64, 2, u64_add)

VEC_INLINE quad_u32 u8_widen(vec v)
{
	vec_u32 u = (vec_u32)v;
	return (quad_u32){{u & 0xff, (u >> 8) & 0xff, (u >> 16) & 0xff, u >> 24}};
}

VEC_INLINE quad_u32 i8_widen(vec v)
{
	vec_u32 u = (vec_u32)v;
	return (quad_u32){{(vec_u32)((vec_i32)(u << 24) >> 24), (vec_u32)((vec_i32)(u << 16) >> 24),
			   (vec_u32)((vec_i32)(u << 8) >> 24), (vec_u32)((vec_i32)u >> 24)}};
}

VEC_INLINE vec_u32 sum8_divide(vec_u32 sum, unsigned nsrc)
{
	vec_f32 quotient = __builtin_convertvector((vec_i32)sum, vec_f32) / (float)nsrc;
	return (vec_u32) __builtin_convertvector(quotient, vec_i32) & 0xff;
}

VEC_INLINE vec sum8_out_avg(quad_u32 v, unsigned nsrc)
{
	return (vec)(sum8_divide(v.part[0], nsrc) | sum8_divide(v.part[1], nsrc) << 8 |
		     sum8_divide(v.part[2], nsrc) << 16 | sum8_divide(v.part[3], nsrc) << 24);
}

VEC_INLINE pair_u64 u32_widen(vec v)
{
	return (pair_u64){{v & 0xffffffff, v >> 32}};
}

VEC_INLINE pair_u64 i32_widen(vec v)
{
	vec_u64 sign = (vec_u64){0} + 0x80000000;
	return (pair_u64){{((v & 0xffffffff) ^ sign) - sign, ((v >> 32) ^ sign) - sign}};
}

/* Adding 1.5 * 2^52 turns a small signed integer into a double and back on any machine: its low
 * bits are the integer's. */
VEC_INLINE vec_u64 sum32_divide(vec_u64 sum, unsigned nsrc)
{
	const double magic = 0x1.8p52;
	vec_u64 magic_bits = (vec_u64)((vec_f64){0} + magic);
	vec_f64 quotient = ((vec_f64)(sum + magic_bits) - magic) / (double)nsrc;
	vec_f64 shifted = quotient + magic, nearest = shifted - magic;
	vec_u64 above = (vec_u64)(nearest > quotient) & (vec_u64)(quotient > 0);
	vec_u64 below = (vec_u64)(nearest < quotient) & (vec_u64)(quotient < 0);

	return ((vec_u64)shifted + above - below) & 0xffffffff;
}

VEC_INLINE vec sum32_out_avg(pair_u64 v, unsigned nsrc)
{
	return sum32_divide(v.part[0], nsrc) | sum32_divide(v.part[1], nsrc) << 32;
}

/* 64-bit sums wrap. */
VEC_INLINE vec u64_out_avg(vec_u64 v, unsigned nsrc)
{
	if ((nsrc & (nsrc - 1)) == 0)
		return v >> (unsigned)__builtin_ctz(nsrc);
	for (unsigned i = 0; i < VEC_BYTES / 8; i++)
		v[i] /= nsrc;
	return v;
}

VEC_INLINE vec i64_out_avg(vec_u64 sum, unsigned nsrc)
{
	vec_i64 v = (vec_i64)sum;

	if ((nsrc & (nsrc - 1)) == 0) {
		vec_u64 bias = (vec_u64)(v < 0) & (nsrc - 1);
		return (vec)((vec_i64)(sum + bias) >> (unsigned)__builtin_ctz(nsrc));
	}
	for (unsigned i = 0; i < VEC_BYTES / 8; i++)
		v[i] /= (int64_t)nsrc;
	return (vec)v;
}

#endif
