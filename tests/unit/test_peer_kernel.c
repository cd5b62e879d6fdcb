/* SPDX-License-Identifier: Apache-2.0
 * The collective kernels' twins: one thread for each rank, as many kernels run at a time. Every
 * test runs with both kernels: for few bytes, and for many. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/twin.h"
#include "proto/ncclsvc_types.h"

#define FEW	   704			    /* bytes */
#define MANY	   150000		    /* more than the slots of a channel hold */
#define MOST	   (PEER_LINES_MOST + 1024) /* all tests */
#define SERIAL	   78			    /* of kernels for which it does not matter */
#define NEAR_WRAP  UINT32_C(0xfffffffe)	    /* the second operation has sequence 2 */
#define ABOVE(v)   ((uint32_t)((v) >> 32))
#define GUARD	   0xa5
#define BUFFER	   (MOST * PEER_RANKS + 64)
#define ALL(ranks) ((uint8_t)((1u << (ranks)) - 1))

static const struct kernel {
	void (*run)(struct peer_call);
	unsigned bytes, rounds, values; /* for the tests */
} few = {ncclsvc_peer_collective, FEW, 400, 11}, many = {ncclsvc_peer_bulk, MANY, 200, 6007};

static const struct kernel *kernel;

struct rank {
	unsigned number, nranks;
	pthread_t thread;
	char *staging;
	struct peer_page page;
	uint8_t src[BUFFER], dst[BUFFER];
	struct world *world;
};

struct world {
	unsigned nranks;
	struct rank ranks[PEER_RANKS];
	pthread_barrier_t round;
	void (*work)(struct rank *);
};

static struct peer_state *state(struct rank *r)
{
	return (struct peer_state *)r->staging;
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	r->world->work(r);
	return NULL;
}

/* All ranks do the work, each in a thread. */
static struct world *world_run(unsigned nranks, void (*work)(struct rank *))
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
		state(r)->sequence = NEAR_WRAP;
	}
	for (unsigned i = 0; i < nranks; i++)
		assert_int_equal(pthread_create(&w->ranks[i].thread, NULL, rank_main, &w->ranks[i]),
				 0);
	for (unsigned i = 0; i < nranks; i++)
		pthread_join(w->ranks[i].thread, NULL);
	return w;
}

static void world_free(struct world *w)
{
	for (unsigned i = 0; i < w->nranks; i++)
		munmap(w->ranks[i].staging, PEER_STAGING);
	pthread_barrier_destroy(&w->round);
	free(w);
}

static struct peer_call call_of(struct rank *r, uint64_t bytes)
{
	struct peer_call c = {
		.page = (uintptr_t)&r->page,
		.src = (uintptr_t)r->src,
		.dst = (uintptr_t)r->dst,
		.bytes = bytes,
		.header = bytes,
		.serial = SERIAL,
		.rank = (uint8_t)r->number,
		.nranks = (uint8_t)r->nranks,
		.sends_to = ALL(r->nranks),
		.receives_from = ALL(r->nranks),
		.type = NCCLSVC_UINT8,
		.redop = NCCLSVC_SUM,
	};
	for (unsigned i = 0; i < r->nranks; i++)
		c.staging[i] = (uintptr_t)r->world->ranks[i].staging;
	return c;
}

/* ---- Random collectives ---- */

enum shape {
	ALL_REDUCE,
	ALL_GATHER,
	REDUCE_SCATTER,
	BROADCAST,
	REDUCE,
	ALL_TO_ALL,
	GATHER,
	SCATTER,
	SHAPES,
};

/* Chunks that follow each other in a slot differ. */
static uint8_t input(unsigned rank, uint64_t i, unsigned round)
{
	return (uint8_t)(rank * 31 + i * 7 + i / 256 * 13 + round);
}

