/* SPDX-License-Identifier: Apache-2.0
 * Launches of CUDA graphs while other ranks stay away, differ, die or leave, and reports about
 * waiting launches. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graphs.h"
#include "proto/abi/peer_abi.h"

#define TIMEOUT_MS (setup.fake ? 1500 : 300)
#define MS	   UINT64_C(1000000)

enum word { READY = 1, GO };

static CUgraphExec capture_sums(struct rank *r, CUdeviceptr p, size_t n, int sums)
{
	graph_begin(r->stream);
	while (sums--)
		graph_sum(r, p, n);
	return graph_end(r->stream);
}

/* A graph captured in an epoch that is over ends at once, and does nothing. */
static void is_dead(struct rank *r, CUgraphExec exec, CUdeviceptr p)
{
	stage("a graph of an epoch that is over");
	gpu_fill(p, 5, SMALL);
	const uint64_t begin = now_ns();
	graph_launch(exec, r->stream);
	graph_launch(exec, r->stream);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	CHECK(now_ns() - begin < limit_ms(100) * MS);
	gpu_check(p, 5, SMALL, "what a graph of an epoch that is over has not touched");
}

/* A graph captured in the new epoch works. */
static void captures_anew(struct rank *r, CUdeviceptr p)
{
	stage("capturing again");
	const unsigned graphs = ncclsvc_comm_graphs(r->comm);
	gpu_fill(p, 1, SMALL);
	CUgraphExec exec = capture_sums(r, p, SMALL, 2);
	graph_launch(exec, r->stream);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	gpu_check(p, (uint32_t)(r->n * r->n), SMALL, "sums of a graph");
	rank_check_usable(r);
	CHECK_EQ(ncclsvc_comm_graphs(r->comm), graphs + 1);
	graph_destroy(exec);
}

/* ---- Deadlines ---- */

/* The last rank does not launch the graph. */
static void absent_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, TIMEOUT_MS));
	CUgraphExec exec = capture_sums(&r, p, SMALL, 3);
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, NCCLSVC_NO_TIMEOUT));
	graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	if (r.rank == r.n - 1) {
		CHECK_EQ(hear(c), GO);
	} else {
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		say(c, READY);
	}
	kernels_over(&r, NCCLSVC_TIMEOUT);
	kernels_rejoin(&r);
	is_dead(&r, exec, p);
	captures_anew(&r, p);
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_timeout(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, absent_rank, NULL);
	hear_all(ranks, n - 1, READY);
	say(&ranks[n - 1], GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Ranks that differ ---- */

static void different_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	CUgraphExec good = capture_sums(&r, p, SMALL, 2);
	CUgraphExec bad = capture_sums(&r, p, r.rank == r.n - 1 ? SMALL / 2 : SMALL, 2);
	graph_launch(good, r.stream);
	graph_launch(bad, r.stream);
	graph_launch(good, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	kernels_over(&r, NCCLSVC_MISMATCH);
	const char *text = ncclsvc_last_error();
	if (!strstr(text, "count"))
		check_failed(__FILE__, __LINE__, "\"%s\" does not name the field", text);
	kernels_rejoin(&r);
	is_dead(&r, good, p);
	captures_anew(&r, p);
	graph_destroy(good);
	graph_destroy(bad);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_mismatch(void)
{
	kernels_run(ranks_count(), different_rank, NULL);
}

/* ---- Trainers that are killed ---- */

static void launch_until_over(struct rank *r, CUgraphExec exec)
{
	ncclsvc_result result = NCCLSVC_OK;
	for (const uint64_t end = now_ns() + WAIT_MS * MS; !result;) {
		CHECK(now_ns() < end);
		graph_launch(exec, r->stream);
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		result = ncclsvc_comm_error(r->comm);
	}
	CHECK_RESULT(result, NCCLSVC_PEER_GONE);
}

/* The last rank dies after launching for a while; its replacement joins. */
static void mortal_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	gpu_fill(p, 1, SMALL);
	CUgraphExec exec = capture_sums(&r, p, SMALL, 20);
	say(c, READY);
	if (hear(c) == GO) {
		if (r.rank == r.n - 1)
			for (;;) {
				graph_launch(exec, r.stream);
				CHECK(gpu_stream_ends(r.stream, WAIT_MS));
			}
		launch_until_over(&r, exec);
		say(c, now_ns());
		kernels_rejoin(&r);
		is_dead(&r, exec, p);
	} else {
		rank_check_usable(&r); /* as the others do once they have rejoined */
	}
	captures_anew(&r, p);
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	uint64_t last = 0;
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, mortal_rank, NULL);
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	sleep_ms(100);
	const uint64_t killed = now_ns();
	client_kill(&ranks[n - 1]);
	for (int i = 0; i < n - 1; i++) {
		const uint64_t noticed = hear(&ranks[i]) - killed;
		last = last > noticed ? last : noticed;
	}
	CHECK(last < PEER_HEARTBEAT_NS / 2); /* otherwise kernels would end by themselves */
	client_start(&ranks[n - 1], mortal_rank);
	CHECK_EQ(hear(&ranks[n - 1]), READY);
	say(&ranks[n - 1], READY);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
	report("noticed after %d ms", (int)(last / MS));
}

/* ---- The daemon is killed ---- */

