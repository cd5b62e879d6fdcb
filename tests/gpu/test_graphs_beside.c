/* SPDX-License-Identifier: Apache-2.0
 * How graphs are listed; first captures, groups on two streams, threads that submit beside a
 * capture, and ranks that leave with graphs. */
#include <pthread.h>

#include "graphs.h"
#include "ncclsvc_tensors.h"

#define LATE_MS 500 /* long enough to show whether anything is stuck */
#define BYTES	(SMALL * sizeof(uint32_t))

enum word { READY = 1, GO };

static CUdeviceptr words(size_t bytes)
{
	CUdeviceptr p;
	CHECK_CU(cu.cuMemAlloc(&p, bytes));
	gpu_fill(p, 1, bytes / sizeof(uint32_t));
	return p;
}

static void sleep_late(void *unused)
{
	(void)unused;
	sleep_ms(LATE_MS);
}

/* Delays everything put on the stream from here on. */
static void stall(CUstream stream)
{
	CHECK_CU(cu.cuLaunchHostFunc(stream, sleep_late, NULL));
}

/* ---- Listed ---- */

/* Rank 0's graph waits for a message. Earlier messages, outside of graphs, have arrived and are not
 * listed. */
static void listed_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	const CUdeviceptr p = words(BYTES);
	for (int i = 0; i < 10; i++) {
		if (r.rank)
			kernels_send(&r, p, SMALL, 0, NULL);
		else
			kernels_recv(&r, p, SMALL, 1, NULL);
	}
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	graph_begin(r.stream);
	if (r.rank)
		kernels_send(&r, p, SMALL, 0, NULL);
	else
		kernels_recv(&r, p, SMALL, 1, NULL);
	CUgraphExec exec = graph_end(r.stream);
	if (!r.rank)
		graph_launch(exec, r.stream);
	sleep_ms(100);
	say(c, READY);
	if (r.rank) {
		CHECK_EQ(hear(c), GO);
		graph_launch(exec, r.stream);
	}
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_listed(void)
{
	struct daemon d;
	struct client ranks[2];
	size_t n;
	ncclsvc_task_info *list;
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, listed_rank, NULL);
	hear_all(ranks, 2, READY);
	ncclsvc_session *session = session_open(&d);
	CHECK_OK(ncclsvc_list_tasks(session, &list, &n));
	CHECK_EQ(n, 1);
	CHECK(list[0].rank == 0 && list[0].graph == 1 && list[0].op == NCCLSVC_RECV);
	ncclsvc_list_free(list);
	ncclsvc_close(session);
	say(&ranks[1], GO);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- Captures ---- */

/* The communicator's first capture while sums on another stream are pending. Nothing except the
 * communicator orders them before the graph. */
static void first_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	const CUdeviceptr p = words(BYTES), q = words(BYTES);
	const CUstream other = gpu_stream();
	if (r.rank)
		stall(r.stream);
	for (int i = 0; i < 3; i++)
		kernels_sum(&r, p, SMALL);
	CHECK_OK(ncclsvc_stream_set(r.session, other, 0));
	graph_begin(other);
	graph_sum(&r, q, SMALL);
	graph_sum(&r, q, SMALL);
	CUgraphExec exec = graph_end(other);
	graph_launch(exec, other);
	CHECK(gpu_stream_ends(other, WAIT_MS));
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	gpu_check(p, (uint32_t)(r.n * r.n * r.n), SMALL, "single sums");
	gpu_check(q, (uint32_t)(r.n * r.n), SMALL, "sums of the first graph");
	graph_destroy(exec);
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	CHECK_CU(cu.cuStreamDestroy(other));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(q));
	rank_close(&r);
}

static void test_first(void)
{
	kernels_run(ranks_count(), first_rank, NULL);
}

/* A group with messages on two captured streams: each message comes after the earlier work on its
 * own stream, and later work there sees its result. */
