/* SPDX-License-Identifier: Apache-2.0
 * Part of peer_abi.h: the memory through which kernels communicate. */
#ifndef PROTO_PEER_STAGING_H
#define PROTO_PEER_STAGING_H

#include <stdint.h>

/* peer_atomic32 and peer_atomic64: words that several processors access at a time. Kernels use
 * instructions of their own for them, on plain words. */
#if defined(__CUDA__) || defined(__CUDACC__)
#define PEER_INLINE static inline __attribute__((device))
typedef uint32_t peer_atomic32;
typedef uint64_t peer_atomic64;
#else
#include <stdatomic.h>
#define PEER_INLINE static inline
typedef _Atomic uint32_t peer_atomic32;
typedef _Atomic uint64_t peer_atomic64;
_Static_assert(sizeof(peer_atomic32) == sizeof(uint32_t) &&
		       _Alignof(peer_atomic32) == _Alignof(uint32_t) && ATOMIC_INT_LOCK_FREE == 2,
	       "the same word as in kernels");
_Static_assert(sizeof(peer_atomic64) == sizeof(uint64_t) &&
		       _Alignof(peer_atomic64) == _Alignof(uint64_t) && ATOMIC_LLONG_LOCK_FREE == 2,
	       "the same word as in kernels");
#endif

#define PEER_RANKS   8
#define PEER_BLOCKS  32
#define PEER_THREADS 512 /* of a block, for moving data */

/* ---- Numbers of kernels and collectives ----
 *
 * They are counted twice, because the library does not see the launches of a CUDA graph. 0 is none.
 *
 * - The library numbers what it submits outside of graphs: kernel_seq is the number of a rank's
 *   kernel, coll_seq of a collective in the communicator.
 * - The GPUs number all launches, also those by graphs: launch_seq is the number of a rank's
 *   kernel, coll_launch_seq of a collective in the communicator.
 *
 * The numbers of collectives are the same on all ranks. Collectives alternate between two slots
 * without acknowledgements, since each waits for the headers of all ranks: when a rank begins
 * collective n + 2, all ranks have begun n + 1, and so have ended n.
 *
 * Known limit: coll_launch_seq repeats after 2^32 - 2 collectives. A line or counter that was not
 * written in between would then be mistaken for one of the new collective. */

/* ---- Staging memory, per rank and epoch, on the rank's GPU ---- */

/* A line of LL, NCCL's low-latency format: eight bytes of data, in two halves with a flag above
 * each. A 64-bit store is never torn, so data with its flag is valid. A collective's flag is its
 * coll_launch_seq. */
struct ll_line {
	uint64_t half[2];
};

#define LL_LINE_DATA 8

/* Written by the rank's own kernels, which read the first four words at once. */
struct peer_state {
	peer_atomic32 launch_seq; /* of the newest kernel whose blocks have all begun */
	peer_atomic32 dead;    /* enum peer_end; if not PEER_GOOD, all later operations fail, too */
	peer_atomic32 blocks;  /* number of blocks of that kernel */
	peer_atomic32 arrived; /* blocks of the next kernel that have begun */
	peer_atomic32 stopped; /* launch_seq of a kernel that failed */
	/* Ended blocks of kernels that post their end, by launch_seq & 1. */
	peer_atomic32 ending[2];
	peer_atomic32 coll_launch_seq;	  /* of the newest collective whose blocks have all begun */
	peer_atomic32 kernel_seq;	  /* of the newest kernel outside of graphs, likewise */
	peer_atomic32 ended[PEER_BLOCKS]; /* by block: the launch_seq of the last kernel it ended */
	/* By block: the kernel_seq of the last one outside of graphs. */
	peer_atomic32 completed[PEER_BLOCKS];
};

#define PEER_HEADERS	    1024 /* offset of struct ll_line [2][PEER_RANKS] */
#define PEER_CREDITS	    1280 /* of uint64_t [rank][channel], for messages */
#define PEER_COUNTS	    2560 /* of uint64_t [peer_dir][channel]: total lines so far, likewise */
#define PEER_LL_SLOTS	    8192 /* [2][nranks][lines] */
#define PEER_LL_SLOTS_BYTES (UINT64_C(4) << 20)

/* The lines of a slot, which holds one rank's data for another. ncclsvc_peer_direct takes
 * operations with more. */
#define PEER_SLOT_LINES(nranks)                                                                    \
	((uint32_t)(PEER_LL_SLOTS_BYTES / sizeof(struct ll_line) / 2 / (nranks)))

