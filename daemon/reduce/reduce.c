/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "proto/names.h"
#include "reduce_variant.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#ifdef REDUCE_HAVE_X86
static bool has_avx2(void)
{
	unsigned a, b, c, d;
	/* clang 14 does not know the name "f16c". */
	return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl");
}
#endif

const struct reduce_variant *reduce_variant_at(unsigned index)
{
	switch (index) {
	case 0:
		return &reduce_plain;
#ifdef REDUCE_HAVE_X86
	case 1:
		return has_avx2() ? &reduce_avx2 : NULL;
	case 2:
		return has_avx512() ? &reduce_avx512 : NULL;
#endif
	default:
		return NULL;
	}
}

/* Conversion costs more than memory access. */
static bool converts(ncclsvc_type type)
{
	return type == NCCLSVC_FLOAT16 || type == NCCLSVC_BFLOAT16;
}

/* The widest variant, unless memory bandwidth is the limit: stores of 64 bytes then measured a
 * tenth to a fifth slower than stores of 32 (Zen 4). Racing threads find the same result. */
static const struct reduce_variant *choose(bool memory_bound)
{
	static _Atomic(const struct reduce_variant *) cache[2];
	const struct reduce_variant *next, *variant;

	variant = atomic_load_explicit(&cache[memory_bound], memory_order_relaxed);
	if (variant)
		return variant;
	for (unsigned i = 0; (next = reduce_variant_at(i)); i++)
		if (!memory_bound || i <= 1)
			variant = next;
	atomic_store_explicit(&cache[memory_bound], variant, memory_order_relaxed);
	return variant;
}

/* Streaming stores are not ordered by a later release, so they need this fence first. */
static void stream_fence(void)
{
#ifdef __SSE2__
	_mm_sfence();
#endif
}

/* A line that was just read is in the cache, so a store that bypasses the cache would only evict
 * it. */
static bool in_place(const void *const *src, unsigned nsrc, void *const *dst, unsigned ndst)
{
	for (unsigned d = 0; d < ndst; d++)
		for (unsigned s = 0; s < nsrc; s++)
			if (dst[d] == src[s])
				return true;
	return false;
}

/* Streaming stores are aligned. Destinations with different alignments would have to be streamed
 * one by one from a scratch block, which measured slower than plain stores. */
static bool aligned_alike(void *const *dst, unsigned ndst, size_t element)
{
	for (unsigned d = 0; d < ndst; d++)
		if (((uintptr_t)dst[d] ^ (uintptr_t)dst[0]) % REDUCE_LINE_BYTES)
			return false;
	return (uintptr_t)dst[0] % element == 0;
}

void reduce_block_with(const struct reduce_variant *variant, ncclsvc_type type, ncclsvc_redop redop,
		       const void *const *src, unsigned nsrc, void *const *dst, unsigned ndst,
		       size_t count, bool streaming)
{
	assert(type < REDUCE_TYPES && redop < REDUCE_REDOPS && nsrc && ndst);
	reduce_kernel_fn *kernel = variant->kernel[type][redop];
	size_t element = svc_type_size(type), bytes = count * element;

	if (nsrc == 1) {
		for (unsigned d = 0; d < ndst; d++)
			copy_block_with(variant, dst[d], src[0], bytes, streaming);
		return;
	}
	streaming = streaming && bytes >= REDUCE_STREAM_BYTES &&
		    aligned_alike(dst, ndst, element) && !in_place(src, nsrc, dst, ndst);
	kernel(dst, ndst, src, nsrc, bytes, streaming);
	if (streaming)
		stream_fence();
}

void copy_block_with(const struct reduce_variant *variant, void *dst, const void *src, size_t bytes,
		     bool streaming)
{
	if (dst == src || !bytes)
		return;
	if (!streaming || bytes < REDUCE_STREAM_BYTES) {
		memmove(dst, src, bytes); /* two ranks may share memory by mistake */
		return;
	}
	variant->stream(dst, src, bytes);
	stream_fence();
}

void reduce_block(ncclsvc_type type, ncclsvc_redop redop, const void *const *src, unsigned nsrc,
		  void *const *dst, unsigned ndst, size_t count, bool streaming)
{
	reduce_block_with(choose(streaming && !converts(type)), type, redop, src, nsrc, dst, ndst,
			  count, streaming);
}

void copy_block(void *dst, const void *src, size_t bytes, bool streaming)
{
	copy_block_with(choose(streaming), dst, src, bytes, streaming);
}
