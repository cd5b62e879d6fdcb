/* SPDX-License-Identifier: Apache-2.0
 * Eager operations beside those in CUDA graphs that go to NCCL, and after these graphs are gone; on
 * communicators without kernels, unless noted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graphs.h"
#include "ncclsvc_plan.h"

#define STUCK_MS   8000
#define SESSIONS   10
#define MANY	   600 /* operations in a graph: too many deletions for the socket's buffer */
#define MANY_TASKS "4000"
#define FEW_TASKS  12

enum word { READY = 1, GO };

/* ---- Buffers and graphs ---- */

static CUdeviceptr words(size_t n, uint32_t value)
{
	CUdeviceptr p;
	CHECK_CU(cu.cuMemAlloc(&p, n * sizeof(uint32_t)));
	gpu_fill(p, value, n);
	return p;
}

/* Puts an in-place sum of LARGE_WORDS on the rank's stream, or into its graph. */
static ncclsvc_result sum(struct rank *r, CUdeviceptr p)
{
	return ncclsvc_all_reduce(at(p), at(p), LARGE_WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				  NULL);
}

static CUgraphExec sums_in_graph(struct rank *r, CUdeviceptr p, int n)
{
	graph_begin(r->stream);
	while (n--)
		CHECK_OK(sum(r, p));
	return graph_end(r->stream);
}

static void nap(void *ms)
{
	sleep_ms((unsigned)(uintptr_t)ms);
}

static void stall(CUstream stream, unsigned ms)
{
	CHECK_CU(cu.cuLaunchHostFunc(stream, nap, (void *)(uintptr_t)ms));
}

static void wait_for_no_graphs(struct rank *r)
{
	graphs_reach(r, 0);
	sleep_ms(50); /* the driver destroys a graph's objects one by one */
}

static void bare_run(client_main *main, void *arg)
{
	setenv("NCCLSVC_PEER", "0", 1);
	ranks_run(2, main, arg);
}

/* ---- The last graph is destroyed ---- */

/* A sum whose stream has not reached it yet runs before one that is submitted after the graph is
 * gone. arg: the second sum is on another stream, and only rank 0 is late. */
static void last_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	CUdeviceptr a = words(LARGE_WORDS, 1), b = words(LARGE_WORDS, 3);
	CUstream other = gpu_stream();
	CUgraphExec exec = sums_in_graph(&r, a, 1);
	graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	gpu_fill(a, 1, LARGE_WORDS);
	if (!c->arg || !r.rank)
		stall(r.stream, 500);
	CHECK_OK(sum(&r, a));
	graph_destroy(exec);
	wait_for_no_graphs(&r);
	if (c->arg)
		CHECK_OK(ncclsvc_stream_set(r.session, other, 0));
	CHECK_OK(sum(&r, b));
	stage("waiting for both sums");
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	CHECK(gpu_stream_ends(other, STUCK_MS));
	CHECK_OK(ncclsvc_comm_error(r.comm));
	gpu_check(a, 2, LARGE_WORDS, "the sum before the graph went");
	gpu_check(b, 6, LARGE_WORDS, "the sum after it");
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	CHECK_CU(cu.cuStreamDestroy(other));
	CHECK_CU(cu.cuMemFree(a));
	CHECK_CU(cu.cuMemFree(b));
	rank_close(&r);
}

static void test_last(void)
{
	bare_run(last_rank, NULL);
}

static void test_last_streams(void)
{
	bare_run(last_rank, "");
}

/* ---- Many ---- */

/* Submits more tasks than can be pending, and never waits for a task, only for the stream. */
static void unwatched_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	CUdeviceptr p = words(LARGE_WORDS, 1);
	CUgraphExec exec = sums_in_graph(&r, p, 1);
	for (int i = 0; i < 140; i++) {
		CHECK_OK(sum(&r, p));
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	}
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_unwatched(void)
{
	bare_run(unwatched_rank, NULL);
}