static void shape_call(struct peer_call *c, enum shape shape, unsigned root)
{
	const uint8_t self = (uint8_t)(1u << c->rank), all = ALL(c->nranks);
	c->reduces = shape == ALL_REDUCE || shape == REDUCE_SCATTER || shape == REDUCE;
	if (shape == REDUCE_SCATTER || shape == ALL_TO_ALL || shape == SCATTER)
		c->src_each = c->bytes;
	if (shape == ALL_GATHER || shape == ALL_TO_ALL || shape == GATHER)
		c->dst_each = c->bytes;
	if (shape == BROADCAST || shape == SCATTER) {
		c->sends_to = c->rank == root ? all : 0;
		c->receives_from = (uint8_t)(1u << root);
	} else if (shape == REDUCE || shape == GATHER) {
		c->sends_to = (uint8_t)(self | 1u << root);
		c->receives_from = c->rank == root ? all : 0;
	}
	c->header |= (uint64_t)shape << 32 | (uint64_t)root << 40;
}

static uint8_t expected(const struct peer_call *c, enum shape shape, unsigned root, uint64_t i,
			unsigned round)
{
	const uint64_t mine = c->rank * c->bytes;
	uint8_t sum = 0;
	switch (shape) {
	case ALL_GATHER:
	case GATHER:
		return input((unsigned)(i / c->bytes), i % c->bytes, round);
	case ALL_TO_ALL:
		return input((unsigned)(i / c->bytes), mine + i % c->bytes, round);
	case BROADCAST:
		return input(root, i, round);
	case SCATTER:
		return input(root, mine + i, round);
	default:
		for (unsigned p = 0; p < c->nranks; p++)
			sum = (uint8_t)(sum +
					input(p, shape == REDUCE_SCATTER ? mine + i : i, round));
		return sum;
	}
}

/* Behind the result there still lies what did. */
static void check(const struct peer_call *c, enum shape shape, unsigned root, unsigned round,
		  uint8_t behind)
{
	const uint8_t *dst = (const uint8_t *)(uintptr_t)c->dst;
	const uint64_t bytes = c->dst_each ? c->bytes * c->nranks : c->bytes;
	const bool receives = c->receives_from;
	for (uint64_t i = 0; i < bytes; i++) {
		const uint8_t due = receives ? expected(c, shape, root, i, round) : GUARD;
		if (dst[i] != due)
			fail_msg("shape %d, rank %u of %u, round %u, byte %d of %d: %u, due %u",
				 shape, c->rank, c->nranks, round, (int)i, (int)bytes, dst[i], due);
	}
	assert_int_equal(dst[bytes], behind);
}

/* Half of the buffers have the alignment of vectors. */
static unsigned random_offset(unsigned *seed)
{
	const unsigned n = (unsigned)rand_r(seed);
	return n & 16 ? 0 : n % 16;
}

/* Few bytes may go by either kernel. */
static void random_round(struct rank *r, unsigned *seed, unsigned round)
{
	const bool small = rand_r(seed) & 1;
	const struct kernel *k = small && rand_r(seed) & 1 ? &few : kernel;
	const unsigned most = small ? FEW : kernel->bytes;
	struct peer_call c = call_of(r, 1 + (unsigned)rand_r(seed) % most);
	const enum shape shape = (unsigned)rand_r(seed) % SHAPES;
	const unsigned root = (unsigned)rand_r(seed) % r->nranks;
	if (rand_r(seed) & 1)
		c.bytes = (c.bytes + 15) / 16 * 16;
	c.src += random_offset(seed);
	c.dst += random_offset(seed);
	shape_call(&c, shape, root);
	for (uint64_t i = 0; i < c.bytes * (c.src_each ? r->nranks : 1); i++)
		((uint8_t *)(uintptr_t)c.src)[i] = input(r->number, i, round);
	memset((void *)(uintptr_t)c.dst, GUARD, c.bytes * (c.dst_each ? r->nranks : 1) + 1);
	k->run(c);
	assert_int_equal(r->page.failed, 0);
	check(&c, shape, root, round, GUARD);
}

static void random_work(struct rank *r)
{
	unsigned seed = r->nranks;
	for (unsigned round = 0; round < kernel->rounds; round++)
		random_round(r, &seed, round);
}

static void random_collectives(void **unused)
{
	(void)unused;
	for (unsigned nranks = 1; nranks <= PEER_RANKS; nranks++)
		world_free(world_run(nranks, random_work));
}

