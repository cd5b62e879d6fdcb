/* SPDX-License-Identifier: Apache-2.0
 * Waiting for other ranks. While a block waits, its monitor reads the member's control block from
 * time to time, and stops the block when the daemon asks for it. */
#ifndef KERNELS_WAITING_H
#define KERNELS_WAITING_H

#include "work.h"

DEVICE void header_compare(struct work *w, uint64_t header)
{
	if (header == w->call->header || w->words->stop)
		return;
	w->words->stop = PEER_MISMATCH;
	store32(&w->state->stopped, w->launch_seq);
}

/* Adds one kernel, and the time, to the control block's counters of those ranks. It takes no struct
 * work, because a pointer to it would keep its words out of registers. */
COLD void waits_add(struct peer_control *control, uint32_t ranks, uint64_t ns)
{
	ROLLED for (unsigned p = 0; p < PEER_RANKS; p++)
	{
		struct peer_waited *waited = &control->waited[p];
		if (!(ranks >> p & 1))
			continue;
		store64(&waited->kernels, load64(&waited->kernels) + 1);
		store64(&waited->ns, load64(&waited->ns) + ns);
	}
}

/* Counts the waits for the ranks in `arrived_ranks` that had not begun at the last poll. */
DEVICE void waits_count(struct work *w, uint32_t arrived_ranks, uint64_t now)
{
	if (w->arrived_ranks && arrived_ranks != w->arrived_ranks)
		waits_add(w->control, arrived_ranks & ~w->arrived_ranks, now - w->began);
	w->arrived_ranks = arrived_ranks;
}

/* A rank that has sent less data than this one waits for has still sent its header. */
DEVICE void headers_poll(struct work *w, uint64_t now)
{
	uint64_t header;
	uint32_t arrived_ranks = 1u << w->call->rank;
	for (unsigned p = 0; p < w->call->nranks; p++) {
		if (p == w->call->rank ||
		    !ll_ready(header_at(w, w->call->rank, p), w->coll_launch_seq, &header))
			continue;
		arrived_ranks |= 1u << p;
		header_compare(w, header);
	}
	store32(&w->control->arrived_ranks, arrived_ranks);
	waits_count(w, arrived_ranks, now);
}

/* Writes what the block waits for into the control block; a collective's first block does it for
 * all of them. */
DEVICE void waits_post(const struct work *w)
{
	const struct peer_call *c = w->call;
	if (w->coll_launch_seq ? block() : w->channel)
		return;
	if (!w->coll_launch_seq)
		post(&w->control->waits[w->peer_dir], w->launch_seq, w->words->message);
	if (!w->coll_launch_seq)
		store64(&w->control->parts[w->peer_dir], w->words->part);
	if (w->last_heartbeat)
		return;
	if (!c->graph)
		store32(&w->control->coll_seq, c->coll_seq);
	store32(&w->control->coll_launch_seq, w->words->coll_launch_seq);
	store32(&w->control->moves, !w->coll_launch_seq);
	store64(&w->control->header, c->header);
	post(&w->control->graph, c->graph, c->index);
	post(&w->control->begun, c->kernel_seq, w->launch_seq);
}

DEVICE void monitor_poll(struct work *w)
{
	const uint64_t now = clock_ns();
	if (!w->polled)
		w->began = w->polled = now;
	if (now - w->polled < PEER_POLL_NS)
		return;
	w->polled = now;
	if (!block() && w->coll_launch_seq)
		headers_poll(w, now);
	const uint32_t dead = load32(&w->control->abort) ? PEER_ABORTED : load32(&w->state->dead);
	if (dead)
		w->words->stop = dead;
	else if (load32(&w->state->stopped) == w->launch_seq)
		w->words->stop = PEER_MISMATCH;
	const uint32_t heartbeat = load32(&w->control->heartbeat);
	waits_post(w);
	if (!w->last_heartbeat || heartbeat != w->heartbeat)
		w->last_heartbeat = now;
	else if (now - w->last_heartbeat > PEER_HEARTBEAT_NS)
		w->words->stop = PEER_DAEMON_LOST;
	w->heartbeat = heartbeat;
}

DEVICE bool rested(struct work *w)
{
	if (++w->spins % 64)
		return false;
	rest();
	return true;
}

/* Called while something is missing. True: it will not come. */
DEVICE bool waited(struct work *w)
{
	if (!rested(w))
		return false;
	if (is_monitor(MONITOR_LANE))
		monitor_poll(w);
	return w->words->stop;
}

/* The same for a thread that moves data. On a GPU such a thread is never the monitor, which the
 * compiler must know. On the CPU, one thread moves all lines, and after a stop it rests for none.
 */
DEVICE bool mover_waited(struct work *w)
{
	if (MOVER_IS_MONITOR)
		return w->words->stop || waited(w);
	return rested(w) && w->words->stop;
}

#endif
