/* SPDX-License-Identifier: Apache-2.0
 * Reads the shared control blocks of members whose kernels communicate directly. A control block is
 * untrusted and can change at any time, so each value is read once. */
#ifndef COMM_PEER_LOOK_H
#define COMM_PEER_LOOK_H

#include "comm_peer.h"

/* One reading of a control block's records: what they say about the waiting kernel. */
struct peer_history {
	bool known; /* the control block has the kernel's first record: */
	struct peer_record record;
	uint32_t peer_dirs; /* bitmap of the directions in which the kernel has messages */
	uint32_t kernel_seqs[PEER_DIRS]; /* of the kernel with the requested message; 0: unknown */
};

/* One reading of a member's control block. */
struct look {
	uint64_t submitted;
	uint32_t entered, reached, records;
	uint32_t messages[PEER_DIRS];
	uint32_t waits;		     /* as in struct peer_member */
	uint32_t kernel_seq;	     /* of that kernel; 0: it is in a graph */
	uint32_t graph, index;	     /* then that graph, and the operation's index in it */
	bool moves;		     /* the kernel has messages */
	uint32_t coll_seq;	     /* 0: it has messages, or is in a graph */
	uint32_t coll_launch_seq;    /* of the newest collective that has begun */
	uint32_t arrived_ranks;	     /* bitmap: have begun it, too */
	uint64_t header;	     /* of its collective, or of a waiting message */
	uint32_t peer_dirs;	     /* bitmap of the directions of a waiting kernel of messages */
	uint32_t message[PEER_DIRS]; /* by direction: the number of the waiting message */
	bool broken;		     /* it runs no kernels any more */
	struct peer_history history; /* if it was read */
};

struct look peer_look_at(const struct peer_control *control);
/* lateness.c: when a half minute begins, notes how long kernels have waited so far. */
void peer_lateness_note(struct communicator *m, uint64_t now);
/* Its kernels can still run: it holds its rank, or has left while its process continues. */
bool peer_runs_kernels(const struct communicator *m, uint32_t rank);

/* False: it was not written yet, or was overwritten. */
bool peer_record(const struct peer_control *control, uint32_t number, struct peer_record *r);
/* The kernel's first record; for kernel 0, which is in a graph, none. */
bool peer_record_of(const struct peer_control *control, uint32_t kernel_seq, struct peer_record *r);
/* Reads at most PEER_HISTORY records. messages: by direction, the number of the message to look
 * for; 0: any. */
struct peer_history peer_history_of(const struct peer_control *control, uint32_t kernel_seq,
				    const uint32_t messages[PEER_DIRS]);
/* The record of an operation in a graph whose kernel waits, according to the control block. */
struct peer_record peer_record_of_graph(const struct peer_control *control, const struct look *l);
/* The direction's first message of that number. */
bool peer_record_in(const struct peer_control *control, uint32_t peer_dir, uint32_t message,
		    struct peer_record *r);

static inline uint64_t peer_load64(const peer_atomic64 *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static inline uint32_t peer_load32(const peer_atomic32 *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static inline struct peer_control *peer_member_control(const struct communicator *m, uint32_t rank)
{
	return peer_control_of(m->peer->base, rank);
}

/* The direction of the same messages on the other rank. */
static inline uint32_t peer_dir_reverse(uint32_t peer_dir, uint32_t rank)
{
	return peer_dir < PEER_RANKS ? PEER_DIR_FROM(rank) : PEER_DIR_TO(rank);
}

#endif
