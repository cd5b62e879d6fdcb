/* SPDX-License-Identifier: Apache-2.0
 * The drop-in: captures into CUDA graphs, as NCCL programs make them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "dropin_calls.h"
#include "graphs.h"

#define LAUNCHES 10
#define BESIDE	 200 /* sums of the other thread */

/* ---- A capture beside other threads ---- */

struct beside {
	ncclComm_t comm, asked;
	CUdeviceptr p;
	CUstream stream;
	int gpu;
	atomic_bool over;
};

/* Polls for errors, as PyTorch's watchdog does. */
static void *watch(void *arg)
{
	struct beside *b = arg;
	while (!atomic_load(&b->over)) {
		ncclResult_t state;
		CHECK_NC(nc.ncclCommGetAsyncError(b->asked, &state));
		CHECK_EQ(state, ncclSuccess);
		sleep_ms(1);
	}
	return NULL;
}

/* Submits sums on a separate communicator and stream. */
static void *sum_beside(void *arg)
{
	struct beside *b = arg;
	gpu_use(b->gpu);
	for (int i = 0; i < BESIDE; i++)
		CHECK_NC(dropin_sum(b->p, b->comm, b->stream));
	return NULL;
}

static CUgraphExec capture(struct client *c, ncclComm_t comm, CUdeviceptr p, CUdeviceptr q,
			   CUstream s)
{
	const int next = (c->rank + 1) % c->nranks, before = (c->rank + c->nranks - 1) % c->nranks;
	CHECK_CU(cu.cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK_NC(dropin_sum(p, comm, s));
	sleep_ms(20);
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(nc.ncclSend(at(p), DROPIN_WORDS, NCCLSVC_UINT32, next, comm, s));
	CHECK_NC(nc.ncclRecv(at(q), DROPIN_WORDS, NCCLSVC_UINT32, before, comm, s));
	CHECK_NC(nc.ncclGroupEnd());
	CHECK_NC(nc.ncclGroupStart());
	CHECK_NC(dropin_sum(p, comm, s));
	CHECK_NC(dropin_sum(q, comm, s));
	CHECK_NC(nc.ncclGroupEnd());
	return graph_end(s);
}

static void threads_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	pthread_t threads[2];
	struct beside b = {.gpu = c->rank, .asked = comm};
	CUdeviceptr p = dropin_words(1), q = dropin_words(0);
	CUstream s = gpu_stream();
	const uint32_t n = (uint32_t)c->nranks;
	uint32_t value = 1;
	CHECK_NC(nc.ncclCommSplit(comm, 0, c->rank, &b.comm, NULL));
	b.p = dropin_words(0);
	b.stream = gpu_stream();
	stage("capturing beside other threads");
	CHECK(!pthread_create(&threads[0], NULL, watch, &b));
	CHECK(!pthread_create(&threads[1], NULL, sum_beside, &b));
	CUgraphExec exec = capture(c, comm, p, q, s);
	for (int i = 0; i < LAUNCHES; i++) {
		graph_launch(exec, s);
		CHECK_NC(dropin_sum(p, comm, s));
		value *= n * n * n;
	}
	stage("waiting for the launches");
	CHECK(gpu_stream_ends(s, WAIT_MS));
	gpu_check(p, value, DROPIN_WORDS, "sums of a graph and others");
	gpu_check(q, value / n, DROPIN_WORDS, "the sum of what was received");
	atomic_store(&b.over, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(gpu_stream_ends(b.stream, WAIT_MS));
	stage("destroying the communicator before the graph");
	graph_launch(exec, s);
	CHECK_NC(nc.ncclCommDestroy(comm));
	CHECK(gpu_stream_ends(s, WAIT_MS));
	gpu_check(p, value * n * n, DROPIN_WORDS, "the last launch");
	graph_launch(exec, s); /* does nothing: its communicator is gone */
	CHECK(gpu_stream_ends(s, WAIT_MS));
	gpu_check(p, value * n * n, DROPIN_WORDS, "what the graph has not touched");
	graph_destroy(exec);
	CHECK_NC(nc.ncclCommDestroy(b.comm));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(q));
	CHECK_CU(cu.cuMemFree(b.p));
}

static void test_threads(void)
{
	ranks_run(ranks_count(), threads_rank, NULL);
}

/* ---- A rank that dies ---- */

enum word { READY = 1 };

static void mortal_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUdeviceptr p = dropin_words(1);
	CUstream s = gpu_stream();
	CHECK_CU(cu.cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK_NC(dropin_sum(p, comm, s));
	CUgraphExec exec = graph_end(s);
	graph_launch(exec, s);
	CHECK(gpu_stream_ends(s, WAIT_MS));
	say(c, READY);
	if (c->rank == c->nranks - 1)
		for (;;)
			sleep_ms(1000);
	stage("launching for a rank that dies");
	graph_launch(exec, s);
	CHECK_EQ(dropin_fails(comm, WAIT_MS), ncclRemoteError);
	CHECK_SAYS(comm, "was killed by SIGKILL");
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_NC_IS(dropin_sum(p, comm, s), ncclRemoteError);
	graph_launch(exec, s); /* does nothing: its epoch is over */
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_NC(nc.ncclCommAbort(comm));
	graph_launch(exec, s);
	CHECK(gpu_stream_ends(s, WAIT_MS));
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, mortal_rank, NULL);
	hear_all(ranks, n, READY);
	client_kill(&ranks[n - 1]);
	ranks_end(ranks, n - 1);
	gpu_daemon_stop(&d);
}