/* ---- Kernels of several blocks ---- */

#define BLOCKS_MOST 3

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

static void block_run(const struct kernel *k, const struct peer_call *c, uint32_t number,
		      uint32_t blocks)
{
	struct block b = {.kernel = k, .call = c, .block = {number, blocks}};
	block_main(&b);
}

static void blocks_in_turn(const struct kernel *k, const struct peer_call *c, uint32_t blocks)
{
	for (uint32_t i = 0; i < blocks; i++)
		block_run(k, c, i, blocks);
}

static void blocks_at_once(const struct kernel *k, const struct peer_call *c, uint32_t blocks)
{
	struct block b[BLOCKS_MOST];
	for (uint32_t i = 0; i < blocks; i++) {
		b[i] = (struct block){.kernel = k, .call = c, .block = {i, blocks}};
		assert_int_equal(pthread_create(&b[i].thread, NULL, block_main, &b[i]), 0);
	}
	for (uint32_t i = 0; i < blocks; i++)
		pthread_join(b[i].thread, NULL);
}

/* ---- Both kernels in one communicator ---- */

#define MIXED_ROUNDS 200
#define MIXED_WRAP   UINT32_C(0xfffffff0)

/* What a rank's kernels have posted last. */
struct posts {
	uint32_t sequence;
	uint64_t ended;
};

static uint64_t lines_most(unsigned nranks)
{
	const uint64_t slot = (uint64_t)PEER_SLOT_LINES(nranks) * PEER_LINE_DATA;
	return slot < PEER_LINES_MOST ? slot : PEER_LINES_MOST;
}

/* Few for most; some are around the limit of the kernel for few bytes. */
static uint64_t random_bytes(unsigned *seed, unsigned nranks)
{
	const unsigned n = (unsigned)rand_r(seed);
	if (n % 16 == 0)
		return 0;
	if (n % 16 < 3)
		return lines_most(nranks) - 600 + n / 16 % 1200;
	return 1 + n / 16 % 3000;
}

/* As NCCL has it: the rank's own part stays where it is. */
static void in_place_call(struct peer_call *c)
{
	if (c->src_each)
		c->dst = c->src + (c->dst_each ? 0 : c->rank * c->bytes);
	else
		c->src = c->dst + (c->dst_each ? c->rank * c->bytes : 0);
}

/* Returns what lies behind the result: in place, that may be the rank's own data. */
static uint8_t buffers_fill(const struct peer_call *c, unsigned round)
{
	const uint64_t result = c->bytes * (c->dst_each ? c->nranks : 1);
	uint8_t *src = (uint8_t *)(uintptr_t)c->src, *dst = (uint8_t *)(uintptr_t)c->dst;
	memset(dst, GUARD, result + 1);
	for (uint64_t i = 0; c->sends_to && i < c->bytes * (c->src_each ? c->nranks : 1); i++)
		src[i] = input(c->rank, i, round);
	return dst[result];
}

static void posts_check(struct rank *r, const struct peer_call *c, struct posts *posts,
			unsigned blocks)
{
	posts->sequence = peer_sequence_after(posts->sequence);
	assert_int_equal(r->page.failed, 0);
	assert_int_equal(state(r)->sequence, posts->sequence);
	for (unsigned i = 0; i < blocks; i++)
		assert_true(state(r)->ended[i] == posts->sequence &&
			    state(r)->told[i] == c->serial);
	const uint64_t ended = (uint64_t)c->serial << 32 | posts->sequence;
	if (c->posts || r->page.ended != posts->ended)
		assert_true(r->page.ended == ended);
	posts->ended = r->page.ended;
}

/* The kernel was to fail, or not to. */
static void result_check(struct rank *r, uint32_t sequence, bool fails)
{
	const uint64_t result = r->page.results[sequence % PEER_RESULTS];
	if (fails)
		assert_true(result == ((uint64_t)PEER_MISMATCH << 32 | sequence));
	else
		assert_int_not_equal((uint32_t)result, sequence);
}

