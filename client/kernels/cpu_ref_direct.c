/* SPDX-License-Identifier: Apache-2.0
 * The kernel of large collectives built for the CPU: see platform.h. */
#include "direct.cu"

_Thread_local uint64_t (*ncclsvc_peer_reach)(uint64_t at);

_Static_assert(OFFER_WORDS <= PEER_OFFER_LINES, "an offer fits");
_Static_assert(PEER_CHUNK / 16 >= PEER_RANKS * PEER_DIRECT_THREADS, "a chunk has a part for each");

void ncclsvc_peer_direct(struct peer_call call)
{
#define VARIANT(name, variant) [variant] = ncclsvc_peer_direct_##name,
	static void (*const variants[])(struct peer_call) = {PEER_EACH_VARIANT(VARIANT)};
	variants[peer_variant_of(&call)](call);
}