/* ---- Launches that are not over ---- */

#define SLOW_MS 2500 /* longer than ncclsvc_comm_leave waits for launches */

static void slow(void *arg)
{
	(void)arg;
	sleep_ms(SLOW_MS);
}

/* Destroys the communicator, or finalizes it first, while a launch waits for earlier work on its
 * stream: both wait for the launch. */
static void slow_rank(struct client *c)
{
	for (int finalizes = 0; finalizes < 2; finalizes++) {
		ncclComm_t comm;
		CUdeviceptr p = dropin_words(1);
		CUstream s = gpu_stream();
		const uint32_t n = (uint32_t)c->nranks;
		stage("a slow launch, finalizes: %d", finalizes);
		CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id_number(c, finalizes),
					     c->rank));
		CHECK_CU(cu.cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
		CHECK_NC(dropin_sum(p, comm, s));
		CUgraphExec exec = graph_end(s);
		const uint64_t begun = now_ns();
		CHECK_CU(cu.cuLaunchHostFunc(s, slow, NULL));
		graph_launch(exec, s);
		if (finalizes)
			CHECK_NC(nc.ncclCommFinalize(comm));
		else
			CHECK_NC(nc.ncclCommDestroy(comm));
		CHECK(now_ns() - begun >= SLOW_MS * UINT64_C(1000000) && "it waits for the launch");
		gpu_check(p, n, DROPIN_WORDS, "the sum of a slow launch");
		if (finalizes)
			CHECK_NC(nc.ncclCommDestroy(comm));
		graph_destroy(exec);
		CHECK_CU(cu.cuMemFree(p));
	}
}

static void opened_slow_rank(struct client *c)
{
	dropin_open(c->daemon);
	gpu_use(c->rank);
	slow_rank(c);
}

static void test_slow(void)
{
	ranks_run(ranks_count(), opened_slow_rank, NULL);
}

static void test_bare_slow(void)
{
	setenv("NCCLSVC_PEER", "0", 1);
	test_slow();
}

/* The last rank's launch waits for the other rank, which leaves. */
static void abandoned_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUdeviceptr p = dropin_words(1);
	CUstream s = gpu_stream();
	CHECK_CU(cu.cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK_NC(dropin_sum(p, comm, s));
	CUgraphExec exec = graph_end(s);
	graph_launch(exec, s);
	CHECK(gpu_stream_ends(s, WAIT_MS));
	if (c->rank == c->nranks - 1) {
		stage("finalizing while a launch waits for ranks that leave");
		graph_launch(exec, s);
		sleep_ms(100);
		say(c, READY);
		CHECK_NC_IS(nc.ncclCommFinalize(comm), ncclRemoteError);
		CHECK_SAYS(comm, "left the communicator");
	} else {
		CHECK_EQ(hear(c), READY);
	}
	CHECK_NC(nc.ncclCommDestroy(comm));
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
}

static void test_abandoned(void)
{
	struct daemon d;
	struct client ranks[2];
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, abandoned_rank, NULL);
	CHECK_EQ(hear(&ranks[1]), READY);
	say(&ranks[0], READY);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

static void test_bare_abandoned(void)
{
	setenv("NCCLSVC_PEER", "0", 1);
	test_abandoned();
}

/* ---- A rank that gives up ---- */

#define BREAK_OFF_MS 1500 /* shorter than ncclsvc_comm_leave waits for launches */

/* The last rank revokes while its launch waits for the others, which do not launch. */
static void revoking_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUdeviceptr p = dropin_words(1);
	CUstream s = gpu_stream();
	CHECK_CU(cu.cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK_NC(dropin_sum(p, comm, s));
	CUgraphExec exec = graph_end(s);
	graph_launch(exec, s);
	CHECK(gpu_stream_ends(s, WAIT_MS));
	if (c->rank == c->nranks - 1) {
		stage("revoking while a launch waits");
		graph_launch(exec, s);
		const uint64_t begin = now_ns();
		CHECK_NC(nc.ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
		CHECK(now_ns() - begin < BREAK_OFF_MS * UINT64_C(1000000));
		CHECK(gpu_stream_ends(s, WAIT_MS));
	} else {
		CHECK_EQ(dropin_fails(comm, WAIT_MS), ncclRemoteError);
		CHECK_SAYS(comm, "aborted the communicator");
	}
	CHECK_NC(nc.ncclCommAbort(comm));
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
}

static void test_revoke(void)
{
	ranks_run(ranks_count(), revoking_rank, NULL);
}

static void test_bare_revoke(void)
{
	setenv("NCCLSVC_PEER", "0", 1);
	test_revoke();
}

const struct gpu_test nccl_graph_tests[] = {
	{"nccl/graphs", test_threads, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/4", test_threads, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/slow", test_slow, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/bare/slow", test_bare_slow, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/abandoned", test_abandoned, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/bare/abandoned", test_bare_abandoned, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/revoke", test_revoke, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/bare/revoke", test_bare_revoke, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"nccl/graphs/killed", test_killed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
