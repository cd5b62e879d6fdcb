/* SPDX-License-Identifier: Apache-2.0
 * Suspended communicators: they free their GPU memory and reallocate it at the same addresses, also
 * if the process is checkpointed or the daemon restarts in between. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints.h"
#include "graphs.h"
#include "meeting.h"
#include "watch.h"

#define MIB	    ((size_t)1 << 20)
#define ROUNDS	    3
#define SHORT_MS    200
#define SMALL_BYTES (SMALL * sizeof(uint32_t))

enum word { READY = 1, GO };

struct work {
	struct meeting m;
	CUdeviceptr small;
	struct buffer large, vmm; /* PART bytes, from cuMemAlloc and cuMemCreate */
	CUdeviceptr received;
	CUgraphExec graph; /* sums `small` and `vmm`; NULL: there is none */
};

static void captured(struct work *w)
{
	struct rank *r = &w->m.r;
	graph_begin(r->stream);
	graph_sum(r, w->small, SMALL);
	graph_sum(r, w->vmm.p, PART_WORDS);
	w->graph = graph_end(r->stream);
}

static void work_open(struct work *w, struct client *c)
{
	struct rank *r = &w->m.r;
	meeting_open(&w->m, c);
	CHECK_CU(cu.cuMemAlloc(&w->small, SMALL_BYTES));
	CHECK_CU(cu.cuMemAlloc(&w->received, PART));
	buffer_make(&w->large, MEMORY_ALLOC, r->gpu, r->session, PART);
	buffer_make(&w->vmm, MEMORY_VMM, r->gpu, r->session, PART);
	captured(w);
}

static void work_close(struct work *w)
{
	if (w->graph)
		graph_destroy(w->graph);
	buffer_free(&w->large);
	buffer_free(&w->vmm);
	CHECK_CU(cu.cuMemFree(w->small));
	CHECK_CU(cu.cuMemFree(w->received));
	meeting_close(&w->m);
}

static void launched(struct work *w, uint32_t value)
{
	struct rank *r = &w->m.r;
	const uint32_t n = (uint32_t)r->n, sum = n * value + n * (n - 1) / 2;
	gpu_fill(w->small, value + (uint32_t)r->rank, SMALL);
	gpu_fill(w->vmm.p, value + (uint32_t)r->rank, PART_WORDS);
	graph_launch(w->graph, r->stream);
	rank_sync(r);
	gpu_check(w->small, sum, SMALL, "the graph's small sum");
	gpu_check(w->vmm.p, sum, PART_WORDS, "the graph's large sum");
}

/* alloc_direct: whether cuMemAlloc memory can be shared; after a checkpoint it cannot. */
static void work_do(struct work *w, uint32_t value, bool alloc_direct)
{
	struct meeting *m = &w->m;
	struct rank *r = &m->r;
	meeting_sum(m, w->vmm.p);
	if (alloc_direct)
		meeting_sum(m, w->large.p);
	const uint64_t staged = kernels_staged(r);
	meeting_wait(m);
	if (w->graph)
		launched(w, value);
	meeting_wait(m);
	CHECK_EQ(kernels_staged(r), staged);
	meeting_pass(m, w->large.p, w->received);
	const uint32_t n = (uint32_t)r->n;
	gpu_fill(w->large.p, value + (uint32_t)r->rank, PART_WORDS);
	kernels_sum(r, w->large.p, PART_WORDS);
	gpu_fill(w->small, value + (uint32_t)r->rank, SMALL);
	kernels_sum(r, w->small, SMALL);
	meeting_wait(m);
	gpu_check(w->small, n * value + n * (n - 1) / 2, SMALL, "the small sum");
	gpu_check(w->large.p, n * value + n * (n - 1) / 2, PART_WORDS, "the large sum");
}

