/* SPDX-License-Identifier: Apache-2.0
 * Messages on the trainer's stream: any number of Sends and Recvs, which all progress
 * independently. A block moves the messages of one peer and direction on one channel, one after the
 * other, through the channel's ring (proto/abi/peer_abi.h). */
#include "elements.h"
#include "mapped_shares.h"
#include "monitor.h"

#include "proto/abi/peer_abi.h"

#define AT_ONCE 4 /* lines that a thread loads before it stores the first one */
#define VECTORS 8 /* the same for vectors of 16 bytes */
/* number of lines consumed between two credits */
#define WINDOW	(PEER_RING_LINES / 4)

/* ---- Addresses in staging memory ---- */

/* One channel of an ordered pair of ranks. */
struct ring {
	uint64_t lines;		/* in the receiver's memory */
	uint64_t ticket;	/* in the sender's memory */
	peer_atomic64 *credits; /* in the sender's memory: lines that the receiver has consumed */
	peer_atomic64 *count;	/* in this rank's memory: how many lines there were */
	uint64_t at;		/* the count at the message's first line */
	uint32_t mapped;	/* receiver's shares mapped here, as the kernel began */
};

DEVICE void ring_find(const struct work *w, struct ring *r)
{
	const struct peer_call *c = w->call;
	const bool sends = w->peer_dir < PEER_RANKS;
	const unsigned peer = w->peer_dir % PEER_RANKS;
	const unsigned from = sends ? c->rank : peer, to = sends ? peer : c->rank;
	const uint64_t ring = from * PEER_CHANNELS_OF(PEER_BLOCKS, c->nranks) + w->channel;
	const uint64_t credit = to * PEER_CHANNELS + w->channel;
	const uint64_t count = w->peer_dir * PEER_CHANNELS + w->channel;
	r->lines = c->staging[to] + PEER_RINGS + ring * PEER_RING_LINES * sizeof(struct ll_line);
	r->credits = (peer_atomic64 *)(c->staging[from] + PEER_CREDITS) + credit;
	r->count = (peer_atomic64 *)(c->staging[c->rank] + PEER_COUNTS) + count;
	r->ticket = c->staging[from] + PEER_TICKETS +
		    credit * PEER_TICKET_LINES * sizeof(struct ll_line);
	r->at = load64(r->count);
	r->mapped = sends ? shares_mapped(w, peer) : 0;
}

DEVICE uint64_t ring_line(const struct ring *r, uint64_t at)
{
	return r->lines + at % PEER_RING_LINES * sizeof(struct ll_line);
}

/* Never 0, and different each time the ring wraps around. */
DEVICE uint32_t ring_flag(uint64_t at)
{
	return (uint32_t)(at / PEER_RING_LINES) | UINT32_C(1) << 31;
}

/* ---- A block's part of a message: its first lines, then a slice of the data ---- */

struct slice {
	uint64_t at, header;
	uint64_t bytes;
	uint64_t lines;	     /* including the first ones */
	uint32_t first;	     /* number of these: 1, the header; 2 if the message is long */
	uint64_t to, offset; /* the share with the receiver's buffer, and where in it */
};

DEVICE bool slice_cut(const struct work *w, const struct peer_messages *m, uint32_t part,
		      struct slice *s)
{
	s->header = m->parts[part].header;
	const uint64_t bytes = PEER_MESSAGE_BYTES(s->header);
	const bool self = w->peer_dir % PEER_RANKS == w->call->rank;
	const uint32_t channels = peer_channels(bytes, w->call->channels, self);
	const uint64_t each = peer_segment(bytes, channels);
	const uint64_t begin = w->channel * each;
	s->at = m->parts[part].at + begin;
	s->bytes = begin < bytes ? bytes - begin : 0;
	s->bytes = s->bytes < each ? s->bytes : each;
	s->first = bytes >= PEER_MESSAGE_LONG && !self ? 2 : 1;
	s->lines = s->first + (s->bytes + LL_LINE_DATA - 1) / LL_LINE_DATA;
	s->to = m->parts[part].share;
	s->offset = m->parts[part].share_at + begin;
	return w->channel < channels;
}

/* Address of the data of line i, which is not one of the first. */
DEVICE uint64_t slice_address(const struct slice *s, uint64_t i, uint32_t *n)
{
	const uint64_t at = (i - s->first) * LL_LINE_DATA, left = s->bytes - at;
	*n = left < LL_LINE_DATA ? (uint32_t)left : LL_LINE_DATA;
	return s->at + at;
}

