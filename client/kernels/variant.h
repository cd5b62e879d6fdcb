/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc_peer_direct has variants, by what becomes of the data. In one kernel for all, the code
 * that an operation runs would be scattered: of 1 MiB on two H200, a block waited longer for that
 * code (1.3 us) than for the data. */
#ifndef KERNELS_VARIANT_H
#define KERNELS_VARIANT_H

#include "proto/abi/peer_abi.h"
#include "proto/ncclsvc_types.h"

#define PEER_EACH_VARIANT(X)                                                                       \
	X(copy, PEER_COPY) /* it is not reduced */                                                 \
	X(float32, PEER_FLOAT32)                                                                   \
	X(bfloat16, PEER_BFLOAT16)                                                                 \
	X(other, PEER_OTHER) /* all other types are reduced */

enum peer_variant {
#define PEER_VARIANT(name, variant) variant,
	PEER_EACH_VARIANT(PEER_VARIANT)
#undef PEER_VARIANT
		PEER_VARIANTS
};

PEER_INLINE enum peer_variant peer_variant_of(const struct peer_call *c)
{
	if (!c->reduces)
		return PEER_COPY;
	if (c->type == NCCLSVC_FLOAT32)
		return PEER_FLOAT32;
	return c->type == NCCLSVC_BFLOAT16 ? PEER_BFLOAT16 : PEER_OTHER;
}

#endif