static void refused(struct work *w)
{
	struct rank *r = &w->m.r;
	ncclsvc_comm *none;
	CHECK_RESULT(ncclsvc_all_reduce(at(w->small), at(w->small), SMALL, NCCLSVC_UINT32,
					NCCLSVC_SUM, r->comm, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	CHECK(strstr(ncclsvc_last_error(), "ncclsvc_comm_resume"));
	CHECK_RESULT(ncclsvc_comm_split(r->comm, 0, 0, WAIT_MS, &none), NCCLSVC_INVALID_ARGUMENT);
	CHECK_OK(ncclsvc_comm_error(r->comm));
}

static void suspended(struct work *w)
{
	CHECK_OK(ncclsvc_comm_suspend(w->m.r.comm, WAIT_MS));
	CHECK_OK(ncclsvc_comm_suspend(w->m.r.comm, WAIT_MS));
	refused(w);
	meeting_reach(&w->m);
}

static void resumed(struct work *w)
{
	CHECK_OK(ncclsvc_comm_resume(w->m.r.comm, WAIT_MS));
	CHECK_OK(ncclsvc_comm_resume(w->m.r.comm, WAIT_MS));
}

/* ---- Memory that is freed ---- */

static void work_rank(struct client *c)
{
	struct work w;
	work_open(&w, c);
	const uint64_t bytes = ncclsvc_comm_gpu_bytes(w.m.r.comm);
	CHECK(bytes >= MIB);
	work_do(&w, 1, true);
	const int fds = open_fds(getpid());
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		stage("round %u", round);
		work_do(&w, 10 * round, true);
		const size_t before = gpu_unused_memory();
		meeting_reach(&w.m);
		suspended(&w);
		CHECK(gpu_has_unused(before + bytes, WAIT_MS));
		meeting_reach(&w.m);
		CHECK_EQ(ncclsvc_comm_gpu_bytes(w.m.r.comm), bytes);
		resumed(&w);
		resumed(&w);
	}
	work_do(&w, 1, true);
	CHECK_EQ(open_fds(getpid()), fds);
	work_close(&w);
}

static void test_work(void)
{
	kernels_run(ranks_count(), work_rank, NULL);
}

static void test_shared(void)
{
	setup.per_gpu = 2;
	ranks_run(2, work_rank, NULL);
}

/* ---- Checkpoints ---- */

/* The first round checkpoints rank 0 only; later rounds checkpoint all ranks. */
static void checkpoint_rank(struct client *c)
{
	struct work w;
	work_open(&w, c);
	checkpoints_needed();
	work_do(&w, 5, true);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		stage("round %u", round);
		const bool leaves = !c->rank || round > 1;
		suspended(&w);
		if (leaves) {
			checkpoint_leave();
			checkpoint_return();
		}
		if (leaves && w.graph) {
			CHECK_RESULT(ncclsvc_comm_resume(w.m.r.comm, WAIT_MS), NCCLSVC_UNSUPPORTED);
			CHECK(strstr(ncclsvc_last_error(), "capture them again"));
			graph_destroy(w.graph);
			w.graph = NULL;
			graphs_reach(&w.m.r, 0);
		}
		resumed(&w);
		meeting_reach(&w.m);
		if (leaves && !w.graph && round > 1)
			captured(&w);
		if (round > 1) {
			work_do(&w, 7 * round, false);
			graph_destroy(w.graph);
			w.graph = NULL;
			graphs_reach(&w.m.r, 0);
		}
	}
	work_close(&w);
}

static void test_checkpoint(void)
{
	kernels_run(ranks_count(), checkpoint_rank, NULL);
}

/* With driver 580 on an H200, kernels of two restored processes that wait for each other on one GPU
 * hang until Xid 109 (context switch timeout). */
static void test_checkpoint_shared(void)
{
	if (!setup.fake)
		skip_test("after a restore, the GPU does not switch between waiting kernels");
	setup.per_gpu = 2;
	ranks_run(2, checkpoint_rank, NULL);
}

/* ---- Ranks that are late, leave or die ---- */

static void late_rank(struct client *c)
{
	struct work w;
	work_open(&w, c);
	work_do(&w, 5, true);
	for (int k = 0; k < 2; k++) {
		if (!c->rank) {
			CHECK_RESULT(ncclsvc_comm_suspend(w.m.r.comm, SHORT_MS), NCCLSVC_TIMEOUT);
			CHECK(strstr(ncclsvc_last_error(), "rank 1 (pid "));
			CHECK(strstr(ncclsvc_last_error(), "ncclsvc_comm_suspend"));
			refused(&w);
			CHECK_RESULT(ncclsvc_comm_resume(w.m.r.comm, SHORT_MS), NCCLSVC_TIMEOUT);
		}
		meeting_reach(&w.m);
		if (k || c->rank)
			CHECK_OK(ncclsvc_comm_suspend(w.m.r.comm, WAIT_MS));
		if (k)
			meeting_reach(&w.m);
		if (!c->rank && k) {
			CHECK_RESULT(ncclsvc_comm_resume(w.m.r.comm, SHORT_MS), NCCLSVC_TIMEOUT);
			CHECK(strstr(ncclsvc_last_error(), "ncclsvc_comm_resume"));
			CHECK_RESULT(ncclsvc_comm_suspend(w.m.r.comm, SHORT_MS),
				     NCCLSVC_INVALID_ARGUMENT);
		}
		if (k)
			meeting_reach(&w.m);
		resumed(&w);
		work_do(&w, 6, true);
	}
	work_close(&w);
}

static void test_late(void)
{
	kernels_run(2, late_rank, NULL);
}