static void recapture_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	CUdeviceptr p = words(LARGE_WORDS, 1);
	for (int i = 0; i < 3; i++) {
		stage("capture %d", i);
		graph_begin(r.stream);
		for (int k = 0; k < MANY; k++)
			CHECK_OK(sum(&r, p));
		graph_drop(r.stream);
		wait_for_no_graphs(&r);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_recapture(void)
{
	setenv("NCCLSVCD_USER_TASKS_MAX", MANY_TASKS, 1);
	bare_run(recapture_rank, NULL);
}

/* ---- Refused ---- */

/* If the daemon keeps a part of a group and refuses the rest, the group is not in the graph. */
static void partial_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	CUdeviceptr p = words(LARGE_WORDS, 1), q = words(LARGE_WORDS, 1);
	graph_begin(r.stream);
	CHECK_OK(sum(&r, p));
	say(c, READY);
	/* Each rank has captured one operation, and both count for their user. */
	CHECK_EQ(hear(c), GO);
	CHECK_OK(ncclsvc_group_begin(r.session));
	for (int i = 0; i < FEW_TASKS - 1; i++)
		CHECK_OK(sum(&r, q));
	CHECK_RESULT(ncclsvc_group_end(r.session), NCCLSVC_LIMIT);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CUgraphExec exec = graph_end(r.stream);
	for (int i = 0; i < 3; i++) {
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	}
	CHECK_OK(sum(&r, p));
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	gpu_check(p, 16, LARGE_WORDS, "the graph's sums, and one beside it");
	gpu_check(q, 1, LARGE_WORDS, "what is in no graph");
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(q));
	rank_close(&r);
}

/* Runs two ranks, whose user may have FEW_TASKS tasks, and synchronizes them n times. */
static void few_run(client_main *main, int n)
{
	char few[16];
	struct daemon d;
	struct client ranks[2];
	snprintf(few, sizeof(few), "%d", FEW_TASKS);
	setenv("NCCLSVCD_USER_TASKS_MAX", few, 1);
	setenv("NCCLSVC_PEER", "0", 1);
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, main, NULL);
	while (n--) {
		hear_all(ranks, 2, READY);
		say_all(ranks, 2, GO);
	}
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

static void test_partial(void)
{
	few_run(partial_rank, 2);
}

/* The user has the maximum number of tasks, which wait on another communicator: a launch of a graph
 * fails instead of waiting for them. */
static void crowded_rank(struct client *c)
{
	struct rank r;
	ncclsvc_comm *other;
	ncclsvc_unique_id id = c->id;
	id.bytes[0] ^= 1;
	rank_open(&r, c);
	CHECK_OK(ncclsvc_comm_join_device(r.session, &id, r.n, r.rank, r.gpu, WAIT_MS, &other));
	CUdeviceptr p = words(LARGE_WORDS, 1), q = words(SMALL, 1);
	CUgraphExec exec = sums_in_graph(&r, p, 1);
	say(c, READY);
	CHECK_EQ(hear(c), GO); /* both ranks have captured it */
	CHECK_OK(ncclsvc_stream_set(r.session, gpu_stream(), 0));
	for (int i = 0; r.rank == 0 && i < FEW_TASKS; i++)
		CHECK_OK(ncclsvc_all_reduce(at(q), at(q), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM, other,
					    NULL));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	kernels_over(&r, NCCLSVC_LIMIT);
	if (!strstr(ncclsvc_last_error(), "user_tasks_max"))
		check_failed(__FILE__, __LINE__, "\"%s\" does not name the limit",
			     ncclsvc_last_error());
	graph_destroy(exec);
	ncclsvc_close(r.session);
}

static void test_crowded(void)
{
	few_run(crowded_rank, 2);
}

