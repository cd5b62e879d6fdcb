/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of the peer transport share: with each other (the staging memory, on the GPUs)
 * and with the daemon and the library (a page of host memory for each member). Also compiled for
 * GPUs, hence no includes but these.
 *
 * Sequences count a communicator's operations, and are never 0. Two slots take turns, which needs
 * no acknowledgement: every kernel waits for the headers of all ranks. So when a rank begins
 * operation n + 2, all ranks have begun n + 1, and with that ended n.
 *
 * Known limit: sequences repeat after 2^32 - 2 operations. A line or counter that no operation has
 * written since would then be taken for one of the new operation. */
#ifndef PROTO_PEER_H
#define PROTO_PEER_H

#include <stdint.h>

#define PEER_RANKS   8
#define PEER_BLOCKS  32
#define PEER_THREADS 512 /* of a block, that move data */

/* ---- Staging memory: one for each rank and epoch, on that rank's GPU ---- */

/* Eight bytes of data, in two halves with the sequence above each: a 64-bit store is never torn, so
 * data that has its sequence is there. */
struct peer_line {
	uint64_t half[2];
};

#define PEER_LINE_DATA 8

/* Written by the rank's own kernels, which read the first four words at a time. */
struct peer_state {
	uint32_t sequence;  /* of the newest kernel all of whose blocks have begun */
	uint32_t dead;	    /* enum peer_end; but for PEER_GOOD all later operations fail, too */
	uint32_t blocks;    /* of that kernel */
	uint32_t arrived;   /* blocks of the next one */
	uint32_t stopped;   /* the sequence of one that failed */
	uint32_t ending[2]; /* blocks of kernels that post their end, for even and odd sequences */
	uint32_t pad;
	uint32_t ended[PEER_BLOCKS]; /* by block: the sequence of the last kernel that it ended */
};

#define PEER_HEADERS 1024		 /* offset of struct peer_line [2][PEER_RANKS] */
#define PEER_LINES   4096		 /* of the slots: [2][nranks][lines] */
#define PEER_STAGING (UINT64_C(4) << 20) /* bytes of it all */

/* Larger operations have ncclsvc_peer_bulk, if all members' staging memory has room for that; and
 * so have those of more lines from one rank to another than a slot has, which may be fewer. */
#define PEER_LINES_MOST (UINT64_C(256) << 10)

/* How many lines one rank's data may have in another's slot. */
#define PEER_SLOT_LINES(nranks)                                                                    \
	((uint32_t)((PEER_STAGING - PEER_LINES) / sizeof(struct peer_line) / 2 / (nranks)))

/* ---- Staging memory of ncclsvc_peer_bulk: behind the other, from PEER_STAGING on ----
 *
 * A channel is a warp that sends, and one that receives from it on each other rank. Each channel
 * has a ring of slots for each pair of ranks, and two counters: of chunks that have arrived, which
 * the sender writes, and of chunks consumed, which the receiver writes into the sender's memory.
 * Counters carry the sequence, as lines do. All of it exists twice, for odd and even sequences.
 *
 * A block has a multiple of 32 threads: from 64 to PEER_BULK_THREADS + 32. The chunks follow from
 * the blocks and threads, and the kernel does not compare these: all ranks must launch the same,
 * so the caller puts them into the header. */

#define PEER_BULK_SLOTS	   4
#define PEER_BULK_CHUNK	   32768 /* bytes at most; a slot may be smaller */
#define PEER_BULK_THREADS  512	 /* of a block, that move data; more have too few registers */
#define PEER_BULK_CHANNELS 512
#define PEER_BULK_SCRATCH  2048 /* bytes of each channel */

/* In this order: bytes of the slots, the counters ([what][odd][ring][peer][channel]), and scratch
 * memory. PEER_BULK is the bytes of all three. */
#define PEER_BULK_DATA	   (UINT64_C(64) << 20)
#define PEER_BULK_COUNTERS (8 * PEER_RANKS * PEER_BULK_CHANNELS)
#define PEER_BULK	   (UINT64_C(66) << 20)

/* From so many bytes, AllReduce of two ranks takes two steps: each rank reduces a segment, then all
 * gather the segments. More ranks always take two. The twin in C has another limit, for tests. */
#ifndef PEER_TWO_STEPS
#define PEER_TWO_STEPS (UINT64_C(1) << 40)
#endif

struct peer_counter {
	uint64_t value; /* the sequence above, chunks below */
	uint64_t pad;
};

/* ---- The page of a member ---- */

#define PEER_PAGE 65536

