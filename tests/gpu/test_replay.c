/* SPDX-License-Identifier: Apache-2.0
 * What comes again and again on the same buffers, whose kernels workers launch without NCCL: its
 * results, with other values every time; other memory at the same addresses; and where they do not.
 * On the stand-in it is also seen that they did. */
#include <stdlib.h>

#include "windows.h"

#define REPEATS	 (setup.quick ? 24u : 300u)
#define REPLAYED 8 /* of each rank, at least */
#define CALLED	 8 /* before the same is replayed */

/* ---- Values ---- */

/* What rank r gives in round k. */
static uint32_t given(unsigned k, int r)
{
	return 1000 * k + (uint32_t)r;
}

static uint32_t total(const struct rank *r, unsigned k)
{
	return (uint32_t)r->n * given(k, 0) + (uint32_t)(r->n * (r->n - 1) / 2);
}

/* dst may be src. Of numbers that NCCL sums in windows, too. */
static void sum_once(struct rank *r, CUdeviceptr src, CUdeviceptr dst, unsigned k)
{
	CHECK_CU(cu.cuMemsetD32Async(dst, ~0u, WORDS, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(src, bits((float)given(k, r->rank)), WORDS, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(src), at(dst), WORDS, NCCLSVC_FLOAT32, NCCLSVC_SUM, r->comm,
				    NULL));
	rank_sync(r);
	gpu_check(dst, bits((float)total(r, k)), WORDS, "a sum");
}

static void gather(struct rank *r, CUdeviceptr src, CUdeviceptr dst, unsigned k)
{
	CHECK_CU(cu.cuMemsetD32Async(dst, ~0u, WORDS * (size_t)r->n, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(src, given(k, r->rank), WORDS, r->stream));
	CHECK_OK(ncclsvc_all_gather(at(src), at(dst), WORDS, NCCLSVC_UINT32, r->comm, NULL));
	rank_sync(r);
	for (int i = 0; i < r->n; i++)
		gpu_check(dst + (size_t)i * WORDS * 4, given(k, i), WORDS, "a gathered part");
}

static void scatter_sums(struct rank *r, CUdeviceptr src, CUdeviceptr dst, unsigned k)
{
	CHECK_CU(cu.cuMemsetD32Async(dst, ~0u, WORDS, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(src, given(k, r->rank), WORDS * (size_t)r->n, r->stream));
	CHECK_OK(ncclsvc_reduce_scatter(at(src), at(dst), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM,
					r->comm, NULL));
	rank_sync(r);
	gpu_check(dst, total(r, k), WORDS, "a part of the sums");
}

/* A group of two tasks. */
static void pass_on(struct rank *r, CUdeviceptr src, CUdeviceptr dst, unsigned k)
{
	const int next = (r->rank + 1) % r->n, former = (r->rank + r->n - 1) % r->n;
	CHECK_CU(cu.cuMemsetD32Async(dst, ~0u, WORDS, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(src, given(k, r->rank), WORDS, r->stream));
	CHECK_OK(ncclsvc_group_begin(r->session));
	CHECK_OK(ncclsvc_send(at(src), WORDS, NCCLSVC_UINT32, next, r->comm, NULL));
	CHECK_OK(ncclsvc_recv(at(dst), WORDS, NCCLSVC_UINT32, former, r->comm, NULL));
	CHECK_OK(ncclsvc_group_end(r->session));
	rank_sync(r);
	gpu_check(dst, given(k, former), WORDS, "what the former rank sent");
}

static void repeated_rank(struct client *c)
{
	struct rank r;
	struct buffer a, b;
	rank_open(&r, c);
	for (int kind = 0; kind < MEMORY_KINDS; kind++) {
		buffer_make(&a, kind, r.gpu, r.session, WORDS * 4 * (size_t)r.n);
		buffer_make(&b, kind, r.gpu, r.session, WORDS * 4 * (size_t)r.n);
		for (unsigned k = 1; k <= REPEATS; k++) {
			stage("%s, round %u", memory_name(kind), k);
			sum_once(&r, a.p, a.p, 6 * k);
			sum_once(&r, a.p, b.p, 6 * k + 1);
			gather(&r, a.p, b.p, 6 * k + 2);
			scatter_sums(&r, a.p, b.p, 6 * k + 3);
			pass_on(&r, a.p, b.p, 6 * k + 4);
			CHECK_OK(ncclsvc_barrier(r.comm, NULL));
		}
		buffer_free(&a);
		buffer_free(&b);
	}
	rank_close(&r);
}

/* Several behind one another. */
static void chain_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * 4));
	for (unsigned k = 1; k <= REPEATS; k++) {
		uint32_t want = k;
		stage("chain %u", k);
		CHECK_CU(cu.cuMemsetD32Async(p, k, WORDS, r.stream));
		for (unsigned i = 0; i < k % 5 + 1; i++, want *= (uint32_t)r.n)
			CHECK_OK(ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_UINT32,
						    NCCLSVC_SUM, r.comm, NULL));
		rank_sync(&r);
		gpu_check(p, want, WORDS, "a chain of sums");
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* Memory that is freed, and allocated again at the same address. */
static void again_rank(struct client *c)
{
	struct rank r;
	struct buffer b;
	rank_open(&r, c);
	for (unsigned round = 0; round < (setup.quick ? 6u : 40u); round++) {
		buffer_make(&b, round % MEMORY_KINDS, r.gpu, r.session, WORDS * 4);
		if (b.kind == MEMORY_LENT && setup.fake) /* replays that know a window */
			warm(&r, b.p, b.p, 1);
		for (unsigned k = 1; k <= 60; k++)
			sum_once(&r, b.p, b.p, round * 60 + k);
		buffer_free(&b);
	}
	rank_close(&r);
}

/* ---- Whether there are any ---- */

static int replays(void)
{
	return fake_notes("replay");
}

static void run(client_main *rank)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, rank, NULL);
	ranks_end(ranks, n);
	CHECK(daemon_logged(&d, "are launched without NCCL's call"));
	gpu_daemon_stop(&d);
	if (!setup.fake)
		return;
	report("%d replays", replays());
	CHECK(replays() >= REPLAYED * n);
}

