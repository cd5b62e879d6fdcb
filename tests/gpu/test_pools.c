/* SPDX-License-Identifier: Apache-2.0
 * Memory of pools: what is freed and allocated again has the same addresses, in workers, too. */
#include <stdlib.h>
#include <string.h>

#include "crew.h"

#define MIB ((size_t)1 << 20)

static CUmemoryPool new_pool(int gpu)
{
	uint64_t all = UINT64_MAX;
	pool_drop(gpu);
	CUmemoryPool pool = pool_of(gpu);
	CHECK_CU(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	return pool;
}

/* ---- Addresses that two sessions of a process know for different allocations ---- */

/* a: allocate as number n, of size l, q, m or s; f: free; T: trim the pool; P: another pool
 * instead; u: session 0 or 1 sums in all of allocation n; c: a session closes. What a session has
 * of what was freed stays until it registers something else: the other one uses what is there now.
 */
static const char *const scripts[] = {
	/* The same again, in the same memory and in other. */
	"a0l u00 f0 a1l u01 f1 a2l u02 u02",
	"a0l u00 f0 T a1l u01 f1 T a2l u02 u02",
	"a0l u00 f0 a1l u11 c0 u11",
	"a0l u00 f0 T a1l u11 c0 u11 f1 T",
	"a0l u00 f0 a1l u11 f1 a2l u02 u02 c1 u02",
	"a0l u00 f0 T a1l u11 f1 T a2l u02 u02 c1 u02",
	/* Less at an address that was open for more, and more where there was less. */
	"a0l u00 f0 a1q a2q u11 u12 c0 u11 u12",
	"a0l u00 f0 T a1q a2q u11 u12 c0 u11 u12",
	"a0l u00 f0 T a1q a2q u12 u11 c0 u12 u11 f1 u12",
	"a0m u00 f0 a1q u11 c0 u11",
	"a0m a1m u00 u01 f0 f1 a2q u12 u12 c0 u12",
	"a0m a1m u00 u01 f0 f1 T a2q u12 u12 c0 u12",
	"a0m a1m u01 f0 f1 T a2q u12 c0 u12 f2 a0m a1m u10 u11",
	/* Neighbours in one page. */
	"a0s a1s u00 u11 f0 a2s u02 u11 c1 u02",
	"a0s a1s u00 u01 f0 a2s u12 u01 c0 u12",
	/* Another pool, which may have the first one's handle and addresses. */
	"a0l u00 f0 P a1l u01 f1 P a2q u02 u12",
};

static size_t size_of(char letter)
{
	const size_t page = setup.fake ? MIB / 8 : 2 * MIB;
	switch (letter) {
	case 'l':
		return 8 * page;
	case 'q':
		return 2 * page;
	case 'm':
		return page;
	default:
		return 4096;
	}
}

#define SLOTS 8

/* Both sessions of a rank, and what the rank has allocated. */
struct pooled {
	struct rank sessions[2];
	CUmemoryPool pool;
	CUstream stream;
	CUdeviceptr at[SLOTS]; /* 0: nothing */
	size_t bytes[SLOTS];
	uint32_t uses;
};

static void pooled_open(struct pooled *p, struct client *c)
{
	*p = (struct pooled){0};
	rank_open(&p->sessions[0], c);
	rank_open_second(&p->sessions[1], &p->sessions[0]);
	p->pool = new_pool(p->sessions[0].gpu);
	p->stream = gpu_stream();
}

static void allocate(struct pooled *p, unsigned n, size_t bytes)
{
	CHECK_CU(cu.cuMemAllocFromPoolAsync(&p->at[n], bytes, p->pool, p->stream));
	CHECK_CU(cu.cuStreamSynchronize(p->stream));
	p->bytes[n] = bytes;
}

static void give_back(struct pooled *p, unsigned n)
{
	CHECK_CU(cu.cuMemFreeAsync(p->at[n], p->stream));
	CHECK_CU(cu.cuStreamSynchronize(p->stream));
	p->at[n] = 0;
}

static void use(struct pooled *p, unsigned session, unsigned n)
{
	rank_sum(&p->sessions[session], p->at[n], ++p->uses, p->bytes[n] / 4, "memory of a pool");
}

static void leave(struct pooled *p, unsigned session)
{
	if (!p->sessions[session].session)
		return;
	rank_close(&p->sessions[session]);
	p->sessions[session].session = NULL;
	sleep_ms(20); /* the worker lets go of what it had */
}

static void pooled_close(struct pooled *p)
{
	leave(p, 0);
	leave(p, 1);
	for (unsigned n = 0; n < SLOTS; n++)
		if (p->at[n])
			give_back(p, n);
	CHECK_CU(cu.cuStreamDestroy(p->stream));
}

static void play(struct client *c, const char *script)
{
	struct pooled p;
	pooled_open(&p, c);
	for (const char *s = script; s; s = strchr(s, ' ')) {
		s += *s == ' ';
		const unsigned n = s[0] == 'T' || s[0] == 'P' ? 0 : (unsigned)(s[1] - '0');
		stage("%s, at %s", script, s);
		switch (*s) {
		case 'a':
			allocate(&p, n, size_of(s[2]));
			break;
		case 'f':
			give_back(&p, n);
			break;
		case 'u':
			use(&p, n, (unsigned)(s[2] - '0'));
			break;
		case 'c':
			leave(&p, n);
			break;
		case 'T':
			CHECK_CU(cu.cuMemPoolTrimTo(p.pool, 0));
			break;
		default:
			p.pool = new_pool(p.sessions[0].gpu);
		}
	}
	pooled_close(&p);
}

static void again_rank(struct client *c)
{
	for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
		c->id.bytes[3]++; /* who comes first must not meet the others' last communicator */
		play(c, scripts[i]);
	}
}

