/* SPDX-License-Identifier: Apache-2.0
 * The kernels, compiled once per instruction set. All variants give the same bits. */
#ifndef REDUCE_VARIANT_H
#define REDUCE_VARIANT_H

#include "reduce.h"

#define REDUCE_TYPES  (NCCLSVC_BFLOAT16 + 1)
#define REDUCE_REDOPS (NCCLSVC_AVG + 1)

#define REDUCE_LINE_BYTES   64
#define REDUCE_STREAM_BYTES 4096 /* the least that is worth streaming */

/* nsrc >= 2, ndst >= 1, and bytes is a multiple of the element size. With `streaming` there are at
 * least REDUCE_STREAM_BYTES, no destination is a source, and all have the same offset within a
 * cache line, a multiple of the element size. */
typedef void reduce_kernel_fn(void *const *dst, unsigned ndst, const void *const *src,
			      unsigned nsrc, size_t bytes, bool streaming);

struct reduce_variant {
	const char *name;
	reduce_kernel_fn *kernel[REDUCE_TYPES][REDUCE_REDOPS];
	/* Stores that bypass the caches; a later fence must order them. */
	void (*stream)(void *dst, const void *src, size_t bytes);
};

/* Only x86-64 has the last two. */
extern const struct reduce_variant reduce_plain, reduce_avx2, reduce_avx512;

/* The variants that this processor can run, from the plainest at index 0 to the widest. NULL: no
 * more. */
const struct reduce_variant *reduce_variant_at(unsigned index);

/* reduce_block and copy_block with a given variant. */
void reduce_block_with(const struct reduce_variant *variant, ncclsvc_type type, ncclsvc_redop redop,
		       const void *const *src, unsigned nsrc, void *const *dst, unsigned ndst,
		       size_t count, bool streaming);
void copy_block_with(const struct reduce_variant *variant, void *dst, const void *src, size_t bytes,
		     bool streaming);

#endif
