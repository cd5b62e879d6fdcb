/* SPDX-License-Identifier: Apache-2.0
 * Operations in CUDA graphs that NCCL runs in the workers. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graphs.h"

#define LAUNCHES   6
#define CHAIN	   5
#define TIMEOUT_MS (setup.fake ? 1500 : 300)
#define MS	   UINT64_C(1000000)
#define BLOCK	   ((size_t)1 << 20) /* words of a large message */

enum word { READY = 1, GO };

/* ---- Launches ---- */

struct buffers {
	struct rank r;
	CUdeviceptr small, large;
	uint32_t sums; /* factor of a sum: the number of ranks */
};

static void buffers_fill(const struct buffers *b)
{
	gpu_fill(b->small, 1, SMALL);
	gpu_fill(b->large, 1, LARGE_WORDS);
}

static void buffers_new(struct buffers *b)
{
	CHECK_CU(cu.cuMemAlloc(&b->small, SMALL * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&b->large, LARGE));
	buffers_fill(b);
}

static void buffers_open(struct buffers *b, struct client *c)
{
	*b = (struct buffers){0};
	rank_open(&b->r, c);
	b->sums = (uint32_t)b->r.n;
	buffers_new(b);
}

static void buffers_close(struct buffers *b)
{
	CHECK_OK(ncclsvc_stream_set(b->r.session, b->r.stream, 0));
	rank_sync(&b->r);
	CHECK_CU(cu.cuMemFree(b->small));
	CHECK_CU(cu.cuMemFree(b->large));
	rank_close(&b->r);
}

static void buffers_check(const struct buffers *b, uint32_t small, uint32_t large, const char *what)
{
	CHECK(gpu_stream_ends(b->r.stream, WAIT_MS));
	gpu_check(b->small, small, SMALL, what);
	gpu_check(b->large, large, LARGE_WORDS, what);
}

static void sum_large(struct buffers *b)
{
	CHECK_OK(ncclsvc_all_reduce(at(b->large), at(b->large), LARGE_WORDS, NCCLSVC_UINT32,
				    NCCLSVC_SUM, b->r.comm, NULL));
}

static void capture_sums(struct buffers *b, int small, int large)
{
	graph_begin(b->r.stream);
	for (; small; small--)
		graph_sum(&b->r, b->small, SMALL);
	for (; large; large--)
		sum_large(b);
}

static CUgraphExec capture(struct buffers *b, int small, int large)
{
	capture_sums(b, small, large);
	return graph_end(b->r.stream);
}

static CUgraph captured(struct buffers *b, int small, int large)
{
	capture_sums(b, small, large);
	return graph_captured(b->r.stream);
}

static void launches_rank(struct client *c)
{
	struct buffers b;
	uint32_t small = 1, large = 1;
	buffers_open(&b, c);
	stage("a graph of one sum");
	CUgraphExec one = capture(&b, 0, 1);
	buffers_check(&b, 1, 1, "what was captured has not run");
	for (int i = 0; i < LAUNCHES; i++, large *= b.sums)
		graph_launch(one, b.r.stream);
	buffers_check(&b, small, large, "sums of a graph");
	stage("single sums between launches");
	for (int i = 0; i < LAUNCHES; i++, large *= b.sums * b.sums) {
		sum_large(&b);
		graph_launch(one, b.r.stream);
	}
	buffers_check(&b, small, large, "sums of a graph, and others");
	stage("both transports in one graph");
	CUgraphExec both = capture(&b, 2, 1);
	CHECK_EQ(ncclsvc_comm_graphs(b.r.comm), 2);
	for (int i = 0; i < LAUNCHES; i++) {
		graph_launch(i % 3 ? both : one, b.r.stream);
		small *= i % 3 ? b.sums * b.sums : 1;
		large *= b.sums;
		if (i % 2)
			kernels_sum(&b.r, b.small, SMALL);
		small *= i % 2 ? b.sums : 1;
	}
	buffers_check(&b, small, large, "sums of both");
	graph_destroy(one);
	graph_destroy(both);
	stage("after the graphs");
	graphs_reach(&b.r, 0);
	sum_large(&b);
	buffers_check(&b, small, large * b.sums, "a sum after the graphs");
	rank_check_usable(&b.r);
	buffers_close(&b);
}

