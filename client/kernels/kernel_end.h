/* SPDX-License-Identifier: Apache-2.0
 * The last writes of a block's monitor (monitor.h): for later kernels, for streams, and into the
 * control block. */
#ifndef KERNELS_KERNEL_END_H
#define KERNELS_KERNEL_END_H

#include "waiting.h"

/* Whether this is the kernel's last block to get here. The previous kernel's blocks may still be
 * counting at the same time. */
DEVICE bool ends_last(struct work *w)
{
	if (blocks() == 1)
		return true;
	if (count_around(&w->state->ending[w->launch_seq & 1], blocks()))
		return false;
	fence_system();
	return true;
}

/* Updates the words of blocks that this kernel does not have. */
DEVICE void refresh(peer_atomic32 *words, uint32_t value)
{
	for (uint32_t i = blocks(); i < PEER_BLOCKS; i++)
		store32(&words[i], value);
}

/* Reports the first rank whose header differs, and which of the two is the odd one. */
DEVICE void mismatch_post(struct work *w)
{
	const struct peer_call *c = w->call;
	uint64_t header, other = c->header;
	unsigned first = 0, n = 0;
	bool agree = true;
	for (unsigned p = 0; p < c->nranks; p++) {
		if (p == c->rank ||
		    !ll_ready(header_at(w, c->rank, p), w->coll_launch_seq, &header) ||
		    header == c->header)
			continue;
		if (!n++) {
			first = p;
			other = header;
		}
		agree = agree && header == other;
	}
	store64(&w->control->mismatch[0], c->header);
	store64(&w->control->mismatch[1], other);
	store64(&w->control->mismatch[2], first);
	unsigned how = PEER_MISMATCH_TWO;
	if (c->nranks > 2 && n == 1)
		how = PEER_MISMATCH_OTHER;
	else if (c->nranks > 2 && n == (unsigned)c->nranks - 1 && agree)
		how = PEER_MISMATCH_OWN;
	store64(&w->control->mismatch[3], how);
	fence_system();
}

/* For a kernel outside graphs: posts each rank's header. All have arrived, unless the kernel is
 * aborted. */
DEVICE void headers_post(struct work *w, uint32_t kernel_seq)
{
	const struct peer_call *c = w->call;
	for (unsigned p = 0; p < c->nranks; p++) {
		uint64_t header;
		if (p == c->rank ||
		    !ll_ready(header_at(w, c->rank, p), w->coll_launch_seq, &header))
			header = c->header;
		store64(&w->control->headers[kernel_seq % PEER_RESULTS][p], header);
	}
}

/* After a mismatch the communicator continues, and the task reports the failure. In a graph there
 * is no task, and if more kernels of the operation follow, other ranks have none to match them: all
 * later kernels fail too, so that the daemon reports it. */
DEVICE void failure_post(struct work *w, uint32_t stop)
{
	const bool counted = is_counted(w);
	const uint32_t kernel_seq = w->words->kernel_seq;
	if (stop == PEER_MISMATCH)
		store32(&w->state->stopped, w->launch_seq);
	if (stop == PEER_MISMATCH && counted && !block())
		headers_post(w, kernel_seq);
	if (counted)
		post(&w->control->results[kernel_seq % PEER_RESULTS], stop, kernel_seq);
	if (stop == PEER_MISMATCH && (counted || block()))
		return;
	if (stop == PEER_MISMATCH) {
		mismatch_post(w);
		stop = PEER_FATAL_MISMATCH;
	}
	store32(&w->state->dead, stop);
	if (!w->words->dead)
		post(&w->control->failed, stop, counted ? kernel_seq : peer_seq_after(kernel_seq));
}

/* `ended` and `completed` are written last, after the words that explain them. */
DEVICE void end(struct work *w)
{
	const struct peer_call *c = w->call;
	const uint32_t stop = w->words->stop;
	if (stop)
		failure_post(w, stop);
	if (w->arrived_ranks && !stop)
		waits_count(w, (1u << c->nranks) - 1, clock_ns());
	if (stop || posts(w))
		fence_system();
	if (!posts(w) && w->last_heartbeat && !block())
		post(&w->control->ended, w->words->kernel_seq, w->launch_seq);
	if (!block() && refreshes(w))
		refresh(w->state->ended, w->launch_seq);
	if (!block() && is_counted(w) && c->kernel_seq % PEER_REFRESH == 0)
		refresh(w->state->completed, c->kernel_seq);
	if (!w->coll_launch_seq && !w->channel && w->last_heartbeat)
		post(&w->control->waits[w->peer_dir], 0, 0);
	store32(&w->state->ended[block()], w->launch_seq);
	if (is_counted(w))
		store32(&w->state->completed[block()], c->kernel_seq);
	if (posts(w) && ends_last(w))
		post(&w->control->ended, w->words->kernel_seq, w->launch_seq);
}

#endif