/* In some rounds one rank has half of the bytes, and maybe the other kernel. */
static void mixed_round(struct rank *r, unsigned *seed, unsigned round, struct posts *posts)
{
	const uint64_t most = random_bytes(seed, r->nranks);
	const unsigned odd = (unsigned)rand_r(seed) % (12 * r->nranks);
	const bool differs = odd < r->nranks && r->nranks > 1 && most;
	struct peer_call c = call_of(r, differs && odd == r->number ? most / 2 : most);
	const bool bulk = rand_r(seed) & 1;
	const struct kernel *k = bulk || c.bytes > lines_most(r->nranks) ? &many : &few;
	const enum shape shape = (unsigned)rand_r(seed) % SHAPES;
	const unsigned root = (unsigned)rand_r(seed) % r->nranks;
	const unsigned blocks = 1 + (unsigned)rand_r(seed) % BLOCKS_MOST;
	const bool in_place = rand_r(seed) & 1;
	c.posts = rand_r(seed) & 1;
	c.serial = peer_sequence_after(posts->sequence);
	c.src += random_offset(seed);
	c.dst += random_offset(seed);
	shape_call(&c, shape, root);
	if (in_place)
		in_place_call(&c);
	const uint8_t behind = buffers_fill(&c, round);
	(r->number & 1 ? blocks_at_once : blocks_in_turn)(k, &c, blocks);
	posts_check(r, &c, posts, blocks);
	result_check(r, posts->sequence, differs);
	if (!differs && (!in_place || c.receives_from))
		check(&c, shape, root, round, behind);
}

/* Ranks differ in how late they are. */
static void mixed_work(struct rank *r)
{
	unsigned seed = r->nranks, own = r->number;
	struct posts posts = {.sequence = MIXED_WRAP};
	state(r)->sequence = MIXED_WRAP;
	pthread_barrier_wait(&r->world->round);
	for (unsigned round = 0; round < MIXED_ROUNDS; round++) {
		if ((unsigned)rand_r(&own) % 8 == 0)
			usleep((unsigned)rand_r(&own) % 300);
		mixed_round(r, &seed, round, &posts);
	}
}

static void mixed(void **unused)
{
	(void)unused;
	world_free(world_run(2, mixed_work));
	world_free(world_run(3, mixed_work));
	world_free(world_run(PEER_RANKS, mixed_work));
}

/* ---- Two steps ---- */

static void all_reduce(struct rank *r, uint64_t bytes, unsigned round)
{
	struct peer_call c = call_of(r, bytes);
	shape_call(&c, ALL_REDUCE, 0);
	for (uint64_t i = 0; i < bytes; i++)
		r->src[i] = input(r->number, i, round);
	memset(r->dst, GUARD, bytes + 1);
	kernel->run(c);
	assert_int_equal(r->page.failed, 0);
	check(&c, ALL_REDUCE, 0, round, GUARD);
}

/* The first counter of results that have arrived, for even sequences. */
static uint64_t results_arrived(struct rank *r)
{
	const uint64_t at = PEER_BULK + PEER_BULK_DATA;
	const uint64_t ring = PEER_RANKS * PEER_BULK_CHANNELS * sizeof(struct peer_counter);
	return ((struct peer_counter *)(r->staging + at + ring))->value;
}

/* Two ranks take two steps from PEER_TWO_STEPS on. */
static void two_steps_work(struct rank *r)
{
	all_reduce(r, MANY, 0);
	all_reduce(r, PEER_TWO_STEPS - 1, 1);
	assert_int_equal(results_arrived(r), 0);
	all_reduce(r, MANY - 5, 2);
	all_reduce(r, PEER_TWO_STEPS, 3);
	assert_true(results_arrived(r));
}

static void two_steps(void **unused)
{
	(void)unused;
	assert_true(PEER_TWO_STEPS < MANY);
	world_free(world_run(2, two_steps_work));
}

/* ---- In place ---- */

