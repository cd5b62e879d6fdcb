/* SPDX-License-Identifier: Apache-2.0
 * Small collectives on lent memory: their results before, while and after NCCL gets windows for it,
 * wherever they lie in it; and windows that go with memory and epochs. */
#include <stdlib.h>

#include "values.h"
#include "windows.h"

#define MANY   20	  /* more than a communicator's workers have room for */
#define LEEWAY (48 * MIB) /* of GPU memory: what driver and NCCL keep for themselves */

/* ---- Values ---- */

static void check_call(struct rank *r, struct call *call, CUdeviceptr src, CUdeviceptr dst)
{
	size_t sends = call_sends(call), receives = call_receives(call);
	float *words = malloc((sends + receives) * sizeof(*words));
	ncclsvc_task task;
	bool exact;
	CHECK(words);
	for (size_t i = 0; i < sends; i++)
		value_store(words, i, call->type, value_input(call, r->rank, i));
	gpu_put(src, words, sends * sizeof(*words));
	CHECK_OK(call_submit(call, r->comm, src, dst, &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_get(words, dst, receives * sizeof(*words));
	for (size_t i = 0; i < receives; i++) {
		double is = value_load(words, i, call->type);
		double want = value_expected(call, i, &exact);
		if (!value_close(call, is, want, exact))
			check_failed(__FILE__, __LINE__, "operation %d: element %zu is %g, not %g",
				     call->op, i, is, want);
	}
	free(words);
}

/* The same place on all ranks, or another on each. */
static void check_places(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t room, bool same)
{
	static const ncclsvc_op ops[] = {NCCLSVC_ALL_REDUCE, NCCLSVC_ALL_GATHER,
					 NCCLSVC_REDUCE_SCATTER};
	uint64_t places = setup.seed + (same ? 0 : (uint64_t)r->rank), counts = setup.seed;
	for (unsigned i = 0; i < (setup.quick ? 60u : 300u); i++) {
		struct call call = {.op = ops[i % 3],
				    .type = NCCLSVC_FLOAT32,
				    .redop = NCCLSVC_SUM,
				    .rank = r->rank,
				    .n = r->n};
		call.count = i % 7 ? 1 + draw(&counts) % 2000 : 1;
		size_t most = call.count * (size_t)r->n * 4;
		stage("operation %d, %zu elements, %s places", call.op, call.count,
		      same ? "the same" : "other");
		check_call(r, &call, a + draw(&places) % ((room - most) / 4) * 4,
			   b + draw(&places) % ((room - most) / 4) * 4);
	}
}

static void coming_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr a, b, own;
	open_rank(&r, c, &a, BYTES);
	bool some = warm(&r, a, a, 1);
	struct buffer second;
	buffer_make(&second, MEMORY_LENT, r.gpu, r.session, BYTES);
	b = second.p;
	if (some)
		warm(&r, a, b, 2);
	check_places(&r, a, b, BYTES, true);
	check_places(&r, a, b, BYTES, false);
	check_places(&r, a, a + BYTES / 2, BYTES / 2, true);
	stage("what is too large for windows");
	sum(&r, a, b, BYTES / 4, 3);
	sum(&r, a, b, MIB / 4, 3);
	sum(&r, a, b, MIB / 4 + 1, 3);
	stage("one rank on memory of its own");
	CHECK_CU(cu.cuMemAlloc(&own, BYTES));
	for (unsigned k = 1; k <= 10; k++) {
		sum(&r, r.rank ? a : own, r.rank ? a : own, WORDS, k);
		sum(&r, a, r.rank ? b : own, WORDS, k);
		sum(&r, a, b, WORDS, k);
	}
	if (some)
		wait_windows(&r, 2);
	CHECK_CU(cu.cuMemFree(own));
	give_back(&r, a);
	give_back(&r, b);
	rank_close(&r);
}

static void test_coming(void)
{
	ranks_run(ranks_count(), coming_rank, NULL);
}

/* Many are under way when the window comes, and more behind it. */
static void pipelined_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	for (unsigned round = 1; round <= (setup.quick ? 20u : 100u); round++) {
		stage("round %u", round);
		CHECK_CU(cu.cuMemsetD32Async(p, bits(1), WORDS, r.stream));
		/* Each multiplies by the number of ranks. */
		float want = 1;
		for (unsigned k = 0; k < 20; k++, want *= (float)r.n)
			CHECK_OK(ncclsvc_all_reduce(at(p), at(p), WORDS, NCCLSVC_FLOAT32,
						    NCCLSVC_SUM, r.comm, NULL));
		rank_sync(&r);
		gpu_check(p, bits(want), WORDS, "a chain of sums");
		sleep_ms(round % 3);
	}
	if (setup.fake)
		wait_windows(&r, 1);
	give_back(&r, p);
	rank_close(&r);
}

static void test_pipelined(void)
{
	ranks_run(ranks_count(), pipelined_rank, NULL);
}

/* ---- Memory that goes ---- */

