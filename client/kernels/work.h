/* SPDX-License-Identifier: Apache-2.0
 * One thread's part of an operation of the direct transport: headers and LL lines. The last warp of
 * each block, the monitor, moves no data (waiting.h). */
#ifndef KERNELS_WORK_H
#define KERNELS_WORK_H

#include "platform.h"

#include "proto/abi/peer_abi.h"

struct block_words {
	uint32_t launch_seq;
	uint32_t previous;	  /* launch_seq of the previous kernel */
	uint32_t previous_blocks; /* its number of blocks */
	uint32_t stop;		  /* enum peer_end */
	uint32_t dead;		  /* enum peer_end: an earlier kernel failed for all ranks */
	uint32_t finished; /* number of warps that moved their data, and of headers that arrived */
	uint32_t coll_launch_seq; /* of this collective, or of the newest one before */
	uint32_t kernel_seq;	  /* the call's; in a graph, the newest kernel's before */
	uint32_t message;	  /* number of the message that the block moves */
	uint64_t part;		  /* that message's header */
	uint32_t direct;	  /* its data has come directly */
	uint32_t moving;	  /* the movers access buffers, and wait for nothing */
};

/* One thread's view. */
struct work {
	const struct peer_call *call;
	struct peer_state *state; /* this rank's */
	struct peer_control *control;
	volatile struct block_words *words;
	uint32_t launch_seq;
	uint32_t coll_launch_seq; /* 0: the kernel moves messages */
	uint32_t spins;
	uint32_t heartbeat;
	/* Times in ns; 0: not yet. Begin of a wait; last poll of the control block; last rise of
	 * its heartbeat. */
	uint64_t began, polled, last_heartbeat;
	uint32_t arrived_ranks;	    /* bitmap: had begun at the last poll, this one included */
	uint32_t peer_dir, channel; /* the block's, if the kernel moves messages */
};

DEVICE void post(peer_atomic64 *to, uint32_t above, uint32_t below)
{
	store64(to, (uint64_t)above << 32 | below);
}

/* Whether the kernel's end is the end of an operation that the library has numbered. */
DEVICE bool is_counted(const struct work *w)
{
	return !w->call->graph && !w->call->more;
}

DEVICE bool refreshes(const struct work *w)
{
	return w->launch_seq % PEER_REFRESH == 0;
}

DEVICE bool posts(const struct work *w)
{
	return w->call->posts || refreshes(w);
}

/* ---- Roles ---- */

#define MONITOR_LANE (WARP - 1) /* the monitor's thread that acts for the block */

DEVICE uint32_t movers(void)
{
	return threads() > WARP ? threads() - WARP : 1;
}

/* Whether this thread is the monitor's thread of that number. */
DEVICE bool is_monitor(uint32_t lane)
{
	return thread() + WARP - lane == threads();
}

/* Divides 0 to n - 1 among the monitor's threads, each in steps of a warp. */
#define FOR_MONITOR(i, n)                                                                          \
	for (uint32_t i = thread() + WARP - threads(); (int32_t)i >= 0 && i < (n); i += WARP)

/* ---- Headers and LL lines ---- */

DEVICE uint64_t header_at(const struct work *w, unsigned owner, unsigned sender)
{
	return w->call->staging[owner] + PEER_HEADERS +
	       ((w->coll_launch_seq & 1) * PEER_RANKS + sender) * sizeof(struct ll_line);
}

DEVICE bool ll_halves_ready(uint64_t a, uint64_t b, uint32_t flag, uint64_t *data)
{
	*data = (uint32_t)a | b << 32;
	return a >> 32 == flag && b >> 32 == flag;
}

DEVICE bool ll_ready(uint64_t from, uint32_t flag, uint64_t *data)
{
	uint64_t a, b;
	ll_load_halves(from, &a, &b);
	return ll_halves_ready(a, b, flag, data);
}

/* The same with acquire: later loads see what the sender stored before the line. */
DEVICE bool ll_acquired(uint64_t from, uint32_t flag, uint64_t *data)
{
	uint64_t a, b;
	ll_acquire_halves(from, &a, &b);
	return ll_halves_ready(a, b, flag, data);
}

DEVICE void ll_store(uint64_t to, uint32_t flag, uint64_t data)
{
	const uint64_t above = (uint64_t)flag << 32;
	ll_store_halves(to, (uint32_t)data | above, data >> 32 | above);
}

#endif
