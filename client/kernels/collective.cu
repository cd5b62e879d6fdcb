/* SPDX-License-Identifier: Apache-2.0
 * A collective on the trainer's stream: each rank's kernel writes its data into the staging memory
 * of the ranks that need it, and reads what the others have written into its own. The LL lines
 * (proto/abi/peer_staging.h) carry coll_launch_seq, so no other synchronization is needed.
 * The kernel also works with blocks of one thread: in the CPU reference, that thread is both mover
 * and monitor (work.h). */
#include "elements.h"
#include "monitor.h"

#include "proto/abi/peer_abi.h"
#include "proto/ncclsvc_types.h"

/* ---- Addresses in staging memory ---- */

/* Where, in the owner's staging memory, `sender` puts its line i. */
DEVICE uint64_t ll_line_at(const struct work *w, unsigned owner, unsigned sender, uint64_t i)
{
	const struct peer_call *c = w->call;
	const uint64_t slot = (w->coll_launch_seq & 1) * c->nranks + sender;
	return c->staging[owner] + PEER_LL_SLOTS +
	       (slot * PEER_SLOT_LINES(c->nranks) + i) * sizeof(struct ll_line);
}

/* ---- LL lines: a thread's next `n`, which are `step` apart. The compiler knows n, so it issues
 * all loads before the first value is needed; but more code takes longer to fetch, so operations of
 * few lines use n = 1. ---- */

#define LINES 2 /* at most; in measurements, 4 were no faster */

struct lines {
	uint64_t first, step, past;
	unsigned n;
};

#define EACH_OF(l)   UNROLLED for (unsigned u = 0; u < (l)->n; u++)
#define EACH_LINE(l) EACH_OF(l) if (line_of(l, u) < (l)->past)

DEVICE uint64_t line_of(const struct lines *l, unsigned u)
{
	return l->first + u * l->step;
}

DEVICE uint32_t line_bytes(const struct peer_call *c, uint64_t i)
{
	const uint64_t left = c->bytes - i * LL_LINE_DATA;
	return left < LL_LINE_DATA ? (uint32_t)left : LL_LINE_DATA;
}

#define SCALE_LINE(T, S, N, field, GET, PUT)                                                       \
	UNROLLED for (uint32_t i = 0; i < (N); i++) x.field[i] =                                   \
		PRODUCT(T, S, GET, PUT, x.field[i], by.field[0]);                                  \
	break

/* A line's elements times the rank's scalar. */
COLD uint64_t line_scale(uint8_t type, uint64_t line, uint64_t scalar)
{
	const union line_values by = {.bits = scalar};
	union line_values x = {.bits = line};
	switch (type) {
	case NCCLSVC_FLOAT32:
		SCALE_LINE(float, float, 2, f32, SAME, SAME);
	case NCCLSVC_FLOAT16:
		SCALE_LINE(float, float, 4, u16, half_float, float_half);
	case NCCLSVC_BFLOAT16:
		SCALE_LINE(float, float, 4, u16, bf16_float, float_bf16);
	case NCCLSVC_FLOAT64:
		SCALE_LINE(double, double, 1, f64, SAME, SAME);
	case NCCLSVC_INT8:
	case NCCLSVC_UINT8:
		SCALE_LINE(uint8_t, uint32_t, 8, u8, SAME, SAME);
	case NCCLSVC_INT32:
	case NCCLSVC_UINT32:
		SCALE_LINE(uint32_t, uint32_t, 2, u32, SAME, SAME);
	default:
		SCALE_LINE(uint64_t, uint64_t, 1, u64, SAME, SAME);
	}
	return x.bits;
}

DEVICE void lines_load(const struct peer_call *c, const struct lines *l, uint64_t from,
		       uint64_t data[LINES])
{
	EACH_LINE(l)
	data[u] = bytes_load(from + line_of(l, u) * LL_LINE_DATA, line_bytes(c, line_of(l, u)));
	if (c->redop == PEER_PREMULSUM)
		EACH_LINE(l) data[u] = line_scale(c->type, data[u], c->scalar);
}

DEVICE void lines_store(const struct peer_call *c, const struct lines *l, uint64_t to,
			const uint64_t data[LINES])
{
	EACH_LINE(l)
	bytes_store(to + line_of(l, u) * LL_LINE_DATA, data[u], line_bytes(c, line_of(l, u)));
}

/* Reads what rank p has sent. */
DEVICE void lines_take(struct work *w, const struct lines *l, unsigned p, uint64_t data[LINES])
{
	bool all = false;
	while (!all) {
		all = true;
		EACH_LINE(l)
		all &= ll_ready(ll_line_at(w, w->call->rank, p, line_of(l, u)), w->coll_launch_seq,
				&data[u]);
		if (!all && mover_waited(w))
			break;
	}
}

/* ---- Reductions: in rank order, so that all ranks get the same bits ---- */

#define EACH_VALUE(N) EACH_OF(l) UNROLLED for (unsigned k = 0; k < (N); k++)

/* A line has N elements of type T in its `field`; sums are computed in S, which wraps. data: this
 * rank's, then the result. */
