/* SPDX-License-Identifier: Apache-2.0
 * Regions that other ranks share, as mapped for this rank (proto/abi/peer_staging.h). */
#ifndef KERNELS_MAPPED_SHARES_H
#define KERNELS_MAPPED_SHARES_H

#include "work.h"

/* How many shares of the owner are mapped. */
DEVICE uint32_t shares_mapped(const struct work *w, unsigned owner)
{
	return load32((const peer_atomic32 *)(w->call->staging[w->call->rank] + PEER_MAPPED) +
		      owner);
}

/* Where the share is mapped, if it is. */
DEVICE uint64_t share_base(const struct work *w, unsigned owner, uint64_t share)
{
	const struct peer_call *c = w->call;
	const uint64_t table = c->staging[c->rank] + PEER_TABLE;
	const uint64_t slot = owner * PEER_SHARES + (uint32_t)(share >> 32) % PEER_SHARES;
	return load64((const peer_atomic64 *)table + slot);
}

#endif
