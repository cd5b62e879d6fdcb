/* SPDX-License-Identifier: Apache-2.0
 * Ranks whose operations differ, in CUDA graphs or outside of them after graphs: on NCCL on one
 * rank and in a kernel on another, different kernels, and two communicators in different orders. */
#include <string.h>

#include "graphs.h"

#define MS UINT64_C(1000000)
#define LAG_MS                                                                                     \
	1000 /* how long the daemon waits for a kernel that may only lag (PEER_LOOKS_DOUBTFUL) */

enum word { READY = 1 };

static CUdeviceptr words(size_t n)
{
	CUdeviceptr p;
	CHECK_CU(cu.cuMemAlloc(&p, n * sizeof(uint32_t)));
	gpu_fill(p, 1, n);
	return p;
}

static bool is_last(const struct rank *r)
{
	return r->rank == r->n - 1;
}

static void says(const char *text)
{
	if (!strstr(ncclsvc_last_error(), text))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", text,
			     ncclsvc_last_error());
}

static CUgraphExec capture_sum(struct rank *r, CUdeviceptr p, size_t n)
{
	graph_begin(r->stream);
	graph_sum(r, p, SMALL);
	graph_sum(r, p, n);
	graph_sum(r, p, SMALL);
	return graph_end(r->stream);
}

/* Without a deadline, all ranks' streams continue in time, and all ranks learn what differs. */
static void learns(struct rank *r, uint64_t since, unsigned limit, const char *text)
{
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	kernels_over(r, NCCLSVC_MISMATCH);
	says(text);
	const unsigned ms = (unsigned)((now_ns() - since) / MS);
	if (!r->rank)
		report("noticed after %u ms", ms);
	CHECK(ms < limit_ms(limit));
}

/* ---- In the graph ---- */

static void replay_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	const CUdeviceptr p = words(LARGE_WORDS);
	CUgraphExec good = capture_sum(&r, p, LARGE_WORDS);
	CUgraphExec bad = capture_sum(&r, p, is_last(&r) ? LARGE_WORDS : SMALL);
	for (int epoch = 0; epoch < 2; epoch++) {
		graph_launch(good, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		rank_check_usable(&r);
		const uint64_t begin = now_ns();
		graph_launch(bad, r.stream);
		learns(&r, begin, LAG_MS + 100, "count");
		kernels_rejoin(&r);
		graph_destroy(good);
		graph_destroy(bad);
		good = capture_sum(&r, p, LARGE_WORDS);
		bad = capture_sum(&r, p, is_last(&r) ? LARGE_WORDS : SMALL);
	}
	graph_destroy(good);
	graph_destroy(bad);
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_replay(void)
{
	kernels_run(ranks_count(), replay_rank, NULL);
}

/* ---- Outside of graphs, after graphs ---- */

/* Different kernels fail only their task. Kernels on some ranks and NCCL on others end the
 * epoch. */
static void sums_differ(struct rank *r, CUdeviceptr p)
{
	ncclsvc_task task;
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), is_last(r) ? SMALL / 2 : SMALL, NCCLSVC_UINT32,
				    NCCLSVC_SUM, r->comm, &task));
	CHECK_RESULT(ncclsvc_wait(r->session, task, WAIT_MS), NCCLSVC_MISMATCH);
	says("count");
	rank_check_usable(r);
	const uint64_t begin = now_ns();
	kernels_sum(r, p, is_last(r) ? LARGE_WORDS : SMALL);
	learns(r, begin, 100, "count");
	kernels_rejoin(r);
}

/* A Send in a kernel whose Recv goes to NCCL. */
static void messages_differ(struct rank *r, CUdeviceptr p)
{
	const uint64_t begin = now_ns();
	if (r->rank == 0)
		kernels_send(r, p, SMALL, 1, NULL);
	else if (r->rank == 1)
		kernels_recv(r, p, LARGE_WORDS, 0, NULL);
	learns(r, begin, 100, "count");
	kernels_rejoin(r);
}

/* Mismatches after launches of a graph, which still exists or is gone. */
static void after_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	const CUdeviceptr p = words(LARGE_WORDS);
	for (int round = 0; round < 4; round++) {
		stage("%s after a graph that %s", round < 2 ? "sums" : "messages",
		      round % 2 ? "lives" : "is gone");
		CUgraphExec exec = capture_sum(&r, p, SMALL);
		for (int i = 0; i < 3; i++)
			graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		if (round % 2 == 0)
			graph_destroy(exec);
		rank_check_usable(&r);
		if (round < 2)
			sums_differ(&r, p);
		else
			messages_differ(&r, p);
		if (round % 2)
			graph_destroy(exec);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_after(void)
{
	kernels_run(ranks_count(), after_rank, NULL);
}

/* ---- Two communicators, in a different order on each rank ---- */

/* Neither graph can proceed. An operator cancels one communicator: its epoch is over, and the other
 * one continues. */
static void crossed_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	struct rank other = r;
	ncclsvc_unique_id id = c->id;
	id.bytes[3] ^= 1;
	CHECK_OK(
		ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS, &other.comm));
	const CUdeviceptr p = words(SMALL), q = words(SMALL);
	CUgraphExec first = capture_sum(&r, p, SMALL), second = capture_sum(&other, q, SMALL);
	graph_launch(r.rank ? first : second, r.stream);
	graph_launch(r.rank ? second : first, r.stream);
	say(c, READY);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	kernels_over(&r, NCCLSVC_CANCELLED);
	says("cancelled on request");
	rank_check_usable(&other);
	gpu_check(q, (uint32_t)(r.n * r.n * r.n), SMALL, "sums of the other communicator");
	kernels_rejoin(&r);
	rank_check_usable(&r);
	graph_destroy(first);
	graph_destroy(second);
	CHECK_OK(ncclsvc_comm_leave(other.comm));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(q));
	rank_close(&r);
}

static void test_crossed(void)
{
	struct daemon d;
	struct client ranks[2];
	size_t n;
	uint64_t cancelled = 0;
	ncclsvc_comm_info *list;
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, crossed_rank, NULL);
	hear_all(ranks, 2, READY);
	sleep_ms(300);
	ncclsvc_session *session = session_open(&d);
	CHECK_OK(ncclsvc_list_comms(session, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (memcmp(list[i].id, &ranks[0].id, NCCLSVC_ID_BYTES) == 0)
			CHECK_OK(ncclsvc_cancel_comm(session, list[i].comm, &cancelled));
	CHECK(cancelled);
	ncclsvc_list_free(list);
	ncclsvc_close(session);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

const struct gpu_test graph_differ_tests[] = {
	{"graphs/differ/crossed", test_crossed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/differ/replay", test_replay, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/differ/replay/4", test_replay, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/differ/after", test_after, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/differ/after/4", test_after, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