static void in_place_round(struct rank *r, enum shape shape, uint64_t bytes, unsigned round)
{
	struct peer_call c = call_of(r, bytes);
	shape_call(&c, shape, 0);
	c.dst = c.src;
	const uint64_t n = bytes * (c.src_each ? r->nranks : 1);
	for (uint64_t i = 0; i < n; i++)
		r->src[i] = input(r->number, i, round);
	r->src[n] = GUARD;
	kernel->run(c);
	check(&c, shape, 0, round, GUARD);
}

/* Often, since only a rank that waits for room can receive a chunk before it sends its own. */
static void in_place_work(struct rank *r)
{
	for (unsigned round = 0; round < 300 / r->nranks; round++) {
		in_place_round(r, ALL_TO_ALL, kernel->bytes - 3, round);
		in_place_round(r, ALL_REDUCE, kernel->bytes - 9, round);
		in_place_round(r, ALL_REDUCE, kernel->bytes / 3, round);
	}
}

static void in_place(void **unused)
{
	(void)unused;
	world_free(world_run(2, in_place_work));
	world_free(world_run(4, in_place_work));
}

/* ---- Types ---- */

/* Of ranks 0 to 2, as bits of the type: 1.5, 2.5, -8, and what comes of it. */
static const struct {
	unsigned type, redop, size;
	uint64_t in[3], out;
} types[] = {
	{NCCLSVC_FLOAT16, NCCLSVC_SUM, 2, {0x3e00, 0x4100, 0xc800}, 0xc400},
	{NCCLSVC_FLOAT16, NCCLSVC_MAX, 2, {0x3e00, 0x4100, 0xc800}, 0x4100},
	{NCCLSVC_BFLOAT16, NCCLSVC_SUM, 2, {0x3fc0, 0x4020, 0xc100}, 0xc080},
	{NCCLSVC_BFLOAT16, NCCLSVC_PROD, 2, {0x3fc0, 0x4020, 0xc100}, 0xc1f0},
	{NCCLSVC_FLOAT32, NCCLSVC_MIN, 4, {0x3fc00000, 0x40200000, 0xc1000000}, 0xc1000000},
	{NCCLSVC_FLOAT64,
	 NCCLSVC_SUM,
	 8,
	 {0x3ff8000000000000, 0x4004000000000000, 0xc020000000000000},
	 0xc010000000000000},
	{NCCLSVC_INT8, NCCLSVC_AVG, 1, {0x7f, 2, 0x80}, 0},
	{NCCLSVC_INT8, NCCLSVC_MIN, 1, {1, 0xff, 5}, 0xff},
	{NCCLSVC_UINT8, NCCLSVC_MAX, 1, {1, 0xff, 5}, 0xff},
	{NCCLSVC_INT32, NCCLSVC_AVG, 4, {0xffffffff, 0xfffffffe, 0xfffffffa}, 0xfffffffd},
	{NCCLSVC_UINT32, NCCLSVC_PROD, 4, {0x10000, 0x10001, 3}, 0x30000},
	{NCCLSVC_INT64, NCCLSVC_MIN, 8, {5, UINT64_MAX, 7}, UINT64_MAX},
	{NCCLSVC_UINT64, NCCLSVC_MIN, 8, {5, UINT64_MAX, 7}, 5},
};

static void types_work(struct rank *r)
{
	const unsigned n = kernel->values;
	for (unsigned t = 0; t < sizeof(types) / sizeof(*types); t++) {
		const unsigned size = types[t].size;
		struct peer_call c = call_of(r, (uint64_t)n * size);
		c.reduces = 1;
		c.type = (uint8_t)types[t].type;
		c.redop = (uint8_t)types[t].redop;
		for (unsigned i = 0; i < n; i++)
			memcpy(r->src + i * size, &types[t].in[r->number], size);
		kernel->run(c);
		for (unsigned i = 0; i < n; i++)
			if (memcmp(r->dst + i * size, &types[t].out, size))
				fail_msg("row %u, element %u of rank %u", t, i, r->number);
	}
}

static void all_types(void **unused)
{
	(void)unused;
	world_free(world_run(3, types_work));
}

/* ---- Failures ---- */

