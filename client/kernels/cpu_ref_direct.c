/* SPDX-License-Identifier: Apache-2.0
 * The kernel of large collectives built for the CPU: see platform.h. */
#include <stddef.h>

#include "direct.cu"

_Thread_local uint64_t (*ncclsvc_peer_reach)(uint64_t at);

_Static_assert(OFFER_WORDS <= PEER_OFFER_LINES, "an offer fits");
#define AT(field, word)                                                                            \
	_Static_assert(offsetof(struct peer_call, field) ==                                        \
			       offsetof(struct peer_call, offer[word]),                            \
		       "the call has the words in the offer's order")
AT(header, OFFER_HEADER);
AT(src_share, OFFER_SRC);
AT(src_at, OFFER_SRC_AT);
AT(dst_share, OFFER_DST);
AT(dst_at, OFFER_DST_AT);
AT(scalar, OFFER_SCALAR);
_Static_assert(sizeof(((struct peer_call *)0)->offer) == OFFER_MAPPED * sizeof(uint64_t), "all");
_Static_assert(PEER_CHUNK / 16 >= PEER_RANKS * PEER_DIRECT_THREADS, "a chunk has a part for each");

void ncclsvc_peer_direct(struct peer_call call)
{
#define VARIANT(name, variant) [variant] = ncclsvc_peer_direct_##name,
	static void (*const variants[])(struct peer_call) = {PEER_EACH_VARIANT(VARIANT)};
	variants[peer_variant_of(&call)](call);
}
