/* SPDX-License-Identifier: Apache-2.0
 * Of peer.h: host memory that a member's kernels, the library and the daemon share. */
#ifndef PROTO_PEER_PAGE_H
#define PROTO_PEER_PAGE_H

#include "peer_staging.h"

#define PEER_PAGE 65536

enum peer_end {
	PEER_GOOD,
	PEER_MISMATCH,	  /* another rank's header differs */
	PEER_ABORTED,	  /* the page's abort word is set */
	PEER_DAEMON_LOST, /* the daemon is gone */
	PEER_OVERLAP,	  /* the communicator's former kernel was still running */
	PEER_UNLIKE,	  /* a message that came is not like the one to be received; or a
			     collective in a graph not like another rank's */
};

/* An operation outside of graphs that a kernel was launched for. It is written before `records`,
 * and one that is behind by PEER_HISTORY is overwritten, even if its kernel has not begun:
 * inspection then lacks it, and its deadline is taken from the oldest one that is left. */
#define PEER_HISTORY 1024
#define PEER_RESULTS 64

struct peer_record {
	uint64_t operation;   /* its number among the member's tasks in this epoch, from 0 */
	uint64_t header;      /* peer_header */
	uint64_t launched_ns; /* CLOCK_MONOTONIC */
	uint64_t timeout_ns;  /* 0: none */
	uint32_t serial;      /* of its kernel, which several messages may share */
	uint32_t collective;  /* its number among the member's collectives, the low half */
	uint32_t round;	      /* the library's; 0: it is a message */
	uint32_t message;     /* its number in its way, from 1 */
};

struct peer_page {
	/* The daemon, and the library for its own member, write these. */
	uint32_t abort;
	uint32_t heartbeat; /* the daemon counts on */
	uint32_t pad0[14];
	/* Kernels write these. begun and ended: a sequence, and above it the call's serial, or in a
	 * graph: 0 of one that begins, the newest serial before of one that ends. */
	uint64_t begun; /* only by one that waits for longer than PEER_LOOK_NS */
	/* By one that posts: all that it has stored is there for everybody. By one that has posted
	 * its begin: its first block has ended, and all kernels before it. */
	uint64_t ended;
	/* The serial from which on all kernels fail; above it enum peer_end. */
	uint64_t failed;
	uint32_t round; /* of `begun`, the call's. Kernels in graphs leave it as it is. */
	uint32_t moves; /* 1: it has messages */
	/* Of `begun`: the index of its operation, and above it the graph; 0: it is in none. */
	uint64_t graph;
	uint64_t header; /* the call's, if it has no messages */
	uint32_t place;	 /* its round, as all ranks' GPUs count them */
	uint32_t came;	 /* bits: the ranks that have begun it, too */
	/* What it waits for: by way, a message's number, and above it the kernel's sequence, until
	 * the way's messages have been moved. */
	uint64_t waits[PEER_WAYS];
	uint64_t parts[PEER_WAYS]; /* the headers of those messages */
	/* With PEER_UNLIKE: the headers of the message that was to be received and of the one that
	 * came, its sender, and 0; or of the collective and another rank's, that rank, and 1. */
	uint64_t unlike[4];
	/* The library writes these, for the daemon. When a transport is chosen: entered or
	 * messages, if it is a kernel, then submitted. When a kernel is launched, which can be long
	 * after: records, then launched. */
	uint64_t submitted; /* collectives of the member in this epoch, on all transports; Sends and
			       Recvs do not count: ranks have different numbers of them */
	uint32_t entered;   /* round of the newest collective that is to be launched; 0: none */
	uint32_t reached;   /* the same, of the newest that was launched */
	uint32_t records;   /* how many records were written */
	uint32_t graphs;    /* how many have kernels of the member, and were not destroyed */
	uint64_t timeout_ns; /* of the operation that was captured last; 0: none */
	uint32_t pad3[8];
	uint32_t messages[PEER_WAYS];		  /* how many are to be launched, or were */
	struct peer_record history[PEER_HISTORY]; /* the newest: by number % PEER_HISTORY */
	/* Of kernels in no graph that failed, and above it enum peer_end: by serial % PEER_RESULTS.
	 */
	uint64_t results[PEER_RESULTS];
	/* With PEER_MISMATCH: all ranks' headers. */
	uint64_t headers[PEER_RESULTS][PEER_RANKS];
};

/* A kernel whose sequence is a multiple of this posts its end, also with posts = 0, and writes
 * `ended` for blocks that it does not have, too; and so `told`, with its serial. Others compare
 * these words cyclically, so none may stay behind for 2^31 kernels. */
#define PEER_REFRESH (UINT32_C(1) << 28)

/* How often a kernel that waits looks at its page; and after how long without a heartbeat it takes
 * the daemon for dead. */
#define PEER_LOOK_NS	  50000
#define PEER_HEARTBEAT_NS UINT64_C(10000000000)

#endif
