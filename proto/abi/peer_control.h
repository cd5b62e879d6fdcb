/* SPDX-License-Identifier: Apache-2.0
 * Part of peer_abi.h: host memory that a member's kernels, the library and the daemon share. */
#ifndef PROTO_PEER_CONTROL_H
#define PROTO_PEER_CONTROL_H

#include "peer_staging.h"

#define PEER_CONTROL_BYTES 65536

enum peer_end {
	PEER_GOOD,
	PEER_MISMATCH,	  /* another rank's header differs */
	PEER_ABORTED,	  /* the control block's abort word is set */
	PEER_DAEMON_LOST, /* the daemon is gone */
	PEER_OVERLAP,	  /* the communicator's previous kernel was still running */
	/* A received message differs from the expected one, or a collective in a graph differs from
	 * another rank's. */
	PEER_FATAL_MISMATCH,
};

enum peer_mismatch {
	PEER_MISMATCH_MESSAGE, /* a message differs */
	PEER_MISMATCH_TWO,     /* two ranks' collectives differ */
	PEER_MISMATCH_OTHER,   /* that rank's collective differs from all others', three or more */
	PEER_MISMATCH_OWN,     /* this one's does, likewise */
};

/* An operation outside of graphs with its launched kernel. It is written before `records` rises.
 * After PEER_HISTORY more operations it is overwritten, even if its kernel has not begun; then
 * inspection lacks it, and its deadline is taken from the oldest one that is left. */
#define PEER_HISTORY 1024
#define PEER_RESULTS 64

struct peer_record {
	uint64_t operation;   /* its number among the member's tasks in this epoch, from 0 */
	uint64_t header;      /* peer_header */
	uint64_t launched_ns; /* CLOCK_MONOTONIC */
	uint64_t timeout_ns;  /* 0: none */
	uint32_t kernel_seq;  /* of its kernel, which several messages may share */
	uint32_t collective;  /* low half of its number among the member's collectives */
	uint32_t coll_seq;    /* 0: it is a message */
	uint32_t message;     /* its number in its direction, from 1 */
};

struct peer_waited {
	peer_atomic64 kernels, ns;
};

struct peer_control {
	/* Written by the daemon, and by the library for its own member. */
	peer_atomic32 abort;
	/* Incremented by the daemon; while there is none, by the library for its own member. */
	peer_atomic32 heartbeat;
	/* The member's, as the daemon numbers GPUs; written by the daemon as the epoch begins. */
	int32_t pid, device;
	peer_atomic64 shares;  /* the length of the epoch's log of shares; written by the daemon */
	uint32_t kernels_only; /* 1: the daemon refuses all operations; written by it as well */
	peer_atomic32 open;    /* the library has mapped the communicator's memory; written by it */
	/* Written by the daemon as the epoch begins: the size of the member's staging memory; and
	 * for all members alike, the most blocks of a kernel, and whether copy engines are used. */
	uint64_t staging_bytes;
	uint32_t blocks, copy_engines;
	uint32_t pad1[4];
	/* Written by kernels. begun and ended: a launch_seq, and above it the call's kernel_seq. In
	 * a graph: 0 for a kernel that begins, the newest earlier kernel_seq for one that ends. */
	peer_atomic64 begun; /* only for kernels that wait longer than PEER_POLL_NS */
	/* From a kernel that posts: all its stores are visible to everyone. From a kernel that has
	 * posted its begin: its first block has ended, and all kernels before it. */
	peer_atomic64 ended;
	/* The kernel_seq from which on all kernels fail; above it enum peer_end. */
	peer_atomic64 failed;
	peer_atomic32 coll_seq; /* the call's, for `begun`. Kernels in graphs do not change it */
	peer_atomic32 moves;	/* 1: the kernel has messages */
	/* For `begun`: the index of its operation, and above it the graph; 0: it is in none. */
	peer_atomic64 graph;
	peer_atomic64 header;	       /* of the call, if it has no messages */
	peer_atomic32 coll_launch_seq; /* of the newest collective, this or an earlier one */
	peer_atomic32 arrived_ranks;   /* bitmap: have begun it, too */
	/* The kernel's waits, by direction: a message's number, and above it the kernel's
	 * launch_seq, until the direction's messages have been moved. */
	peer_atomic64 waits[PEER_DIRS];
	peer_atomic64 parts[PEER_DIRS]; /* the headers of these messages */
	/* With PEER_FATAL_MISMATCH: the headers of the expected and the received message, or of the
	 * collective and another rank's; the sender, or that rank; and enum peer_mismatch. */
	peer_atomic64 mismatch[4];
	/* For each rank: how many of this member's kernels of collectives have waited for it, and
	 * how long in all. Waits of less than PEER_POLL_NS do not count. */
	struct peer_waited waited[PEER_RANKS];
	/* How many large collectives have gone through staging memory, as not all ranks had mapped
	 * all buffers. */
	peer_atomic64 staged;
	/* Written by the library, for the daemon. When a transport is chosen: if the operation is a
	 * kernel, entered or messages, then submitted. When a kernel is launched, perhaps long
	 * after: records, then launched. */
	peer_atomic64 submitted;  /* the member's collectives in this epoch, on all transports,
				     without Sends and Recvs, whose number differs between ranks */
	peer_atomic32 entered;	  /* coll_seq of the newest collective to be launched; 0: none */
	peer_atomic32 reached;	  /* coll_seq of the newest launched collective; 0: none */
	peer_atomic32 records;	  /* number of records written */
	peer_atomic32 graphs;	  /* number of existing graphs with kernels of the member */
	peer_atomic64 timeout_ns; /* of the operation captured last; 0: none */
	/* Written by the library, for the other members: counts the steps of falling asleep and
	 * waking up (client/cuda/direct/sleep.c). */
	peer_atomic32 sleep_steps;
	uint32_t pad3[7];
	peer_atomic32 messages[PEER_DIRS]; /* number of messages launched or to be launched */
	struct peer_record history[PEER_HISTORY]; /* the newest records: by number % PEER_HISTORY */
	/* Kernels outside of graphs that failed, and above each enum peer_end: by kernel_seq %
	 * PEER_RESULTS.
	 */
	peer_atomic64 results[PEER_RESULTS];
	/* With PEER_MISMATCH: all ranks' headers. */
	peer_atomic64 headers[PEER_RESULTS][PEER_RANKS];
};

/* A kernel whose launch_seq is a multiple of this posts its end even with posts = 0, and also
 * writes `ended`, and `completed` with its kernel_seq, for blocks that it does not have. These
 * words are compared cyclically, so none may fall 2^31 kernels behind. */
#define PEER_REFRESH (UINT32_C(1) << 28)

/* How often a waiting kernel polls its control block, and how long without a heartbeat until it
 * considers the daemon dead. */
#define PEER_POLL_NS	  50000
#define PEER_HEARTBEAT_NS UINT64_C(10000000000)

/* A stopped kernel ends only when no peer can write into its rank's buffers any more. What it has
 * stored is visible to peers, and what they had stored before to it, within the first of these. The
 * second is the longest it waits: the GPU of a rank that died may have ended its kernel anywhere.
 */
#define PEER_SETTLE_NS UINT64_C(20000)
#define PEER_LEAVE_NS  UINT64_C(500000000)

#endif
