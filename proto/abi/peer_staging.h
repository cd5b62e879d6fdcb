/* SPDX-License-Identifier: Apache-2.0
 * Part of peer.h: the memory through which kernels communicate. */
#ifndef PROTO_PEER_STAGING_H
#define PROTO_PEER_STAGING_H

#include <stdint.h>

#if defined(__CUDA__) || defined(__CUDACC__)
#define PEER_INLINE static inline __attribute__((device))
#else
#define PEER_INLINE static inline
#endif

#define PEER_RANKS   8
#define PEER_BLOCKS  32
#define PEER_THREADS 512 /* of a block, for moving data */

/* ---- Staging memory, per rank and epoch, on the rank's GPU ---- */

/* Eight bytes of data, in two halves with a flag above each: a 64-bit store is never torn, so data
 * with its flag is valid. A collective's flag is its round. */
struct peer_line {
	uint64_t half[2];
};

#define PEER_LINE_DATA 8

/* Written by the rank's own kernels, which read the first four words at once. */
struct peer_state {
	uint32_t sequence;  /* of the newest kernel whose blocks have all begun */
	uint32_t dead;	    /* enum peer_end; if not PEER_GOOD, all later operations fail, too */
	uint32_t blocks;    /* number of blocks of that kernel */
	uint32_t arrived;   /* blocks of the next kernel that have begun */
	uint32_t stopped;   /* sequence of a kernel that failed */
	uint32_t ending[2]; /* ended blocks of kernels that post their end, for even and odd
			       sequences */
	uint32_t round;	    /* of the newest collective whose blocks have all begun */
	uint32_t serial;    /* of the newest kernel outside of graphs, likewise */
	uint32_t ended[PEER_BLOCKS]; /* by block: the sequence of the last kernel it ended */
	uint32_t told[PEER_BLOCKS];  /* by block: the serial of the last one outside of graphs */
};

#define PEER_HEADERS 1024 /* offset of struct peer_line [2][PEER_RANKS] */
#define PEER_CREDITS 1280 /* of uint64_t [rank][channel], for messages */
#define PEER_COUNTS  2560 /* of uint64_t [way][channel]: total lines so far, likewise */
#define PEER_LINES   8192 /* of the slots: [2][nranks][lines] */
#define PEER_BULK    (PEER_LINES + (UINT64_C(4) << 20)) /* ncclsvc_peer_bulk's part */

/* ncclsvc_peer_bulk takes larger operations, and those with more lines from one rank to another
 * than a slot has, which may be fewer bytes. */
#define PEER_LINES_MOST (UINT64_C(512) << 10)

/* The most lines of one rank's data in another's slot. */
#define PEER_SLOT_LINES(nranks)                                                                    \
	((uint32_t)((PEER_BULK - PEER_LINES) / sizeof(struct peer_line) / 2 / (nranks)))

/* ---- Staging memory of ncclsvc_peer_bulk: from PEER_BULK on ----
 *
 * A channel is a warp that sends, and one that receives from it on each other rank. For each pair
 * of ranks, each channel has a ring of slots and two counters: chunks arrived, written by the
 * sender, and chunks consumed, written by the receiver into the sender's memory. Counters carry the
 * round, as lines do. All of this exists twice, for odd and even rounds.
 *
 * A block has a multiple of 32 threads: from 64 to PEER_BULK_THREADS + 32. The chunks depend on the
 * numbers of blocks and threads, which the kernel does not compare. All ranks must launch the same
 * numbers, so the caller puts them into the header. */

#define PEER_BULK_SLOTS	   4
#define PEER_BULK_CHUNK	   32768 /* bytes at most; a slot may be smaller */
#define PEER_BULK_THREADS  512 /* of a block, for moving data; more would have too few registers */
#define PEER_BULK_CHANNELS 512
#define PEER_BULK_SCRATCH  2048 /* bytes per channel */

/* In this order: bytes of the slots, the counters ([kind][odd round][ring][peer][channel]), and
 * scratch memory. */
#define PEER_BULK_DATA	   (UINT64_C(64) << 20)
#define PEER_BULK_COUNTERS (8 * PEER_RANKS * PEER_BULK_CHANNELS)
#define PEER_BULK_BYTES	   ((UINT64_C(66) << 20) - PEER_LINES)

/* From this size on, AllReduce of two ranks takes two steps: each rank reduces a segment, then all
 * gather the segments. More ranks always take two steps. The CPU version in C has a different
 * limit, for tests. */
#ifndef PEER_TWO_STEPS
#define PEER_TWO_STEPS (UINT64_C(1) << 40)
#endif

struct peer_counter {
	uint64_t value; /* the round in the upper bits, chunks below */
	uint64_t pad;
};

/* ---- Staging memory of messages (Send with its Recv): from PEER_RINGS on ----
 *
 * A way is one peer and one direction: all messages to one rank, or all from one rank. Each ordered
 * pair of ranks has channels, and each channel a ring of lines in the receiver's memory. A message
 * begins with a header line; if it is long, each of its channels has a slice of it behind a header
 * of its own. Lines are counted from the ring's first use, and their flag is the number of the pass
 * around the ring. The receiver periodically tells the sender how many lines it has consumed, so a
 * sender waits for its receiver only if the ring is full. */

#define PEER_WAYS	    (2 * PEER_RANKS)
#define PEER_WAY_TO(rank)   (rank)
#define PEER_WAY_FROM(rank) (PEER_RANKS + (rank))
#define PEER_CHANNELS	    16 /* at most */
#define PEER_RING_LINES	    UINT64_C(16384)
#define PEER_RINGS	    (PEER_BULK + PEER_BULK_BYTES)
#define PEER_RINGS_BYTES    (UINT64_C(8) << 20)		    /* [sender][channel] */
#define PEER_STAGING	    (PEER_RINGS + PEER_RINGS_BYTES) /* total bytes */
#define PEER_CHANNEL_LINES  512				    /* longer messages use more channels */

/* For a pair of ranks, so that all ways of a rank together have PEER_BLOCKS blocks; a rank's way to
 * itself has one.
 */
#define PEER_CHANNELS_OF(nranks) ((PEER_BLOCKS / 2 - 1) / ((nranks)-1))

#endif
