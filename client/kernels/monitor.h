/* SPDX-License-Identifier: Apache-2.0
 * The monitors' work (work.h) in all kernels: reading launch_seq, exchanging headers, finishing. */
#ifndef KERNELS_MONITOR_H
#define KERNELS_MONITOR_H

#include "kernel_end.h"
#include "waiting.h"

DEVICE void headers_put(struct work *w)
{
	const struct peer_call *c = w->call;
	FOR_MONITOR (p, c->nranks)
		if (p != c->rank)
			ll_store(header_at(w, p, c->rank), w->coll_launch_seq, c->header);
}

/* Waits for the headers, and so for all ranks, even after a mismatch. A kernel that finished
 * earlier would let its rank begin the operation after the next, and overwrite data that others
 * still read. */
DEVICE void headers_take(struct work *w)
{
	const struct peer_call *c = w->call;
	FOR_MONITOR (p, c->nranks) {
		const uint64_t from = header_at(w, c->rank, p);
		uint64_t header = c->header;
		while (p != c->rank && !ll_ready(from, w->coll_launch_seq, &header))
			if (waited(w) && w->words->stop != PEER_MISMATCH)
				break;
		header_compare(w, header);
		add_shared(&w->words->finished);
	}
}

DEVICE void begin(struct work *w)
{
	volatile struct block_words *words = w->words;
	uint32_t previous, dead, blocks_before, arrived;
	/* All loads are in flight before the first value is used. */
	state_load(w->state, &previous, &dead, &blocks_before, &arrived);
	const uint32_t coll = load32(&w->state->coll_launch_seq);
	const uint32_t kernel = load32(&w->state->kernel_seq);
	words->previous = previous;
	words->previous_blocks = blocks_before;
	words->launch_seq = peer_seq_after(previous);
	words->coll_launch_seq = w->coll_launch_seq ? peer_seq_after(coll) : coll;
	words->kernel_seq = is_counted(w) ? w->call->kernel_seq : kernel;
	words->stop = words->dead = dead;
	words->finished = words->message = words->moving = 0;
	words->part = 0;
}

/* launch_seq may advance once all blocks have read it; the next kernel reads it next. before: the
 * number of blocks that arrived earlier. */
DEVICE void arrive(struct work *w, uint32_t before)
{
	if (before >= blocks())
		w->words->stop = PEER_OVERLAP;
	if (before != blocks() - 1)
		return;
	store32(&w->state->blocks, blocks());
	if (w->coll_launch_seq)
		store32(&w->state->coll_launch_seq, w->coll_launch_seq);
	if (is_counted(w))
		store32(&w->state->kernel_seq, w->words->kernel_seq);
	store32(&w->state->launch_seq, w->launch_seq);
	store32(&w->state->arrived, 0);
}

/* The monitor's first steps: sends the header, counts the block, and checks the previous kernel.
 * All its blocks have ended, unless two kernels run at a time; some blocks of this one may have. */
DEVICE void monitor_begin(struct work *w)
{
	const bool first = !block() && !w->words->stop;
	uint32_t before = 0;
	if (first && w->coll_launch_seq)
		headers_put(w);
	if (is_monitor(MONITOR_LANE))
		before = add32(&w->state->arrived, 1);
	FOR_MONITOR (i, first ? w->words->previous_blocks : 0) {
		const uint32_t ended = load32(&w->state->ended[i]);
		if (ended != w->words->previous && ended != w->launch_seq)
			w->words->stop = PEER_OVERLAP;
	}
	if (is_monitor(MONITOR_LANE))
		arrive(w, before);
}

/* ---- The kernel's first and last steps ---- */

DEVICE void work_begin(struct work *w, const struct peer_call *call,
		       volatile struct block_words *words, bool collective)
{
	w->call = call;
	w->state = (struct peer_state *)call->staging[call->rank];
	w->control = (struct peer_control *)call->control;
	w->words = words;
	w->spins = 0;
	w->coll_launch_seq = collective;
	w->polled = w->last_heartbeat = w->heartbeat = w->arrived_ranks = 0;
	if (is_monitor(MONITOR_LANE))
		begin(w);
	block_sync();
	w->launch_seq = words->launch_seq;
	w->coll_launch_seq = collective ? words->coll_launch_seq : 0;
	monitor_begin(w);
}

/* Called once by each warp that moves data. */
DEVICE void work_moved(struct work *w)
{
	warp_sync();
	if (thread() % WARP)
		return;
	if (posts(w))
		fence_block();
	add_shared(&w->words->finished);
}

DEVICE void work_end(struct work *w)
{
	const bool headers = w->coll_launch_seq && !block();
	if (headers)
		headers_take(w);
	if (!is_monitor(MONITOR_LANE))
		return;
	const uint32_t parts = movers() / WARP + (headers ? w->call->nranks : 0);
	/* The control block is host memory: while a multiprocessor reads it, its other loads are
	 * held up. */
	while (w->words->finished != parts)
		if (!w->words->moving)
			waited(w);
	end(w);
}

#endif
