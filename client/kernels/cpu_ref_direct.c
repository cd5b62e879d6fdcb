/* SPDX-License-Identifier: Apache-2.0
 * The kernel of large collectives built for the CPU: see platform.h. */
#include "direct.cu"

_Thread_local uint64_t (*ncclsvc_peer_reach)(uint64_t at);

_Static_assert(OFFER_WORDS <= PEER_OFFER_LINES, "an offer fits");
_Static_assert(PEER_CHUNK / 16 >= PEER_RANKS * PEER_DIRECT_THREADS, "a chunk has a part for each");