/* The last rank sends less; afterwards all is well again. */
static void mismatch_work(struct rank *r)
{
	const unsigned n = kernel->bytes;
	struct peer_call c = call_of(r, r->number + 1 == r->nranks ? 8 : n);
	c.reduces = 1;
	kernel->run(c);
	const uint64_t result = r->page.results[SERIAL % PEER_RESULTS];
	assert_int_equal(ABOVE(result), PEER_MISMATCH);
	assert_int_equal((uint32_t)result, SERIAL);
	assert_int_equal(r->page.failed, 0);
	pthread_barrier_wait(&r->world->round);
	memset(r->src, 1, n);
	c = call_of(r, n);
	c.reduces = 1;
	kernel->run(c);
	assert_int_equal(r->page.failed, 0);
	assert_int_equal(r->dst[n - 1], r->nranks);
}

static void mismatch(void **unused)
{
	(void)unused;
	world_free(world_run(3, mismatch_work));
}

/* Rank 0's kernel has found that the last rank's header differs, but rank 1 comes late. */
static void late_work(struct rank *r)
{
	struct peer_call c = call_of(r, r->number + 1 == r->nranks ? 8 : 640);
	uint32_t *came = &r->world->ranks[1].page.heartbeat;
	if (r->number == 1) {
		usleep(20000);
		__atomic_store_n(came, 1, __ATOMIC_RELEASE);
	}
	kernel->run(c);
	assert_int_equal(ABOVE(r->page.results[SERIAL % PEER_RESULTS]), PEER_MISMATCH);
	assert_int_equal(__atomic_load_n(came, __ATOMIC_ACQUIRE), 1);
}

static void mismatch_waits_for_all(void **unused)
{
	(void)unused;
	world_free(world_run(3, late_work));
}

static void abort_soon(struct rank *r)
{
	while (!__atomic_load_n(&r->page.begun, __ATOMIC_ACQUIRE))
		usleep(100);
	__atomic_store_n(&r->page.abort, 1, __ATOMIC_RELEASE);
}

/* The rank is dead: its next kernel ends although nothing aborts it, and sends nothing. */
static void dead_work(struct rank *r, struct peer_call c)
{
	char *peer = r->world->ranks[1].staging, *before = malloc(PEER_STAGING);
	assert_non_null(before);
	memcpy(before, peer, PEER_STAGING);
	const uint64_t first = r->page.failed;
	kernel->run(c);
	assert_int_equal(ABOVE(r->page.results[c.serial % PEER_RESULTS]), PEER_ABORTED);
	assert_true(r->page.failed == first);
	assert_memory_equal(before, peer, PEER_STAGING);
	free(before);
}

/* Rank 1 never comes, but aborts rank 0's kernel, which has said that it waits. */
static void abort_work(struct rank *r)
{
	struct peer_call c = call_of(r, 64);
	c.serial = 77;
	if (r->number) {
		abort_soon(&r->world->ranks[0]);
		return;
	}
	kernel->run(c);
	assert_int_equal(ABOVE(r->page.begun), 77);
	assert_true(r->page.begun == r->page.ended);
	assert_int_equal(ABOVE(r->page.failed), PEER_ABORTED);
	dead_work(r, c);
}

static void aborted(void **unused)
{
	(void)unused;
	world_free(world_run(2, abort_work));
}

/* A kernel that waits, and another one of the same rank beside it. */
static void overlap_work(struct rank *r)
{
	struct rank *waits = &r->world->ranks[0];
	struct peer_call c = call_of(waits, 64);
	if (!r->number) {
		kernel->run(c);
		return;
	}
	while (!__atomic_load_n(&waits->page.begun, __ATOMIC_ACQUIRE))
		usleep(100);
	kernel->run(c);
	assert_int_equal(ABOVE(__atomic_load_n(&waits->page.failed, __ATOMIC_ACQUIRE)),
			 PEER_OVERLAP);
}

static void overlap(void **unused)
{
	(void)unused;
	struct world *w = world_run(2, overlap_work);
	assert_int_equal(state(&w->ranks[0])->dead, PEER_OVERLAP);
	world_free(w);
}

/* ---- Posts ---- */

static uint32_t block_ended(struct rank *r, uint32_t number)
{
	return __atomic_load_n(&state(r)->ended[number], __ATOMIC_ACQUIRE);
}