static void test_launches(void)
{
	kernels_run(ranks_count(), launches_rank, NULL);
}

/* Each operation is launched ahead, while the previous one runs or waits. */
static void chain_rank(struct client *c)
{
	struct buffers b;
	uint32_t large = 1;
	buffers_open(&b, c);
	CUgraphExec exec = capture(&b, 0, CHAIN);
	for (int i = 0; i < LAUNCHES; i++) {
		if (i % 2)
			gpu_stream_ends(b.r.stream, WAIT_MS);
		graph_launch(exec, b.r.stream);
		for (int k = 0; k < CHAIN; k++)
			large *= b.sums;
	}
	buffers_check(&b, 1, large, "a chain of sums");
	graph_destroy(exec);
	buffers_close(&b);
}

static void test_chain(void)
{
	kernels_run(ranks_count(), chain_rank, NULL);
}

/* As in JAX: an executable graph is updated from newer captures, which are destroyed. */
static void updates_rank(struct client *c)
{
	struct buffers b;
	uint32_t large = 1;
	buffers_open(&b, c);
	CUgraphExec exec = capture(&b, 0, 2);
	for (int i = 0; i < LAUNCHES; i++) {
		graph_begin(b.r.stream);
		sum_large(&b);
		sum_large(&b);
		graph_update(exec, b.r.stream);
		graph_launch(exec, b.r.stream);
		large *= b.sums * b.sums;
	}
	buffers_check(&b, 1, large, "sums of an updated graph");
	graph_destroy(exec);
	buffers_close(&b);
}

static void test_updates(void)
{
	kernels_run(ranks_count(), updates_rank, NULL);
}

/* As in JAX: a graph of child graphs. The first child is updated from newer captures with
 * alternating buffers, while launches are pending. */
static void children_rank(struct client *c)
{
	struct buffers b, other;
	uint32_t small[2] = {1, 1}, large[2] = {1, 1}; /* of b and of other */
	buffers_open(&b, c);
	other = b;
	buffers_new(&other);
	CUgraph graph = graph_new();
	CUgraphNode first = graph_add_child(graph, NULL, captured(&b, 1, 2));
	graph_add_child(graph, first, captured(&b, 1, 1));
	CUgraphExec exec = graph_instantiate(graph);
	for (int i = 0; i < LAUNCHES; i++) {
		graph_launch(exec, b.r.stream);
		small[i % 2] *= b.sums;
		large[i % 2] *= b.sums * b.sums;
		sum_large(&b);
		small[0] *= b.sums;
		large[0] *= b.sums * b.sums;
		graph_set_child(exec, first, captured(i % 2 ? &b : &other, 1, 2));
	}
	buffers_check(&b, small[0], large[0], "sums of children, and beside them");
	buffers_check(&other, small[1], large[1], "sums of newer children");
	graph_destroy(exec);
	CHECK_CU(cu.cuGraphDestroy(graph));
	graphs_reach(&b.r, 0);
	CHECK_CU(cu.cuMemFree(other.small));
	CHECK_CU(cu.cuMemFree(other.large));
	buffers_close(&b);
}

static void test_children(void)
{
	kernels_run(ranks_count(), children_rank, NULL);
}

/* ---- Groups, streams ---- */

static void exchange(struct buffers *b, CUdeviceptr from, CUdeviceptr to, size_t n)
{
	struct rank *r = &b->r;
	CHECK_OK(ncclsvc_group_begin(r->session));
	kernels_send(r, from, n, (r->rank + 1) % r->n, NULL);
	kernels_recv(r, to, n, (r->rank + r->n - 1) % r->n, NULL);
	CHECK_OK(ncclsvc_group_end(r->session));
}