enum peer_end {
	PEER_GOOD,
	PEER_MISMATCH,	  /* another rank's header differs */
	PEER_ABORTED,	  /* the page's abort word is set */
	PEER_DAEMON_LOST, /* the daemon is gone */
	PEER_OVERLAP,	  /* the communicator's former kernel was still running */
};

/* A collective that a kernel was launched for. It is written before `launched`, and one that is
 * behind by PEER_HISTORY is overwritten: CUDA lets a stream have about as many kernels that have
 * not begun. */
#define PEER_HISTORY 1024
#define PEER_RESULTS 64

struct peer_record {
	uint64_t operation;   /* its number among the member's tasks in this epoch, from 0 */
	uint64_t header;      /* of its kernel: peer_header */
	uint64_t launched_ns; /* CLOCK_MONOTONIC */
	uint64_t timeout_ns;  /* 0: none */
	uint32_t sequence;
	uint32_t collective; /* its number among the member's collectives, the low half */
};

struct peer_page {
	/* The daemon, and the library for its own member, write these. */
	uint32_t abort;
	uint32_t heartbeat; /* the daemon counts on */
	uint32_t pad0[14];
	/* Kernels write these. begun and ended: a sequence, and above it the call's record. */
	uint64_t begun; /* only by one that waits for longer than PEER_LOOK_NS */
	/* By one that posts: all that it has stored is there for everybody. By one that has posted
	 * its begin: its first block has ended, and all kernels before it. */
	uint64_t ended;
	uint64_t failed; /* the first after which all fail; above it enum peer_end */
	uint32_t pad1[10];
	/* The library writes these, for the daemon. When a transport is chosen: entered, if it is a
	 * kernel, then submitted. When a kernel is launched, which can be long after: a record,
	 * then launched. */
	uint64_t submitted; /* collectives of the member in this epoch, on all transports; Sends and
			       Recvs do not count: ranks have different numbers of them */
	uint32_t launched;  /* sequence of the newest kernel; 0: none */
	uint32_t entered;   /* the same of the newest that is to be launched */
	uint32_t pad2[12];
	struct peer_record history[PEER_HISTORY]; /* the newest: by sequence % PEER_HISTORY */
	/* Of kernels that failed, and above it enum peer_end: by sequence % PEER_RESULTS. */
	uint64_t results[PEER_RESULTS];
};

/* A kernel whose sequence is a multiple of this posts its end, also with posts = 0, and writes
 * `ended` for blocks that it does not have, too. Others compare these words cyclically, so none may
 * stay behind for 2^31 kernels. */
#define PEER_REFRESH (UINT32_C(1) << 28)

/* How often a kernel that waits looks at its page; and after how long without a heartbeat it takes
 * the daemon for dead. */
#define PEER_LOOK_NS	  50000
#define PEER_HEARTBEAT_NS UINT64_C(10000000000)

/* ---- One operation, as a kernel's argument: only `posts` changes from call to call ---- */

struct peer_call {
	uint64_t staging[PEER_RANKS]; /* by rank, as this process maps them */
	uint64_t page;		      /* as the GPU sees it */
	uint64_t src, dst;
	uint64_t bytes;	   /* from one rank to another */
	uint64_t src_each; /* from receiver to receiver; 0: all get the same */
	uint64_t dst_each; /* from sender to sender */
	uint64_t header;   /* what all ranks must agree on, which the caller packs */
	uint32_t record;   /* tells it apart where it posts; the library leaves it 0 */
	uint8_t rank, nranks;
	uint8_t sends_to, receives_from; /* masks of ranks, this one among them if it copies */
	uint8_t reduces;		 /* what is received becomes one result */
	uint8_t type, redop;
	uint8_t posts; /* 1: posts its end, once all blocks have ended; 0: block 0 posts its own, if
			  it has posted its begin */
};

/* What the ranks must agree on, in 64 bits: what moves so little data has a small count. */
static inline uint64_t peer_header(uint8_t op, uint8_t type, uint8_t redop, uint8_t root,
				   uint32_t count)
{
	return (uint64_t)op << 56 | (uint64_t)type << 48 | (uint64_t)redop << 40 |
	       (uint64_t)root << 32 | count;
}

static inline struct peer_page *peer_page_of(void *pages, uint32_t rank)
{
	return (struct peer_page *)((char *)pages + (uintptr_t)rank * PEER_PAGE);
}

/* Is what stands at the sequence `at` (0: at none yet) as far as s? */
static inline int peer_reached(uint32_t at, uint32_t s)
{
	return at && (int32_t)(at - s) >= 0;
}

/* The sequence of the next kernel. */
static inline uint32_t peer_sequence_after(uint32_t sequence)
{
	return sequence + 1 ? sequence + 1 : 2; /* 0 is none, and the slots go on taking turns */
}

#endif
