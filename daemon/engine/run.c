/* SPDX-License-Identifier: Apache-2.0
 * The bytes of tasks that met. Every operation is cut into chunks that touch disjoint destinations,
 * so they run in any order, on any thread, with the same result. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "names.h"
#include "reduce.h"
#include "state.h"
#include "task.h"

#define INLINE_BYTES	  (64 * 1024)  /* written in all: below this a hand-over costs more */
#define CHUNK_BYTES_MIN	  (32 * 1024)  /* of one rank's share */
#define CHUNK_BYTES_MAX	  (256 * 1024) /* also bounds how long a small task waits for a large one */
#define STREAM_BYTES	  (16 * 1024 * 1024)
#define CHUNKS_PER_THREAD 16 /* the last chunk is the time one thread waits for another */
#define BOUNCE_BYTES	  4096

static size_t element_size(const struct work *w)
{
	return svc_type_size(w->tasks[0]->record.type);
}

/* only_dst >= 0: that rank alone gets the result. Ranks are at most SVC_HOST_RANKS_MAX. */
static void reduce_range(struct work *w, uint64_t src_at, uint64_t dst_at, uint64_t n, int only_dst)
{
	const struct svc_record *r = &w->tasks[0]->record;
	size_t size = element_size(w);
	uint32_t ranks = w->ntasks;
	const void *src[ranks];
	void *dst[ranks];
	for (uint32_t k = 0; k < ranks; k++) {
		src[k] = w->tasks[k]->src + src_at * size;
		dst[k] = w->tasks[k]->dst + dst_at * size;
	}
	if (only_dst >= 0)
		reduce_block(r->type, r->redop, src, ranks, &dst[only_dst], 1, n, w->streaming);
	else
		reduce_block(r->type, r->redop, src, ranks, dst, ranks, n, w->streaming);
}

/* Calls f for each part of [lo, hi) that lies within one block of `block` units. */
static void each_block(struct work *w, uint64_t lo, uint64_t hi, uint64_t block,
		       void (*f)(struct work *w, uint32_t index, uint64_t at, uint64_t n))
{
	while (lo < hi) {
		uint64_t index = lo / block, at = lo % block;
		uint64_t n = block - at < hi - lo ? block - at : hi - lo;
		f(w, (uint32_t)index, at, n);
		lo += n;
	}
}

static void copy(struct work *w, char *dst, const char *src, uint64_t n)
{
	if (dst != src)
		copy_block(dst, src, n, w->streaming);
}

static void scatter_reduced(struct work *w, uint32_t rank, uint64_t at, uint64_t n)
{
	reduce_range(w, (uint64_t)rank * w->count + at, at, n, (int)rank);
}

static uint64_t share(struct work *w)
{
	return w->count * element_size(w);
}

static void gather_to_all(struct work *w, uint32_t rank, uint64_t at, uint64_t n)
{
	for (uint32_t k = 0; k < w->ntasks; k++)
		copy(w, w->tasks[k]->dst + rank * share(w) + at, w->tasks[rank]->src + at, n);
}

static void gather_to_root(struct work *w, uint32_t rank, uint64_t at, uint64_t n)
{
	struct task *root = w->tasks[w->tasks[0]->record.peer];
	copy(w, root->dst + rank * share(w) + at, w->tasks[rank]->src + at, n);
}

static void scatter_from_root(struct work *w, uint32_t rank, uint64_t at, uint64_t n)
{
	struct task *root = w->tasks[w->tasks[0]->record.peer];
	copy(w, w->tasks[rank]->dst + at, root->src + rank * share(w) + at, n);
}

