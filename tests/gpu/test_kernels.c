/* SPDX-License-Identifier: Apache-2.0
 * The direct transport: ranks that disagree about the operation or its transport, and NCCL
 * operations in between. */
#include <stdio.h>
#include <string.h>

#include "kernels.h"

/* ---- Kernels that disagree ---- */

struct variant {
	const char *what;
	ncclsvc_field field;
	uint64_t values[2]; /* of rank 0 and of the others */
};

static const struct variant variants[] = {
	{"count", NCCLSVC_FIELD_COUNT, {SMALL, SMALL / 2}},
	{"type", NCCLSVC_FIELD_TYPE, {NCCLSVC_INT32, NCCLSVC_UINT32}},
	{"reduction", NCCLSVC_FIELD_REDOP, {NCCLSVC_SUM, NCCLSVC_MAX}},
	{"operation", NCCLSVC_FIELD_OP, {NCCLSVC_ALL_REDUCE, NCCLSVC_BROADCAST}},
	{"root", NCCLSVC_FIELD_ROOT, {0, 1}},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static ncclsvc_task submit(struct rank *r, const struct variant *v, CUdeviceptr p)
{
	ncclsvc_task task;
	const uint64_t mine = v->values[r->rank != 0];
	const ncclsvc_field f = v->field;
	const size_t count = f == NCCLSVC_FIELD_COUNT ? mine : SMALL;
	const ncclsvc_type type = f == NCCLSVC_FIELD_TYPE ? (ncclsvc_type)mine : NCCLSVC_INT32;
	const ncclsvc_redop redop = f == NCCLSVC_FIELD_REDOP ? (ncclsvc_redop)mine : NCCLSVC_SUM;
	if (f == NCCLSVC_FIELD_ROOT || (f == NCCLSVC_FIELD_OP && mine == NCCLSVC_BROADCAST))
		CHECK_OK(ncclsvc_broadcast(at(p), at(p), count, type,
					   f == NCCLSVC_FIELD_ROOT ? (int)mine : 0, r->comm,
					   &task));
	else
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), count, type, redop, r->comm, &task));
	return task;
}

/* With more than two ranks, all get the same status, which names rank 0 as the odd one. */
static void check_mismatch(struct rank *r, const struct variant *v, ncclsvc_task task)
{
	const int a = r->n > 2 ? 1 : r->rank, b = !a;
	char who[32];
	wait_for(r->session, task, NCCLSVC_MISMATCH);
	const char *says = ncclsvc_last_error();
	snprintf(who, sizeof(who), "rank %d (pid ", b);
	if (!strstr(says, v->what) || !strstr(says, who))
		check_failed(__FILE__, __LINE__, "the sentence about another %s of rank %d is: %s",
			     v->what, b, says);
	const ncclsvc_status st = status_of(r->session, task);
	CHECK_EQ(st.field, v->field);
	CHECK_EQ(st.rank_a, a);
	CHECK_EQ(st.rank_b, b);
	CHECK_EQ(st.value_a, v->values[a]);
	CHECK_EQ(st.value_b, v->values[b]);
	CHECK_EQ(st.missing_count, r->n > 2);
}

/* Submits all operations before it waits for any. */
static void several(struct rank *r, CUdeviceptr p)
{
	ncclsvc_task bad[VARIANTS], good[VARIANTS];
	const CUdeviceptr sums = p + 4096;
	CHECK_CU(cu.cuMemsetD32Async(sums, 1, VARIANTS * SMALL, r->stream));
	for (size_t i = 0; i < VARIANTS; i++) {
		bad[i] = submit(r, &variants[i], p);
		good[i] = kernels_sum(r, sums + i * SMALL * sizeof(uint32_t), SMALL);
	}
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	for (size_t i = VARIANTS; i--;) {
		rank_wait(r, good[i]);
		check_mismatch(r, &variants[i], bad[i]);
	}
	gpu_check(sums, (uint32_t)r->n, VARIANTS * SMALL, "sums between mismatches");
}

static void disagreeing_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 65536));
	gpu_fill(p, 7, SMALL);
	const uint32_t epoch = ncclsvc_comm_epoch(r.comm);
	for (size_t i = 0; i < VARIANTS; i++) {
		stage("another %s", variants[i].what);
		check_mismatch(&r, &variants[i], submit(&r, &variants[i], p));
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		rank_check_usable(&r);
	}
	stage("several");
	several(&r, p);
	rank_check_usable(&r);
	CHECK_EQ(ncclsvc_comm_epoch(r.comm), epoch);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_mismatch(void)
{
	kernels_run(ranks_count(), disagreeing_rank, NULL);
}

/* ---- Ranks that choose different transports ---- */

