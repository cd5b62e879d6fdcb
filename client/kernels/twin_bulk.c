/* SPDX-License-Identifier: Apache-2.0
 * The bulk kernel built for the CPU: see platform.h. */
#include "bulk.cu"

/* The most channels that a launch on a GPU uses, for one-step and two-step collectives. */
enum {
	ONE_STEP = PEER_BLOCKS * (PEER_BULK_THREADS / 32 / 2),
	TWO_STEPS = PEER_BLOCKS * (PEER_BULK_THREADS / 32 / 3),
	HALF = PEER_BULK_DATA / 2,
	RINGS = PEER_BULK_SLOTS * UNIT * (PEER_RANKS - 1), /* bytes of a channel, at least */
};

_Static_assert(ONE_STEP <= PEER_BULK_CHANNELS, "each channel has counters");
_Static_assert(HALF >= ONE_STEP * RINGS, "slots have a unit");
_Static_assert(HALF >= TWO_STEPS * RINGS * 2, "slots have a unit, also with results");
_Static_assert(PEER_BULK_DATA + PEER_BULK_COUNTERS * sizeof(struct peer_counter) +
			       PEER_BULK_CHANNELS * PEER_BULK_SCRATCH <=
		       PEER_BULK_BYTES,
	       "everything fits");