/* A stream of another GPU is refused beside graphs too, and the communicator continues. */
static void stranger_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	CUdeviceptr p = words(LARGE_WORDS, 1);
	CUgraphExec exec = sums_in_graph(&r, p, 1);
	gpu_use(1 - r.gpu);
	CUstream stream = gpu_stream();
	gpu_use(r.gpu);
	CHECK_OK(ncclsvc_stream_set(r.session, stream, 0));
	for (int i = 0; i < 2; i++) {
		CHECK_RESULT(sum(&r, p), NCCLSVC_INVALID_ARGUMENT);
		if (!strstr(ncclsvc_last_error(), "the stream belongs to GPU"))
			check_failed(__FILE__, __LINE__, "\"%s\"", ncclsvc_last_error());
		CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
		graph_launch(exec, r.stream);
		CHECK_OK(sum(&r, p));
		CHECK_OK(ncclsvc_stream_set(r.session, stream, 0));
	}
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	gpu_check(p, 16, LARGE_WORDS, "sums on the communicator's GPU");
	graph_destroy(exec);
	CHECK_CU(cu.cuStreamDestroy(stream));
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_stranger(void)
{
	bare_run(stranger_rank, NULL);
}

static ncclsvc_comm *comm_alone(struct rank *r)
{
	ncclsvc_unique_id id;
	ncclsvc_comm *comm;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_OK(ncclsvc_comm_join_device(r->session, &id, 1, 0, r->gpu, WAIT_MS, &comm));
	return comm;
}

/* A copy from a refused group is not in the graph either. */
static void copy_rank(struct client *c)
{
	struct rank r;
	ncclsvc_redop scaled;
	const float half = .5f;
	rank_open(&r, c);
	ncclsvc_comm *alone = comm_alone(&r);
	CUdeviceptr from = words(SMALL, 7), to = words(SMALL, 1);
	CHECK_OK(ncclsvc_redop_create_premulsum(r.comm, &half, NCCLSVC_FLOAT32, &scaled));
	graph_begin(r.stream);
	CHECK_OK(ncclsvc_group_begin(r.session));
	CHECK_OK(ncclsvc_all_reduce(at(from), at(to), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM, alone,
				    NULL));
	CHECK_OK(ncclsvc_all_reduce(at(from), at(from), SMALL, NCCLSVC_FLOAT32, scaled, r.comm,
				    NULL));
	CHECK_RESULT(ncclsvc_group_end(r.session), NCCLSVC_UNSUPPORTED);
	CUgraphExec exec = graph_end(r.stream);
	graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	gpu_check(to, 1, SMALL, "what was refused");
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(from));
	CHECK_CU(cu.cuMemFree(to));
	CHECK_OK(ncclsvc_comm_leave(alone));
	rank_close(&r);
}

static void test_copy(void)
{
	bare_run(copy_rank, NULL);
}

/* A plan's tasks are refused while such a graph exists: in the daemon's queue, they could block
 * operations that their stream has not reached yet. */
static void planned_rank(struct client *c)
{
	struct rank r;
	ncclsvc_plan *plan;
	ncclsvc_task task;
	rank_open(&r, c);
	CUdeviceptr p = words(LARGE_WORDS, 1), in = words(LARGE_WORDS, 0);
	const int peer = 1 - r.rank;
	CHECK_OK(ncclsvc_plan_start(r.comm, &plan));
	CHECK_OK(ncclsvc_plan_group_start(plan));
	CHECK_OK(ncclsvc_plan_send(plan, LARGE_WORDS, NCCLSVC_UINT32, peer));
	CHECK_OK(ncclsvc_plan_recv(plan, LARGE_WORDS, NCCLSVC_UINT32, peer));
	CHECK_OK(ncclsvc_plan_group_end(plan));
	CHECK_OK(ncclsvc_plan_end(plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(plan));
	CUgraphExec exec = sums_in_graph(&r, p, 1);
	graph_launch(exec, r.stream);
	CHECK_RESULT(ncclsvc_plan_submit_send(plan, at(p), LARGE_WORDS, NCCLSVC_UINT32, peer, NULL),
		     NCCLSVC_UNSUPPORTED);
	CHECK(strstr(ncclsvc_last_error(), "another communicator"));
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	graph_destroy(exec);
	wait_for_no_graphs(&r);
	CHECK_OK(ncclsvc_plan_submit_send(plan, at(p), LARGE_WORDS, NCCLSVC_UINT32, peer, NULL));
	CHECK_OK(ncclsvc_plan_submit_recv(plan, at(in), LARGE_WORDS, NCCLSVC_UINT32, peer, &task));
	CHECK_OK(ncclsvc_stream_wait(r.session, r.stream, task));
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	gpu_check(in, 2, LARGE_WORDS, "what the plan sent");
	CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(in));
	rank_close(&r);
}