static void groups_rank(struct client *c)
{
	struct buffers b;
	CUdeviceptr to;
	buffers_open(&b, c);
	struct rank *r = &b.r;
	const uint32_t before = (uint32_t)((r->rank + r->n - 1) % r->n);
	CHECK_CU(cu.cuMemAlloc(&to, BLOCK * sizeof(uint32_t)));
	gpu_fill(to, 0, BLOCK);
	gpu_fill(b.large, (uint32_t)r->rank, BLOCK);
	stage("a group of messages");
	graph_begin(r->stream);
	exchange(&b, b.large, to, BLOCK);
	CUgraphExec messages = graph_end(r->stream);
	for (int i = 0; i < LAUNCHES; i++) {
		graph_launch(messages, r->stream);
		if (i % 2)
			exchange(&b, b.large, to, BLOCK);
	}
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	gpu_check(to, before, BLOCK, "large messages");
	stage("a group of both transports");
	buffers_fill(&b);
	graph_begin(r->stream);
	CHECK_OK(ncclsvc_group_begin(r->session));
	sum_large(&b);
	CHECK_OK(ncclsvc_all_reduce(at(b.small), at(b.small), SMALL, NCCLSVC_UINT32, NCCLSVC_SUM,
				    r->comm, NULL));
	CHECK_OK(ncclsvc_group_end(r->session));
	CUgraphExec both = graph_end(r->stream);
	graph_launch(both, r->stream);
	graph_launch(messages, r->stream);
	graph_launch(both, r->stream);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	gpu_check(b.small, b.sums * b.sums, SMALL, "small sums of groups");
	gpu_check(b.large, b.sums * b.sums, LARGE_WORDS, "large sums of groups");
	graph_destroy(messages);
	graph_destroy(both);
	CHECK_CU(cu.cuMemFree(to));
	buffers_close(&b);
}

static void test_groups(void)
{
	kernels_run(ranks_count(), groups_rank, NULL);
}

/* Two executables, launched on two streams, and single operations between them, detached or on the
 * second stream. */
static void streams_rank(struct client *c)
{
	struct buffers b;
	uint32_t large = 1;
	ncclsvc_task task;
	buffers_open(&b, c);
	struct rank *r = &b.r;
	const CUstream other = gpu_stream();
	CUgraphExec first = capture(&b, 0, 1), second = capture(&b, 1, 1);
	stage("launches on two streams");
	for (int i = 0; i < LAUNCHES; i++, large *= b.sums * b.sums) {
		graph_launch(i % 2 ? first : second, i % 2 ? other : r->stream);
		CHECK_OK(ncclsvc_stream_set(r->session, i % 3 ? other : r->stream,
					    i % 3 ? 0 : NCCLSVC_STREAM_DETACHED));
		CHECK_OK(ncclsvc_all_reduce(at(b.large), at(b.large), LARGE_WORDS, NCCLSVC_UINT32,
					    NCCLSVC_SUM, r->comm, &task));
	}
	stage("waiting for a task beside graphs");
	rank_wait(r, task);
	CHECK(gpu_stream_ends(other, WAIT_MS));
	buffers_check(&b, b.sums * b.sums * b.sums, large, "sums on two streams");
	graph_destroy(first);
	graph_destroy(second);
	CHECK_CU(cu.cuStreamDestroy(other));
	buffers_close(&b);
}

static void test_streams(void)
{
	kernels_run(ranks_count(), streams_rank, NULL);
}

/* On a communicator of one rank, operations are copies. */
static void alone_rank(struct client *c)
{
	struct buffers b;
	ncclsvc_comm *alone;
	ncclsvc_unique_id id;
	buffers_open(&b, c);
	struct rank *r = &b.r;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	CHECK_OK(ncclsvc_comm_join_device(r->session, &id, 1, 0, r->gpu, WAIT_MS, &alone));
	gpu_fill(b.small, 7, SMALL);
	graph_begin(r->stream);
	CHECK_OK(ncclsvc_all_reduce(at(b.small), at(b.large), SMALL, NCCLSVC_UINT32, NCCLSVC_MAX,
				    alone, NULL));
	CHECK_OK(ncclsvc_barrier(alone, NULL));
	CHECK_RESULT(ncclsvc_send(at(b.small), SMALL, NCCLSVC_UINT32, 0, alone, NULL),
		     NCCLSVC_UNSUPPORTED);
	graph_sum(r, b.large, SMALL);
	CUgraphExec exec = graph_end(r->stream);
	graph_launch(exec, r->stream);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	gpu_check(b.large, 7 * b.sums, SMALL, "the sum of copies");
	graph_destroy(exec);
	CHECK_OK(ncclsvc_comm_leave(alone));
	buffers_close(&b);
}

static void test_alone(void)
{
	kernels_run(ranks_count(), alone_rank, NULL);
}

