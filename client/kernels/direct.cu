/* SPDX-License-Identifier: Apache-2.0
 * A collective of many bytes on the trainer's stream, without copies in between: the kernels read
 * and write the buffers of all ranks, which the library has mapped. Where a rank has not mapped a
 * buffer yet, the block's part goes through staging memory, chunk by chunk. */
#include "monitor.h"
#include "steps.h"
#include "vectors.h"

#include "proto/abi/peer_abi.h"

/* A rank's work for a block. */
struct plan {
	bool direct; /* all buffers are mapped */
	/* Otherwise, the number of chunks of each segment, or of the whole; and of a thread's
	 * vectors in each. */
	uint32_t chunks, vectors;
};

DEVICE void chunks_cut(const struct peer_call *c, struct plan *plan)
{
	const uint64_t bytes = c->parts ? c->bytes : c->segment;
	const uint64_t turn = (uint64_t)blocks() * movers() * 16;
	const uint32_t parts = c->parts & PEER_PART_FOR_EACH ? c->nranks : 1;
	plan->vectors = PEER_CHUNK / 16 / (parts * movers());
	plan->chunks = (uint32_t)((bytes + turn * plan->vectors - 1) / (turn * plan->vectors));
}

/* ---- Spans ---- */

DEVICE void span_from(struct span *s, uint8_t from, uint8_t past)
{
	s->from = from;
	s->from_past = past;
}

DEVICE void span_to(struct span *s, uint8_t to, uint8_t past)
{
	s->to = to;
	s->to_past = past;
}

/* Rank r's segment, if the data is the same for all; otherwise all of it. */
DEVICE void span_begin(const struct peer_call *c, struct span *s, uint32_t r)
{
	const uint64_t at = c->parts ? 0 : r * c->segment;
	const uint64_t left = at < c->bytes ? c->bytes - at : 0;
	s->src_at = s->dst_at = at;
	s->bytes = !c->parts && left > c->segment ? c->segment : left;
	s->from_chunks = s->to_chunks = false;
	s->part = s->step = s->first = 0;
	s->past = UINT32_MAX;
	span_from(s, c->rank, (uint8_t)(c->rank + 1));
	span_to(s, c->rank, (uint8_t)(c->rank + 1));
}

/* How many spans this rank moves in the buffers. */
DEVICE uint32_t direct_spans(const struct peer_call *c)
{
	switch (c->parts) {
	case PEER_PART_FOR_EACH:
		return gets_data(c, c->rank);
	case PEER_PART_OF_EACH:
		return has_data(c, c->rank);
	case PEER_PART_FOR_EACH | PEER_PART_OF_EACH:
		return c->nranks;
	default:
		return 1;
	}
}

/* Two-shot if all get the same data: each rank moves a segment of it. Otherwise parts for different
 * receivers are pulled by them, or if they also come from different senders, pushed; the warps
 * begin with different receivers, so that a rank copies its own part while it uses the links. */
DEVICE void direct_span(const struct peer_call *c, struct span *s, uint32_t i)
{
	const unsigned p = (c->rank + i + thread() / WARP) % c->nranks;
	span_begin(c, s, c->rank);
	if (!(c->parts & PEER_PART_OF_EACH))
		span_from(s, c->from, c->from_past);
	if (!(c->parts & PEER_PART_FOR_EACH))
		span_to(s, c->to, c->to_past);
	if (c->parts == (PEER_PART_FOR_EACH | PEER_PART_OF_EACH))
		span_to(s, (uint8_t)p, (uint8_t)(p + 1));
	if (c->parts & PEER_PART_FOR_EACH)
		s->src_at = s->to * c->bytes;
	if (c->parts & PEER_PART_OF_EACH)
		s->dst_at = c->rank * c->bytes;
}

/* This rank's data for p, or for all, goes into its chunk. */
DEVICE void fill_span(const struct peer_call *c, struct span *s, uint32_t p)
{
	s->to_chunks = true;
	s->part = p;
	s->src_at += p * c->src_each;
	const bool each = c->parts & PEER_PART_FOR_EACH;
	if (!c->sends_to || (each && (p == c->rank || !(c->sends_to >> p & 1))))
		s->bytes = 0;
}

