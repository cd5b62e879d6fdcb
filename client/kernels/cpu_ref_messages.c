/* SPDX-License-Identifier: Apache-2.0
 * The message kernel built for the CPU: see platform.h. */
#include "messages.cu"

_Static_assert(sizeof(struct peer_state) <= PEER_HEADERS, "the state fits");
_Static_assert(PEER_HEADERS + 2 * PEER_RANKS * sizeof(struct ll_line) <= PEER_CREDITS,
	       "headers fit");
_Static_assert(PEER_CREDITS + PEER_RANKS * PEER_CHANNELS * sizeof(uint64_t) <= PEER_COUNTS,
	       "credits fit");
_Static_assert(PEER_COUNTS + PEER_DIRS * PEER_CHANNELS * sizeof(uint64_t) <= PEER_LL_SLOTS,
	       "counts fit");
_Static_assert(PEER_BLOCKS *PEER_RING_LINES * sizeof(struct ll_line) <= PEER_RINGS_BYTES,
	       "rings fit");
_Static_assert(PEER_CHANNELS_OF(PEER_BLOCKS, 2) <= PEER_CHANNELS, "each channel has a ring");
_Static_assert(sizeof(struct peer_control) <= PEER_CONTROL_BYTES, "the control block fits");