static void streams_rank(struct client *c)
{
	struct rank r;
	CUevent fork, join;
	rank_open(&r, c);
	const int next = (r.rank + 1) % r.n, last = (r.rank + r.n - 1) % r.n;
	const CUdeviceptr out = words(BYTES), in = words(BYTES), copy = words(BYTES);
	const CUstream other = gpu_stream();
	CHECK_CU(cu.cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	CHECK_CU(cu.cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	graph_begin(r.stream);
	CHECK_CU(cu.cuEventRecord(fork, r.stream));
	CHECK_CU(cu.cuStreamWaitEvent(other, fork, 0));
	CHECK_CU(cu.cuMemsetD32Async(out, (unsigned)r.rank + 7, SMALL, r.stream));
	CHECK_OK(ncclsvc_group_begin(r.session));
	kernels_send(&r, out, SMALL, next, NULL);
	CHECK_OK(ncclsvc_stream_set(r.session, other, 0));
	kernels_recv(&r, in, SMALL, last, NULL);
	CHECK_OK(ncclsvc_group_end(r.session));
	CHECK_CU(cu.cuMemcpyDtoDAsync(copy, in, BYTES, other));
	CHECK_CU(cu.cuEventRecord(join, other));
	CHECK_CU(cu.cuStreamWaitEvent(r.stream, join, 0));
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	CUgraphExec exec = graph_end(r.stream);
	for (int i = 0; i < 5; i++) {
		gpu_fill(copy, 1, SMALL);
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		gpu_check(copy, (uint32_t)last + 7, SMALL, "what the other stream received");
	}
	graph_destroy(exec);
	CHECK_CU(cu.cuEventDestroy(fork));
	CHECK_CU(cu.cuEventDestroy(join));
	CHECK_CU(cu.cuStreamDestroy(other));
	CHECK_CU(cu.cuMemFree(out));
	CHECK_CU(cu.cuMemFree(in));
	CHECK_CU(cu.cuMemFree(copy));
	rank_close(&r);
}

static void test_streams(void)
{
	kernels_run(ranks_count(), streams_rank, NULL);
}

/* Arguments of the thread that submits beside another thread's capture. */
struct beside {
	struct rank *r;
	CUstream stream;
	CUdeviceptr large, parts[2];
	ncclsvc_tensors *lists;
};

static void *submit_beside(void *arg)
{
	const struct beside *b = arg;
	const ncclsvc_tensor list[2] = {NCCLSVC_TENSOR(at(b->parts[0]), NCCLSVC_UINT32, SMALL),
					NCCLSVC_TENSOR(at(b->parts[1]), NCCLSVC_UINT32, SMALL)};
	gpu_use(b->r->gpu);
	CHECK_OK(ncclsvc_stream_set(b->r->session, b->stream, 0));
	rank_wait(b->r, kernels_sum(b->r, b->large, LARGE_WORDS));
	for (int i = 0; i < 2; i++) /* copies the lists, and queries the earlier copies' ends */
		CHECK_OK(ncclsvc_tensors_all_reduce(b->lists, list, NULL, 2, NCCLSVC_SUM, WAIT_MS,
						    NULL));
	return NULL;
}

/* In this capture mode, any thread's call that may invalidate a capture fails. The other thread's
 * first operation on NCCL needs new memory and mapped pages. */
static void beside_rank(struct client *c)
{
	struct rank r;
	pthread_t thread;
	CUgraph graph = NULL;
	rank_open(&r, c);
	const CUdeviceptr p = words(BYTES);
	struct beside b = {.r = &r, .stream = gpu_stream(), .large = words(LARGE)};
	for (int i = 0; i < 2; i++)
		b.parts[i] = words(BYTES);
	CHECK_OK(ncclsvc_tensors_open(r.comm, WAIT_MS, &b.lists));
	CHECK_CU(cu.cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	graph_sum(&r, p, SMALL);
	CHECK(!pthread_create(&thread, NULL, submit_beside, &b));
	pthread_join(thread, NULL);
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	graph_sum(&r, p, SMALL);
	CHECK_CU(cu.cuStreamEndCapture(r.stream, &graph));
	CUgraphExec exec = graph_instantiate(graph);
	CHECK_CU(cu.cuGraphDestroy(graph));
	graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	gpu_check(p, (uint32_t)(r.n * r.n), SMALL, "sums of the graph");
	gpu_check(b.large, (uint32_t)r.n, LARGE_WORDS, "the sum beside it");
	graph_destroy(exec);
	CHECK_OK(ncclsvc_tensors_close(b.lists));
	for (int i = 0; i < 2; i++) {
		gpu_check(b.parts[i], (uint32_t)(r.n * r.n), SMALL, "the lists beside it");
		CHECK_CU(cu.cuMemFree(b.parts[i]));
	}
	CHECK_CU(cu.cuStreamDestroy(b.stream));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(b.large));
	rank_close(&r);
}

static void test_beside(void)
{
	kernels_run(ranks_count(), beside_rank, NULL);
}

/* ---- Ranks that leave with graphs ---- */

/* The driver destroys a graph later, on its own thread. What the graph held is freed when the
 * process next joins or leaves a communicator. */
static bool is_freed(const struct rank *r, size_t unused_least)
{
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	ncclsvc_unique_id id;
	ncclsvc_comm *alone;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	while (gpu_unused_memory() < unused_least) {
		if (now_ns() > end)
			return false;
		CHECK_OK(ncclsvc_comm_join_device(r->session, &id, 1, 0, r->gpu, WAIT_MS, &alone));
		CHECK_OK(ncclsvc_comm_leave(alone));
	}
	return true;
}

/* Rank 0 leaves, and launches its graph again: no other rank notices. Then all memory is freed with
 * the graphs. */
static void leaves_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	const CUdeviceptr p = words(BYTES);
	rank_check_usable(&r);
	CHECK_EQ(ncclsvc_comm_graphs(r.comm), 0);
	graph_begin(r.stream);
	graph_sum(&r, p, SMALL);
	CUgraphExec gone = graph_end(r.stream);
	graph_begin(r.stream);
	graph_sum(&r, p, SMALL);
	CUgraphExec exec = graph_end(r.stream);
	CHECK_EQ(ncclsvc_comm_graphs(r.comm), 2);
	graph_destroy(gone);
	graphs_reach(&r, 1);
	graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (!r.rank) {
		CHECK_OK(ncclsvc_comm_leave(r.comm));
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		gpu_check(p, (uint32_t)r.n, SMALL, "what the graph has not touched");
	} else {
		sleep_ms(LATE_MS);
		CHECK_OK(ncclsvc_comm_error(r.comm));
	}
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (r.rank)
		CHECK_OK(ncclsvc_comm_leave(r.comm));
	const size_t before = gpu_unused_memory();
	graph_destroy(exec);
	rank_join(&r);
	rank_check_usable(&r);
	CHECK_OK(ncclsvc_comm_leave(r.comm));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CHECK(is_freed(&r, before + 1));
	CHECK_CU(cu.cuMemFree(p));
	ncclsvc_close(r.session);
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

static void test_leaves(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, leaves_rank, NULL);
	for (int i = 0; i < 3; i++) {
		hear_all(ranks, n, READY);
		say_all(ranks, n, GO);
	}
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test graph_beside_tests[] = {
	{"graphs/listed", test_listed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/first", test_first, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/groups", test_streams, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/groups/4", test_streams, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/beside", test_beside, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/leaves", test_leaves, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
