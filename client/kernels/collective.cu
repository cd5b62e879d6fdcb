/* SPDX-License-Identifier: Apache-2.0
 *
 * A collective on the stream that the trainer gave: each rank's kernel writes its data into the
 * staging memory of those that need it, and takes what the others have written into its own. The
 * stores carry the operation's sequence (proto/abi/peer.h), so nothing else is waited for.
 *
 * The last warp of each block, the keeper, moves no data: it reads the sequence, meets the other
 * ranks' headers, and while the block waits it looks at the member's page now and then, and has the
 * block break off when the daemon says so. The kernel is right as one thread of one block, too: so
 * runs its twin in C, whose one thread is both. */
#include "platform.h"

#include "proto/abi/peer.h"
#include "proto/ncclsvc_types.h"
#if !ON_GPU
#include "twin.h"
#endif

struct block_words {
	uint32_t sequence;
	uint32_t former, former_blocks; /* the kernel before: its sequence, and how many blocks */
	uint32_t stop;			/* enum peer_end */
	uint32_t finished;		/* warps that moved their data, and headers that came */
};

/* One thread's view. */
struct work {
	const struct peer_call *call;
	struct peer_state *state; /* of this rank */
	struct peer_page *page;
	volatile struct block_words *words;
	uint32_t sequence;
	uint32_t spins;
	uint32_t heartbeat;
	uint64_t looked, heard; /* ns; 0: not yet */
};

DEVICE void post(uint64_t *to, const struct work *w, uint32_t above)
{
	store64(to, (uint64_t)above << 32 | w->sequence);
}

/* ---- Places in staging memory ---- */

/* In that of `owner`, where `sender` puts its line i. */
DEVICE uint64_t line_at(const struct work *w, unsigned owner, unsigned sender, uint64_t i)
{
	const struct peer_call *c = w->call;
	const uint64_t slot = (w->sequence & 1) * c->nranks + sender;
	return c->staging[owner] + PEER_LINES +
	       (slot * PEER_SLOT_LINES(c->nranks) + i) * sizeof(struct peer_line);
}

DEVICE uint64_t header_at(const struct work *w, unsigned owner, unsigned sender)
{
	return w->call->staging[owner] + PEER_HEADERS +
	       ((w->sequence & 1) * PEER_RANKS + sender) * sizeof(struct peer_line);
}

DEVICE bool line_there(const struct work *w, uint64_t from, uint64_t *data)
{
	uint64_t a, b;
	line_load(from, &a, &b);
	*data = (uint32_t)a | b << 32;
	return a >> 32 == w->sequence && b >> 32 == w->sequence;
}

/* ---- Who does what ---- */

#define LOOKER (WARP - 1) /* the keeper's thread that speaks for the block */

DEVICE uint32_t movers(void)
{
	return threads() > WARP ? threads() - WARP : 1;
}

/* Is this thread the keeper's of that number? */
DEVICE bool keeps(uint32_t lane)
{
	return thread() + WARP - lane == threads();
}

/* Is it one of the keeper's, from the first with steps of a warp? */
#define FOR_KEEPERS(i, n)                                                                          \
	for (uint32_t i = thread() + WARP - threads(); (int32_t)i >= 0 && i < (n); i += WARP)

/* ---- Waiting ---- */

DEVICE void header_compare(struct work *w, unsigned rank, uint64_t header)
{
	if (header == w->call->header || w->words->stop)
		return;
	w->words->stop = PEER_MISMATCH;
	store32(&w->state->stopped, w->sequence);
	store64(&w->page->other, header);
	store32(&w->page->other_rank, rank);
}

/* Of who has sent less than is waited for, the header is there. */
DEVICE void headers_look(struct work *w)
{
	uint64_t header;
	for (unsigned p = 0; p < w->call->nranks; p++)
		if (p != w->call->rank && line_there(w, header_at(w, w->call->rank, p), &header))
			header_compare(w, p, header);
}

DEVICE void look(struct work *w)
{
	const uint64_t now = clock_ns();
	if (!w->looked)
		w->looked = now;
	if (now - w->looked < PEER_LOOK_NS)
		return;
	w->looked = now;
	if (!block())
		headers_look(w);
	const uint32_t dead = load32(&w->page->abort) ? PEER_ABORTED : load32(&w->state->dead);
	if (dead)
		w->words->stop = dead;
	else if (load32(&w->state->stopped) == w->sequence)
		w->words->stop = PEER_MISMATCH;
	const uint32_t heartbeat = load32(&w->page->heartbeat);
	if (!w->heard && !block())
		post(&w->page->begun, w, w->call->record);
	if (!w->heard || heartbeat != w->heartbeat)
		w->heard = now;
	else if (now - w->heard > PEER_ORPHAN_NS)
		w->words->stop = PEER_ORPHANED;
	w->heartbeat = heartbeat;
}

/* Called while something is not there yet. True: it will not come. */
DEVICE bool waited(struct work *w)
{
	if (++w->spins % 64)
		return false;
	rest();
	if (keeps(LOOKER))
		look(w);
	return w->words->stop;
}

/* ---- Lines ---- */

DEVICE void line_put(const struct work *w, uint64_t to, uint64_t data)
{
	const uint64_t sequence = (uint64_t)w->sequence << 32;
	line_store(to, (uint32_t)data | sequence, data >> 32 | sequence);
}

DEVICE uint64_t line_take(struct work *w, uint64_t from)
{
	uint64_t data;
	while (!line_there(w, from, &data) && !waited(w))
		;
	return data;
}

/* ---- Buffers: any alignment, n of eight bytes ---- */