/* ---- Staging memory of ncclsvc_peer_direct ----
 *
 * Each rank numbers the regions of GPU memory that it shares with the others in an epoch: 1, 2, 3
 * and so on. A share also has a slot, which no other has while its region exists. The others map
 * the regions in the order of their numbers, and write where to into a table. An operation's buffer
 * is a share, with its slot in the upper bits and its number below, and an offset.
 *
 * As an operation begins, each block offers its peers, in LL lines whose flag is coll_launch_seq,
 * where its rank's buffers are, and up to which number the rank has mapped the shares of each other
 * one. So all ranks know whether all have mapped all buffers. If not, the data goes through chunks.
 * The number of steps that a block has taken since has coll_launch_seq above it. */

#define PEER_DIRECT_THREADS                                                                        \
	480 /* of a block, for moving data: 512 with the monitor's, so that each                   \
		has 128 registers */
#define PEER_SHARES	 1024
#define PEER_OFFER_LINES 16
#define PEER_CHUNK	 UINT32_C(65536) /* bytes */

/* [coll_launch_seq & 1][block][sender][line] */
#define PEER_OFFERS (PEER_LL_SLOTS + PEER_LL_SLOTS_BYTES)
#define PEER_STEPS                                                                                 \
	(PEER_OFFERS + 2 * PEER_BLOCKS * PEER_RANKS * PEER_OFFER_LINES * sizeof(struct ll_line))
/* uint64_t [coll_launch_seq & 1][block][sender] */
#define PEER_MAPPED (PEER_STEPS + 2 * PEER_BLOCKS * PEER_RANKS * sizeof(uint64_t))
/* uint32_t [rank], written by this rank's library: how many of that rank's shares are mapped */
#define PEER_TABLE  (PEER_MAPPED + 256) /* uint64_t [rank][slot], likewise: where they are */
#define PEER_CHUNKS (PEER_TABLE + PEER_RANKS * PEER_SHARES * sizeof(uint64_t))
/* [block][odd step], to be read by all */

/* ---- Staging memory of messages (Send with its Recv): from PEER_RINGS on ----
 *
 * A direction (peer_dir) is all messages to one rank, or all from one rank. Each ordered
 * pair of ranks has channels, and each channel a ring of LL lines in the receiver's memory. A
 * message begins with a header line; if it is long, each of its channels has a slice of it behind a
 * header of its own. Lines are counted from the ring's first use, and their flag is the number of
 * the pass around the ring. The receiver periodically tells the sender how many lines it has
 * consumed, so a sender waits for its receiver only if the ring is full.
 *
 * A long message has one more line behind the header. Its sender waits for a ticket in its own
 * memory, which tells where the receiver's buffer is. If that is mapped, it writes the block's
 * slice there, and then this line, with PEER_MESSAGE_DIRECT; no other follows. */

#define PEER_DIRS	    (2 * PEER_RANKS)
#define PEER_DIR_TO(rank)   (rank)
#define PEER_DIR_FROM(rank) (PEER_RANKS + (rank))
#define PEER_CHANNELS	    16 /* at most */
#define PEER_RING_LINES	    UINT64_C(8192)
#define PEER_TICKET_LINES   3						 /* share, offset, header */
#define PEER_TICKETS	    (PEER_CHUNKS + 2 * PEER_BLOCKS * PEER_CHUNK) /* [receiver][channel] */
#define PEER_TICKETS_BYTES  (PEER_RANKS * PEER_CHANNELS * PEER_TICKET_LINES * sizeof(struct ll_line))
#define PEER_RINGS	    (PEER_TICKETS + PEER_TICKETS_BYTES)
#define PEER_MESSAGE_LONG   (UINT64_C(512) << 10) /* bytes */
#define PEER_RINGS_BYTES    (UINT64_C(4) << 20)	  /* [sender][channel] */
/* In total: a multiple of the GPU's pages. */
#define PEER_STAGING	    ((PEER_RINGS + PEER_RINGS_BYTES + 0x1fffff) / 0x200000 * 0x200000)
#define PEER_CHANNEL_LINES  512 /* longer messages use more channels */

/* ---- Beyond PEER_STAGING, if the communicator uses copy engines: two slots of this size ---- */

#define PEER_COPY_SLOT (UINT64_C(32) << 20)

/* For a pair of ranks, so that all directions of a rank together have that many blocks; a rank's
 * direction to itself has one. The rings are laid out for PEER_BLOCKS.
 */
#define PEER_CHANNELS_OF(blocks, nranks)                                                           \
	((blocks) > 3 && (nranks) > 1 ? ((blocks) / 2 - 1) / ((nranks)-1) : 0)

#endif
