/* SPDX-License-Identifier: Apache-2.0
 * Moves the bytes of matched tasks. Every operation is split into chunks with disjoint
 * destinations, so they can run in any order, on any thread, with the same result. */
#include "host.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "proto/names.h"
#include "proto/task.h"
#include "reduce/reduce.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/in_place.h"
#include "sched/base/sched_sessions.h"
#include "sched/queue/complete.h"
#include "sched/queue/release.h"

#define PART_BYTES	  (64 * 1024) /* moved by the scheduler's thread between readings of the clock */
#define CHUNK_BYTES_MIN	  (32 * 1024)  /* of one rank's share */
#define CHUNK_BYTES_MAX	  (256 * 1024) /* also bounds how long a small task waits for a large one */
#define CHUNK_BYTES_ALL	  (8 * 1024 * 1024)  /* likewise, for all ranks together */
#define STREAM_BYTES	  (32 * 1024 * 1024) /* more than any last-level cache that was measured */
#define CHUNKS_PER_THREAD 16 /* the last chunk is how long one thread waits for another */
#define HELPERS_ALWAYS	  (4 * HELPERS_WORTH_NS) /* larger savings are always worth it */
#define HELPERS_FORGOTTEN 128 /* operations after which most of the cost is forgotten */
#define BOUNCE_BYTES	  4096

/* The reads and writes of matched tasks, combined. */
struct move {
	struct task *const *tasks; /* by rank; or a Send and its Recv */
	uint32_t ntasks;
	bool streaming;
	uint64_t share;	     /* bytes of count elements */
	uint64_t units;	     /* the units that chunks consist of: elements, or bytes if nothing is
				reduced */
	uint64_t unit_bytes; /* in one rank's buffers */
	uint64_t bytes;	     /* written in total; or read by reductions, which is no less */
};

/* An operation in the pool. */
struct work {
	struct job job;
	struct comm *comm;
	struct work *prev, *next;
	struct move move;
	uint64_t first;	      /* unit of the first chunk */
	uint64_t chunk;	      /* units per chunk */
	uint64_t given_ns;    /* when it was given to the pool */
	double left_ns;	      /* what one thread would have needed from then on */
	struct subop *subop;  /* as in a match */
	_Atomic bool aborted; /* remaining chunks are skipped */
	struct task *tasks[];
};

struct host {
	struct work *running; /* in the pool */
	double helpers_ns;    /* recent cost of helpers: see learn */
};

static struct host *host_of(const struct scheduler *sched)
{
	return sched->transport_state[TRANSPORT_HOST];
}

/* The first task represents everything that the tasks agree on. */
static const struct svc_record *record_of(const struct move *m)
{
	return &m->tasks[0]->record;
}

/* only_dst >= 0: only that rank gets the result. Ranks are at most SVC_HOST_RANKS_MAX. */
static void reduce_range(struct move *m, uint64_t src_at, uint64_t dst_at, uint64_t n, int only_dst)
{
	const struct svc_record *r = record_of(m);
	size_t size = m->unit_bytes;
	uint32_t ranks = m->ntasks;
	const void *src[ranks];
	void *dst[ranks];
	for (uint32_t k = 0; k < ranks; k++) {
		src[k] = m->tasks[k]->src + src_at * size;
		dst[k] = m->tasks[k]->dst + dst_at * size;
	}
	if (only_dst >= 0)
		reduce_block(r->type, r->redop, src, ranks, &dst[only_dst], 1, n, m->streaming);
	else
		reduce_block(r->type, r->redop, src, ranks, dst, ranks, n, m->streaming);
}

/* Calls f for each part of [lo, hi) within one block of `block` units. */
static void each_block(struct move *m, uint64_t lo, uint64_t hi, uint64_t block,
		       void (*f)(struct move *m, uint32_t index, uint64_t at, uint64_t n))
{
	/* Small tasks are a single chunk from 0, and need no division. */
	uint64_t index = lo ? lo / block : 0, at = lo - index * block;
	for (; lo < hi; index++, at = 0) {
		uint64_t n = block - at < hi - lo ? block - at : hi - lo;
		f(m, (uint32_t)index, at, n);
		lo += n;
	}
}

static void copy(struct move *m, char *dst, const char *src, uint64_t n)
{
	copy_block(dst, src, n, m->streaming);
}

static void scatter_reduced(struct move *m, uint32_t rank, uint64_t at, uint64_t n)
{
	reduce_range(m, rank * record_of(m)->count + at, at, n, (int)rank);
}