/* ---- Failures ---- */

/* A graph of an epoch that is over ends at once and does nothing. One captured in the new epoch
 * works. */
static void goes_on(struct buffers *b, CUgraphExec dead)
{
	kernels_rejoin(&b->r);
	stage("a graph of an epoch that is over");
	buffers_fill(b);
	const uint64_t begin = now_ns();
	graph_launch(dead, b->r.stream);
	graph_launch(dead, b->r.stream);
	buffers_check(b, 1, 1, "what a graph of an epoch that is over has not touched");
	CHECK(now_ns() - begin < limit_ms(1000) * MS);
	stage("capturing again");
	CUgraphExec exec = capture(b, 1, 1);
	graph_launch(exec, b->r.stream);
	buffers_check(b, b->sums, b->sums, "sums of a graph");
	graph_destroy(exec);
	rank_check_usable(&b->r);
}

/* The last rank does not launch the graph. */
static void absent_rank(struct client *c)
{
	struct buffers b;
	buffers_open(&b, c);
	CHECK_OK(ncclsvc_comm_set_timeout(b.r.comm, TIMEOUT_MS));
	CUgraphExec exec = capture(&b, 0, 1);
	CHECK_OK(ncclsvc_comm_set_timeout(b.r.comm, NCCLSVC_NO_TIMEOUT));
	graph_launch(exec, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	if (b.r.rank == b.r.n - 1) {
		CHECK_EQ(hear(c), GO);
	} else {
		graph_launch(exec, b.r.stream);
		CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
		say(c, READY);
	}
	kernels_over(&b.r, NCCLSVC_TIMEOUT);
	goes_on(&b, exec);
	graph_destroy(exec);
	buffers_close(&b);
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

/* The last rank's graph has a different count. */
static void different_rank(struct client *c)
{
	struct buffers b;
	buffers_open(&b, c);
	CUgraphExec good = capture(&b, 0, 1);
	graph_begin(b.r.stream);
	CHECK_OK(ncclsvc_all_reduce(at(b.large), at(b.large), LARGE_WORDS - (b.r.rank == b.r.n - 1),
				    NCCLSVC_UINT32, NCCLSVC_SUM, b.r.comm, NULL));
	CUgraphExec bad = graph_end(b.r.stream);
	graph_launch(good, b.r.stream);
	graph_launch(bad, b.r.stream);
	graph_launch(good, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	kernels_over(&b.r, NCCLSVC_MISMATCH);
	if (!strstr(ncclsvc_last_error(), "count"))
		check_failed(__FILE__, __LINE__, "\"%s\" does not name the field",
			     ncclsvc_last_error());
	goes_on(&b, good);
	graph_destroy(good);
	graph_destroy(bad);
	buffers_close(&b);
}

static void test_mismatch(void)
{
	kernels_run(ranks_count(), different_rank, NULL);
}

/* A waiting operation is listed with its graph and its position there. Cancelling it ends the
 * epoch. */
static void shown_rank(struct client *c)
{
	struct buffers b;
	ncclsvc_task_info *list;
	size_t n, found = 0;
	buffers_open(&b, c);
	CUgraphExec exec = capture(&b, 2, 1);
	graph_launch(exec, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	if (b.r.rank == b.r.n - 1) {
		say(c, READY);
		CHECK_EQ(hear(c), GO);
	} else {
		CUgraphExec large = capture(&b, 0, 1);
		graph_launch(large, b.r.stream);
		for (int i = 0; !found && i < WAIT_MS; i++) {
			usleep(1000);
			CHECK_OK(ncclsvc_list_tasks(b.r.session, &list, &n));
			for (size_t k = 0; k < n; k++)
				if (list[k].graph == 2 && list[k].rank == b.r.rank) {
					CHECK_EQ(list[k].op, NCCLSVC_ALL_REDUCE);
					CHECK_EQ(list[k].seq, 0);
					CHECK_EQ(list[k].count, LARGE_WORDS);
					found = list[k].task;
				}
			ncclsvc_list_free(list);
		}
		CHECK(found);
		say(c, READY);
		CHECK_EQ(hear(c), GO);
		CHECK_OK(ncclsvc_cancel_task(b.r.session, found, NULL));
		CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
		graph_destroy(large);
	}
	kernels_over(&b.r, NCCLSVC_CANCELLED);
	goes_on(&b, exec);
	graph_destroy(exec);
	buffers_close(&b);
}

static void test_shown(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, shown_rank, NULL);
	hear_all(ranks, 2, READY);
	say_all(ranks, 2, GO);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* The last rank is killed while the others' graphs wait for it. */
static void bereft_rank(struct client *c)
{
	struct buffers b;
	buffers_open(&b, c);
	CUgraphExec exec = capture(&b, 1, 2);
	graph_launch(exec, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (b.r.rank == b.r.n - 1) {
		say(c, READY);
		pause();
	}
	CUgraphExec large = capture(&b, 0, 1);
	graph_launch(large, b.r.stream);
	say(c, READY);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	kernels_over(&b.r, NCCLSVC_PEER_GONE);
	graph_launch(exec, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	graph_destroy(exec);
	graph_destroy(large);
	say(c, READY);
	pause();
}

static void test_killed(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, bereft_rank, NULL);
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	hear_all(ranks, n, READY);
	usleep(50000); /* until the launched operations wait */
	client_kill(&ranks[n - 1]);
	hear_all(ranks, n - 1, READY);
	for (int i = 0; i < n - 1; i++)
		client_kill(&ranks[i]);
	gpu_daemon_stop(&d);
}

/* The daemon is killed while a graph waits for another rank. */
static void orphan_rank(struct client *c)
{
	struct buffers b;
	buffers_open(&b, c);
	CUgraphExec exec = capture(&b, 1, 1);
	graph_launch(exec, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	CUgraphExec large = capture(&b, 0, 1);
	if (b.r.rank != b.r.n - 1)
		graph_launch(large, b.r.stream);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	graph_launch(large, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	ncclsvc_close(b.r.session);
	stage("launching after the session has closed");
	graph_launch(exec, b.r.stream);
	graph_launch(large, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	graph_destroy(exec);
	graph_destroy(large);
}

static void test_daemon(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, orphan_rank, NULL);
	hear_all(ranks, n, READY);
	usleep(50000);
	daemon_kill(&d);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
}

/* The communicator is destroyed while its graphs exist. */
static void leaves_rank(struct client *c)
{
	struct buffers b;
	buffers_open(&b, c);
	CUgraphExec exec = capture(&b, 1, 1);
	graph_launch(exec, b.r.stream);
	buffers_check(&b, b.sums, b.sums, "sums of a graph");
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CHECK_OK(ncclsvc_comm_leave(b.r.comm));
	graph_launch(exec, b.r.stream);
	buffers_check(&b, b.sums, b.sums, "what a graph has not touched");
	graph_destroy(exec);
	CHECK_CU(cu.cuMemFree(b.small));
	CHECK_CU(cu.cuMemFree(b.large));
	ncclsvc_close(b.r.session);
}

static void test_leaves(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	kernels_daemon_start(&d);
	clients_start(ranks, n, &d, leaves_rank, NULL);
	hear_all(ranks, n, READY);
	say_all(ranks, n, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* The last rank aborts operations that wait for the others: one in a graph, then one outside. */
static void aborting_rank(struct client *c)
{
	struct buffers b;
	ncclsvc_task task = 0;
	buffers_open(&b, c);
	const bool last = b.r.rank == b.r.n - 1;
	CUgraphExec exec = capture(&b, 0, 1);
	stage("aborting a launch");
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (last) {
		graph_launch(exec, b.r.stream);
		ncclsvc_comm_abort(b.r.comm);
		CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	}
	kernels_over(&b.r, NCCLSVC_PEER_GONE);
	goes_on(&b, exec);
	graph_destroy(exec);
	graphs_reach(&b.r, 0);
	stage("aborting an operation");
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (last) {
		CHECK_OK(ncclsvc_all_reduce(at(b.large), at(b.large), LARGE_WORDS, NCCLSVC_UINT32,
					    NCCLSVC_SUM, b.r.comm, &task));
		ncclsvc_comm_abort(b.r.comm);
		CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
		wait_for(b.r.session, task, NCCLSVC_CANCELLED);
	} else {
		kernels_over(&b.r, NCCLSVC_PEER_GONE);
	}
	kernels_rejoin(&b.r);
	buffers_close(&b);
}

static void run_abort(struct daemon *d)
{
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	clients_start(ranks, n, d, aborting_rank, NULL);
	for (int i = 0; i < 2; i++) {
		hear_all(ranks, n, READY);
		say_all(ranks, n, GO);
	}
	ranks_end(ranks, n);
	gpu_daemon_stop(d);
}

static void test_abort(void)
{
	struct daemon d;
	kernels_daemon_start(&d);
	run_abort(&d);
}

/* ---- Without kernels ---- */

/* Runs ranks without kernels, on several nodes if --nodes is given. */
static void run_bare(client_main *main)
{
	setenv("NCCLSVC_PEER", "0", 1);
	ranks_run(ranks_count(), main, NULL);
}

static void test_bare_launches(void)
{
	run_bare(launches_rank);
}

static void test_bare_chain(void)
{
	run_bare(chain_rank);
}

static void test_bare_children(void)
{
	run_bare(children_rank);
}

static void test_bare_streams(void)
{
	run_bare(streams_rank);
}

static void test_bare_abort(void)
{
	struct daemon d;
	setenv("NCCLSVC_PEER", "0", 1);
	gpu_daemon_start(&d);
	run_abort(&d);
}

#define EPOCHS 70 /* more than a session has timelines */

/* A graph on each of many communicators; the oldest one is destroyed last. */
static void epochs_rank(struct client *c)
{
	struct buffers b;
	buffers_open(&b, c);
	struct rank o = b.r;
	CUgraphExec oldest = NULL;
	for (int i = 0; i < EPOCHS; i++) {
		ncclsvc_unique_id id = c->id;
		stage("communicator %d", i);
		id.bytes[4] ^= (char)(i + 1);
		CHECK_OK(ncclsvc_comm_join_device(o.session, &id, o.n, o.rank, o.gpu, WAIT_MS,
						  &o.comm));
		gpu_fill(b.small, 1, SMALL);
		graph_begin(o.stream);
		graph_sum(&o, b.small, SMALL);
		CUgraphExec exec = graph_end(o.stream);
		graph_launch(exec, o.stream);
		rank_wait(&o, kernels_sum(&o, b.small, SMALL));
		gpu_check(b.small, b.sums * b.sums, SMALL, "sums of a graph and another");
		if (i)
			graph_destroy(exec);
		else
			oldest = exec;
		CHECK_OK(ncclsvc_comm_leave(o.comm));
		graph_launch(oldest, o.stream); /* does nothing: its communicator is gone */
	}
	buffers_check(&b, b.sums * b.sums, 1, "what the oldest graph has not touched");
	graph_destroy(oldest);
	rank_check_usable(&b.r);
	buffers_close(&b);
}

static void test_bare_epochs(void)
{
	run_bare(epochs_rank);
}

static int rings_mapped(void)
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

/* Captures and launches a graph in a separate session, and closes the session. */
static CUgraphExec visit(struct rank *r, CUdeviceptr p, int visit, bool keeps)
{
	struct rank o = *r;
	ncclsvc_unique_id id = r->c->id;
	stage("session %d", visit);
	id.bytes[4] ^= (char)(visit + 1);
	o.session = session_open(r->c->daemon);
	CHECK_OK(ncclsvc_comm_join_device(o.session, &id, o.n, o.rank, o.gpu, WAIT_MS, &o.comm));
	CHECK_OK(ncclsvc_stream_set(o.session, o.stream, 0));
	graph_begin(o.stream);
	graph_sum(&o, p, SMALL);
	CUgraphExec exec = graph_end(o.stream);
	graph_launch(exec, o.stream);
	CHECK(gpu_stream_ends(o.stream, WAIT_MS));
	if (!keeps)
		graph_destroy(exec);
	ncclsvc_close(o.session);
	return exec;
}

/* Waits until n rings are mapped: what graphs held is freed by a JOIN after they are gone. */
static void rings_become(struct rank *r, int n)
{
	ncclsvc_comm *alone;
	ncclsvc_unique_id id;
	const uint64_t end = now_ns() + WAIT_MS * MS;
	while (rings_mapped() != n) {
		CHECK(now_ns() < end);
		CHECK_OK(ncclsvc_unique_id_create(&id));
		CHECK_OK(ncclsvc_comm_join_device(r->session, &id, 1, 0, r->gpu, WAIT_MS, &alone));
		CHECK_OK(ncclsvc_comm_leave(alone));
		sleep_ms(1);
	}
}

/* A session's memory shared with the daemon is unmapped with the session, or with its last
 * graph. */
static void visiting_rank(struct client *c)
{
	struct buffers b;
	buffers_open(&b, c);
	CUgraphExec exec = capture(&b, 0, 1);
	const int before = rings_mapped();
	for (int i = 0; i < 3; i++)
		visit(&b.r, b.small, i, false);
	rings_become(&b.r, before);
	CUgraphExec kept = visit(&b.r, b.small, 3, true);
	CHECK(rings_mapped() > before);
	graph_launch(kept, b.r.stream); /* does nothing: its session is closed */
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	graph_destroy(kept);
	rings_become(&b.r, before);
	graph_destroy(exec);
	buffers_close(&b);
}

static void test_bare_sessions(void)
{
	run_bare(visiting_rank);
}

static void test_bare_mismatch(void)
{
	run_bare(different_rank);
}

/* The last rank leaves while its own graph waits for the others: they learn which rank it was. */
static void departs_rank(struct client *c)
{
	struct buffers b;
	char rank[40];
	buffers_open(&b, c);
	const int last = b.r.n - 1;
	CUgraphExec exec = capture(&b, 0, 1);
	graph_launch(exec, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	if (b.r.rank == last) {
		say(c, (uint64_t)getpid());
		CHECK_EQ(hear(c), GO);
		graph_launch(exec, b.r.stream);
		sleep_ms(50); /* until it waits */
		CHECK_OK(ncclsvc_comm_leave(b.r.comm));
		CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
		say(c, READY);
		pause();
	}
	snprintf(rank, sizeof(rank), "rank %d (pid %d)", last, (int)hear(c));
	graph_launch(exec, b.r.stream);
	CHECK(gpu_stream_ends(b.r.stream, WAIT_MS));
	kernels_over(&b.r, NCCLSVC_PEER_GONE);
	if (!strstr(ncclsvc_last_error(), rank))
		check_failed(__FILE__, __LINE__, "\"%s\" does not name %s", ncclsvc_last_error(),
			     rank);
	graph_destroy(exec);
	say(c, READY);
	pause();
}

static void test_bare_departs(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	setenv("NCCLSVC_PEER", "0", 1);
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, departs_rank, NULL);
	const uint64_t pid = hear(&ranks[n - 1]);
	say(&ranks[n - 1], GO);
	CHECK_EQ(hear(&ranks[n - 1]), READY);
	say_all(ranks, n - 1, pid);
	hear_all(ranks, n - 1, READY);
	for (int i = 0; i < n; i++)
		client_kill(&ranks[i]);
	gpu_daemon_stop(&d);
}

const struct gpu_test graph_nccl_tests[] = {
	{"graphs/large/launches", test_launches, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/launches/4", test_launches, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/groups", test_groups, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/groups/4", test_groups, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/streams", test_streams, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/chain", test_chain, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/chain/4", test_chain, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/updates", test_updates, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/children", test_children, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/shown", test_shown, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/alone", test_alone, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/timeout", test_timeout, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/mismatch", test_mismatch, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/mismatch/4", test_mismatch, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/killed", test_killed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/killed/4", test_killed, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/abort", test_abort, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/daemon", test_daemon, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/bare/launches", test_bare_launches, 2, 60, TEST_QUICK},
	{"graphs/bare/chain", test_bare_chain, 2, 60, TEST_QUICK},
	{"graphs/bare/children", test_bare_children, 2, 60, TEST_QUICK},
	{"graphs/bare/streams", test_bare_streams, 2, 60, TEST_QUICK},
	{"graphs/bare/abort", test_bare_abort, 2, 60, TEST_QUICK},
	{"graphs/bare/epochs", test_bare_epochs, 2, 60, TEST_QUICK},
	{"graphs/bare/sessions", test_bare_sessions, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/bare/mismatch", test_bare_mismatch, 2, 60, TEST_QUICK},
	{"graphs/bare/departs", test_bare_departs, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/large/leaves", test_leaves, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
