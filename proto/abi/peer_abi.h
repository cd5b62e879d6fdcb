/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the kernels of the direct transport share with each other (staging memory on the
 * GPUs) and with the daemon and the library (a control block in host memory per member). Also
 * compiled for GPUs, where it includes nothing else. */
#ifndef PROTO_PEER_ABI_H
#define PROTO_PEER_ABI_H

#include "peer_control.h"
#include "peer_staging.h"

/* ---- One operation, as a kernel's argument. In a CUDA graph it is the same at each launch, so
 * kernel_seq, coll_seq and posts, which otherwise change from call to call, are 0 there ---- */

struct peer_call {
	uint64_t staging[PEER_RANKS]; /* by rank, as mapped in this process */
	uint64_t control;	      /* the GPU's address of it */
	uint64_t src, dst;
	uint64_t bytes;	   /* from one rank to another */
	uint64_t src_each; /* stride between receivers; 0: all get the same data */
	uint64_t dst_each; /* stride between senders */
	union {
		struct {
			uint64_t header; /* what all ranks must agree on, packed by the caller */
			/* For ncclsvc_peer_direct: the shares that contain src and dst (0: none),
			 * and the offsets in them. */
			uint64_t src_share, src_at, dst_share, dst_at;
			uint64_t scalar; /* for PEER_PREMULSUM: an element, then zeros */
		};
		uint64_t offer[6]; /* the same words, in the order of enum offer */
	};
	uint32_t kernel_seq; /* 0: it is in a graph */
	uint32_t coll_seq;   /* of the newest collective, this or an earlier one */
	uint32_t graph;	     /* the library's number of the graph; 0: it is in none */
	uint32_t index; /* of the operation, among the communicator's operations in the graph, from
			   0 */
	/* For ncclsvc_peer_direct, the same on all ranks: which ones have data, from `from` to
	 * from_past - 1, and which get some; enum peer_parts; and if it is the same data for all,
	 * the bytes that each rank moves. */
	uint8_t from, from_past, to, to_past, parts;
	uint8_t channels; /* the most channels of a message between two ranks */
	uint8_t more;	  /* 1: more kernels of the same operation follow */
	uint64_t segment;
	uint8_t rank, nranks;
	uint8_t sends_to, receives_from; /* bitmaps of ranks, including this one if it copies */
	uint8_t reduces;		 /* the received data is reduced to one result */
	uint8_t type, redop;
	uint8_t posts; /* 1: posts its end, when all blocks have ended; 0: block 0 posts its own
			  end, if it has posted its begin */
};

#define PEER_PREMULSUM 16 /* a reduction, in addition to those of ncclsvc_redop */

enum peer_parts {
	PEER_PART_FOR_EACH = 1, /* a rank that has data has a part for each receiver */
	PEER_PART_OF_EACH = 2,	/* a rank that gets data gets a part of each sender */
};

/* Segments are multiples of this, so that accesses are aligned to sectors of memory. */
#define PEER_SEGMENT_UNIT 512

PEER_INLINE uint64_t peer_segment(uint64_t bytes, uint32_t nranks)
{
	return ((bytes + nranks - 1) / nranks + PEER_SEGMENT_UNIT - 1) / PEER_SEGMENT_UNIT *
	       PEER_SEGMENT_UNIT;
}

/* ---- Messages, as the argument of one kernel. It ignores the fields of `call` about data, and the
 * header. ---- */

#define PEER_MESSAGES_MOST 32 /* of one kernel */

struct peer_messages {
	struct peer_call call;
	/* A block's channel, and above it its direction: PEER_BLOCK_OF. */
	uint8_t block[PEER_BLOCKS];
	/* The messages of direction d, in submission order, are first[d] to first[d + 1] - 1. */
	uint8_t first[PEER_DIRS + 1];
	uint32_t before[PEER_DIRS]; /* how many messages the direction had before; in a graph 0 */
	struct {
		uint64_t at;
		uint64_t header; /* the type in the upper bits, the bytes below: peer_message */
		uint64_t share, share_at; /* of a Recv's buffer; 0: none */
	} parts[PEER_MESSAGES_MOST];
};

#define PEER_BLOCK_OF(peer_dir, channel) ((uint8_t)((peer_dir) << 4 | (channel)))
#define PEER_MESSAGE_BYTES(header)	 ((header)&0xffffffffffffff)
#define PEER_MESSAGE_DIRECT		 (UINT64_C(1) << 63)

PEER_INLINE uint64_t peer_message(uint8_t type, uint64_t bytes)
{
	return (uint64_t)type << 56 | bytes;
}

/* The number of channels for a message of this many bytes, of at most `most`; self: to the sender
 * itself. */
PEER_INLINE uint32_t peer_channels(uint64_t bytes, uint32_t most, int self)
{
	const uint64_t wanted = bytes / (PEER_CHANNEL_LINES * LL_LINE_DATA);
	most = self ? 1 : most;
	return wanted < most ? (uint32_t)wanted + !wanted : most;
}

/* A header: what the ranks must agree on, in 64 bits. The count takes 40 of them. */
#define PEER_COUNT_MOST ((UINT64_C(1) << 40) - 1)

PEER_INLINE uint64_t peer_header(uint8_t op, uint8_t type, uint8_t redop, uint8_t root,
				 uint64_t count)
{
	return (uint64_t)op << 56 | (uint64_t)type << 50 | (uint64_t)redop << 44 |
	       (uint64_t)root << 40 | (count & PEER_COUNT_MOST);
}

PEER_INLINE uint8_t peer_header_op(uint64_t header)
{
	return (uint8_t)(header >> 56);
}

PEER_INLINE uint8_t peer_header_root(uint64_t header)
{
	return header >> 40 & 15;
}

PEER_INLINE uint64_t peer_share(uint32_t slot, uint32_t number)
{
	return (uint64_t)slot << 32 | number;
}

PEER_INLINE struct peer_control *peer_control_of(void *controls, uint32_t rank)
{
	return (struct peer_control *)((char *)controls + (uintptr_t)rank * PEER_CONTROL_BYTES);
}

/* Has the number `at` (0: none yet) reached s? */
PEER_INLINE int peer_reached(uint32_t at, uint32_t s)
{
	return at && (int32_t)(at - s) >= 0;
}

/* The number after this one. */
PEER_INLINE uint32_t peer_seq_after(uint32_t seq)
{
	return seq + 1 ? seq + 1 : 2; /* 0 means none; 2 keeps the slots alternating */
}

#endif