/* The block between the root, or everybody, and this rank. */
static void move_block(struct move *m, uint32_t rank, uint64_t at, uint64_t n)
{
	const struct svc_record *r = record_of(m);
	const uint64_t block = rank * m->share + at;
	const bool sends_each = svc_op_sends_each(r->op);
	const uint32_t sender = svc_op_sends(r->op, r->peer, rank) ? rank : (uint32_t)r->peer;
	const char *from = m->tasks[sender]->src + (sends_each ? block : at);
	if (sends_each) {
		copy(m, m->tasks[rank]->dst + at, from, n);
		return;
	}
	for (uint32_t k = 0; k < m->ntasks; k++)
		if (svc_op_receives(r->op, r->peer, k))
			copy(m, m->tasks[k]->dst + block, from, n);
}

/* Blocks a -> b and b -> a are moved together, so that either rank may work in place. */
static void exchange(struct move *m, uint32_t a, uint32_t b, uint64_t at, uint64_t n)
{
	char bounce_a[BOUNCE_BYTES], bounce_b[BOUNCE_BYTES];
	struct task *ta = m->tasks[a], *tb = m->tasks[b];
	const char *from_a = ta->src + b * m->share + at, *from_b = tb->src + a * m->share + at;
	char *to_a = ta->dst + b * m->share + at, *to_b = tb->dst + a * m->share + at;
	if (ta->src != ta->dst && tb->src != tb->dst) {
		copy(m, to_b, from_a, n);
		if (a != b)
			copy(m, to_a, from_b, n);
		return;
	}
	for (uint64_t i = 0; i < n; i += BOUNCE_BYTES) {
		size_t part = n - i < BOUNCE_BYTES ? n - i : BOUNCE_BYTES;
		memcpy(bounce_a, from_a + i, part);
		memcpy(bounce_b, from_b + i, part);
		memcpy(to_b + i, bounce_a, part);
		memcpy(to_a + i, bounce_b, part);
	}
}

static void exchange_pair(struct move *m, uint32_t pair, uint64_t at, uint64_t n)
{
	/* Pairs (a <= b) in the order (0,0) (0,1) (1,1) (0,2) ... */
	uint32_t b = 0, above = m->ntasks;
	while (above - b > 1) {
		uint32_t middle = b + (above - b) / 2;
		if ((uint64_t)middle * (middle + 1) / 2 <= pair)
			b = middle;
		else
			above = middle;
	}
	exchange(m, pair - (uint32_t)((uint64_t)b * (b + 1) / 2), b, at, n);
}

/* Units lo to hi. */
static void run_range(struct move *m, uint64_t lo, uint64_t hi)
{
	const struct svc_record *r = record_of(m);
	const bool sends_each = svc_op_sends_each(r->op),
		   receives_each = svc_op_receives_each(r->op);
	if (svc_op_is_p2p(r->op)) {
		copy(m, m->tasks[1]->dst + lo, m->tasks[0]->src + lo, hi - lo);
	} else if (svc_op_reduces(r->op)) {
		if (sends_each)
			each_block(m, lo, hi, r->count, scatter_reduced);
		else
			reduce_range(m, lo, lo, hi - lo, svc_op_has_root(r->op) ? r->peer : -1);
	} else if (sends_each && receives_each) {
		each_block(m, lo, hi, m->share, exchange_pair);
	} else if (sends_each || receives_each) {
		each_block(m, lo, hi, m->share, move_block);
	} else {
		for (uint32_t k = 0; k < m->ntasks; k++)
			copy(m, m->tasks[k]->dst + lo, m->tasks[r->peer]->src + lo, hi - lo);
	}
}

/* The n units from lo, or as many as there are. Returns their end. */
static uint64_t run_part(struct move *m, uint64_t lo, uint64_t n)
{
	const uint64_t hi = m->units - lo < n ? m->units : lo + n;
	run_range(m, lo, hi);
	return hi;
}

static void run_chunk(struct job *job, uint32_t chunk)
{
	struct work *w = (struct work *)job;
	if (atomic_load_explicit(&w->aborted, memory_order_relaxed))
		return;
	run_part(&w->move, w->first + chunk * w->chunk, w->chunk);
}

