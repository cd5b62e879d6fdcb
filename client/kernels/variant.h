/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc_peer_direct is compiled in variants, one for each way of handling the data. In a single
 * kernel, the code for one operation is scattered: fetching it cost 0.7 of the 10 us that an
 * AllReduce of 1 MiB takes (two ranks on one H200). */
#ifndef KERNELS_VARIANT_H
#define KERNELS_VARIANT_H

#include "proto/abi/peer_abi.h"
#include "proto/ncclsvc_types.h"

#define PEER_EACH_VARIANT(X)                                                                       \
	X(copy, PEER_COPY) /* no reduction */                                                      \
	X(float32, PEER_FLOAT32)                                                                   \
	X(bfloat16, PEER_BFLOAT16)                                                                 \
	X(other, PEER_OTHER) /* reductions of all other types */

enum peer_variant {
#define PEER_VARIANT(name, variant) variant,
	PEER_EACH_VARIANT(PEER_VARIANT)
#undef PEER_VARIANT
		PEER_VARIANTS
};

/* The variants' names. */
#define PEER_VARIANT_NAME(name, variant) [variant] = "ncclsvc_peer_direct_" #name,
#define PEER_DIRECT_NAMES                                                                          \
	{                                                                                          \
		PEER_EACH_VARIANT(PEER_VARIANT_NAME)                                               \
	}

PEER_INLINE enum peer_variant peer_variant_of(const struct peer_call *c)
{
	if (!c->reduces)
		return PEER_COPY;
	if (c->type == NCCLSVC_FLOAT32)
		return PEER_FLOAT32;
	return c->type == NCCLSVC_BFLOAT16 ? PEER_BFLOAT16 : PEER_OTHER;
}

#endif