DEVICE uint64_t slice_load(const struct slice *s, uint64_t i)
{
	uint32_t n;
	const uint64_t from = i < s->first ? 0 : slice_address(s, i, &n);
	return i < s->first ? s->header : bytes_load(from, n);
}

/* For each of the lines that a thread handles at once, from i on: k is the line's number. */
#define EACH_LINE(past)                                                                            \
	UNROLLED for (uint32_t u = 0; u < AT_ONCE;                                                 \
		      u++) for (uint64_t k = i + u * movers(), once = k < (past); once; once = 0)

/* ---- Tickets ---- */

DEVICE uint32_t ticket_flag(const struct ring *r)
{
	return (uint32_t)r->at | UINT32_C(1) << 31;
}

DEVICE void ticket_put(const struct ring *r, const struct slice *s)
{
	for (uint32_t i = thread(); i < PEER_TICKET_LINES; i += movers())
		ll_store(r->ticket + i * sizeof(struct ll_line), ticket_flag(r),
			 i == 0	  ? s->to
			 : i == 1 ? s->offset
				  : s->header);
}

/* Waits for the receiver. *to: its buffer, as mapped here; 0: it is not. False, for all threads
 * alike: the block was stopped. */
DEVICE bool ticket_take(struct work *w, const struct ring *r, const struct slice *s, uint64_t *to)
{
	const unsigned peer = w->peer_dir % PEER_RANKS;
	const uint64_t second = r->ticket + sizeof(struct ll_line);
	const uint64_t third = second + sizeof(struct ll_line);
	uint64_t share = 0, offset = 0, header = 0;
	bool good = true, all = false;
	while (good && !all) { /* with all loads in flight at once */
		all = ll_ready(second, ticket_flag(r), &offset);
		all &= ll_ready(third, ticket_flag(r), &header);
		all &= ll_acquired(r->ticket, ticket_flag(r), &share);
		good = all || !mover_waited(w);
	}
	/* The library writes the count after the table, which is read only if the count says so. */
	const bool is_mapped = share && r->mapped >= (uint32_t)share && header == s->header;
	*to = good && is_mapped ? peer_address(share_base(w, peer, share) + offset) : 0;
	if (threads_all(movers(), *to != 0))
		return true;
	*to = 0;
	return threads_all(movers(), good);
}

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

DEVICE void lines_send(struct work *w, const struct ring *r, const struct slice *s, uint64_t first,
		       uint64_t past)
{
	uint64_t credits = load64(r->credits);
	for (uint64_t i = first + thread(); i < past; i += movers() * AT_ONCE) {
		uint64_t data[AT_ONCE] = {0};
		EACH_LINE(past) data[u] = slice_load(s, k);
		EACH_LINE(past)
		{
			if (!ring_has_room(w, r, r->at + k, &credits))
				return;
			ll_store(ring_line(r, r->at + k), ring_flag(r->at + k), data[u]);
		}
	}
}

/* Writes the slice into the receiver's buffer. */
DEVICE void slice_write(const struct slice *s, uint64_t to)
{
	const uint64_t vectors = (s->at | to) & 15 ? 0 : s->bytes / 16;
	for (uint64_t v = thread(); v < vectors; v += movers() * VECTORS) {
		uint64_t x[VECTORS][2] = {{0}};
		UNROLLED for (uint32_t u = 0; u < VECTORS; u++) if (v + u * movers() < vectors)
			vector_load(s->at + (v + u * movers()) * 16, x[u]);
		UNROLLED for (uint32_t u = 0; u < VECTORS; u++) if (v + u * movers() < vectors)
			vector_store(to + (v + u * movers()) * 16, x[u]);
	}
	for (uint64_t i = vectors * 16 + thread() * 8; i < s->bytes; i += movers() * 8) {
		const uint32_t n = s->bytes - i < 8 ? (uint32_t)(s->bytes - i) : 8;
		bytes_store(to + i, bytes_load(s->at + i, n), n);
	}
}

/* The header goes ahead, so that a receiver that expects another message learns of it. */
DEVICE bool long_send(struct work *w, const struct ring *r, struct slice *s)
{
	uint64_t to;
	if (!ticket_take(w, r, s, &to))
		return false;
	if (!to)
		return true;
	if (!thread())
		w->words->moving = 1;
	slice_write(s, to);
	threads_all(movers(), true);
	if (!thread())
		w->words->moving = 0;
	s->lines = s->first;
	s->header |= PEER_MESSAGE_DIRECT; /* for the last of them */
	if (!thread())
		fence_system();
	return true;
}