/* Rank 1 leaves while rank 0 waits in suspend; before that, a second thread of rank 0 gets BUSY. */
static void *suspend_late(void *work)
{
	struct work *w = work;
	while (ncclsvc_comm_suspend(w->m.r.comm, 0) != NCCLSVC_BUSY)
		sleep_ms(1);
	CHECK_RESULT(ncclsvc_comm_resume(w->m.r.comm, 0), NCCLSVC_BUSY);
	meeting_reach(&w->m);
	return NULL;
}

static void alone_rank(struct client *c)
{
	struct work w;
	pthread_t thread;
	work_open(&w, c);
	work_do(&w, 5, true);
	if (!c->rank) {
		CHECK(!pthread_create(&thread, NULL, suspend_late, &w));
		ncclsvc_result r;
		while ((r = ncclsvc_comm_suspend(w.m.r.comm, WAIT_MS)) == NCCLSVC_BUSY)
			; /* the thread is inside */
		CHECK_EQ(r, NCCLSVC_PEER_GONE);
		CHECK(strstr(ncclsvc_last_error(), "has left"));
		CHECK(!pthread_join(thread, NULL));
	} else {
		meeting_reach(&w.m);
	}
	CHECK_OK(ncclsvc_comm_leave(w.m.r.comm));
	meeting_reach(&w.m);
	ncclsvc_close(w.m.r.session);
}

static void test_alone(void)
{
	kernels_run(2, alone_rank, NULL);
}

/* Another thread aborts the communicator while this one waits. */
static void *abort_soon(void *comm)
{
	sleep_ms(SHORT_MS);
	ncclsvc_comm_abort(comm);
	return NULL;
}

static void aborted_rank(struct client *c)
{
	struct work w;
	pthread_t thread;
	work_open(&w, c);
	work_do(&w, 5, true);
	if (!c->rank) {
		CHECK(!pthread_create(&thread, NULL, abort_soon, w.m.r.comm));
		const ncclsvc_result r = ncclsvc_comm_suspend(w.m.r.comm, WAIT_MS);
		CHECK(r == NCCLSVC_CANCELLED || r == NCCLSVC_PEER_GONE);
		CHECK(!pthread_join(thread, NULL));
	}
	meeting_reach(&w.m);
	CHECK_OK(ncclsvc_comm_leave(w.m.r.comm));
	ncclsvc_close(w.m.r.session);
}

static void test_aborted(void)
{
	kernels_run(2, aborted_rank, NULL);
}

/* Rank 0 leaves while it is suspended; its graph then does nothing. */
static void leaves_rank(struct client *c)
{
	struct work w;
	struct rank *r = &w.m.r;
	work_open(&w, c);
	work_do(&w, 5, true);
	suspended(&w);
	if (!c->rank) {
		CHECK_OK(ncclsvc_comm_leave(r->comm));
		graph_launch(w.graph, r->stream);
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	}
	meeting_reach(&w.m);
	if (c->rank) {
		CHECK(ncclsvc_comm_resume(r->comm, SHORT_MS));
		CHECK_OK(ncclsvc_comm_leave(r->comm));
	}
	meeting_reach(&w.m);
	rank_join(r);
	graph_destroy(w.graph);
	captured(&w);
	work_do(&w, 6, true);
	work_close(&w);
}

static void test_leaves(void)
{
	kernels_run(2, leaves_rank, NULL);
}

static void dies_rank(struct client *c)
{
	struct work w;
	work_open(&w, c);
	work_do(&w, 5, true);
	suspended(&w);
	say(c, READY);
	if (hear(c) != GO || c->rank)
		sleep_ms(10 * WAIT_MS); /* until it is killed */
	kernels_may_end(&w.m.r, NCCLSVC_PEER_GONE);
	CHECK_RESULT(ncclsvc_comm_resume(w.m.r.comm, WAIT_MS), NCCLSVC_PEER_GONE);
	CHECK(strstr(ncclsvc_last_error(), "rank 1"));
	CHECK_RESULT(ncclsvc_comm_suspend(w.m.r.comm, WAIT_MS), NCCLSVC_PEER_GONE);
	CHECK_OK(ncclsvc_comm_leave(w.m.r.comm));
	ncclsvc_close(w.m.r.session);
}

static void test_dies(void)
{
	struct daemon d;
	struct client ranks[2];
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, dies_rank, NULL);
	hear_all(ranks, 2, READY);
	client_kill(&ranks[1]);
	say(&ranks[0], GO);
	ranks_end(ranks, 1);
	gpu_daemon_stop(&d);
}

/* ---- Restarts of the daemon ---- */

