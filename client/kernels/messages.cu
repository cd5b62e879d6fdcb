/* SPDX-License-Identifier: Apache-2.0
 * Messages on the trainer's stream: any number of Sends and Recvs, which all progress
 * independently. A block moves the messages of one peer and direction on one channel, one after the
 * other, through the channel's ring (proto/abi/peer.h). */
#include "keeper.h"
#include "values.h"

#include "proto/abi/peer.h"

#define AT_ONCE 4 /* lines that a thread loads before it stores the first one */
/* number of lines consumed between two credits */
#define WINDOW	(PEER_RING_LINES / 4)

/* ---- Addresses in staging memory ---- */

/* One channel of an ordered pair of ranks. */
struct ring {
	uint64_t lines;	   /* in the receiver's memory */
	uint64_t *credits; /* in the sender's memory: how many lines the receiver has consumed */
	uint64_t *count;   /* in this rank's memory: how many lines there were */
	uint64_t at;	   /* the count at the message's first line */
};

DEVICE void ring_find(const struct work *w, struct ring *r)
{
	const struct peer_call *c = w->call;
	const bool sends = w->way < PEER_RANKS;
	const unsigned peer = w->way % PEER_RANKS;
	const unsigned from = sends ? c->rank : peer, to = sends ? peer : c->rank;
	const uint64_t ring = from * PEER_CHANNELS_OF(c->nranks) + w->channel;
	const uint64_t credit = to * PEER_CHANNELS + w->channel;
	const uint64_t count = w->way * PEER_CHANNELS + w->channel;
	r->lines = c->staging[to] + PEER_RINGS + ring * PEER_RING_LINES * sizeof(struct peer_line);
	r->credits = (uint64_t *)(c->staging[from] + PEER_CREDITS) + credit;
	r->count = (uint64_t *)(c->staging[c->rank] + PEER_COUNTS) + count;
	r->at = load64(r->count);
}

DEVICE uint64_t ring_line(const struct ring *r, uint64_t at)
{
	return r->lines + at % PEER_RING_LINES * sizeof(struct peer_line);
}

/* Never 0, and different each time the ring wraps around. */
DEVICE uint32_t ring_flag(uint64_t at)
{
	return (uint32_t)(at / PEER_RING_LINES) | UINT32_C(1) << 31;
}

/* ---- A block's part of a message: a header line, then a slice of the data ---- */

struct slice {
	uint64_t at, header;
	uint64_t bytes;
	uint64_t lines; /* including the header's */
};

DEVICE bool slice_cut(const struct work *w, const struct peer_messages *m, uint32_t part,
		      struct slice *s)
{
	s->header = m->parts[part].header;
	const uint64_t bytes = PEER_MESSAGE_BYTES(s->header);
	const uint32_t channels =
		peer_channels(bytes, w->call->nranks, w->way % PEER_RANKS == w->call->rank);
	const uint64_t lines = (bytes + PEER_LINE_DATA - 1) / PEER_LINE_DATA;
	const uint64_t each = (lines + channels - 1) / channels * PEER_LINE_DATA;
	const uint64_t begin = w->channel * each;
	s->at = m->parts[part].at + begin;
	s->bytes = begin < bytes ? bytes - begin : 0;
	s->bytes = s->bytes < each ? s->bytes : each;
	s->lines = 1 + (s->bytes + PEER_LINE_DATA - 1) / PEER_LINE_DATA;
	return w->channel < channels;
}

/* Offset in the data of what line i > 0 holds. */
DEVICE uint64_t slice_place(const struct slice *s, uint64_t i, uint32_t *n)
{
	const uint64_t left = s->bytes - (i - 1) * PEER_LINE_DATA;
	*n = left < PEER_LINE_DATA ? (uint32_t)left : PEER_LINE_DATA;
	return s->at + (i - 1) * PEER_LINE_DATA;
}

DEVICE uint64_t slice_load(const struct slice *s, uint64_t i)
{
	uint32_t n;
	const uint64_t from = i ? slice_place(s, i, &n) : 0;
	return i ? bytes_load(from, n) : s->header;
}

/* For each of the lines that a thread handles at once, from i on: k is the line's number. */
#define EACH_LINE(past)                                                                            \
	UNROLLED for (uint32_t u = 0; u < AT_ONCE;                                                 \
		      u++) for (uint64_t k = i + u * movers(), once = k < (past); once; once = 0)

/* ---- Sending ---- */

