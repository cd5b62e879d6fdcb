/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "peer_beat.h"

const struct kernel few = {ncclsvc_peer_collective, FEW, 400, 11};
static void many_run(struct peer_call c);
const struct kernel many = {many_run, MANY, 200, 6007};
const struct kernel *kernel;

int with_few(void **unused)
{
	(void)unused;
	kernel = &few;
	return 0;
}

int with_many(void **unused)
{
	(void)unused;
	kernel = &many;
	return 0;
}

/* ---- Shares: each rank has one for each of its buffers ---- */

#define SRC_SLOT 7
#define DST_SLOT (PEER_SHARES - 1)

static void tables_fill(struct world *w, struct rank *r)
{
	uint64_t *table = (uint64_t *)(r->staging + PEER_TABLE);
	for (unsigned p = 0; p < w->nranks; p++) {
		table[p * PEER_SHARES + SRC_SLOT] = (uintptr_t)w->ranks[p].src;
		table[p * PEER_SHARES + DST_SLOT] = (uintptr_t)w->ranks[p].dst;
	}
}

static uint64_t share_of(const struct rank *r, uint64_t at, uint64_t *offset)
{
	const bool src = at - (uintptr_t)r->src < sizeof(r->src);
	*offset = at - (uintptr_t)(src ? r->src : r->dst);
	return src ? peer_share(SRC_SLOT, 1) : peer_share(DST_SLOT, 2);
}

void direct_run(struct peer_call c, const uint32_t *mapped)
{
	const size_t at = offsetof(struct rank, control);
	const struct rank *r = (const struct rank *)(uintptr_t)(c.control - at);
	peer_atomic32 *to = (peer_atomic32 *)(r->staging + PEER_MAPPED);
	for (unsigned p = 0; p < c.nranks; p++)
		atomic_store_explicit(&to[p], mapped[p], memory_order_release);
	c.segment = peer_segment(c.bytes, c.nranks);
	c.src_share = share_of(r, c.src, &c.src_at);
	c.dst_share = share_of(r, c.dst, &c.dst_at);
	ncclsvc_peer_direct(c);
}

/* The set of mapped buffers is random, and changes while other blocks run. */
static void many_run(struct peer_call c)
{
	static _Thread_local unsigned seed;
	uint32_t mapped[PEER_RANKS];
	const bool all = rand_r(&seed) & 1;
	for (unsigned p = 0; p < c.nranks; p++)
		mapped[p] = all ? 2 : (unsigned)rand_r(&seed) % 3;
	direct_run(c, mapped);
}

/* ---- Ranks ---- */

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	r->world->work(r);
	return NULL;
}

struct world *world_run(unsigned nranks, void (*work)(struct rank *))
{
	struct world *w = calloc(1, sizeof(*w));
	assert_non_null(w);
	w->nranks = nranks;
	w->work = work;
	pthread_barrier_init(&w->round, NULL, nranks);
	for (unsigned i = 0; i < nranks; i++) {
		struct rank *r = &w->ranks[i];
		r->number = i;
		r->nranks = nranks;
		r->world = w;
		r->staging = mmap(NULL, PEER_STAGING, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_ptr_not_equal(r->staging, MAP_FAILED);
		state(r)->launch_seq = NEAR_WRAP;
	}
	for (unsigned i = 0; i < nranks; i++)
		tables_fill(w, &w->ranks[i]);
	for (unsigned i = 0; i < nranks; i++)
		assert_int_equal(pthread_create(&w->ranks[i].thread, NULL, rank_main, &w->ranks[i]),
				 0);
	for (unsigned i = 0; i < nranks; i++)
		join_with_heartbeats(w->ranks[i].thread, &w->ranks[0].control.heartbeat,
				     sizeof(w->ranks[0]), nranks);
	return w;
}

void world_free(struct world *w)
{
	for (unsigned i = 0; i < w->nranks; i++)
		munmap(w->ranks[i].staging, PEER_STAGING);
	pthread_barrier_destroy(&w->round);
	free(w);
}

struct peer_call call_of(struct rank *r, uint64_t bytes)
{
	struct peer_call c = {
		.control = (uintptr_t)&r->control,
		.src = (uintptr_t)r->src,
		.dst = (uintptr_t)r->dst,
		.bytes = bytes,
		.header = bytes,
		.kernel_seq = KERNEL_SEQ,
		.rank = (uint8_t)r->number,
		.nranks = (uint8_t)r->nranks,
		.from_past = (uint8_t)r->nranks,
		.to_past = (uint8_t)r->nranks,
		.sends_to = ALL(r->nranks),
		.receives_from = ALL(r->nranks),
		.type = NCCLSVC_UINT8,
		.redop = NCCLSVC_SUM,
	};
	for (unsigned i = 0; i < r->nranks; i++)
		c.staging[i] = (uintptr_t)r->world->ranks[i].staging;
	return c;
}

/* ---- Kernels of several blocks ---- */

struct block {
	const struct kernel *kernel;
	const struct peer_call *call;
	struct peer_block block;
	pthread_t thread;
};

static void *block_main(void *arg)
{
	const struct block *b = arg;
	ncclsvc_peer_block = b->block;
	b->kernel->run(*b->call);
	ncclsvc_peer_block = (struct peer_block){0, 1};
	return NULL;
}

void block_run(const struct kernel *k, const struct peer_call *c, uint32_t number, uint32_t blocks)
{
	struct block b = {.kernel = k, .call = c, .block = {number, blocks}};
	block_main(&b);
}

void blocks_in_turn(const struct kernel *k, const struct peer_call *c, uint32_t blocks)
{
	for (uint32_t i = 0; i < blocks; i++)
		block_run(k, c, i, blocks);
}

void blocks_at_once(const struct kernel *k, const struct peer_call *c, uint32_t blocks)
{
	struct block b[BLOCKS_MOST];
	for (uint32_t i = 0; i < blocks; i++) {
		b[i] = (struct block){.kernel = k, .call = c, .block = {i, blocks}};
		assert_int_equal(pthread_create(&b[i].thread, NULL, block_main, &b[i]), 0);
	}
	for (uint32_t i = 0; i < blocks; i++)
		pthread_join(b[i].thread, NULL);
}