DEVICE uint64_t bytes_load(uint64_t from, uint32_t n)
{
	if (n == 8 && !(from & 7))
		return *(const uint64_t *)from;
	uint64_t v = 0;
	if (!(from & 3) && !(n & 3)) {
		for (uint32_t i = 0; i < n; i += 4)
			v |= (uint64_t) * (const uint32_t *)(from + i) << 8 * i;
		return v;
	}
	for (uint32_t i = 0; i < n; i++)
		v |= (uint64_t) * (const uint8_t *)(from + i) << 8 * i;
	return v;
}

DEVICE void bytes_store(uint64_t to, uint64_t v, uint32_t n)
{
	if (n == 8 && !(to & 7)) {
		*(uint64_t *)to = v;
	} else if (!(to & 3) && !(n & 3)) {
		for (uint32_t i = 0; i < n; i += 4)
			*(uint32_t *)(to + i) = (uint32_t)(v >> 8 * i);
	} else {
		for (uint32_t i = 0; i < n; i++)
			*(uint8_t *)(to + i) = (uint8_t)(v >> 8 * i);
	}
}

/* ---- Reductions: in the order of ranks, so all ranks have the same bits ---- */

union line_values {
	uint64_t bits;
	uint64_t u64[1];
	int64_t i64[1];
	double f64[1];
	uint32_t u32[2];
	int32_t i32[2];
	float f32[2];
	uint16_t u16[4];
	uint8_t u8[8];
	int8_t i8[8];
};

DEVICE float bf16_float(uint16_t b)
{
	union line_values v = {.u32 = {(uint32_t)b << 16}};
	return v.f32[0];
}

DEVICE uint16_t float_bf16(float f)
{
	union line_values v = {.f32 = {f}};
	const uint32_t u = v.u32[0];
	if ((u & 0x7fffffff) > 0x7f800000)
		return 0x7fff;
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#define SAME(x)	      (x)
#define LARGER(a, b)  ((a) > (b) || (b) != (b) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (b) != (b) ? (a) : (b))

/* Averages, as NCCL makes them: floats are scaled before they are added, sums of integers divided.
 */
#define AVERAGED(x, scale) (c->redop == NCCLSVC_AVG ? (x) * (scale) : (x))
#define DIVIDED(x)	   (c->redop == NCCLSVC_AVG ? (x) / c->nranks : (x))

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
			line_put(w, line_at(w, p, c->rank, i),
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

/* ---- The keeper ---- */

DEVICE void headers_put(struct work *w)
{
	const struct peer_call *c = w->call;
	FOR_KEEPERS (p, c->nranks)
		if (p != c->rank)
			line_put(w, header_at(w, p, c->rank), c->header);
}

/* Waits for them, and so for all ranks. */
DEVICE void headers_take(struct work *w)
{
	const struct peer_call *c = w->call;
	FOR_KEEPERS (p, c->nranks) {
		if (p != c->rank)
			header_compare(w, p, line_take(w, header_at(w, c->rank, p)));
		add_shared(&w->words->finished);
	}
}

DEVICE void begin(struct work *w)
{
	volatile struct block_words *words = w->words;
	uint32_t former, dead, blocks_before, arrived;
	state_load(w->state, &former, &dead, &blocks_before, &arrived);
	words->former = former;
	words->former_blocks = blocks_before;
	words->sequence =
		former + 1 ? former + 1 : 2; /* 0 is none, and the slots go on taking turns */
	words->stop = dead;
	words->finished = 0;
}

/* The sequence may go on once all blocks have read it: the next kernel is the next to ask. */
DEVICE void arrive(struct work *w)
{
	const uint32_t before = add32(&w->state->arrived, 1);
	if (before >= blocks())
		w->words->stop = PEER_OVERLAP;
	if (before != blocks() - 1)
		return;
	store32(&w->state->blocks, blocks());
	store32(&w->state->sequence, w->sequence);
	store32(&w->state->arrived, 0);
}

/* All blocks of the former kernel have ended, unless two run at a time; some of this one may have.
 */
DEVICE void former_look(struct work *w)
{
	FOR_KEEPERS (i, w->words->former_blocks) {
		const uint32_t ended = load32(&w->state->ended[i]);
		if (ended != w->words->former && ended != w->sequence)
			w->words->stop = PEER_OVERLAP;
	}
}

DEVICE void end(struct work *w)
{
	const uint32_t stop = w->words->stop;
	if (stop == PEER_MISMATCH)
		store32(&w->state->stopped, w->sequence);
	else if (stop)
		store32(&w->state->dead, stop);
	if (stop)
		post(&w->page->failed, w, stop);
	if (w->heard && !block())
		post(&w->page->ended, w, w->call->record);
	store32(&w->state->ended[block()], w->sequence);
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
	warp_sync();
	if (thread() % WARP == 0)
		add_shared(&w->words->finished);
}

KERNEL ncclsvc_peer_collective(struct peer_call call)
{
	SHARED struct block_words words;
	struct work w;
	w.call = &call;
	w.state = (struct peer_state *)call.staging[call.rank];
	w.page = (struct peer_page *)call.page;
	w.words = &words;
	w.spins = 0;
	w.looked = w.heard = 0;
	if (keeps(LOOKER))
		begin(&w);
	block_sync();
	w.sequence = words.sequence;
	if (keeps(LOOKER))
		arrive(&w);
	if (!block() && !words.stop) {
		headers_put(&w);
		former_look(&w);
	}
	if (thread() < movers())
		move(&w);
	if (!block())
		headers_take(&w);
	if (!keeps(LOOKER))
		return;
	const uint32_t parts = movers() / WARP + (block() ? 0 : call.nranks);
	while (w.words->finished != parts)
		waited(&w);
	end(&w);
}