static void restarted_rank(struct client *c)
{
	struct work w;
	work_open(&w, c);
	for (uint32_t round = 1; round <= ROUNDS + 1; round++) {
		stage("round %u", round);
		work_do(&w, 10 * round, true);
		if (round == 1) /* the daemon restarts while rank 0 waits */
			say(c, READY);
		if (round > 1 || !c->rank)
			CHECK_OK(ncclsvc_comm_suspend(w.m.r.comm, WAIT_MS));
		if (round == 1)
			CHECK_EQ(hear(c), GO);
		if (round == 1 && c->rank)
			CHECK_OK(ncclsvc_comm_suspend(w.m.r.comm, WAIT_MS));
		if (round == 2) { /* while both are suspended */
			say(c, READY);
			CHECK_EQ(hear(c), GO);
		}
		if (round == 3) /* while rank 0 waits in resume for rank 1 */
			say(c, READY);
		if (round == 3 && c->rank)
			CHECK_EQ(hear(c), GO);
		resumed(&w);
		if (round == 3 && !c->rank)
			CHECK_EQ(hear(c), GO);
	}
	work_close(&w);
}

static void test_restarted(void)
{
	struct daemon d;
	struct client ranks[2];
	setenv("NCCLSVC_REATTACH_MS", "20000", 1);
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, restarted_rank, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		hear_all(ranks, 2, READY);
		sleep_ms(SHORT_MS); /* rank 0 waits */
		if (i % 2)
			daemon_terminate(&d);
		else
			daemon_kill(&d);
		daemon_restart(&d, "--device", "cuda", "--log-level", "debug", NULL);
		sleep_ms(i ? 0 : SHORT_MS);
		say_all(ranks, 2, GO);
	}
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- On NCCL ---- */

/* The worker's NCCL communicator is destroyed, and created again. */
static void nccl_rank(struct client *c)
{
	struct rank r;
	setenv("NCCLSVC_PEER", "0", 1);
	rank_open(&r, c);
	ncclsvc_comm *host = meeting_join(c, r.session);
	CHECK_EQ(ncclsvc_comm_gpu_bytes(r.comm), 0);
	for (int round = 0; round < ROUNDS; round++) {
		ncclsvc_task task;
		rank_check_usable(&r);
		CHECK(device_info(r.session, r.gpu).nccl_comms);
		CHECK_OK(ncclsvc_barrier(host, &task));
		rank_wait(&r, task);
		CHECK_OK(ncclsvc_comm_suspend(r.comm, WAIT_MS));
		const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
		for (; device_info(r.session, r.gpu).nccl_comms; sleep_ms(1))
			CHECK(now_ns() < end);
		CHECK_OK(ncclsvc_barrier(host, &task));
		rank_wait(&r, task);
		CHECK_OK(ncclsvc_comm_resume(r.comm, WAIT_MS));
	}
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_nccl(void)
{
	ranks_run(ranks_count(), nccl_rank, NULL);
}

/* On one node or several, and without NCCL. */
static void anywhere_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	for (int round = 0; round < ROUNDS; round++) {
		rank_check_usable(&r);
		CHECK_OK(ncclsvc_comm_suspend(r.comm, WAIT_MS));
		CHECK_OK(ncclsvc_comm_resume(r.comm, WAIT_MS));
	}
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_anywhere(void)
{
	ranks_run(ranks_count(), anywhere_rank, NULL);
}

static void test_staged(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	const int n = ranks_count();
	setenv("NCCLSVC_PEER", "0", 1);
	daemon_start(&d, "--device", "cuda", "--transport", "mpi", NULL);
	watch_daemon(&d);
	clients_start(ranks, n, &d, anywhere_rank, NULL);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

static void refusals_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	ncclsvc_comm *host = meeting_join(c, r.session);
	CHECK_RESULT(ncclsvc_comm_suspend(NULL, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_comm_resume(NULL, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_EQ(ncclsvc_comm_gpu_bytes(NULL), 0);
	CHECK_EQ(ncclsvc_comm_gpu_bytes(host), 0);
	CHECK_OK(ncclsvc_comm_suspend(host, 0));
	CHECK_OK(ncclsvc_barrier(host, NULL));
	CHECK_OK(ncclsvc_comm_resume(host, 0));
	rank_sync(&r);
	CHECK_OK(ncclsvc_comm_leave(host));
	rank_close(&r);
}

static void test_refusals(void)
{
	ranks_run(ranks_count(), refusals_rank, NULL);
}

const struct gpu_test suspend_tests[] = {
	{"suspend/work", test_work, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/shared_gpu", test_shared, 1, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/checkpoint", test_checkpoint, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/checkpoint/shared_gpu", test_checkpoint_shared, 1, 60,
	 TEST_QUICK | TEST_ONE_NODE},
	{"suspend/late", test_late, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/alone", test_alone, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/aborted", test_aborted, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/anywhere", test_anywhere, 1, 60, TEST_QUICK},
	{"suspend/staged", test_staged, 1, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/leaves", test_leaves, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/dies", test_dies, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/restarted", test_restarted, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/nccl", test_nccl, 1, 60, TEST_QUICK | TEST_ONE_NODE},
	{"suspend/refusals", test_refusals, 1, 60, TEST_QUICK},
	{0},
};
