/* SPDX-License-Identifier: Apache-2.0
 * Averages of integers. */
#ifndef REDUCE_AVERAGE_H
#define REDUCE_AVERAGE_H

#include "proto/svc_limits.h"
#include "reduce_ops.h"

/* An exact sum in wider lanes, then a division that truncates towards zero. A float quotient of
 * exact operands never rounds up to an integer that it does not reach, so truncation is right while
 * sums fit the mantissa: 2^24 for 8-bit types, 2^53 for 32-bit ones. */
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
