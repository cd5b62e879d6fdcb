/* SPDX-License-Identifier: Apache-2.0
 * A collective of many bytes on the trainer's stream. Some warps of a block copy chunks into the
 * peers' staging memory, others consume the chunks that have arrived in their own. One counter
 * counts arrived chunks, another consumed ones (proto/abi/peer.h). A step of a warp moves a whole
 * chunk or returns at once, so one thread can do the steps of all warps in turn, as the CPU build
 * does. Chunk k of a channel depends only on earlier chunks, on all ranks, so at least one of them
 * can always move. */
#include "chunks.h"
#include "keeper.h"
#include "transfer.h"

#include "proto/abi/peer.h"

/* ---- Steps: false if there is nothing to do yet ---- */

DEVICE bool step_done(struct transfer *t, enum phase phase, struct progress *p)
{
	if (++p->done == t->chunks)
		t->phases &= ~(unsigned)phase;
	return true;
}

/* Sends this rank's next chunk to all its receivers. */
DEVICE bool send_step(const struct work *w, struct transfer *t)
{
	const struct peer_call *c = w->call;
	const uint32_t k = t->send.done;
	const uint8_t mask = peers_of(c, c->sends_to);
	if (!counted(w, t, CONSUMED, DATA, mask, consumed_due(k), &t->send.consumed))
		return false;
	ROLLED for (unsigned i = 0; i + 1 < c->nranks; i++)
	{
		const unsigned p = peer(c, i);
		if (mask & 1u << p)
			chunk_copy(slot_at(w, t, DATA, p, c->rank, k),
				   c->src + p * t->src_each + chunk_at(t, k),
				   chunk_bytes(c, t, p, k));
	}
	warp_sync();
	count_arrived(w, t, DATA, mask, k + 1);
	if (!lane())
		*t->sent = k + 1;
	return step_done(t, SEND, &t->send);
}

/* Buffers that are not aligned to vectors are reduced through scratch memory. Both kinds share one
 * loop, because the reductions are a lot of code. */
DEVICE void chunk_reduce(const struct work *w, const struct transfer *t, uint32_t k)
{
	const struct peer_call *c = w->call;
	const uint64_t own = c->src + c->rank * t->src_each + chunk_at(t, k);
	const uint64_t dst = c->dst + (t->two_steps ? c->rank * t->segment : 0) + chunk_at(t, k);
	const uint32_t bytes = chunk_bytes(c, t, c->rank, k);
	const bool aligned = !((own | dst | bytes) & 15);
	const uint64_t scratch = scratch_at(w, t);
	const uint32_t step = aligned ? bytes : PEER_BULK_SCRATCH;
	ROLLED for (uint32_t i = 0; i < bytes; i += step)
	{
		const uint32_t n = bytes - i < step ? bytes - i : step;
		struct reduction r = {own, dst, k, i / 16, (i + n + 15) / 16};
		if (!aligned) {
			chunk_copy(scratch, own + i, n);
			warp_sync();
			r.own = r.dst = scratch - i;
		}
		vectors_reduce(w, t, &r);
		if (!aligned) {
			warp_sync();
			chunk_copy(dst + i, scratch, n);
			warp_sync();
		}
	}
}

/* Copies chunk k of all senders to the result. */
DEVICE void chunks_keep(const struct work *w, const struct transfer *t, uint32_t k)
{
	const struct peer_call *c = w->call;
	const uint32_t n = chunk_bytes(c, t, c->rank, k);
	ROLLED for (unsigned p = 0; p < c->nranks; p++)
	{
		const uint64_t own = c->src + p * t->src_each + chunk_at(t, k);
		const uint64_t to = c->dst + p * c->dst_each + chunk_at(t, k);
		if (!(c->receives_from & 1u << p))
			continue;
		const uint64_t from = p == c->rank ? own : slot_at(w, t, DATA, c->rank, p, k);
		if (from != to)
			chunk_copy(to, from, n);
	}
}

/* Consumes the next chunk of all senders. In place, this rank must have sent its own first. */
DEVICE bool receive_step(const struct work *w, struct transfer *t)
{
	const struct peer_call *c = w->call;
	struct progress *p = &t->receive;
	const uint32_t k = p->done;
	const uint8_t mask = peers_of(c, c->receives_from);
	if (c->src == c->dst && c->sends_to && !warp_all(*t->sent > k))
		return false;
	if (!counted(w, t, ARRIVED, DATA, mask, k + 1, &p->arrived))
		return false;
	if (t->two_steps && !counted(w, t, CONSUMED, RESULTS, mask, consumed_due(k), &p->consumed))
		return false;
	if (c->reduces)
		chunk_reduce(w, t, k);
	else
		chunks_keep(w, t, k);
	warp_sync();
	count_consumed(w, t, DATA, mask, k + 1);
	if (t->two_steps)
		count_arrived(w, t, RESULTS, mask, k + 1);
	return step_done(t, RECEIVE, p);
}