static void disagree(struct rank *r, CUdeviceptr p, bool small)
{
	const uint64_t begin = now_ns();
	ncclsvc_task task;
	const ncclsvc_result submitted =
		ncclsvc_all_reduce(at(p), at(p), small ? SMALL : LARGE_WORDS, NCCLSVC_UINT32,
				   NCCLSVC_SUM, r->comm, &task);
	if (submitted) { /* two others had disagreed before this rank came */
		CHECK_RESULT(submitted, NCCLSVC_MISMATCH);
		kernels_rejoin(r);
		return;
	}
	wait_for(r->session, task, NCCLSVC_MISMATCH);
	const uint64_t took = now_ns() - begin;
	const ncclsvc_status st = status_of(r->session, task);
	CHECK_EQ(st.field, NCCLSVC_FIELD_COUNT);
	CHECK((st.rank_a == 0) != (st.rank_b == 0)); /* rank 0 against one of the others */
	CHECK(st.rank_a >= 0 && st.rank_a < r->n && st.rank_b >= 0 && st.rank_b < r->n);
	CHECK(took < limit_ms(1000) * UINT64_C(1000000));
	stage("waiting for the stream");
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	kernels_rejoin(r);
}

static void transports_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, LARGE));
	rank_check_usable(&r);
	for (int round = 0; round < 4; round++) {
		stage("round %d", round);
		disagree(&r, p, (r.rank == 0) == (round % 2 == 0));
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_transports(void)
{
	kernels_run(ranks_count(), transports_rank, NULL);
}

/* ---- Both in one sequence ---- */

struct mixed {
	struct rank r;
	CUdeviceptr small, large, to;
};

/* Each rank's words go to the next rank. */
static void pass_on(struct mixed *m, size_t words)
{
	const int n = m->r.n, me = m->r.rank;
	CHECK_OK(ncclsvc_send(at(m->small), words, NCCLSVC_UINT32, (me + 1) % n, m->r.comm, NULL));
	CHECK_OK(ncclsvc_recv(at(m->to), words, NCCLSVC_UINT32, (me + n - 1) % n, m->r.comm, NULL));
}

/* Each operation's result is the next one's input. */
static void sequence(struct mixed *m, uint32_t k)
{
	struct rank *r = &m->r;
	const uint32_t n = (uint32_t)r->n;
	const size_t bytes = SMALL * sizeof(uint32_t);
	CHECK_CU(cu.cuMemsetD32Async(m->small, k, SMALL, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(m->large, 0, LARGE_WORDS, r->stream));
	kernels_sum(r, m->small, SMALL);
	CHECK_CU(cu.cuMemcpyDtoDAsync(m->large, m->small, bytes, r->stream));
	kernels_sum(r, m->large, LARGE_WORDS);
	CHECK_CU(cu.cuMemcpyDtoDAsync(m->small, m->large, bytes, r->stream));
	CHECK_OK(ncclsvc_group_begin(r->session));
	pass_on(m, SMALL);
	CHECK_OK(ncclsvc_group_end(r->session));
	CHECK_CU(cu.cuMemcpyDtoDAsync(m->small, m->to, bytes, r->stream));
	kernels_sum(r, m->small, SMALL);
	rank_sync(r);
	gpu_check(m->large, k * n * n, SMALL, "the large sum");
	gpu_check(m->small, k * n * n * n, SMALL, "the sum after it");
}

/* Operations of both transports in one group. */
static void group(struct mixed *m, uint32_t k)
{
	struct rank *r = &m->r;
	const uint32_t n = (uint32_t)r->n, before = (uint32_t)(r->rank + r->n - 1) % n;
	const CUdeviceptr sums = m->to + SMALL * sizeof(uint32_t);
	CHECK_CU(cu.cuMemsetD32Async(m->small, k + (uint32_t)r->rank, SMALL, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(sums, k, SMALL, r->stream));
	CHECK_CU(cu.cuMemsetD32Async(m->large, 2, LARGE_WORDS, r->stream));
	CHECK_OK(ncclsvc_group_begin(r->session));
	CHECK_OK(ncclsvc_all_reduce(at(sums), at(sums), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    NULL));
	CHECK_OK(ncclsvc_all_reduce(at(m->large), at(m->large), LARGE_WORDS, NCCLSVC_UINT32,
				    NCCLSVC_SUM, r->comm, NULL));
	pass_on(m, SMALL);
	CHECK_OK(ncclsvc_group_end(r->session));
	rank_sync(r);
	gpu_check(m->to, k + before, SMALL, "what the rank before sent");
	gpu_check(sums, k * n, SMALL, "the small sum");
	gpu_check(m->large, 2 * n, LARGE_WORDS, "the large sum");
}

static void mixed_rank(struct client *c)
{
	struct mixed m;
	rank_open(&m.r, c);
	CHECK_CU(cu.cuMemAlloc(&m.small, SMALL * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&m.large, LARGE));
	CHECK_CU(cu.cuMemAlloc(&m.to, 2 * SMALL * sizeof(uint32_t)));
	for (uint32_t k = 1; k <= 5; k++) {
		stage("round %u", k);
		sequence(&m, k);
		group(&m, k);
	}
	rank_check_usable(&m.r);
	CHECK_CU(cu.cuMemFree(m.small));
	CHECK_CU(cu.cuMemFree(m.large));
	CHECK_CU(cu.cuMemFree(m.to));
	rank_close(&m.r);
}

static void test_mixed(void)
{
	kernels_run(ranks_count(), mixed_rank, NULL);
}

const struct gpu_test kernel_tests[] = {
	{"kernels/mismatch", test_mismatch, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/mismatch/4", test_mismatch, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/transports", test_transports, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/transports/4", test_transports, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/mixed", test_mixed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
