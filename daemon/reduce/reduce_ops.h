/* SPDX-License-Identifier: Apache-2.0
 * Operations on one vector of each type: load into an accumulator, combine with the next rank's
 * vector, and store.
 *
 * NaN: a result is NaN if any operand is, in min and max too, and then it is the canonical quiet
 * NaN (sign clear, first mantissa bit set), because the hardware's choice of sign and payload
 * differs between instruction sets. For equal operands of min and max, including -0 and +0, the
 * lower rank's wins. A single source is copied unchanged. */
#ifndef REDUCE_OPS_H
#define REDUCE_OPS_H

#include "reduce_vector.h"

/* Narrow types accumulate in wider lanes. Lane i of a part need not be element i, as long as the
 * store reverses the order of the load. */
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

/* Unsigned lanes for signed types too, since sums and products wrap and the bits are the same. */
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

#endif