/* bytes: the larger of what all ranks read and write together. */
static void measure(struct move *m)
{
	const struct svc_record *r = record_of(m);
	const uint64_t ranks = m->ntasks;
	const uint64_t sent = svc_op_sends_each(r->op) ? ranks : 1,
		       received = svc_op_receives_each(r->op) ? ranks : 1;
	const uint64_t read = sent * (svc_op_root_sends(r->op) ? 1 : ranks),
		       written = received * (svc_op_root_receives(r->op) ? 1 : ranks);
	const uint64_t both = sent * received,
		       blocks = both > ranks ? ranks * (ranks + 1) / 2 : both;
	const size_t element = svc_type_size(r->type);
	const bool reduces = svc_op_reduces(r->op);
	m->share = svc_operation(r->op)->kind & SVC_OP_HAS_DATA ? r->count * element : 0;
	m->unit_bytes = reduces ? element : 1;
	m->units = (reduces ? r->count : m->share) * blocks;
	m->bytes = m->share * (read > written ? read : written);
	m->streaming = m->bytes >= STREAM_BYTES;
}

/* Bytes that all ranks together move per unit. */
static uint64_t bytes_per_unit(const struct move *m)
{
	return m->bytes / m->units;
}

/* Whole cache lines, so that no two parts write to the same one. */
static uint64_t whole_lines(uint64_t units)
{
	return (units + 63) & ~UINT64_C(63);
}

/* Chunks for the pool, from the remaining work. */
static void cut(const struct scheduler *sched, struct work *w)
{
	const uint64_t unit = w->move.unit_bytes, left = w->move.units - w->first;
	const uint64_t total = left * unit;
	const uint64_t most = CHUNK_BYTES_ALL / bytes_per_unit(&w->move) * unit;
	uint64_t bytes = total / (CHUNKS_PER_THREAD * sched->config.threads);
	if (bytes < CHUNK_BYTES_MIN)
		bytes = CHUNK_BYTES_MIN;
	if (bytes > CHUNK_BYTES_MAX)
		bytes = CHUNK_BYTES_MAX;
	if (bytes > most)
		bytes = most;
	/* Chunks are numbered in 32 bits. */
	while (total / bytes >= UINT32_MAX)
		bytes *= 2;
	w->chunk = whole_lines(bytes / unit);
	w->job.chunks = (uint32_t)((left + w->chunk - 1) / w->chunk);
}

/* ---- The value of helpers ---- */

/* The work that the helpers would take over if they came at once. */
static double helpers_share(const struct scheduler *sched, double left_ns)
{
	return left_ns * (sched->config.threads - 1) / sched->config.threads;
}

/* If clients need the cores, too, helpers come late, and calling them costs more than their
 * wake-up. So the time that a call has cost beyond the threads' equal shares is counted until it is
 * forgotten, and another attempt shows the current cost. (Long operations have other limits, such
 * as memory bandwidth.) */
static void learn(struct scheduler *sched, const struct work *w)
{
	struct host *h = host_of(sched);
	const double share = helpers_share(sched, w->left_ns);
	const double cost = (double)(clock_now() - w->given_ns) - (w->left_ns - share);
	const bool own =
		!w->left_ns; /* a user's own threads, which say nothing about the helpers */
	if (!own && share <= HELPERS_ALWAYS && cost > h->helpers_ns)
		h->helpers_ns = cost < HELPERS_ALWAYS ? cost : HELPERS_ALWAYS;
}

static void forget_some(struct scheduler *sched)
{
	struct host *h = host_of(sched);
	h->helpers_ns -= h->helpers_ns / HELPERS_FORGOTTEN;
}

/* The pool has finished it. */
static void finish(struct job *job, void *arg)
{
	struct scheduler *sched = arg;
	struct work *w = (struct work *)job;
	struct comm *c = w->comm;
	ncclsvc_status failed;
	DL_DELETE(host_of(sched)->running, w);
	forget_some(sched);
	learn(sched, w);
	if (w->subop) {
		w->subop->done(sched, w->subop, false);
		free(w);
		return;
	}
	/* Tasks that ran when their epoch ended were aborted. */
	const ncclsvc_status st =
		c->ended ? c->end : *complete_ran(w->tasks, w->move.ntasks, &failed);
	for (uint32_t k = 0; k < w->move.ntasks; k++)
		release_end(sched, w->tasks[k], &st);
	free(w);
	if (c->ended && !c->pending)
		comm_gone(sched, c);
}

/* Submits the rest, from unit `first` on, which one thread would do in left_ns. own:
 * user_own_pool's. */