static uint64_t page_ended(struct rank *r)
{
	return __atomic_load_n(&r->page.ended, __ATOMIC_ACQUIRE);
}

static uint64_t posted(uint32_t sequence)
{
	return (uint64_t)SERIAL << 32 | sequence;
}

static struct peer_call posting_call(struct rank *r)
{
	struct peer_call c = call_of(r, kernel->bytes);
	c.posts = 1;
	return c;
}

/* Rank 1 runs its blocks one after the other, in either order, so that rank 0's other block waits.
 */
static void posts_round(struct rank *r, uint32_t first, uint32_t sequence)
{
	const uint64_t before = r->page.ended;
	struct peer_call c = posting_call(r);
	if (r->number) {
		struct rank *other = &r->world->ranks[0];
		block_run(kernel, &c, first, 2);
		assert_true(page_ended(r) == before);
		while (block_ended(other, first) != sequence)
			usleep(100);
		usleep(2000);
		assert_int_not_equal(block_ended(other, !first), sequence);
		assert_int_not_equal((uint32_t)page_ended(other), sequence);
		block_run(kernel, &c, !first, 2);
	} else {
		blocks_at_once(kernel, &c, 2);
	}
	assert_int_equal(r->page.failed, 0);
	assert_true(page_ended(r) == posted(sequence));
}

static void posts_work(struct rank *r)
{
	posts_round(r, 0, NEAR_WRAP + 1);
	pthread_barrier_wait(&r->world->round);
	posts_round(r, 1, 2);
	struct peer_call c = posting_call(r);
	kernel->run(c); /* of one block */
	assert_true(page_ended(r) == posted(3));
}

static void posts_after_all_blocks(void **unused)
{
	(void)unused;
	world_free(world_run(2, posts_work));
}

/* ---- Kernels in graphs ---- */

#define GRAPH 3
#define INDEX 5

static struct peer_call graph_call(struct rank *r, uint64_t bytes)
{
	struct peer_call c = call_of(r, bytes);
	c.reduces = 1;
	c.serial = 0;
	c.graph = GRAPH;
	c.index = INDEX;
	return c;
}

/* Rank 1 is late to rank 0's, and its own is in no graph. */
static void graph_work(struct rank *r)
{
	struct rank *waits = &r->world->ranks[0];
	struct peer_call single = call_of(r, 64), c = graph_call(r, 64);
	const uint32_t second = peer_sequence_after(NEAR_WRAP + 1);
	single.reduces = 1;
	kernel->run(single);
	if (r->number) {
		while (__atomic_load_n(&waits->page.begun, __ATOMIC_ACQUIRE) != second)
			usleep(100);
		assert_true(waits->page.graph == ((uint64_t)GRAPH << 32 | INDEX));
		assert_int_equal(waits->page.header, c.header);
		assert_int_equal(waits->page.place, second);
		single.serial++;
		kernel->run(single);
		return;
	}
	kernel->run(c);
	assert_int_equal(r->page.failed, 0);
	assert_true(r->page.ended == ((uint64_t)SERIAL << 32 | second));
	assert_int_equal(state(r)->ended[0], second);
	assert_int_equal(state(r)->told[0], SERIAL);
	assert_int_equal(state(r)->serial, SERIAL);
}

static void in_graph(void **unused)
{
	(void)unused;
	world_free(world_run(2, graph_work));
}

/* All later kernels fail, and the page says why. */
static void graph_mismatch_work(struct rank *r)
{
	struct peer_call c = graph_call(r, r->number ? 64 : 128);
	const uint32_t next = peer_sequence_after(state(r)->serial);
	kernel->run(c);
	assert_true(r->page.failed == ((uint64_t)PEER_UNLIKE << 32 | next));
	assert_int_equal(r->page.unlike[0], c.header);
	assert_int_equal(r->page.unlike[1], r->number ? 128 : 64);
	assert_int_equal(r->page.unlike[2], !r->number);
	assert_int_equal(r->page.unlike[3], 1);
	pthread_barrier_wait(&r->world->round);
	c = call_of(r, 64);
	kernel->run(c);
	assert_int_equal(ABOVE(r->page.results[SERIAL % PEER_RESULTS]), PEER_UNLIKE);
	assert_int_equal(state(r)->told[0], SERIAL);
}

