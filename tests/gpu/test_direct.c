/* SPDX-License-Identifier: Apache-2.0
 * Large collectives and messages between the ranks' own buffers: they go through staging memory
 * only until all ranks have mapped them, and free memory is free again. */
#include <stdlib.h>

#include "graphs.h"
#include "meeting.h"

#define BYTES  ((size_t)8 << 20)
#define WORDS  (BYTES / sizeof(uint32_t))
#define WITHIN 5000 /* ms */

static void meet(struct rank *r)
{
	ncclsvc_task task;
	rank_sync(r);
	CHECK_OK(ncclsvc_barrier(r->comm, &task));
	rank_wait(r, task);
}

static void sum(struct rank *r, CUdeviceptr from, CUdeviceptr to)
{
	gpu_fill(from, (uint32_t)r->rank + 1, WORDS);
	CHECK_OK(ncclsvc_all_reduce(at(from), at(to), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    NULL));
	rank_sync(r);
	gpu_check(to, (uint32_t)(r->n * (r->n + 1) / 2), WORDS, "the sum");
}

/* Sums until that no longer goes through staging memory. */
static void sum_becomes_direct(struct rank *r, CUdeviceptr from, CUdeviceptr to)
{
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	uint64_t before, after;
	meet(r);
	do {
		before = kernels_staged(r);
		sum(r, from, to);
		meet(r);
		after = kernels_staged(r);
		CHECK(now_ns() < end);
	} while (after != before);
}

/* All other operations, between buffers that are mapped. */
static void all_operations(struct rank *r, CUdeviceptr a, CUdeviceptr b)
{
	const size_t n = WORDS / (size_t)r->n, part = n * sizeof(uint32_t);
	const int root = r->n - 1;
	const uint64_t before = kernels_staged(r);
	const uint32_t all = (uint32_t)(r->n * (r->n + 1) / 2);
	gpu_fill(a, (uint32_t)r->rank + 1, WORDS);
	CHECK_OK(ncclsvc_all_gather(at(a), at(b), n, NCCLSVC_UINT32, r->comm, NULL));
	rank_sync(r);
	for (int p = 0; p < r->n; p++)
		gpu_check(b + (size_t)p * part, (uint32_t)p + 1, n, "gathered");
	CHECK_OK(ncclsvc_reduce_scatter(at(a), at(b), n, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
					NULL));
	rank_sync(r);
	gpu_check(b, all, n, "reduced and scattered");
	CHECK_OK(ncclsvc_broadcast(at(a), at(b), WORDS, NCCLSVC_UINT32, root, r->comm, NULL));
	rank_sync(r);
	gpu_check(b, (uint32_t)root + 1, WORDS, "broadcast");
	CHECK_OK(ncclsvc_reduce(at(a), at(b), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, root, r->comm,
				NULL));
	rank_sync(r);
	gpu_check(b, r->rank == root ? all : (uint32_t)root + 1, WORDS, "reduced");
	for (int p = 0; p < r->n; p++)
		gpu_fill(a + (size_t)p * part, (uint32_t)(10 * r->rank + p), n);
	CHECK_OK(ncclsvc_all_to_all(at(a), at(b), n, NCCLSVC_UINT32, r->comm, NULL));
	rank_sync(r);
	for (int p = 0; p < r->n; p++)
		gpu_check(b + (size_t)p * part, (uint32_t)(10 * p + r->rank), n, "exchanged");
	meet(r);
	CHECK_EQ(kernels_staged(r), before);
}

/* A ring of messages. */
static void messages(struct rank *r, CUdeviceptr a, CUdeviceptr b)
{
	const int to = (r->rank + 1) % r->n, from = (r->rank + r->n - 1) % r->n;
	for (uint32_t round = 0; round < 4; round++) {
		gpu_fill(a, 100 * round + (uint32_t)r->rank, WORDS);
		CHECK_OK(ncclsvc_group_begin(r->session));
		CHECK_OK(ncclsvc_send(at(a), WORDS, NCCLSVC_UINT32, to, r->comm, NULL));
		CHECK_OK(ncclsvc_recv(at(b), WORDS, NCCLSVC_UINT32, from, r->comm, NULL));
		CHECK_OK(ncclsvc_group_end(r->session));
		rank_sync(r);
		gpu_check(b, 100 * round + (uint32_t)from, WORDS, "received");
	}
}

/* No rank runs a kernel, but the ranks that have mapped the memory may be late. */
static void memory_is_free(struct rank *r, struct buffer *b)
{
	const size_t before = gpu_unused_memory();
	const ncclsvc_result result = b->kind == MEMORY_SESSION
					      ? NCCLSVC_OK
					      : ncclsvc_mem_forget(r->session, at(b->p), WITHIN);
	CHECK(!result || (b->kind == MEMORY_ALLOC && result == NCCLSVC_TIMEOUT));
	buffer_free(b);
	/* The driver takes up to about a millisecond. */
	CHECK(result || gpu_has_unused(before + BYTES / 2, limit_ms(100)));
}

static void direct_rank(struct client *c)
{
	struct meeting m;
	struct rank *const r = &m.r;
	struct buffer a, b;
	meeting_open(&m, c);
	for (int kind = 0; kind < MEMORY_KINDS; kind++) {
		for (unsigned round = 0; round < 3; round++) {
			stage("%s memory, round %u", memory_name(kind), round);
			buffer_make(&a, kind, r->gpu, r->session, BYTES);
			buffer_make(&b, kind, r->gpu, r->session, BYTES);
			sum_becomes_direct(r, a.p, b.p);
			sum(r, b.p, b.p);
			all_operations(r, a.p, b.p);
			messages(r, a.p, b.p);
			meeting_wait(&m);
			const size_t before = gpu_unused_memory();
			memory_is_free(r, &a);
			memory_is_free(r, &b);
			meeting_wait(&m);
			CHECK(gpu_has_unused(before + BYTES, WAIT_MS));
			meeting_wait(&m);
		}
	}
	meeting_close(&m);
}

static void test_direct(void)
{
	ranks_run(2, direct_rank, NULL);
}

static void test_direct_4(void)
{
	ranks_run(4, direct_rank, NULL);
}

/* ---- In a CUDA graph that was captured before anything was mapped ---- */

static void graph_rank(struct client *c)
{
	struct rank r;
	struct buffer a;
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	uint64_t before, after;
	rank_open(&r, c);
	buffer_make(&a, MEMORY_ALLOC, r.gpu, r.session, BYTES);
	meet(&r);
	/* The ranks map each other's memory meanwhile, which must not disturb the capture. */
	CHECK_CU(cu.cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	graph_sum(&r, a.p, WORDS);
	sleep_ms(100);
	CUgraphExec exec = graph_end(r.stream);
	do {
		before = kernels_staged(&r);
		gpu_fill(a.p, (uint32_t)r.rank + 1, WORDS);
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		gpu_check(a.p, (uint32_t)(r.n * (r.n + 1) / 2), WORDS, "the graph's sum");
		meet(&r);
		after = kernels_staged(&r);
		CHECK(now_ns() < end);
	} while (after != before);
	graph_destroy(exec);
	graphs_reach(&r, 0);
	buffer_free(&a);
	rank_close(&r);
}

static void test_graph(void)
{
	ranks_run(2, graph_rank, NULL);
}

const struct gpu_test direct_tests[] = {
	{"kernels/direct", test_direct, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/direct/4", test_direct_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/direct/graph", test_graph, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
