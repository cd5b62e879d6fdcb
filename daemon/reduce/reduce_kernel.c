/* SPDX-License-Identifier: Apache-2.0
 * One variant of all kernels. The build compiles this file once per instruction set, with
 * REDUCE_VARIANT as the name of the table, and without contracting a * b + c. */
#include "reduce_average.h"
#include "reduce_half.h"
#include "reduce_ops.h"
#include "reduce_variant.h"

#define AT(p, off)     ((const char *)(p) + (off))
#define AT_OUT(p, off) ((char *)(p) + (off))

VEC_INLINE void vec_store_all(char *p, const vec *v, unsigned n, bool streaming)
{
	if (streaming)
		for (unsigned u = 0; u < n; u++)
			vec_stream(p + u * VEC_BYTES, v[u]);
	else
		for (unsigned u = 0; u < n; u++)
			vec_store(p + u * VEC_BYTES, v[u]);
}

/* NAME_vectors reduces n vectors in registers; constant n, so that its loops unroll.
 *
 * A tail shorter than a vector is covered by the last whole vector, which overlaps bytes that the
 * loop writes too. In place, those bytes are sources, so the last vector is computed first and
 * stored last. When streaming, the same overlap aligns the destinations at the front. */
#define KERNEL(NAME, ACC, IN, OP, OUT, UNROLL)                                                     \
	VEC_INLINE void NAME##_vectors(vec *out, unsigned n, const void *const *src,               \
				       unsigned nsrc, unsigned divisor, size_t at)                 \
	{                                                                                          \
		ACC acc[UNROLL];                                                                   \
		for (unsigned u = 0; u < n; u++)                                                   \
			acc[u] = IN(vec_load(AT(src[0], at + u * VEC_BYTES)));                     \
		for (unsigned s = 1; s < nsrc; s++)                                                \
			for (unsigned u = 0; u < n; u++)                                           \
				acc[u] = OP(acc[u], IN(vec_load(AT(src[s], at + u * VEC_BYTES)))); \
		for (unsigned u = 0; u < n; u++)                                                   \
			out[u] = OUT(acc[u], divisor);                                             \
	}                                                                                          \
	VEC_INLINE void NAME##_loop(void *const *dst, unsigned ndst, const void *const *src,       \
				    unsigned nsrc, unsigned divisor, size_t at, size_t end,        \
				    bool streaming)                                                \
	{                                                                                          \
		const size_t step = (UNROLL)*VEC_BYTES;                                            \
		vec v[UNROLL];                                                                     \
		for (; end - at >= step; at += step) {                                             \
			NAME##_vectors(v, UNROLL, src, nsrc, divisor, at);                         \
			for (unsigned d = 0; d < ndst; d++)                                        \
				vec_store_all(AT_OUT(dst[d], at), v, UNROLL, streaming);           \
		}                                                                                  \
		for (; end - at >= VEC_BYTES; at += VEC_BYTES) {                                   \
			NAME##_vectors(v, 1, src, nsrc, divisor, at);                              \
			for (unsigned d = 0; d < ndst; d++)                                        \
				vec_store(AT_OUT(dst[d], at), v[0]);                               \
		}                                                                                  \
	}                                                                                          \
	static void NAME(void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc,   \
			 size_t bytes, bool streaming)                                             \
	{                                                                                          \
		vec v;                                                                             \
		if (bytes < VEC_BYTES) {                                                           \
			ACC acc = IN(vec_load_part(src[0], bytes));                                \
			for (unsigned s = 1; s < nsrc; s++)                                        \
				acc = OP(acc, IN(vec_load_part(src[s], bytes)));                   \
			v = OUT(acc, nsrc);                                                        \
			for (unsigned d = 0; d < ndst; d++)                                        \
				vec_store_part(dst[d], v, bytes);                                  \
			return;                                                                    \
		}                                                                                  \
		size_t start = 0, last = bytes - VEC_BYTES;                                        \
		if (streaming) {                                                                   \
			size_t head = -(uintptr_t)dst[0] % REDUCE_LINE_BYTES;                      \
			NAME##_loop(dst, ndst, src, nsrc, nsrc, 0, head + VEC_BYTES, false);       \
			start = head;                                                              \
		}                                                                                  \
		NAME##_vectors(&v, 1, src, nsrc, nsrc, last);                                      \
		if (nsrc == 2 && ndst == 1)                                                        \
			NAME##_loop(dst, 1, src, 2, nsrc, start, bytes, streaming);                \
		else if (nsrc == 2)                                                                \
			NAME##_loop(dst, ndst, src, 2, nsrc, start, bytes, streaming);             \
		else                                                                               \
			NAME##_loop(dst, ndst, src, nsrc, nsrc, start, bytes, streaming);          \
		for (unsigned d = 0; d < ndst; d++)                                                \
			vec_store(AT_OUT(dst[d], last), v);                                        \
	}