static bool give_to_pool(struct scheduler *sched, const struct match *match, const struct move *m,
			 uint64_t first, double left_ns, struct pool *own)
{
	struct work *w = calloc(1, sizeof(*w) + m->ntasks * sizeof(w->tasks[0]));
	if (!w)
		return false;
	memcpy(w->tasks, m->tasks, m->ntasks * sizeof(w->tasks[0]));
	w->job.run = run_chunk;
	w->job.done = finish;
	w->comm = match->comm;
	w->subop = match->subop;
	w->first = first;
	w->given_ns = sched->now;
	w->left_ns = left_ns;
	w->move = *m;
	w->move.tasks = w->tasks;
	cut(sched, w);
	for (uint32_t k = 0; k < m->ntasks; k++)
		if (w->tasks[k]->published)
			table_state(&sched->table, w->tasks[k]->slot, NCCLSVC_LAUNCHED, sched->now);
	sched->jobs++;
	DL_APPEND(host_of(sched)->running, w);
	pool_submit(own ? own : sched->pool, &w->job, !own);
	return true;
}

static bool run_small_send(const struct scheduler *sched, struct task *send, struct task *recv)
{
	const struct svc_record *r = &send->record;
	const uint64_t bytes = r->count * svc_type_size(r->type);
	if (bytes > PART_BYTES)
		return false;
	send->started_ns = recv->started_ns = sched->now;
	memmove(recv->dst, send->src, bytes);
	return true;
}

/* Should the rest go to the pool, for its helpers or since other tasks have waited enough? */
static bool is_long(const struct scheduler *sched, double left_ns)
{
	const double share = helpers_share(sched, left_ns);
	return (share > HELPERS_WORTH_NS && share > host_of(sched)->helpers_ns) ||
	       sched->now - sched->round_ns > MOVE_TURN_NS;
}

/* The time for the rest is extrapolated from the parts so far, of this very operation on these
 * buffers, since no table knows in which cache they are. Returns where the rest begins. */
static uint64_t run_alone(struct scheduler *sched, struct move *m, double *left_ns)
{
	if (m->bytes <= PART_BYTES)
		return run_part(m, 0, m->units);
	const uint64_t part = whole_lines(PART_BYTES / bytes_per_unit(m));
	const uint64_t start = clock_now();
	uint64_t done = 0;
	do {
		done = run_part(m, done, part);
		sched->now = clock_now();
		*left_ns = (double)(sched->now - start) * (double)(m->units - done) / (double)done;
	} while (done < m->units && !is_long(sched, *left_ns));
	if (done == m->units)
		forget_some(sched);
	return done;
}

static __attribute__((noinline)) enum begun run(struct scheduler *sched, const struct match *match,
						struct pool *own)
{
	struct move m = {.tasks = match->tasks, .ntasks = match->ntasks};
	measure(&m);
	for (uint32_t k = 0; k < m.ntasks; k++)
		m.tasks[k]->started_ns = sched->now;
	if (match->comm && !match->subop)
		tasks_mark_in_place(m.tasks, m.ntasks);
	double left_ns = 0;
	const uint64_t done = m.units && !own ? run_alone(sched, &m, &left_ns) : 0;
	if (done == m.units)
		return BEGUN_DONE;
	return give_to_pool(sched, match, &m, done, left_ns, own) ? BEGUN_RUNNING : BEGUN_NO_MEMORY;
}

static enum begun start(struct scheduler *sched, const struct match *match)
{
	struct task *const *tasks = match->tasks;
	struct pool *own = user_own_pool(sched, tasks, match->ntasks);
	if (!own && tasks[0]->record.op == NCCLSVC_SEND &&
	    run_small_send(sched, tasks[0], tasks[1]))
		return BEGUN_DONE;
	return run(sched, match, own);
}

/* Chunks that have not begun are skipped. */
static void epoch_end(struct scheduler *sched, struct comm *c)
{
	struct work *w;
	DL_FOREACH (host_of(sched)->running, w)
		if (w->comm == c)
			atomic_store_explicit(&w->aborted, true, memory_order_relaxed);
}

static void finish_all(struct scheduler *sched)
{
	struct work *w, *next;
	DL_FOREACH_SAFE (host_of(sched)->running, w, next)
		free(w);
}

const struct transport host_transport = {
	.state_bytes = sizeof(struct host),
	.epoch_end = epoch_end,
	.start = start,
	.finish = finish_all,
};