/* Waits until the ring has room for the line. */
DEVICE bool ring_has_room(struct work *w, const struct ring *r, uint64_t at, uint64_t *credits)
{
	while (at >= *credits + PEER_RING_LINES) {
		*credits = load64(r->credits);
		if (at >= *credits + PEER_RING_LINES && mover_waited(w))
			return false;
	}
	return true;
}

DEVICE void slice_send(struct work *w, const struct ring *r, const struct slice *s)
{
	uint64_t credits = load64(r->credits);
	for (uint64_t i = thread(); i < s->lines; i += movers() * AT_ONCE) {
		uint64_t data[AT_ONCE] = {0};
		EACH_LINE(s->lines) data[u] = slice_load(s, k);
		EACH_LINE(s->lines)
		{
			if (!ring_has_room(w, r, r->at + k, &credits))
				return;
			line_put(ring_line(r, r->at + k), ring_flag(r->at + k), data[u]);
		}
	}
}

/* ---- Receiving ---- */

/* If the header differs, the data still to come is undefined. */
DEVICE void header_check(struct work *w, const struct slice *s, uint64_t header)
{
	if (header == s->header || w->words->stop)
		return;
	store64(&w->page->unlike[0], s->header);
	store64(&w->page->unlike[1], header);
	store64(&w->page->unlike[2], w->way % PEER_RANKS);
	store64(&w->page->unlike[3], PEER_MESSAGES);
	fence_system();
	w->words->stop = PEER_UNLIKE;
}

/* After a header that differs, the data that a Recv waits for may never come. */
DEVICE void header_look(struct work *w, const struct ring *r, const struct slice *s)
{
	uint64_t header;
	if (line_there(ring_line(r, r->at), ring_flag(r->at), &header))
		header_check(w, s, header);
}

DEVICE void slice_keep(struct work *w, const struct slice *s, uint64_t i, uint64_t data)
{
	uint32_t n;
	const uint64_t to = i ? slice_place(s, i, &n) : 0;
	if (i)
		bytes_store(to, data, n);
	else
		header_check(w, s, data);
}

DEVICE void window_receive(struct work *w, const struct ring *r, const struct slice *s,
			   uint64_t first, uint64_t past)
{
	for (uint64_t i = first + thread(); i < past; i += movers() * AT_ONCE) {
		uint64_t data[AT_ONCE] = {0};
		bool all = false;
		while (!all) {
			all = true;
			EACH_LINE(past)
			all &= line_there(ring_line(r, r->at + k), ring_flag(r->at + k), &data[u]);
			if (!all && mover_waited(w))
				return;
			if (!all && !i && w->spins % 64 == 0)
				header_look(w, r, s);
		}
		EACH_LINE(past) slice_keep(w, s, k, data[u]);
	}
}

/* False, for all threads alike: the block was stopped. */
DEVICE bool slice_receive(struct work *w, const struct ring *r, const struct slice *s)
{
	for (uint64_t first = 0; first < s->lines; first += WINDOW) {
		const uint64_t left = s->lines - first;
		const uint64_t past = first + (left < WINDOW ? left : WINDOW);
		window_receive(w, r, s, first, past);
		if (!threads_all(movers(), !w->words->stop))
			return false;
		if (!thread()) /* what was stored depended on the lines, so they are loaded */
			store64(r->credits, r->at + past);
	}
	return true;
}

/* ---- The block ---- */

DEVICE void move(struct work *w, const struct peer_messages *m)
{
	struct ring r;
	ring_find(w, &r);
	/* After a failure, the data to send may depend on data that was not received. */
	const uint32_t past = w->words->dead ? 0 : m->first[w->way + 1];
	for (uint32_t i = m->first[w->way]; i < past; i++) {
		struct slice s;
		if (!slice_cut(w, m, i, &s))
			continue;
		if (!thread()) {
			w->words->message = m->before[w->way] + i - m->first[w->way] + 1;
			w->words->part = s.header;
		}
		if (w->way < PEER_RANKS)
			slice_send(w, &r, &s);
		else if (!slice_receive(w, &r, &s))
			break;
		r.at += s.lines;
	}
	if (!thread())
		store64(r.count, r.at);
	work_moved(w);
}

KERNEL ncclsvc_peer_messages(struct peer_messages messages)
{
	SHARED struct block_words words;
	struct work w;
	w.way = messages.block[block()] >> 4;
	w.channel = messages.block[block()] & 15;
	work_begin(&w, &messages.call, &words, false);
	if (thread() < movers())
		move(&w, &messages);
	work_end(&w);
}
