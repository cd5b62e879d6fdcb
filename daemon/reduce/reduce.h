/* SPDX-License-Identifier: Apache-2.0
 * The host transport's inner loops. All pointers may be unaligned; a destination may be identical
 * to a source (in place), but must not overlap one otherwise. */
#ifndef REDUCE_REDUCE_H
#define REDUCE_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/ncclsvc_types.h"

/* For i in 0..count: v = src[0][i] op src[1][i] op ... in that order; dst[k][i] = v for every k.
 * nsrc, ndst >= 1. avg divides by nsrc. streaming: the destinations are too large for the caches,
 * so bypass them. Thread-safe. */
void reduce_block(ncclsvc_type type, ncclsvc_redop redop, const void *const *src, unsigned nsrc,
		  void *const *dst, unsigned ndst, size_t count, bool streaming);

/* Like memcpy, optionally bypassing the caches. dst == src is allowed and does nothing.
 * Thread-safe. */
void copy_block(void *dst, const void *src, size_t bytes, bool streaming);

#endif