static void test_again(void)
{
	crew_run(crew_size(), again_rank, NULL);
}

/* ---- At random: the same on all ranks ---- */

static void random_step(struct pooled *p, uint64_t *random)
{
	const unsigned n = draw(random) % SLOTS, what = draw(random) % 16;
	if (!p->at[n])
		allocate(p, n, (size_t)4096 << draw(random) % (setup.fake ? 9 : 12));
	else if (what < 5)
		give_back(p, n);
	else if (what == 5)
		CHECK_CU(cu.cuMemPoolTrimTo(p->pool, 0));
	else
		use(p, what % 2, n);
}

static void random_rank_of_pools(struct client *c)
{
	struct pooled p;
	uint64_t random = setup.seed;
	const unsigned rounds = setup.quick ? 200 : 2000;
	pooled_open(&p, c);
	for (unsigned k = 0; k < rounds; k++) {
		stage("step %u of %u", k, rounds);
		random_step(&p, &random);
	}
	/* What is left of a closed session's names is nothing to the other. */
	leave(&p, 0);
	for (unsigned n = 0; n < SLOTS; n++)
		if (p.at[n])
			use(&p, 1, n);
	/* At most what there is, and what is not found out yet. */
	CHECK(device_info(p.sessions[1].session, p.sessions[1].gpu).imports <= 2 * SLOTS);
	pooled_close(&p);
}

static void test_random(void)
{
	crew_run(crew_size(), random_rank_of_pools, NULL);
}

/* ---- A worker's end ---- */

/* Both names of one address are restored, and the newer one's memory lies there again. */
static void restored_rank(struct client *c)
{
	struct pooled p;
	pooled_open(&p, c);
	allocate(&p, 0, 2 * MIB);
	use(&p, 0, 0);
	give_back(&p, 0);
	allocate(&p, 1, 4 * MIB);
	use(&p, 1, 1);
	say(c, CREW_READY);
	rank_rejoin_lost(&p.sessions[0]);
	rank_rejoin_lost(&p.sessions[1]);
	use(&p, 1, 1);
	leave(&p, 0);
	use(&p, 1, 1);
	pooled_close(&p);
}

static void test_restored(void)
{
	crew_run_and_kill(restored_rank);
}

/* ---- Where the memory is ---- */

/* Uses memory of no pool, so that what was freed is found out. */
static void look(struct pooled *p)
{
	CUdeviceptr other;
	CHECK_CU(cu.cuMemAlloc(&other, MIB));
	rank_sum(&p->sessions[0], other, 1, 100, "other memory");
	CHECK_CU(cu.cuMemFree(other));
}

static bool returns(size_t unused, unsigned ms)
{
	const uint64_t end = now_ns() + ms * UINT64_C(1000000);
	while (gpu_unused_memory() < unused) {
		if (now_ns() > end)
			return false;
		sleep_ms(5);
	}
	return true;
}