/* Blocks a -> b and b -> a go together, so that either rank may work in place. */
static void exchange(struct work *w, uint32_t a, uint32_t b, uint64_t at, uint64_t n)
{
	char bounce_a[BOUNCE_BYTES], bounce_b[BOUNCE_BYTES];
	struct task *ta = w->tasks[a], *tb = w->tasks[b];
	const char *from_a = ta->src + b * share(w) + at, *from_b = tb->src + a * share(w) + at;
	char *to_a = ta->dst + b * share(w) + at, *to_b = tb->dst + a * share(w) + at;
	if (ta->src != ta->dst && tb->src != tb->dst) {
		copy(w, to_b, from_a, n);
		if (a != b)
			copy(w, to_a, from_b, n);
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

static void exchange_pair(struct work *w, uint32_t pair, uint64_t at, uint64_t n)
{
	/* Pairs (a <= b) in the order (0,0) (0,1) (1,1) (0,2) ... */
	uint32_t b = 0;
	while ((uint64_t)(b + 1) * (b + 2) / 2 <= pair)
		b++;
	exchange(w, pair - (uint32_t)((uint64_t)b * (b + 1) / 2), b, at, n);
}

static void run_chunk(struct job *job, uint32_t chunk)
{
	struct work *w = (struct work *)job;
	const struct svc_record *r = &w->tasks[0]->record;
	if (atomic_load_explicit(&w->aborted, memory_order_relaxed))
		return;
	uint64_t lo = chunk * w->chunk;
	uint64_t hi = w->units - lo < w->chunk ? w->units : lo + w->chunk;
	switch (r->op) {
	case NCCLSVC_ALL_REDUCE:
		reduce_range(w, lo, lo, hi - lo, -1);
		break;
	case NCCLSVC_REDUCE:
		reduce_range(w, lo, lo, hi - lo, r->peer);
		break;
	case NCCLSVC_REDUCE_SCATTER:
		each_block(w, lo, hi, w->count, scatter_reduced);
		break;
	case NCCLSVC_ALL_GATHER:
		each_block(w, lo, hi, share(w), gather_to_all);
		break;
	case NCCLSVC_BROADCAST:
		for (uint32_t k = 0; k < w->ntasks; k++)
			copy(w, w->tasks[k]->dst + lo, w->tasks[r->peer]->src + lo, hi - lo);
		break;
	case NCCLSVC_GATHER:
		each_block(w, lo, hi, share(w), gather_to_root);
		break;
	case NCCLSVC_SCATTER:
		each_block(w, lo, hi, share(w), scatter_from_root);
		break;
	case NCCLSVC_ALL_TO_ALL:
		each_block(w, lo, hi, share(w), exchange_pair);
		break;
	case NCCLSVC_SEND: {
		struct task *recv = w->tasks[1];
		copy(w, recv->dst + lo, w->tasks[0]->src + lo, hi - lo);
		break;
	}
	}
}

/* How many units there are, and bytes each stands for in one rank's buffers. */
static void measure(struct work *w, size_t *unit_bytes)
{
	const struct svc_record *r = &w->tasks[0]->record;
	uint64_t ranks = w->ntasks;
	w->count = r->op == NCCLSVC_BARRIER ? 0 : r->count;
	*unit_bytes = 1;
	w->bytes = 0;
	switch (r->op) {
	case NCCLSVC_ALL_REDUCE:
	case NCCLSVC_REDUCE:
		w->units = w->count;
		*unit_bytes = element_size(w);
		w->bytes = share(w) * (r->op == NCCLSVC_REDUCE ? 1 : ranks);
		break;
	case NCCLSVC_REDUCE_SCATTER:
		w->units = w->count * ranks;
		*unit_bytes = element_size(w);
		w->bytes = share(w) * ranks;
		break;
	case NCCLSVC_ALL_GATHER:
		w->units = share(w) * ranks;
		w->bytes = share(w) * ranks * ranks;
		break;
	case NCCLSVC_ALL_TO_ALL:
		w->units = share(w) * (ranks * (ranks + 1) / 2);
		w->bytes = share(w) * ranks * ranks;
		break;
	case NCCLSVC_GATHER:
	case NCCLSVC_SCATTER:
		w->units = share(w) * ranks;
		w->bytes = w->units;
		break;
	case NCCLSVC_BROADCAST:
		w->units = share(w);
		w->bytes = share(w) * ranks;
		break;
	case NCCLSVC_SEND:
		w->units = share(w);
		w->bytes = share(w);
		break;
	default:
		w->units = 0;
	}
}

struct work *work_create(struct comm *c, uint32_t ntasks)
{
	struct work *w = c->spare;
	c->spare = NULL;
	if (!w) /* a spare fits whatever meets here: two tasks, or one of each rank */
		w = calloc(1, sizeof(*w) + (c->nranks + 1) * sizeof(w->tasks[0]));
	if (!w)
		return NULL;
	w->job.run = run_chunk;
	w->comm = c;
	w->ntasks = ntasks;
	atomic_store_explicit(&w->aborted, false, memory_order_relaxed);
	return w;
}

void work_free(struct work *w)
{
	if (w->comm->spare)
		free(w);
	else
		w->comm->spare = w;
}

void work_start(struct engine *e, struct work *w)
{
	size_t unit_bytes;
	measure(w, &unit_bytes);
	w->streaming = w->bytes >= STREAM_BYTES;
	for (uint32_t k = 0; k < w->ntasks; k++)
		w->tasks[k]->started_ns = e->now;
	if (w->bytes <= INLINE_BYTES) {
		w->chunk = w->units;
		if (w->units)
			run_chunk(&w->job, 0);
		order_finish(e, w);
		return;
	}
	uint64_t bytes = w->units * unit_bytes / (CHUNKS_PER_THREAD * e->config.threads);
	if (bytes < CHUNK_BYTES_MIN)
		bytes = CHUNK_BYTES_MIN;
	uint64_t total = w->units * unit_bytes;
	if (bytes > CHUNK_BYTES_MAX)
		bytes = CHUNK_BYTES_MAX;
	/* Chunks are numbered in 32 bits. */
	while (total / bytes >= UINT32_MAX)
		bytes *= 2;
	/* Whole cache lines, so that no two chunks write one. */
	w->chunk = (bytes / unit_bytes + 63) & ~UINT64_C(63);
	w->job.chunks = (uint32_t)((w->units + w->chunk - 1) / w->chunk);
	for (uint32_t k = 0; k < w->ntasks; k++)
		if (w->tasks[k]->published)
			table_state(&e->table, w->tasks[k]->slot, NCCLSVC_LAUNCHED, e->now);
	e->jobs++;
	DL_APPEND(e->running, w);
	pool_submit(e->pool, &w->job);
}
