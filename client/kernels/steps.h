/* SPDX-License-Identifier: Apache-2.0
 * The steps of a large collective's blocks, and how a block leaves early. */
#ifndef KERNELS_STEPS_H
#define KERNELS_STEPS_H

#include "offers.h"

DEVICE peer_atomic64 *step_at(const struct work *w, unsigned owner, unsigned sender)
{
	const uint32_t i = ((w->coll_launch_seq & 1) * PEER_BLOCKS + block()) * PEER_RANKS + sender;
	return (peer_atomic64 *)(w->call->staging[owner] + PEER_STEPS) + i;
}

/* Waits until the block of each rank has taken as many steps. What a rank stored before a step is
 * visible to all after it. False: one will not come. */
DEVICE bool step(struct work *w, uint32_t count)
{
	const struct peer_call *c = w->call;
	bool all = true;
	threads_all(movers(), true);
	for (uint32_t p = thread(); p < c->nranks; p += movers())
		if (p != c->rank)
			release64(step_at(w, p, c->rank),
				  (uint64_t)w->coll_launch_seq << 32 | count);
	for (uint32_t p = thread(); p < c->nranks; p += movers())
		while (all && p != c->rank) {
			const uint64_t at = acquire64(step_at(w, c->rank, p));
			if (at >> 32 == w->coll_launch_seq && (uint32_t)at >= count)
				break;
			all = !mover_waited(w);
		}
	return threads_all(movers(), all);
}

/* ---- Leaving early ---- */

/* Called by a block that was stopped after it had made its offers. Its rank's stream continues
 * next, so no peer may write into the rank's buffers afterwards. A peer whose offers have not
 * arrived sees that this block's are withdrawn, and writes nothing. Any other may be writing: its
 * first step, or its withdrawal, ends the wait. */
DEVICE void leave(const struct work *w)
{
	const struct peer_call *c = w->call;
	const uint64_t began = clock_ns();
	uint64_t header;
	for (uint32_t p = thread(); p < c->nranks; p += movers())
		if (p != c->rank)
			ll_store(offer_at(w, p, c->rank, OFFER_HEADER), 0, 0);
	while (clock_ns() - began < PEER_SETTLE_NS)
		rest();
	for (uint32_t p = thread(); p < c->nranks; p += movers())
		while (p != c->rank &&
		       ll_ready(offer_at(w, c->rank, p, OFFER_HEADER), w->coll_launch_seq,
				&header) &&
		       acquire64(step_at(w, c->rank, p)) >> 32 != w->coll_launch_seq &&
		       clock_ns() - began < PEER_LEAVE_NS)
			rest();
	threads_all(movers(), true);
}

#endif