/* A pool that is trimmed has its memory back at the GPU, at the latest when no region is of it. */
static void returned_rank(struct client *c)
{
	struct pooled p;
	const size_t bytes = (setup.fake ? 64 : 1024) * MIB;
	pooled_open(&p, c);
	look(&p);
	const size_t unused = gpu_unused_memory() - bytes / 2;
	allocate(&p, 0, 4096);
	use(&p, 0, 0);
	for (int round = 0; round < 3; round++) {
		allocate(&p, 1, bytes);
		rank_sum(&p.sessions[0], p.at[1], 1, 1000, "memory of a pool");
		give_back(&p, 1);
		CHECK_CU(cu.cuMemPoolTrimTo(p.pool, 0));
		look(&p);
	}
	const bool at_once = returns(unused, setup.fake ? 200 : 2000);
	give_back(&p, 0);
	CHECK_CU(cu.cuMemPoolTrimTo(p.pool, 0));
	look(&p);
	CHECK(returns(unused, WAIT_MS));
	if (!p.sessions[0].rank)
		report("freed memory is the GPU's again %s",
		       at_once ? "though the pool has a region" : "once the pool has no region");
	pooled_close(&p);
}

static void test_returned(void)
{
	crew_run(crew_size(), returned_rank, NULL);
}

/* ---- Freed and allocated again in the order of a stream ---- */

/* No host waits: each buffer is freed behind a task that has not begun, and the next is the same
 * memory, or a part of it, or more. */
static void order_rank(struct client *c)
{
	enum { ROUNDS = 40, WORDS = 10000, MOST = 3 * (1 << 20) / 4 };
	struct rank r;
	CUdeviceptr seen[ROUNDS], kept;
	unsigned again = 0;
	uint64_t spent = 0;
	rank_open(&r, c);
	CUmemoryPool pool = pool_of(r.gpu);
	CHECK_CU(cu.cuMemAlloc(&kept, 4 * (size_t)ROUNDS * WORDS));
	for (uint32_t k = 0; k < ROUNDS; k++) {
		CUdeviceptr p;
		size_t n = k % 4 == 3 ? MOST : k % 2 ? WORDS : MOST / 2;
		stage("round %u", k);
		CHECK_CU(cu.cuMemAllocFromPoolAsync(&p, 4 * n, pool, r.stream));
		seen[k] = p;
		for (uint32_t i = 0; i < k; i++)
			if (seen[i] == p) {
				again++;
				break;
			}
		CHECK_CU(cu.cuMemsetD32Async(p, (k + 1) * (uint32_t)(r.rank + 1), n, r.stream));
		spent -= now_ns();
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), n, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm,
					    NULL));
		spent += now_ns();
		/* Its last words. */
		CHECK_CU(cu.cuMemcpyDtoDAsync(kept + 4 * (size_t)k * WORDS, p + 4 * (n - WORDS),
					      4 * WORDS, r.stream));
		CHECK_CU(cu.cuMemFreeAsync(p, r.stream));
	}
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	CHECK_OK(ncclsvc_wait_all(r.session, WAIT_MS));
	for (uint32_t k = 0; k < ROUNDS; k++)
		gpu_check(kept + 4 * (size_t)k * WORDS, (k + 1) * (uint32_t)(r.n * (r.n + 1) / 2),
			  WORDS, "memory of a pool that was freed on its stream");
	CHECK(again); /* or this tests nothing */
	if (!r.rank)
		report("%u of %u allocations had an address that was used before; a first use "
		       "takes %llu us",
		       again, ROUNDS, (unsigned long long)spent / ROUNDS / 1000);
	CHECK_CU(cu.cuMemFree(kept));
	rank_close(&r);
}

static void test_order(void)
{
	crew_run(crew_size(), order_rank, NULL);
}

const struct gpu_test pool_tests[] = {
	{"pools/again", test_again, 2, 90, TEST_QUICK},
	{"pools/random", test_random, 2, 120, TEST_QUICK},
	{"pools/restored", test_restored, 2, 120, TEST_QUICK},
	{"pools/returned", test_returned, 2, 60, TEST_QUICK},
	{"pools/order", test_order, 2, 60, TEST_QUICK},
	{0},
};