static void test_values(void)
{
	run(repeated_rank);
}

static void test_chains(void)
{
	run(chain_rank);
}

static void test_again(void)
{
	run(again_rank);
}

/* More groups than a slot has places for. Those of the second half find them taken, until these
 * have not been used for long. */
#define MANY  600
#define STALE 10500 /* ms */

static void many_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	int first_half = 0;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * MANY * 4));
	for (unsigned k = 0; k < 2 * 3 * CALLED; k++) {
		const unsigned begin = k < 3 * CALLED ? 0 : MANY;
		stage("round %u", k);
		if (k == 3 * CALLED) {
			sleep_ms(STALE);
			first_half = replays();
		}
		CHECK_CU(cu.cuMemsetD32Async(p, k + (uint32_t)r.rank, 2 * MANY, r.stream));
		for (unsigned i = begin; i < begin + MANY; i++) {
			CHECK_OK(ncclsvc_all_reduce(at(p + i * 4), at(p + i * 4), 1, NCCLSVC_UINT32,
						    NCCLSVC_SUM, r.comm, NULL));
			/* Places change hands when nothing runs; a stream holds 512. */
			if (i % 200 == 199 || (begin && k < 4 * CALLED))
				rank_sync(&r);
		}
		gpu_check(p + begin * 4, (uint32_t)r.n * k + (uint32_t)(r.n * (r.n - 1) / 2), MANY,
			  "many sums");
	}
	if (setup.fake)
		CHECK(first_half >= 6 * MANY && replays() - first_half >= 6 * MANY);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_many(void)
{
	run(many_rank);
}

static void test_off(void)
{
	setenv("NCCLSVCD_REPLAY", "off", 1);
	ranks_run(ranks_count(), chain_rank, NULL);
	unsetenv("NCCLSVCD_REPLAY");
	if (setup.fake)
		CHECK_EQ(replays(), 0);
}

#define STEADY 400

static void steady_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * WORDS * 4));
	/* The ranks' are not of one age: some begin with another buffer. */
	for (unsigned k = 1; k <= STEADY; k++) {
		const CUdeviceptr q = k <= 5 * (unsigned)(r.rank % 2) ? p + WORDS * 4 : p;
		sum_once(&r, q, q, k);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* Of the STEADY sums of each rank. */
static int replays_with(const char *faults)
{
	const int before = replays();
	stage("faults: %s", faults);
	setenv("NCCLSVC_FAKE_FAULTS", faults, 1);
	ranks_run(ranks_count(), steady_rank, NULL);
	unsetenv("NCCLSVC_FAKE_FAULTS");
	return replays() - before;
}

/* The driver has no room, or the host has a part in it. */
static void test_refused(void)
{
	if (!setup.fake)
		skip_test("needs a stand-in that refuses");
	CHECK_EQ(replays_with("graph-none"), 0);
	CHECK_EQ(replays_with("graph-host"), 0);
}

/* All but the first few. */
static void test_steady(void)
{
	if (!setup.fake)
		skip_test("needs a stand-in that counts");
	const int n = replays_with("");
	report("%d of %d", n, STEADY * ranks_count());
	CHECK(n >= (STEADY - 2 * CALLED) * ranks_count());
}

const struct gpu_test replay_tests[] = {
	{"replay/values", test_values, 2, 120, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"replay/chains", test_chains, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"replay/again", test_again, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"replay/many", test_many, 2, 60, TEST_ONE_NODE | TEST_NCCL},
	{"replay/off", test_off, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"replay/refused", test_refused, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"replay/steady", test_steady, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{0},
};