static void graph_mismatch(void **unused)
{
	(void)unused;
	world_free(world_run(2, graph_mismatch_work));
}

/* A kernel of one block, after which no word is older than it. */
static void refresh_work(struct rank *r)
{
	struct peer_call c = call_of(r, 8);
	c.serial = SERIAL;
	for (unsigned i = 0; i < PEER_BLOCKS; i++)
		state(r)->ended[i] = 2 * PEER_REFRESH - 2;
	for (unsigned i = 0; i < PEER_BLOCKS; i++)
		state(r)->told[i] = SERIAL;
	state(r)->sequence = 2 * PEER_REFRESH - 2;
	pthread_barrier_wait(&r->world->round);
	kernel->run(c);
	assert_int_equal(block_ended(r, 1), 2 * PEER_REFRESH - 2);
	kernel->run(c);
	for (uint32_t i = 0; i < PEER_BLOCKS; i++)
		assert_int_equal(block_ended(r, i), 2 * PEER_REFRESH);
	assert_true(page_ended(r) == posted(2 * PEER_REFRESH));
	assert_int_equal(state(r)->told[1], SERIAL);
	c.serial = PEER_REFRESH;
	kernel->run(c);
	assert_int_equal(block_ended(r, 1), 2 * PEER_REFRESH);
	for (uint32_t i = 0; i < PEER_BLOCKS; i++)
		assert_int_equal(state(r)->told[i], PEER_REFRESH);
	assert_int_equal(r->page.failed, 0);
}

static void refreshed(void **unused)
{
	(void)unused;
	world_free(world_run(2, refresh_work));
}

/* Rank 1 never comes, and aborts rank 0's. */
static void failure_work(struct rank *r)
{
	struct peer_call c = posting_call(r);
	if (r->number) {
		struct rank *other = &r->world->ranks[0];
		while (!__atomic_load_n(&other->page.begun, __ATOMIC_ACQUIRE))
			usleep(100);
		assert_int_equal(page_ended(other), 0);
		abort_soon(other);
		return;
	}
	blocks_at_once(kernel, &c, 2);
	assert_int_equal(ABOVE(r->page.failed), PEER_ABORTED);
	assert_true(page_ended(r) == posted(NEAR_WRAP + 1));
	kernel->run(c); /* it is dead */
	assert_true(page_ended(r) == posted(2));
}

static void posts_failure(void **unused)
{
	(void)unused;
	world_free(world_run(2, failure_work));
}

static int with_few(void **unused)
{
	(void)unused;
	kernel = &few;
	return 0;
}

static int with_many(void **unused)
{
	(void)unused;
	kernel = &many;
	return 0;
}

int main(void)
{
	const struct CMUnitTest both[] = {
		cmocka_unit_test(random_collectives),
		cmocka_unit_test(in_place),
		cmocka_unit_test(all_types),
		cmocka_unit_test(mismatch),
		cmocka_unit_test(mismatch_waits_for_all),
		cmocka_unit_test(aborted),
		cmocka_unit_test(overlap),
		cmocka_unit_test(posts_after_all_blocks),
		cmocka_unit_test(posts_failure),
		cmocka_unit_test(refreshed),
		cmocka_unit_test(in_graph),
		cmocka_unit_test(graph_mismatch),
	};
	const struct CMUnitTest only_many[] = {
		cmocka_unit_test(two_steps),
	};
	const struct CMUnitTest in_turn[] = {
		cmocka_unit_test(mixed),
	};
	return cmocka_run_group_tests_name("few bytes", both, with_few, NULL) +
	       cmocka_run_group_tests_name("many bytes", both, with_many, NULL) +
	       cmocka_run_group_tests_name("only many bytes", only_many, with_many, NULL) +
	       cmocka_run_group_tests_name("both kernels in turn", in_turn, NULL, NULL);
}