DEVICE void slice_send(struct work *w, const struct ring *r, struct slice *s)
{
	lines_send(w, r, s, 0, 1);
	/* The second line also tells a receiver that stops that nothing is being written. */
	if (s->first > 1 && !long_send(w, r, s))
		s->lines = s->first;
	lines_send(w, r, s, 1, s->lines);
}

/* ---- Receiving ---- */

/* If the header differs, the data still to come is undefined. */
DEVICE void header_check(struct work *w, const struct slice *s, uint64_t header)
{
	if (header == s->header || w->words->stop)
		return;
	store64(&w->control->mismatch[0], s->header);
	store64(&w->control->mismatch[1], header);
	store64(&w->control->mismatch[2], w->peer_dir % PEER_RANKS);
	store64(&w->control->mismatch[3], PEER_MISMATCH_MESSAGE);
	fence_system();
	w->words->stop = PEER_FATAL_MISMATCH;
}

/* After a header that differs, the data that a Recv waits for may never come. */
DEVICE void header_poll(struct work *w, const struct ring *r, const struct slice *s)
{
	uint64_t header;
	if (ll_ready(ring_line(r, r->at), ring_flag(r->at), &header))
		header_check(w, s, header);
}

DEVICE void slice_keep(struct work *w, const struct slice *s, uint64_t i, uint64_t data)
{
	uint32_t n;
	const uint64_t to = i < s->first ? 0 : slice_address(s, i, &n);
	if (i >= s->first)
		bytes_store(to, data, n);
	else if (!i)
		header_check(w, s, data);
	else
		w->words->direct = (data & PEER_MESSAGE_DIRECT) != 0;
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
			all &= ll_ready(ring_line(r, r->at + k), ring_flag(r->at + k), &data[u]);
			if (!all && mover_waited(w))
				return;
			if (!all && !i && w->spins % 64 == 0)
				header_poll(w, r, s);
		}
		EACH_LINE(past) slice_keep(w, s, k, data[u]);
	}
}

/* Called by a block that was stopped while its ticket is out. Its rank's stream continues next, so
 * the sender may not write into the rank's buffer afterwards. A sender whose header has not arrived
 * no longer finds the ticket; any other sends its second line once it has written, or given up. */
DEVICE void ticket_withdraw(const struct ring *r, const struct slice *s)
{
	const uint64_t began = clock_ns();
	uint64_t header, second;
	for (uint32_t i = thread(); i < PEER_TICKET_LINES; i += movers())
		ll_store(r->ticket + i * sizeof(struct ll_line), 0, 0);
	while (clock_ns() - began < PEER_SETTLE_NS)
		rest();
	while (ll_ready(ring_line(r, r->at), ring_flag(r->at), &header) && header == s->header &&
	       !ll_ready(ring_line(r, r->at + 1), ring_flag(r->at + 1), &second) &&
	       clock_ns() - began < PEER_LEAVE_NS)
		rest();
	threads_all(movers(), true);
}

/* False, for all threads alike: the block was stopped. */
DEVICE bool slice_receive(struct work *w, const struct ring *r, struct slice *s)
{
	uint64_t past = 0;
	if (s->first > 1)
		ticket_put(r, s);
	for (uint64_t first = 0; first < s->lines; first = past) {
		past = first + WINDOW;
		if (!first && s->first > 1)
			past = s->first;
		past = past < s->lines ? past : s->lines;
		window_receive(w, r, s, first, past);
		if (!threads_all(movers(), !w->words->stop)) {
			if (!first && s->first > 1)
				ticket_withdraw(r, s);
			return false;
		}
		if (!thread()) /* what was stored depended on the lines, so they are loaded */
			store64(r->credits, r->at + past);
		if (!first && s->first > 1 && w->words->direct)
			s->lines = past;
	}
	return true;
}

/* ---- The block ---- */

DEVICE void move(struct work *w, const struct peer_messages *m)
{
	struct ring r;
	ring_find(w, &r);
	/* After a failure, the data to send may depend on data that was not received. */
	const uint32_t past = w->words->dead ? 0 : m->first[w->peer_dir + 1];
	for (uint32_t i = m->first[w->peer_dir]; i < past; i++) {
		struct slice s;
		if (!slice_cut(w, m, i, &s))
			continue;
		if (!thread()) {
			w->words->message = m->before[w->peer_dir] + i - m->first[w->peer_dir] + 1;
			w->words->part = s.header;
		}
		if (w->peer_dir < PEER_RANKS)
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
	w.peer_dir = messages.block[block()] >> 4;
	w.channel = messages.block[block()] & 15;
	work_begin(&w, &messages.call, &words, false);
	if (thread() < movers())
		move(&w, &messages);
	work_end(&w);
}