static void again_rank(struct client *c)
{
	struct rank r;
	const size_t bytes = 64 * MIB;
	size_t unused = 0;
	rank_open(&r, c);
	for (unsigned round = 0; round < (setup.quick ? 12u : 40u); round++) {
		struct buffer b;
		buffer_make(&b, MEMORY_LENT, r.gpu, r.session, bytes);
		if (!warm(&r, b.p, b.p, 1))
			skip_test("NCCL gives no windows on these GPUs");
		buffer_free(&b);
		wait_windows(&r, 0);
		/* The worker lets it go when nothing flies. */
		for (uint64_t end = now_ns() + limit_ms(FINISH_MS) * 1000000ull; round;
		     sleep_ms(5)) {
			if (gpu_unused_memory() + LEEWAY >= unused)
				break;
			CHECK(now_ns() < end);
		}
		unused = round ? unused : gpu_unused_memory();
	}
	rank_close(&r);
}

static void test_again(void)
{
	ranks_run(ranks_count(), again_rank, NULL);
}

static void many_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p[MANY];
	open_rank(&r, c, &p[0], BYTES);
	bool some = warm(&r, p[0], p[0], 1);
	for (unsigned i = 1; i < MANY; i++) {
		struct buffer b;
		buffer_make(&b, MEMORY_LENT, r.gpu, r.session, BYTES);
		p[i] = b.p;
	}
	for (unsigned k = 1; k <= 12; k++)
		for (unsigned i = 0; i < MANY; i++)
			sum(&r, p[i], p[(i + k) % MANY], WORDS, k);
	if (some)
		wait_windows(&r, 16);
	/* Those that found no room get it from the others, which rest now. */
	for (unsigned k = 1; k <= 40; k++)
		for (unsigned i = 12; i < MANY; i++)
			sum(&r, p[i], p[i], WORDS, k);
	if (some)
		wait_windows(&r, 16);
	for (unsigned i = 0; i < MANY; i++) {
		give_back(&r, p[i]);
		if (i + 1 < MANY)
			sum(&r, p[MANY - 1], p[MANY - 1], WORDS, i + 1);
	}
	wait_windows(&r, 0);
	rank_close(&r);
}

static void test_many(void)
{
	ranks_run(ranks_count(), many_rank, NULL);
}

/* ---- Communicators ---- */

/* The next communicator takes NCCL's from the pool: without the last one's windows. */
static void pooled_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	ncclsvc_unique_id id = c->id;
	for (uint8_t round = 1; round <= 4; round++) {
		warm(&r, p, p, 1);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
		id.bytes[3] = (uint8_t)(c->id.bytes[3] + round);
		CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS,
						  &r.comm));
		CHECK_EQ(windows_of(&r), 0);
	}
	sum(&r, p, p, WORDS, 5);
	CHECK_EQ(device_info(r.session, r.gpu).nccl_comms, 1);
	give_back(&r, p);
	rank_close(&r);
}

static void test_pooled(void)
{
	ranks_run(ranks_count(), pooled_rank, NULL);
}

/* Two communicators, each with windows in the same memory. */
static void two_rank(struct client *c)
{
	struct rank r, other;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	bool some = warm(&r, p, p, 1);
	other = r;
	CHECK_OK(ncclsvc_comm_split(r.comm, 0, -r.rank, WAIT_MS, &other.comm));
	other.rank = r.n - 1 - r.rank;
	for (unsigned k = 1; k <= 60; k++) {
		sum(&other, p, p, WORDS, k);
		sum(&r, p, p, WORDS, k);
	}
	CHECK_OK(ncclsvc_comm_leave(other.comm));
	sum(&r, p, p, WORDS, 7);
	if (some)
		wait_windows(&r, 1);
	give_back(&r, p);
	sleep_ms(20);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_two(void)
{
	ranks_run(ranks_count(), two_rank, NULL);
}

/* ---- Without windows ---- */

static void without_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	open_rank(&r, c, &p, BYTES);
	for (unsigned k = 1; k <= 60; k++) {
		sum(&r, p, p, WORDS, k);
		CHECK_EQ(windows_of(&r), 0);
	}
	give_back(&r, p);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_off(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	unsetenv("NCCLSVCD_WINDOWS");
	daemon_start(&d, "--device", "cuda", "--windows", "off", NULL);
	clients_start(ranks, n, &d, without_rank, NULL);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* NCCL has none, or one worker alone cannot register. */
static void test_refused(void)
{
	static const char *const faults[] = {"window-none", "window-fail:1:gpu1", "window-fail"};
	if (!setup.fake)
		skip_test("needs a stand-in that refuses");
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		setenv("NCCLSVC_FAKE_FAULTS", faults[i], 1);
		ranks_run(ranks_count(), without_rank, NULL);
	}
	unsetenv("NCCLSVC_FAKE_FAULTS");
}

const struct gpu_test window_tests[] = {
	{"windows/values", test_coming, 2, 120, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/pipelined", test_pipelined, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/again", test_again, 2, 120, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/many", test_many, 2, 120, TEST_ONE_NODE | TEST_NCCL},
	{"windows/pooled", test_pooled, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/two_comms", test_two, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/off", test_off, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"windows/refused", test_refused, 2, 60, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{0},
};