/* What this rank receives from p, or from all, comes from their chunks. */
DEVICE void take_span(const struct peer_call *c, struct span *s, uint32_t p)
{
	s->from_chunks = true;
	s->part = c->parts & PEER_PART_FOR_EACH ? c->rank : 0;
	s->src_at += c->rank * c->src_each; /* of its own data */
	if (!c->reduces) {
		span_from(s, (uint8_t)p, (uint8_t)(p + 1));
		s->dst_at += p * c->dst_each;
	}
	if (!(c->receives_from >> p & 1))
		s->bytes = 0;
}

/* ---- The block's part ---- */

/* Chunks alternate between two slots: when a rank fills one again, all have taken the one after
 * it. */
DEVICE void staged_span(const struct peer_call *c, const struct plan *plan, struct span *s,
			uint32_t chunk, uint32_t fills, uint32_t i)
{
	span_begin(c, s, chunk / plan->chunks);
	s->step = chunk;
	s->first = chunk % plan->chunks * plan->vectors;
	s->past = s->first + plan->vectors;
	if (i < fills)
		fill_span(c, s, i);
	else
		take_span(c, s, c->reduces ? c->rank : i - fills);
}

/* The same loop moves the data directly and in chunks, because the reductions are a lot of code.
 * False: the block was stopped. */
DEVICE bool plan_do(struct work *w, const struct plan *plan, const struct offers *o,
		    enum peer_variant variant)
{
	const struct peer_call *c = w->call;
	const uint32_t chunks = plan->direct ? 1 : plan->chunks * (c->parts ? 1 : c->nranks);
	const uint32_t each = c->parts & PEER_PART_FOR_EACH ? c->nranks : 1;
	const uint32_t fills = plan->direct ? 0 : each;
	const uint32_t takes = plan->direct ? direct_spans(c) : c->reduces ? 1 : c->nranks;
	struct span s;
	if (plan->direct && !thread())
		w->words->moving = 1;
	s.rank = c->rank;
	s.nranks = c->nranks;
	s.variant = variant;
	s.type = c->type;
	s.redop = c->redop;
	ROLLED for (uint32_t chunk = 0, i = 0; chunk < chunks; i++)
	{
		if (i == fills && !plan->direct && !step(w, chunk + 1))
			return false;
		if (i == fills + takes) {
			chunk++;
			i = UINT32_MAX;
			continue;
		}
		if (plan->direct)
			direct_span(c, &s, i);
		else
			staged_span(c, plan, &s, chunk, fills, i);
		if (variant != PEER_COPY && i >= fills)
			span_reduce(&s, o);
		else
			span_copy(&s, o);
	}
	if (!plan->direct)
		return true;
	threads_all(movers(), true);
	if (!thread())
		w->words->moving = 0;
	return step(w, 1);
}

DEVICE void chunks_begin(const struct work *w, struct offers *o, struct plan *plan)
{
	const struct peer_call *c = w->call;
	chunks_cut(c, plan);
	for (uint32_t p = thread(); p < c->nranks; p += movers()) {
		o->src[p] = p == c->rank ? c->src : 0;
		o->dst[p] = p == c->rank ? c->dst : 0;
		o->chunks[p] = c->staging[p] + PEER_CHUNKS;
	}
	threads_all(movers(), true);
	if (!thread() && !block())
		store64(&w->control->staged, load64(&w->control->staged) + 1);
}

DEVICE void move(struct work *w, struct offers *o, enum peer_variant variant)
{
	struct plan plan;
	if (threads_all(movers(), !w->words->stop)) {
		offers_put(w, o);
		bool good = offers_take(w, o, &plan.direct);
		if (good) {
			if (!plan.direct)
				chunks_begin(w, o, &plan);
			good = plan_do(w, &plan, o, variant);
		}
		/* After a mismatch, no rank writes. */
		if (!good && threads_all(movers(), w->words->stop != PEER_MISMATCH))
			leave(w);
	}
	work_moved(w);
}

DEVICE void direct(const struct peer_call *call, struct block_words *words, struct offers *offers,
		   enum peer_variant variant)
{
	struct work w;
	offers_begin(call, offers);
	work_begin(&w, call, words, true);
	if (thread() < movers())
		move(&w, offers, variant);
	work_end(&w);
}

#define DIRECT(name, variant)                                                                      \
	KERNEL THREADS_MOST(PEER_DIRECT_THREADS + 32)                                              \
		ncclsvc_peer_direct_##name(struct peer_call c)                                     \
	{                                                                                          \
		SHARED struct block_words words;                                                   \
		SHARED struct offers offers;                                                       \
		direct(&c, &words, &offers, variant);                                              \
	}
PEER_EACH_VARIANT(DIRECT)