static void test_planned(void)
{
	bare_run(planned_rank, NULL);
}

/* ---- With kernels, too ---- */

/* A group whose large message goes to NCCL, and whose small one goes into a kernel. */
static void group_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	CUdeviceptr large = words(LARGE_WORDS, 1), small = words(LONG_WORDS, 1);
	CUgraphExec exec = sums_in_graph(&r, large, 1);
	graph_launch(exec, r.stream);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	for (int i = 0; i < 3; i++) {
		if (r.rank == 0) {
			CHECK_OK(ncclsvc_group_begin(r.session));
			kernels_send(&r, large, LARGE_WORDS, 1, NULL);
			kernels_recv(&r, small, LONG_WORDS, 1, NULL);
			CHECK_OK(ncclsvc_group_end(r.session));
		} else {
			kernels_send(&r, small, LONG_WORDS, 0, NULL);
			kernels_recv(&r, large, LARGE_WORDS, 0, NULL);
		}
		graph_launch(exec, r.stream);
	}
	CHECK(gpu_stream_ends(r.stream, STUCK_MS));
	gpu_check(large, 16, LARGE_WORDS, "the graph's sums");
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(large));
	CHECK_CU(cu.cuMemFree(small));
	rank_close(&r);
}

static void test_group(void)
{
	kernels_run(2, group_rank, NULL);
}

/* ---- Ends ---- */

/* A member leaves while its last operation ends: later launches end at once. */
static void leave_rank(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, c->rank);
	CUdeviceptr p = words(LARGE_WORDS, 1);
	for (int i = 0; i < 10; i++) {
		rank_join(&r);
		CUgraphExec exec = sums_in_graph(&r, p, 1);
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		sleep_ms(r.rank ? 30 : 0);
		graph_launch(exec, r.stream);
		stage("leaving, %d", i);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		stage("launching after leaving, %d", i);
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, STUCK_MS));
		graph_destroy(exec);
	}
	CHECK_CU(cu.cuMemFree(p));
	ncclsvc_close(r.session);
}

static void test_leave(void)
{
	bare_run(leave_rank, NULL);
}

static int count_ring_mappings(void)
{
	char line[512];
	int n = 0;
	FILE *f = fopen("/proc/self/maps", "re");
	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:ncclsvc-ring") != NULL;
	fclose(f);
	return n;
}

/* While the process has such a graph, its other sessions still leave nothing mapped. */
static void sessions_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	CUdeviceptr p = words(LARGE_WORDS, 1);
	CUgraphExec exec = sums_in_graph(&r, p, 1);
	const int before = count_ring_mappings();
	for (int i = 0; i < SESSIONS; i++) {
		struct rank other = r;
		ncclsvc_task task;
		other.session = session_open(c->daemon);
		ncclsvc_comm *alone = comm_alone(&other);
		CHECK_OK(ncclsvc_stream_set(other.session, r.stream, 0));
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM, alone,
					    &task));
		wait_for(other.session, task, NCCLSVC_OK);
		CHECK_OK(ncclsvc_comm_leave(alone));
		ncclsvc_close(other.session);
	}
	CHECK_EQ(count_ring_mappings(), before);
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_sessions(void)
{
	bare_run(sessions_rank, NULL);
}

const struct gpu_test graph_eager_tests[] = {
	{"graphs/eager/last", test_last, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/last_streams", test_last_streams, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/unwatched", test_unwatched, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/recapture", test_recapture, 2, 100, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/partial", test_partial, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/crowded", test_crowded, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/stranger", test_stranger, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/copy", test_copy, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/planned", test_planned, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/group", test_group, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/leave", test_leave, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/eager/sessions", test_sessions, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
