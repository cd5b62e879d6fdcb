/* SPDX-License-Identifier: Apache-2.0
 * The data that the collective kernels move. Every test runs with both kernels, for few bytes and
 * for many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "peer_world.h"

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

/* Consecutive chunks in a slot differ. */
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
	c->parts = (uint8_t)((c->src_each ? PEER_PART_FOR_EACH : 0) |
			     (c->dst_each ? PEER_PART_OF_EACH : 0));
	if (shape == SCATTER)
		c->parts = PEER_PART_FOR_EACH;
	if (shape == GATHER)
		c->parts = PEER_PART_OF_EACH;
	if (shape == BROADCAST || shape == SCATTER) {
		c->from = (uint8_t)root;
		c->from_past = (uint8_t)(root + 1);
	}
	if (shape == REDUCE || shape == GATHER) {
		c->to = (uint8_t)root;
		c->to_past = (uint8_t)(root + 1);
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

/* Checks that the bytes behind the result are unchanged. */
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

/* Half of the buffers are aligned to vectors. */
static unsigned random_offset(unsigned *seed)
{
	const unsigned n = (unsigned)rand_r(seed);
	return n & 16 ? 0 : n % 16;
}

/* Either kernel may carry few bytes. */
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
	assert_int_equal(r->control.failed, 0);
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

/* ---- Both kernels in one communicator ---- */

#define MIXED_ROUNDS 200
#define MIXED_WRAP   UINT32_C(0xfffffff0)

/* Latest posts of a rank's kernels. */
struct posts {
	uint32_t launch_seq;
	uint64_t ended;
};

static uint64_t ll_most(unsigned nranks)
{
	return (uint64_t)PEER_SLOT_LINES(nranks) * LL_LINE_DATA;
}

/* Mostly few; some are around the limit of the kernel for few bytes. */
static uint64_t random_bytes(unsigned *seed, unsigned nranks)
{
	const unsigned n = (unsigned)rand_r(seed);
	if (n % 16 == 0)
		return 0;
	if (n % 16 < 3)
		return ll_most(nranks) - 600 + n / 16 % 1200;
	return 1 + n / 16 % 3000;
}

/* As in NCCL, the rank's own part stays where it is. */
static void in_place_call(struct peer_call *c)
{
	if (c->src_each)
		c->dst = c->src + (c->dst_each ? 0 : c->rank * c->bytes);
	else
		c->src = c->dst + (c->dst_each ? c->rank * c->bytes : 0);
}

/* Returns the bytes behind the result: in place, they may be the rank's own data. */
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
	posts->launch_seq = peer_seq_after(posts->launch_seq);
	assert_int_equal(r->control.failed, 0);
	assert_int_equal(state(r)->launch_seq, posts->launch_seq);
	for (unsigned i = 0; i < blocks; i++)
		assert_true(state(r)->ended[i] == posts->launch_seq &&
			    state(r)->completed[i] == c->kernel_seq);
	const uint64_t ended = (uint64_t)c->kernel_seq << 32 | posts->launch_seq;
	if (c->posts || r->control.ended != posts->ended)
		assert_true(r->control.ended == ended);
	posts->ended = r->control.ended;
}

/* Checks that the kernel failed, or did not. */
static void result_check(struct rank *r, uint32_t kernel_seq, bool fails)
{
	const uint64_t result = r->control.results[kernel_seq % PEER_RESULTS];
	if (fails)
		assert_true(result == ((uint64_t)PEER_MISMATCH << 32 | kernel_seq));
	else
		assert_int_not_equal((uint32_t)result, kernel_seq);
}