/* Launches wait for the last rank when the daemon, which would end them, is killed. */
static void orphan_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	CUgraphExec exec = capture_sums(&r, p, SMALL, 2);
	const bool last = r.rank == r.n - 1;
	if (!last)
		graph_launch(exec, r.stream);
	sleep_ms(20);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	kernels_over(&r, NCCLSVC_DAEMON_LOST);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	is_dead(&r, exec, p);
	ncclsvc_close(r.session);
	is_dead(&r, exec, p);
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

static void test_daemon(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, orphan_rank, NULL);
	hear_all(ranks, n, READY);
	daemon_kill(&d);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
}

/* ---- Graphs that outlive their communicator ---- */

/* Ranks leave the communicator while launches may still run: these complete. */
static void outliving_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	gpu_fill(p, 1, SMALL);
	CUgraphExec exec = capture_sums(&r, p, SMALL, 3), other = capture_sums(&r, p, SMALL, 1);
	graph_launch(exec, r.stream);
	CHECK_EQ(ncclsvc_comm_graphs(r.comm), 2);
	CHECK_OK(ncclsvc_comm_leave(r.comm));
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	gpu_check(p, (uint32_t)(r.n * r.n * r.n), SMALL, "sums of a graph");
	is_dead(&r, exec, p);
	stage("joining again");
	rank_join(&r);
	CHECK_EQ(ncclsvc_comm_graphs(r.comm), 0);
	rank_check_usable(&r);
	graph_destroy(other);
	CHECK_OK(ncclsvc_comm_leave(r.comm));
	ncclsvc_close(r.session);
	is_dead(&r, exec, p);
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuStreamDestroy(r.stream));
}

static void test_outlive(void)
{
	kernels_run(ranks_count(), outliving_rank, NULL);
}

/* ---- Reports ---- */

/* The last rank does not launch the second graph. It submits that graph's sums one by one: the
 * first at once, the others when told to. */
static void shown_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	const bool last = r.rank == r.n - 1;
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	CUgraphExec first = capture_sums(&r, p, SMALL, 1), second = capture_sums(&r, p, SMALL, 3);
	graph_launch(first, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	if (last)
		rank_wait(&r, kernels_sum(&r, p, SMALL));
	else
		graph_launch(second, r.stream);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	for (int i = 0; last && i < 2; i++)
		rank_wait(&r, kernels_sum(&r, p, SMALL));
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	rank_check_usable(&r);
	graph_destroy(first);
	graph_destroy(second);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

/* Whether exactly one task is listed for each rank that waits. */
static bool shows(ncclsvc_session *session, int n)
{
	ncclsvc_task_info *list;
	size_t tasks;
	CHECK_OK(ncclsvc_list_tasks(session, &list, &tasks));
	bool all = tasks == (size_t)n - 1;
	for (size_t i = 0; all && i < tasks; i++) {
		const ncclsvc_task_info *t = &list[i];
		all = t->graph == 2 && t->seq == 1 && t->op == NCCLSVC_ALL_REDUCE &&
		      t->count == SMALL && t->type == NCCLSVC_UINT32 && t->kernel && !t->task &&
		      t->state == NCCLSVC_WAITING_PEERS && t->waits_count == 1 &&
		      t->waits_for[0] == n - 1;
	}
	ncclsvc_list_free(list);
	return all;
}

static void test_shown(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, shown_rank, NULL);
	hear_all(ranks, n, READY);
	ncclsvc_session *session = session_open(&d);
	for (const uint64_t end = now_ns() + WAIT_MS * MS; !shows(session, n); sleep_ms(10))
		CHECK(now_ns() < end);
	why_says(&d, "AllReduce #1 of CUDA graph 2");
	ncclsvc_close(session);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Messages ---- */

/* The last rank does not launch its messages, so the next rank's Recv waits until the deadline. */
static void message_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, 2 * SMALL * sizeof(uint32_t)));
	const int next = (r.rank + 1) % r.n, before = (r.rank + r.n - 1) % r.n;
	CHECK_OK(ncclsvc_comm_set_timeout(r.comm, TIMEOUT_MS));
	graph_begin(r.stream);
	CHECK_OK(ncclsvc_group_begin(r.session));
	kernels_send(&r, p, SMALL, next, NULL);
	kernels_recv(&r, p + SMALL * sizeof(uint32_t), SMALL, before, NULL);
	CHECK_OK(ncclsvc_group_end(r.session));
	CUgraphExec exec = graph_end(r.stream);
	for (int i = 0; i < 3; i++)
		graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	rank_check_usable(&r);
	if (r.rank != r.n - 1)
		graph_launch(exec, r.stream);
	kernels_over(&r, NCCLSVC_TIMEOUT);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	kernels_rejoin(&r);
	is_dead(&r, exec, p);
	graph_destroy(exec);
	captures_anew(&r, p);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_messages(void)
{
	kernels_run(ranks_count(), message_rank, NULL);
}

const struct gpu_test graph_failure_tests[] = {
	{"graphs/timeout", test_timeout, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/mismatch", test_mismatch, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/mismatch/4", test_mismatch, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/killed", test_killed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/killed/4", test_killed, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/daemon", test_daemon, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/outlive", test_outlive, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/shown", test_shown, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/shown/4", test_shown, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/messages", test_messages, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
