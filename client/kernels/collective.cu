/* SPDX-License-Identifier: Apache-2.0
 *
 * A collective on the stream that the trainer gave: each rank's kernel writes its data into the
 * staging memory of those that need it, and takes what the others have written into its own. The
 * stores carry the operation's round (proto/abi/peer.h), so nothing else is waited for.
 *
 * The kernel is right with blocks of one thread, too: so runs its twin in C, whose thread is mover
 * and keeper (work.h). */
#include "keeper.h"
#include "values.h"

#include "proto/abi/peer.h"
#include "proto/ncclsvc_types.h"

/* ---- Places in staging memory ---- */

/* In that of `owner`, where `sender` puts its line i. */
DEVICE uint64_t line_at(const struct work *w, unsigned owner, unsigned sender, uint64_t i)
{
	const struct peer_call *c = w->call;
	const uint64_t slot = (w->round & 1) * c->nranks + sender;
	return c->staging[owner] + PEER_LINES +
	       (slot * PEER_SLOT_LINES(c->nranks) + i) * sizeof(struct peer_line);
}

/* ---- Reductions: in the order of ranks, so all ranks have the same bits ---- */

/* Elements of type T, which lie in the line as `field`; sums are made in S, which wraps. */
#define REDUCE(T, S, N, field, GET, PUT, SCALE, AFTER)                                             \
	do {                                                                                       \
		T all[N] = {0};                                                                    \
		ROLLED for (unsigned p = 0; p < c->nranks; p++)                                    \
		{                                                                                  \
			union line_values v;                                                       \
			v.bits = p == c->rank ? own : line_take(w, line_at(w, c->rank, p, i));     \
			for (unsigned k = 0; k < N; k++) {                                         \
				const T x = AVERAGED(GET(v.field[k]), SCALE);                      \
				if (!p)                                                            \
					all[k] = x;                                                \
				else if (c->redop == NCCLSVC_PROD)                                 \
					all[k] = (T)((S)all[k] * (S)x);                            \
				else if (c->redop == NCCLSVC_MAX)                                  \
					all[k] = LARGER(all[k], x);                                \
				else if (c->redop == NCCLSVC_MIN)                                  \
					all[k] = SMALLER(all[k], x);                               \
				else                                                               \
					all[k] = (T)((S)all[k] + (S)x);                            \
			}                                                                          \
		}                                                                                  \
		union line_values out;                                                             \
		for (unsigned k = 0; k < N; k++)                                                   \
			out.field[k] = PUT(AFTER(all[k]));                                         \
		return out.bits;                                                                   \
	} while (0)

DEVICE uint64_t line_reduce(struct work *w, uint64_t own, uint64_t i)
{
	const struct peer_call *c = w->call;
	const float scale = 1.0f / (float)c->nranks;
	const double dscale = 1.0 / c->nranks;
	switch (c->type) {
	case NCCLSVC_FLOAT32:
		REDUCE(float, float, 2, f32, SAME, SAME, scale, SAME);
	case NCCLSVC_FLOAT16:
		REDUCE(float, float, 4, u16, half_float, float_half, scale, SAME);
	case NCCLSVC_BFLOAT16:
		REDUCE(float, float, 4, u16, bf16_float, float_bf16, scale, SAME);
	case NCCLSVC_FLOAT64:
		REDUCE(double, double, 1, f64, SAME, SAME, dscale, SAME);
	case NCCLSVC_INT8:
		REDUCE(int8_t, uint32_t, 8, i8, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_UINT8:
		REDUCE(uint8_t, uint32_t, 8, u8, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_INT32:
		REDUCE(int32_t, uint32_t, 2, i32, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_UINT32:
		REDUCE(uint32_t, uint32_t, 2, u32, SAME, SAME, 1, DIVIDED);
	case NCCLSVC_INT64:
		REDUCE(int64_t, uint64_t, 1, i64, SAME, SAME, 1, DIVIDED);
	default:
		REDUCE(uint64_t, uint64_t, 1, u64, SAME, SAME, 1, DIVIDED);
	}
}

/* ---- The data ---- */

DEVICE uint32_t line_bytes(const struct peer_call *c, uint64_t i)
{
	const uint64_t left = c->bytes - i * PEER_LINE_DATA;
	return left < PEER_LINE_DATA ? (uint32_t)left : PEER_LINE_DATA;
}

/* This rank's line i, to all that need it. */
DEVICE void line_send(struct work *w, uint64_t i)
{
	const struct peer_call *c = w->call;
	const uint64_t from = c->src + i * PEER_LINE_DATA;
	const uint32_t n = line_bytes(c, i);
	uint64_t same = 0;
	if (!c->src_each)
		same = bytes_load(from, n);
	for (unsigned k = 1; k < c->nranks; k++) {
		const unsigned p = (c->rank + k) % c->nranks;
		if (c->sends_to & 1u << p)
			line_put(line_at(w, p, c->rank, i), w->round,
				 c->src_each ? bytes_load(from + p * c->src_each, n) : same);
	}
}

/* All that comes for this rank's line i. If the buffers are the same, whoever writes a place has
 * read it before. */
DEVICE void line_receive(struct work *w, uint64_t i)
{
	const struct peer_call *c = w->call;
	const uint64_t at = i * PEER_LINE_DATA;
	const uint32_t n = line_bytes(c, i);
	uint64_t own = 0;
	if (c->sends_to & 1u << c->rank)
		own = bytes_load(c->src + c->rank * c->src_each + at, n);
	if (c->reduces) {
		bytes_store(c->dst + at, line_reduce(w, own, i), n);
		return;
	}
	for (unsigned p = 0; p < c->nranks; p++)
		if (c->receives_from & 1u << p)
			bytes_store(c->dst + p * c->dst_each + at,
				    p == c->rank ? own : line_take(w, line_at(w, c->rank, p, i)),
				    n);
}

DEVICE void move(struct work *w)
{
	const struct peer_call *c = w->call;
	const uint64_t lines = (c->bytes + PEER_LINE_DATA - 1) / PEER_LINE_DATA;
	const uint64_t first = (uint64_t)block() * movers() + thread();
	const uint64_t step = (uint64_t)blocks() * movers();
	const uint64_t past = w->words->stop ? 0 : lines;
	for (uint64_t i = first; c->sends_to && i < past; i += step)
		line_send(w, i);
	for (uint64_t i = first; c->receives_from && i < past; i += step)
		line_receive(w, i);
	work_moved(w);
}

KERNEL ncclsvc_peer_collective(struct peer_call call)
{
	SHARED struct block_words words;
	struct work w;
	work_begin(&w, &call, &words, true);
	if (thread() < movers())
		move(&w);
	work_end(&w);
}