/* In some rounds one rank has half of the bytes, and maybe the other kernel. */
static void mixed_round(struct rank *r, unsigned *seed, unsigned round, struct posts *posts)
{
	const uint64_t most = random_bytes(seed, r->nranks);
	const unsigned odd = (unsigned)rand_r(seed) % (12 * r->nranks);
	const bool differs = odd < r->nranks && r->nranks > 1 && most;
	struct peer_call c = call_of(r, differs && odd == r->number ? most / 2 : most);
	const bool direct = rand_r(seed) & 1;
	const struct kernel *k = direct || c.bytes > ll_most(r->nranks) ? &many : &few;
	const enum shape shape = (unsigned)rand_r(seed) % SHAPES;
	const unsigned root = (unsigned)rand_r(seed) % r->nranks;
	const unsigned blocks = 1 + (unsigned)rand_r(seed) % BLOCKS_MOST;
	const bool in_place = rand_r(seed) & 1;
	c.posts = rand_r(seed) & 1;
	c.kernel_seq = peer_seq_after(posts->launch_seq);
	c.src += random_offset(seed);
	c.dst += random_offset(seed);
	shape_call(&c, shape, root);
	if (in_place)
		in_place_call(&c);
	const uint8_t behind = buffers_fill(&c, round);
	(r->number & 1 ? blocks_at_once : blocks_in_turn)(k, &c, blocks);
	posts_check(r, &c, posts, blocks);
	result_check(r, posts->launch_seq, differs);
	if (!differs && (!in_place || c.receives_from))
		check(&c, shape, root, round, behind);
}