#define REDUCE(T, S, N, field, GET, PUT, SCALE, AFTER)                                             \
	do {                                                                                       \
		T all[LINES][N] = {{0}};                                                           \
		union line_values x[LINES] = {{0}};                                                \
		ROLLED for (unsigned p = 0; p < c->nranks; p++)                                    \
		{                                                                                  \
			uint64_t bits[LINES] = {0};                                                \
			if (p != c->rank)                                                          \
				lines_take(w, l, p, bits);                                         \
			EACH_OF(l) x[u].bits = p == c->rank ? data[u] : bits[u];                   \
			if (!p) {                                                                  \
				EACH_VALUE(N) all[u][k] = AVERAGED(GET(x[u].field[k]), SCALE);     \
				continue;                                                          \
			}                                                                          \
			switch (c->redop) {                                                        \
			case NCCLSVC_SUM:                                                          \
				EACH_VALUE(N)                                                      \
				all[u][k] = (T)((S)all[u][k] + (S)GET(x[u].field[k]));             \
				break;                                                             \
			case NCCLSVC_PROD:                                                         \
				EACH_VALUE(N)                                                      \
				all[u][k] = (T)((S)all[u][k] * (S)GET(x[u].field[k]));             \
				break;                                                             \
			case NCCLSVC_MAX:                                                          \
				EACH_VALUE(N)                                                      \
				all[u][k] = LARGER(all[u][k], GET(x[u].field[k]));                 \
				break;                                                             \
			case NCCLSVC_MIN:                                                          \
				EACH_VALUE(N)                                                      \
				all[u][k] = SMALLER(all[u][k], GET(x[u].field[k]));                \
				break;                                                             \
			default: /* NCCLSVC_AVG */                                                 \
				EACH_VALUE(N)                                                      \
				all[u][k] = (T)((S)all[u][k] +                                     \
						(S)AVERAGED(GET(x[u].field[k]), SCALE));           \
			}                                                                          \
		}                                                                                  \
		EACH_VALUE(N) x[u].field[k] = PUT(AFTER(all[u][k]));                               \
		EACH_OF(l) data[u] = x[u].bits;                                                    \
	} while (0);                                                                               \
	break

DEVICE void lines_reduce(struct work *w, const struct lines *l, uint64_t data[LINES])
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

/* Sends this rank's lines to all ranks that need them. */
DEVICE void lines_send(struct work *w, const struct lines *l)
{
	const struct peer_call *c = w->call;
	uint64_t data[LINES] = {0};
	if (!c->src_each)
		lines_load(c, l, c->src, data);
	for (unsigned k = 1; k < c->nranks; k++) {
		const unsigned p = (c->rank + k) % c->nranks;
		if (!(c->sends_to & 1u << p))
			continue;
		if (c->src_each)
			lines_load(c, l, c->src + p * c->src_each, data);
		EACH_LINE(l)
		ll_store(ll_line_at(w, p, c->rank, line_of(l, u)), w->coll_launch_seq, data[u]);
	}
}

/* Receives everything for these lines of this rank. If the buffers are the same, each element is
 * read before it is written. */
DEVICE void lines_receive(struct work *w, const struct lines *l)
{
	const struct peer_call *c = w->call;
	uint64_t own[LINES] = {0}, data[LINES] = {0};
	if (c->sends_to & 1u << c->rank)
		lines_load(c, l, c->src + c->rank * c->src_each, own);
	if (c->reduces) {
		lines_reduce(w, l, own);
		lines_store(c, l, c->dst, own);
		return;
	}
	for (unsigned p = 0; p < c->nranks; p++) {
		if (!(c->receives_from & 1u << p))
			continue;
		if (p != c->rank)
			lines_take(w, l, p, data);
		EACH_OF(l) data[u] = p == c->rank ? own[u] : data[u];
		lines_store(c, l, c->dst + p * c->dst_each, data);
	}
}

DEVICE void lines_move(struct work *w, uint64_t lines, unsigned n)
{
	const struct peer_call *c = w->call;
	const struct lines all = {
		.first = (uint64_t)block() * movers() + thread(),
		.step = (uint64_t)blocks() * movers(),
		.past = w->words->stop ? 0 : lines,
		.n = n,
	};
	struct lines l = all;
	for (; c->sends_to && l.first < l.past; l.first += l.n * l.step)
		lines_send(w, &l);
	for (l = all; c->receives_from && l.first < l.past; l.first += l.n * l.step)
		lines_receive(w, &l);
}

DEVICE void move(struct work *w)
{
	const uint64_t lines = (w->call->bytes + LL_LINE_DATA - 1) / LL_LINE_DATA;
	if (lines <= (uint64_t)blocks() * movers())
		lines_move(w, lines, 1);
	else
		lines_move(w, lines, LINES);
	work_moved(w);
}

KERNEL THREADS_MOST(PEER_THREADS + 32) ncclsvc_peer_collective(struct peer_call call)
{
	SHARED struct block_words words;
	struct work w;
	work_begin(&w, &call, &words, true);
	if (thread() < movers())
		move(&w);
	work_end(&w);
}