/* Consumes the next chunk of all peers' results. */
DEVICE bool gather_step(const struct work *w, struct transfer *t)
{
	const struct peer_call *c = w->call;
	const uint32_t k = t->gather.done;
	const uint8_t mask = peers_of(c, all_ranks(c));
	if (!counted(w, t, ARRIVED, RESULTS, mask, k + 1, &t->gather.arrived))
		return false;
	ROLLED for (unsigned i = 0; i + 1 < c->nranks; i++)
	{
		const unsigned p = peer(c, i);
		chunk_copy(c->dst + p * t->segment + chunk_at(t, k),
			   slot_at(w, t, RESULTS, c->rank, p, k), chunk_bytes(c, t, p, k));
	}
	warp_sync();
	count_consumed(w, t, RESULTS, mask, k + 1);
	return step_done(t, GATHER, &t->gather);
}

/* ---- A warp's work ---- */

DEVICE uint32_t quotient_up(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

DEVICE bool takes_two_steps(const struct peer_call *c)
{
	return c->reduces && !c->src_each && c->sends_to == all_ranks(c) &&
	       c->receives_from == all_ranks(c) &&
	       (c->nranks > 2 || (c->nranks == 2 && c->bytes >= PEER_TWO_STEPS));
}

/* In the two-step form, each rank has a segment to reduce. */
DEVICE void segments_cut(const struct peer_call *c, struct transfer *t)
{
	t->two_steps = takes_two_steps(c);
	t->segment = c->bytes;
	t->src_each = c->src_each;
	if (!t->two_steps)
		return;
	t->segment = (c->bytes + c->nranks - 1) / c->nranks;
	t->segment = (t->segment + UNIT - 1) / UNIT * UNIT;
	t->src_each = t->segment;
}

/* All phases have the same number of warps. With fewer warps than phases, one warp does all. */
DEVICE void warps_assign(struct transfer *t, volatile uint32_t *sent)
{
	const uint32_t warps = movers() / WARP, warp = thread() / WARP;
	const uint32_t kinds = t->two_steps ? 3 : 2;
	const uint32_t width = warps < kinds ? 1 : warps / kinds;
	const uint32_t kind = warp / width;
	t->phases = kind < kinds ? 1u << kind : 0;
	if (warps < kinds)
		t->phases = warp ? 0 : (1u << kinds) - 1;
	t->channels = width * blocks();
	t->channel = warp % width * blocks() + block();
	t->sent = sent + warp % width;
}

/* A chunk's fence waits for the stores of all warps of the multiprocessor, so a few long chunks are
 * better than many; but the receiver should start before everything is sent. */
#define CHUNK_FEW 8192

/* The channels' numbers of chunks differ by at most one: as many as there are slots, of at least
 * CHUNK_FEW bytes, or more if the slots are too small for that. */
DEVICE void chunks_cut(const struct peer_call *c, struct transfer *t)
{
	const uint32_t rings = (t->two_steps ? 2 : 1) * (c->nranks > 1 ? c->nranks - 1u : 1);
	uint32_t slot = (uint32_t)(PEER_BULK_DATA / 2 / PEER_BULK_SLOTS) / (rings * t->channels);
	if (slot > PEER_BULK_CHUNK)
		slot = PEER_BULK_CHUNK;
	const uint32_t most = slot / UNIT;
	const uint32_t units = (uint32_t)((t->segment + UNIT - 1) / UNIT);
	uint32_t rounds = quotient_up(units, t->channels * most);
	const uint32_t few = quotient_up(units, t->channels * (CHUNK_FEW / UNIT));
	if (rounds < PEER_BULK_SLOTS)
		rounds = few < PEER_BULK_SLOTS ? few : PEER_BULK_SLOTS;
	const uint32_t length = rounds ? quotient_up(units, t->channels * rounds) : 1;
	const uint32_t chunks = quotient_up(units, length);
	t->slot = most * UNIT;
	t->chunk = length * UNIT;
	t->chunks = chunks > t->channel ? quotient_up(chunks - t->channel, t->channels) : 0;
}

/* A dead rank (struct peer_state) moves nothing. */
DEVICE void transfer_begin(const struct work *w, struct transfer *t, volatile uint32_t *sent)
{
	const struct peer_call *c = w->call;
	segments_cut(c, t);
	warps_assign(t, sent);
	chunks_cut(c, t);
	if (!c->sends_to)
		t->phases &= ~(unsigned)SEND;
	if (!c->receives_from)
		t->phases &= ~(unsigned)RECEIVE;
	if (!t->chunks || !warp_all(!w->words->stop))
		t->phases = 0;
	t->send = t->receive = t->gather = (struct progress){0, 0, 0};
}

DEVICE void move(struct work *w, volatile uint32_t *sent)
{
	struct transfer t;
	transfer_begin(w, &t, sent);
	while (t.phases) {
		bool moved = t.phases & SEND && send_step(w, &t);
		moved |= t.phases & RECEIVE && receive_step(w, &t);
		moved |= t.phases & GATHER && gather_step(w, &t);
		if (!moved && !warp_all(!mover_waited(w)))
			break;
	}
	work_moved(w);
}

KERNEL THREADS_MOST(PEER_BULK_THREADS + 32) ncclsvc_peer_bulk(struct peer_call call)
{
	SHARED struct block_words words;
	SHARED volatile uint32_t sent[32]; /* indexed by the warp of a phase */
	struct work w;
	if (thread() < 32)
		sent[thread()] = 0;
	work_begin(&w, &call, &words, true);
	if (thread() < movers())
		move(&w, sent);
	work_end(&w);
}