/* Ranks are delayed differently. */
static void mixed_work(struct rank *r)
{
	unsigned seed = r->nranks, own = r->number;
	struct posts posts = {.launch_seq = MIXED_WRAP};
	state(r)->launch_seq = MIXED_WRAP;
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

/* Repeated, because only a rank that waits for room can receive a chunk before it sends its own. */
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

#define VECTOR 16

/* As bits of the type: inputs of ranks 0 to 2, mostly 1.5, 2.5 and -8; the result; and the ranks'
 * scalars, mostly 2, 3 and 0.5. */
static const struct {
	unsigned type, redop, size;
	uint64_t in[3], out, scalar[3];
} types[] = {
	{NCCLSVC_FLOAT16, NCCLSVC_SUM, 2, {0x3e00, 0x4100, 0xc800}, 0xc400, {0}},
	{NCCLSVC_FLOAT16, NCCLSVC_MAX, 2, {0x3e00, 0x4100, 0xc800}, 0x4100, {0}},
	{NCCLSVC_BFLOAT16, NCCLSVC_SUM, 2, {0x3fc0, 0x4020, 0xc100}, 0xc080, {0}},
	{NCCLSVC_BFLOAT16, NCCLSVC_PROD, 2, {0x3fc0, 0x4020, 0xc100}, 0xc1f0, {0}},
	{NCCLSVC_FLOAT32, NCCLSVC_MIN, 4, {0x3fc00000, 0x40200000, 0xc1000000}, 0xc1000000, {0}},
	{NCCLSVC_FLOAT64,
	 NCCLSVC_SUM,
	 8,
	 {0x3ff8000000000000, 0x4004000000000000, 0xc020000000000000},
	 0xc010000000000000,
	 {0}},
	{NCCLSVC_INT8, NCCLSVC_AVG, 1, {0x7f, 2, 0x80}, 0, {0}},
	{NCCLSVC_INT8, NCCLSVC_MIN, 1, {1, 0xff, 5}, 0xff, {0}},
	{NCCLSVC_UINT8, NCCLSVC_MAX, 1, {1, 0xff, 5}, 0xff, {0}},
	{NCCLSVC_INT32, NCCLSVC_AVG, 4, {0xffffffff, 0xfffffffe, 0xfffffffa}, 0xfffffffd, {0}},
	{NCCLSVC_UINT32, NCCLSVC_PROD, 4, {0x10000, 0x10001, 3}, 0x30000, {0}},
	{NCCLSVC_INT64, NCCLSVC_MIN, 8, {5, UINT64_MAX, 7}, UINT64_MAX, {0}},
	{NCCLSVC_UINT64, NCCLSVC_MIN, 8, {5, UINT64_MAX, 7}, 5, {0}},
	{NCCLSVC_FLOAT16,
	 PEER_PREMULSUM,
	 2,
	 {0x3e00, 0x4100, 0xc800},
	 0x4680,
	 {0x4000, 0x4200, 0x3800}},
	{NCCLSVC_BFLOAT16,
	 PEER_PREMULSUM,
	 2,
	 {0x3fc0, 0x4020, 0xc100},
	 0x40d0,
	 {0x4000, 0x4040, 0x3f00}},
	/* The product is rounded before the sum. */
	{NCCLSVC_BFLOAT16,
	 PEER_PREMULSUM,
	 2,
	 {0x3f81, 0x3b80, 0},
	 0x3f82,
	 {0x3f81, 0x3f80, 0x3f80}},
	{NCCLSVC_FLOAT32,
	 PEER_PREMULSUM,
	 4,
	 {0x3fc00000, 0x40200000, 0xc1000000},
	 0x40d00000,
	 {0x40000000, 0x40400000, 0x3f000000}},
	{NCCLSVC_FLOAT64,
	 PEER_PREMULSUM,
	 8,
	 {0x3ff8000000000000, 0x4004000000000000, 0xc020000000000000},
	 0x401a000000000000,
	 {0x4000000000000000, 0x4008000000000000, 0x3fe0000000000000}},
	{NCCLSVC_INT8, PEER_PREMULSUM, 1, {0x7f, 2, 0x80}, 0x84, {2, 3, 0xff}},
	{NCCLSVC_UINT8, PEER_PREMULSUM, 1, {1, 0xff, 5}, 0x18, {2, 3, 5}},
	{NCCLSVC_INT32,
	 PEER_PREMULSUM,
	 4,
	 {0xffffffff, 0xfffffffe, 0xfffffffa},
	 22,
	 {2, 3, 0xfffffffb}},
	{NCCLSVC_UINT32, PEER_PREMULSUM, 4, {0x10000, 0x10001, 3}, 0x10007, {0x10000, 1, 2}},
	{NCCLSVC_INT64, PEER_PREMULSUM, 8, {5, UINT64_MAX, 7}, (uint64_t)-28, {2, 3, (uint64_t)-5}},
	{NCCLSVC_UINT64, PEER_PREMULSUM, 8, {5, UINT64_MAX, 7}, 42, {2, 3, 5}},
};

static void types_work(struct rank *r)
{
	const unsigned n = kernel->values;
	for (unsigned t = 0; t < sizeof(types) / sizeof(*types); t++) {
		const unsigned size = types[t].size;
		struct peer_call c = call_of(r, (uint64_t)n * size);
		const unsigned at = t % (16 / size) * size;
		uint8_t *const src = r->src + at, *const dst = r->dst + (t & 1 ? at : size % 16);
		c.src = (uintptr_t)src;
		c.dst = (uintptr_t)dst;
		c.reduces = 1;
		c.type = (uint8_t)types[t].type;
		c.redop = (uint8_t)types[t].redop;
		c.scalar = types[t].scalar[r->number];
		for (unsigned i = 0; i < n; i++)
			memcpy(src + i * size, &types[t].in[r->number], size);
		memset(r->dst, GUARD, 2 * VECTOR + n * size);
		kernel->run(c);
		for (unsigned i = 0; i < n; i++)
			if (memcmp(dst + i * size, &types[t].out, size))
				fail_msg("row %u, element %u of rank %u", t, i, r->number);
		for (uint8_t *p = r->dst; p < r->dst + 2 * VECTOR + n * size; p++)
			if (p < dst || p >= dst + n * size)
				assert_int_equal(*p, GUARD);
	}
}

static void all_types(void **unused)
{
	(void)unused;
	world_free(world_run(3, types_work));
}

int main(void)
{
	const struct CMUnitTest both[] = {
		cmocka_unit_test(random_collectives),
		cmocka_unit_test(in_place),
		cmocka_unit_test(all_types),
	};
	const struct CMUnitTest in_turn[] = {
		cmocka_unit_test(mixed),
	};
	return cmocka_run_group_tests_name("few bytes", both, with_few, NULL) +
	       cmocka_run_group_tests_name("many bytes", both, with_many, NULL) +
	       cmocka_run_group_tests_name("both kernels in turn", in_turn, NULL, NULL);
}
