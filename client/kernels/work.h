/* SPDX-License-Identifier: Apache-2.0
 * One thread's part of an operation of the peer transport: headers, lines, and waiting for them.
 * The last warp of each block, the keeper, moves no data. While the block waits, the keeper reads
 * the member's page from time to time, and stops the block when the daemon asks for it. */
#ifndef KERNELS_WORK_H
#define KERNELS_WORK_H

#include "platform.h"

#include "proto/abi/peer.h"

struct block_words {
	uint32_t sequence;
	uint32_t former,
		former_blocks; /* the previous kernel: its sequence, and its number of blocks */
	uint32_t stop;	       /* enum peer_end */
	uint32_t dead;	       /* enum peer_end: an earlier kernel failed for all ranks */
	uint32_t finished; /* number of warps that moved their data, and of headers that arrived */
	uint32_t round;	   /* round of this collective, or of the newest one before */
	uint32_t serial;   /* the call's serial; in a graph, that of the newest kernel before */
	uint32_t message;  /* number of the message that the block moves */
	uint64_t part;	   /* that message's header */
};

/* One thread's view. */
struct work {
	const struct peer_call *call;
	struct peer_state *state; /* this rank's */
	struct peer_page *page;
	volatile struct block_words *words;
	uint32_t sequence;
	uint32_t round; /* 0: the kernel moves messages */
	uint32_t spins;
	uint32_t heartbeat;
	uint64_t began, looked, heard; /* times in ns: of the first look, ...; 0: not yet */
	uint32_t came; /* bitmap of the ranks that had begun at the last look, this one included */
	uint32_t way, channel; /* the block's, if the kernel moves messages */
};

DEVICE void post(uint64_t *to, uint32_t above, uint32_t below)
{
	store64(to, (uint64_t)above << 32 | below);
}

DEVICE bool refreshes(const struct work *w)
{
	return w->sequence % PEER_REFRESH == 0;
}

DEVICE bool posts(const struct work *w)
{
	return w->call->posts || refreshes(w);
}

/* ---- Roles ---- */

#define LOOKER (WARP - 1) /* the keeper's thread that speaks for the block */

DEVICE uint32_t movers(void)
{
	return threads() > WARP ? threads() - WARP : 1;
}

/* Whether this thread is the keeper's thread of that number. */
DEVICE bool keeps(uint32_t lane)
{
	return thread() + WARP - lane == threads();
}

/* Divides 0 to n - 1 among the keeper's threads, each in steps of a warp. */
#define FOR_KEEPERS(i, n)                                                                          \
	for (uint32_t i = thread() + WARP - threads(); (int32_t)i >= 0 && i < (n); i += WARP)

/* ---- Headers and lines ---- */

DEVICE uint64_t header_at(const struct work *w, unsigned owner, unsigned sender)
{
	return w->call->staging[owner] + PEER_HEADERS +
	       ((w->round & 1) * PEER_RANKS + sender) * sizeof(struct peer_line);
}

DEVICE bool line_there(uint64_t from, uint32_t flag, uint64_t *data)
{
	uint64_t a, b;
	line_load(from, &a, &b);
	*data = (uint32_t)a | b << 32;
	return a >> 32 == flag && b >> 32 == flag;
}

DEVICE void line_put(uint64_t to, uint32_t flag, uint64_t data)
{
	const uint64_t above = (uint64_t)flag << 32;
	line_store(to, (uint32_t)data | above, data >> 32 | above);
}

/* ---- Waiting ---- */

DEVICE void header_compare(struct work *w, uint64_t header)
{
	if (header == w->call->header || w->words->stop)
		return;
	w->words->stop = PEER_MISMATCH;
	store32(&w->state->stopped, w->sequence);
}

/* Adds the time to what the page says of those ranks. A pointer to struct work would keep its words
 * out of registers. */
COLD void waits_add(struct peer_page *page, uint32_t ranks, uint64_t ns)
{
	ROLLED for (unsigned p = 0; p < PEER_RANKS; p++)
	{
		struct peer_waited *waited = &page->waited[p];
		if (!(ranks >> p & 1))
			continue;
		store64(&waited->kernels, load64(&waited->kernels) + 1);
		store64(&waited->ns, load64(&waited->ns) + ns);
	}
}

/* Those have come that had not at the last look. */
DEVICE void waits_count(struct work *w, uint32_t came, uint64_t now)
{
	if (w->came && came != w->came)
		waits_add(w->page, came & ~w->came, now - w->began);
	w->came = came;
}

/* A rank that has sent less data than this one waits for has still sent its header. */
DEVICE void headers_look(struct work *w, uint64_t now)
{
	uint64_t header;
	uint32_t came = 1u << w->call->rank;
	for (unsigned p = 0; p < w->call->nranks; p++) {
		if (p == w->call->rank ||
		    !line_there(header_at(w, w->call->rank, p), w->round, &header))
			continue;
		came |= 1u << p;
		header_compare(w, header);
	}
	store32(&w->page->came, came);
	waits_count(w, came, now);
}

/* Writes what the block waits for into the page; a collective's first block does it for all of
 * them. */
DEVICE void waits_post(const struct work *w)
{
	const struct peer_call *c = w->call;
	if (w->round ? block() : w->channel)
		return;
	if (!w->round)
		post(&w->page->waits[w->way], w->sequence, w->words->message);
	if (!w->round)
		store64(&w->page->parts[w->way], w->words->part);
	if (w->heard)
		return;
	if (!c->graph)
		store32(&w->page->round, c->round);
	store32(&w->page->place, w->words->round);
	store32(&w->page->moves, !w->round);
	store64(&w->page->header, c->header);
	post(&w->page->graph, c->graph, c->index);
	post(&w->page->begun, c->serial, w->sequence);
}

DEVICE void look(struct work *w)
{
	const uint64_t now = clock_ns();
	if (!w->looked)
		w->began = w->looked = now;
	if (now - w->looked < PEER_LOOK_NS)
		return;
	w->looked = now;
	if (!block() && w->round)
		headers_look(w, now);
	const uint32_t dead = load32(&w->page->abort) ? PEER_ABORTED : load32(&w->state->dead);
	if (dead)
		w->words->stop = dead;
	else if (load32(&w->state->stopped) == w->sequence)
		w->words->stop = PEER_MISMATCH;
	const uint32_t heartbeat = load32(&w->page->heartbeat);
	waits_post(w);
	if (!w->heard || heartbeat != w->heartbeat)
		w->heard = now;
	else if (now - w->heard > PEER_HEARTBEAT_NS)
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
	if (keeps(LOOKER))
		look(w);
	return w->words->stop;
}

/* The same for a thread that moves data. On a GPU such a thread is never the keeper, which the
 * compiler must know. */
DEVICE bool mover_waited(struct work *w)
{
	if (MOVERS_KEEP)
		return waited(w);
	return rested(w) && w->words->stop;
}

#endif