#define INTEGER_KERNELS(SIGNED, UNSIGNED, TYPE, UTYPE)                                             \
	KERNEL(UNSIGNED##_sum, UTYPE, UNSIGNED##_in, UNSIGNED##_add, UNSIGNED##_out, 4)            \
	KERNEL(UNSIGNED##_prod, UTYPE, UNSIGNED##_in, UNSIGNED##_mul, UNSIGNED##_out, 4)           \
	KERNEL(UNSIGNED##_lowest, UTYPE, UNSIGNED##_in, UNSIGNED##_min, UNSIGNED##_out, 4)         \
	KERNEL(UNSIGNED##_highest, UTYPE, UNSIGNED##_in, UNSIGNED##_max, UNSIGNED##_out, 4)        \
	KERNEL(SIGNED##_lowest, TYPE, SIGNED##_in, SIGNED##_min, SIGNED##_out, 4)                  \
	KERNEL(SIGNED##_highest, TYPE, SIGNED##_in, SIGNED##_max, SIGNED##_out, 4)

INTEGER_KERNELS(i8, u8, vec_i8, vec_u8)
INTEGER_KERNELS(i32, u32, vec_i32, vec_u32)
INTEGER_KERNELS(i64, u64, vec_i64, vec_u64)
KERNEL(i8_avg, quad_u32, i8_widen, sum8_add, sum8_out_avg, 1)
KERNEL(u8_avg, quad_u32, u8_widen, sum8_add, sum8_out_avg, 1)
KERNEL(i32_avg, pair_u64, i32_widen, sum32_add, sum32_out_avg, 2)
KERNEL(u32_avg, pair_u64, u32_widen, sum32_add, sum32_out_avg, 2)
KERNEL(i64_avg, vec_u64, u64_in, u64_add, i64_out_avg, 4)
KERNEL(u64_avg, vec_u64, u64_in, u64_add, u64_out_avg, 4)

#define FLOAT_KERNELS(NAME, ACC, LANE, UNROLL)                                                     \
	KERNEL(NAME##_sum, ACC, NAME##_in, LANE##_add, NAME##_out, UNROLL)                         \
	KERNEL(NAME##_prod, ACC, NAME##_in, LANE##_mul, NAME##_out, UNROLL)                        \
	KERNEL(NAME##_lowest, ACC, NAME##_in, LANE##_min, NAME##_out, UNROLL)                      \
	KERNEL(NAME##_highest, ACC, NAME##_in, LANE##_max, NAME##_out, UNROLL)                     \
	KERNEL(NAME##_avg, ACC, NAME##_in, LANE##_add, NAME##_out_avg, UNROLL)

FLOAT_KERNELS(f16, pair_f32, half, 2)
FLOAT_KERNELS(bf16, pair_f32, half, 2)
FLOAT_KERNELS(f32, vec_f32, f32, 4)
FLOAT_KERNELS(f64, vec_f64, f64, 4)

#define STREAM_VECTORS (4 * REDUCE_LINE_BYTES / VEC_BYTES)

static void stream(void *to, const void *from, size_t bytes)
{
	char *dst = to;
	const char *src = from;
	size_t head = -(uintptr_t)dst % REDUCE_LINE_BYTES;
	vec v[STREAM_VECTORS];

	if (head > bytes)
		head = bytes;
	memcpy(dst, src, head);
	for (; bytes - head >= sizeof(v); head += sizeof(v)) {
		for (unsigned u = 0; u < STREAM_VECTORS; u++)
			v[u] = vec_load(src + head + u * VEC_BYTES);
		vec_store_all(dst + head, v, STREAM_VECTORS, true);
	}
	memcpy(dst + head, src + head, bytes - head);
}

#define ROW(SUM, PREFIX)                                                                           \
	{                                                                                          \
		[NCCLSVC_SUM] = SUM##_sum, [NCCLSVC_PROD] = SUM##_prod,                            \
		[NCCLSVC_MIN] = PREFIX##_lowest, [NCCLSVC_MAX] = PREFIX##_highest,                 \
		[NCCLSVC_AVG] = PREFIX##_avg,                                                      \
	}
#define STRING(x)      #x
#define NAME_STRING(x) STRING(x)

const struct reduce_variant REDUCE_VARIANT = {
	.name = NAME_STRING(REDUCE_VARIANT),
	.kernel =
		{
			[NCCLSVC_INT8] = ROW(u8, i8),
			[NCCLSVC_UINT8] = ROW(u8, u8),
			[NCCLSVC_INT32] = ROW(u32, i32),
			[NCCLSVC_UINT32] = ROW(u32, u32),
			[NCCLSVC_INT64] = ROW(u64, i64),
			[NCCLSVC_UINT64] = ROW(u64, u64),
			[NCCLSVC_FLOAT16] = ROW(f16, f16),
			[NCCLSVC_FLOAT32] = ROW(f32, f32),
			[NCCLSVC_FLOAT64] = ROW(f64, f64),
			[NCCLSVC_BFLOAT16] = ROW(bf16, bf16),
		},
	.stream = stream,
};
