/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of the peer transport share: with each other (the staging memory, on the GPUs)
 * and with the daemon and the library (a page of host memory for each member). Also compiled for
 * GPUs, hence no other includes.
 *
 * Sequences count a rank's kernels, rounds a communicator's collectives among them: rounds are the
 * same on all ranks. Neither is ever 0. The GPU counts them, since nobody tells the library when a
 * CUDA graph is launched. What the library submits outside of graphs has numbers of its own:
 * serials, and rounds without those in graphs. Two slots take turns, which needs no
 * acknowledgement: every collective waits for the headers of all ranks. So when a rank begins round
 * n + 2, all ranks have begun n + 1, and with that ended n.
 *
 * Known limit: rounds repeat after 2^32 - 2 collectives. A line or counter that none has written
 * since would then be taken for one of the new round. */
#ifndef PROTO_PEER_H
#define PROTO_PEER_H

#include "peer_page.h"
#include "peer_staging.h"

/* ---- One operation, as a kernel's argument. In a CUDA graph it is the same at each launch: only
 * `serial`, `round` and `posts` change from call to call, and they are 0 there ---- */

struct peer_call {
	uint64_t staging[PEER_RANKS]; /* by rank, as this process maps them */
	uint64_t page;		      /* as the GPU sees it */
	uint64_t src, dst;
	uint64_t bytes;	   /* from one rank to another */
	uint64_t src_each; /* from receiver to receiver; 0: all get the same */
	uint64_t dst_each; /* from sender to sender */
	uint64_t header;   /* what all ranks must agree on, which the caller packs */
	uint32_t serial;   /* the library's number of the kernel, never 0; 0: it is in a graph */
	uint32_t round;	   /* the library's number of the newest collective, this one or before */
	uint32_t graph;	   /* the library's number of the graph, never 0; 0: it is in none */
	uint32_t index;	   /* of the operation, among the communicator's in the graph, from 0 */
	uint8_t rank, nranks;
	uint8_t sends_to, receives_from; /* masks of ranks, this one among them if it copies */
	uint8_t reduces;		 /* what is received becomes one result */
	uint8_t type, redop;
	uint8_t posts; /* 1: posts its end, once all blocks have ended; 0: block 0 posts its own, if
			  it has posted its begin */
};

/* ---- Messages, as one kernel's argument. Of `call` it does not take what is about the data, nor
 * the header. ---- */

#define PEER_PARTS 32

struct peer_messages {
	struct peer_call call;
	/* A block's channel, and above it its way: PEER_BLOCK_OF. */
	uint8_t block[PEER_BLOCKS];
	/* Those of a way, in the order in which they were submitted, are first[way] to
	 * first[way + 1] - 1. */
	uint8_t first[PEER_WAYS + 1];
	uint32_t before[PEER_WAYS]; /* how many messages the way had; in a graph 0 */
	struct {
		uint64_t at;
		uint64_t header; /* the type above, bytes below: peer_message */
	} parts[PEER_PARTS];
};

#define PEER_BLOCK_OF(way, channel) ((uint8_t)((way) << 4 | (channel)))
#define PEER_MESSAGE_BYTES(header)  ((header)&0xffffffffffffff)

PEER_INLINE uint64_t peer_message(uint8_t type, uint64_t bytes)
{
	return (uint64_t)type << 56 | bytes;
}

/* On how many channels a message of so many bytes goes; self: to the sender itself. */
PEER_INLINE uint32_t peer_channels(uint64_t bytes, uint32_t nranks, int self)
{
	const uint64_t wanted = bytes / (PEER_CHANNEL_LINES * PEER_LINE_DATA);
	const uint32_t most = self ? 1 : PEER_CHANNELS_OF(nranks);
	return wanted < most ? (uint32_t)wanted + !wanted : most;
}

/* What the ranks must agree on, in 64 bits: what moves so little data has a small count. */
PEER_INLINE uint64_t peer_header(uint8_t op, uint8_t type, uint8_t redop, uint8_t root,
				 uint32_t count)
{
	return (uint64_t)op << 56 | (uint64_t)type << 48 | (uint64_t)redop << 40 |
	       (uint64_t)root << 32 | count;
}

PEER_INLINE struct peer_page *peer_page_of(void *pages, uint32_t rank)
{
	return (struct peer_page *)((char *)pages + (uintptr_t)rank * PEER_PAGE);
}

/* Is what stands at the sequence `at` (0: at none yet) as far as s? */
PEER_INLINE int peer_reached(uint32_t at, uint32_t s)
{
	return at && (int32_t)(at - s) >= 0;
}

/* The sequence of the next kernel. */
PEER_INLINE uint32_t peer_sequence_after(uint32_t sequence)
{
	return sequence + 1 ? sequence + 1 : 2; /* 0 is none, and the slots go on taking turns */
}

#endif
