/* SPDX-License-Identifier: Apache-2.0
 * One warp's part of a collective of many bytes: chunks, the slot rings they pass through, and the
 * chunk counters (proto/abi/peer.h). */
#ifndef KERNELS_TRANSFER_H
#define KERNELS_TRANSFER_H

#include "waiting.h"

#define UNIT 512u /* chunk sizes are multiples of this: 16 bytes for each thread of a warp */

/* The phases of an operation, which a warp does in steps. Only a two-step AllReduce has the gather
 * phase. */
enum phase { SEND = 1, RECEIVE = 2, GATHER = 4 };

enum counter { ARRIVED, CONSUMED };

/* DATA is what the ranks contribute, RESULTS what the first of two steps has reduced. */
enum ring { DATA, RESULTS };

struct progress {
	uint32_t done;		    /* number of chunks */
	uint32_t arrived, consumed; /* chunks at the slowest peer, as last read */
};

struct transfer {
	unsigned phases;
	bool two_steps;
	uint32_t channel, channels;
	uint32_t slot, chunk; /* sizes in bytes */
	uint32_t chunks;      /* number of chunks of this channel */
	uint64_t segment;     /* bytes from one rank to another */
	uint64_t src_each;    /* distance between receivers' data */
	struct progress send, receive, gather;
	volatile uint32_t
		*sent; /* chunks that this channel has sent, shared by the block's warps */
};

DEVICE uint32_t lane(void)
{
	return thread() % WARP;
}

/* ---- Peers: starting with the rank after this one ---- */

DEVICE unsigned peer(const struct peer_call *c, unsigned index)
{
	const unsigned p = c->rank + 1 + index;
	return p < c->nranks ? p : p - c->nranks;
}

/* The index of `rank` among the peers of `of`. */
DEVICE unsigned peer_index(const struct peer_call *c, unsigned rank, unsigned of)
{
	return rank > of ? rank - of - 1 : rank + c->nranks - of - 1;
}

DEVICE uint8_t all_ranks(const struct peer_call *c)
{
	return (uint8_t)((1u << c->nranks) - 1);
}

DEVICE uint8_t peers_of(const struct peer_call *c, uint8_t ranks)
{
	return (uint8_t)(ranks & ~(1u << c->rank));
}

/* ---- Addresses in the staging memory of `owner` ---- */

/* The slot of the sender's chunk k. */
DEVICE uint64_t slot_at(const struct work *w, const struct transfer *t, enum ring ring,
			unsigned owner, unsigned sender, uint32_t k)
{
	const struct peer_call *c = w->call;
	const uint32_t row = ring * (c->nranks - 1u) + peer_index(c, sender, owner);
	const uint32_t slot = (row * t->channels + t->channel) * PEER_BULK_SLOTS;
	return c->staging[owner] + PEER_BULK + (w->round & 1) * (PEER_BULK_DATA / 2) +
	       (uint64_t)(slot + k % PEER_BULK_SLOTS) * t->slot;
}

DEVICE uint64_t *counter_at(const struct work *w, const struct transfer *t, enum counter what,
			    enum ring ring, unsigned owner, unsigned writer)
{
	const struct peer_call *c = w->call;
	const uint32_t row = (what * 2u + (w->round & 1)) * 2 + ring;
	const uint32_t i = (row * PEER_RANKS + peer_index(c, writer, owner)) * PEER_BULK_CHANNELS;
	return (uint64_t *)(c->staging[owner] + PEER_BULK + PEER_BULK_DATA +
			    (i + t->channel) * sizeof(struct peer_counter));
}

/* This rank's scratch memory for the channel. */
DEVICE uint64_t scratch_at(const struct work *w, const struct transfer *t)
{
	return w->call->staging[w->call->rank] + PEER_BULK + PEER_BULK_DATA +
	       PEER_BULK_COUNTERS * sizeof(struct peer_counter) + t->channel * PEER_BULK_SCRATCH;
}

/* ---- Counters ---- */

/* True if all ranks of the mask have counted at least `due` chunks; *seen is the last count read.
 */
DEVICE bool counted(const struct work *w, const struct transfer *t, enum counter what,
		    enum ring ring, uint8_t mask, uint32_t due, uint32_t *seen)
{
	const struct peer_call *c = w->call;
	if (*seen < due) {
		*seen = UINT32_MAX;
		for (uint32_t i = lane(); i + 1 < c->nranks; i += WARP) {
			const unsigned p = peer(c, i);
			if (!(mask & 1u << p))
				continue;
			const uint64_t v = acquire64(counter_at(w, t, what, ring, c->rank, p));
			const uint32_t n = v >> 32 == w->round ? (uint32_t)v : 0;
			*seen = n < *seen ? n : *seen;
		}
	}
	if (!warp_all(*seen >= due))
		return false;
	warp_sync(); /* what one thread has acquired, all of them may load */
	return true;
}

DEVICE void count_arrived(const struct work *w, const struct transfer *t, enum ring ring,
			  uint8_t mask, uint32_t count)
{
	const struct peer_call *c = w->call;
	for (uint32_t i = lane(); i + 1 < c->nranks; i += WARP) {
		const unsigned p = peer(c, i);
		if (mask & 1u << p)
			release64(counter_at(w, t, ARRIVED, ring, p, c->rank),
				  (uint64_t)w->round << 32 | count);
	}
}

/* No release is needed: the warp has stored everything it loaded from the slot, so its loads are
 * complete. Slots that get no other chunk are not counted. */
DEVICE void count_consumed(const struct work *w, const struct transfer *t, enum ring ring,
			   uint8_t mask, uint32_t count)
{
	const struct peer_call *c = w->call;
	if (count + PEER_BULK_SLOTS > t->chunks)
		return;
	for (uint32_t i = lane(); i + 1 < c->nranks; i += WARP) {
		const unsigned p = peer(c, i);
		if (mask & 1u << p)
			store64(counter_at(w, t, CONSUMED, ring, p, c->rank),
				(uint64_t)w->round << 32 | count);
	}
}

/* How many chunks receivers must have consumed before chunk k gets a slot. */
DEVICE uint32_t consumed_due(uint32_t k)
{
	return k < PEER_BULK_SLOTS ? 0 : k + 1 - PEER_BULK_SLOTS;
}

/* ---- Chunks ---- */

/* The offset of chunk k in a segment. */
DEVICE uint64_t chunk_at(const struct transfer *t, uint32_t k)
{
	return ((uint64_t)k * t->channels + t->channel) * t->chunk;
}

/* The bytes of chunk k in rank p's segment. */
DEVICE uint32_t chunk_bytes(const struct peer_call *c, const struct transfer *t, unsigned p,
			    uint32_t k)
{
	const uint64_t at = chunk_at(t, k), begin = at + (t->two_steps ? p * t->segment : 0);
	uint64_t n = begin < c->bytes ? c->bytes - begin : 0;
	if (n > t->segment - at)
		n = t->segment - at;
	return n < t->chunk ? (uint32_t)n : t->chunk;
}

#endif
