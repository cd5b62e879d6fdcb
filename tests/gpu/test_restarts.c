/* SPDX-License-Identifier: Apache-2.0
 * Sessions on GPUs survive a restart of their daemon, in good order or by SIGKILL: kernels run on,
 * workers finish what they have, and the next daemon continues the communicators. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dropin_calls.h"
#include "graphs.h"
#include "meeting.h"
#include "ncclsvc_plan.h"

#define LARGE_BYTES ((size_t)2 << 20)
#define WORDS	    (LARGE_BYTES / sizeof(uint32_t))
#define HUGE	    (LARGE / sizeof(uint32_t)) /* words, too many for kernels */
#define WITHIN	    5000		       /* ms */
#define PROGRESS    5			       /* iterations of each rank between two restarts */

enum word { READY = 1, GO };

/* Shared by the test and its ranks. */
static struct {
	_Atomic int stop;
	_Atomic unsigned iterations[RANKS_MAX];
} * shared_state;

static void share_state(void)
{
	shared_state = mmap(NULL, sizeof(*shared_state), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared_state != MAP_FAILED);
	setenv("NCCLSVC_REATTACH_MS", "20000", 1);
}

struct work {
	struct meeting m;
	struct rank part; /* of the ranks in reverse order */
	CUdeviceptr small, large, sent, received;
	CUgraphExec graph;
	CUdeviceptr huge; /* 0: kernels do everything */
	CUgraphExec huge_graph;
};

static uint32_t sum_of(const struct rank *r, uint32_t round)
{
	return (uint32_t)r->n * round + (uint32_t)(r->n * (r->n + 1) / 2);
}

static void fill(const struct rank *r, CUdeviceptr p, uint32_t round, size_t words)
{
	gpu_fill(p, round + (uint32_t)r->rank + 1, words);
}

/* The same sums, submitted, and launched in a graph. */
static void sums(struct work *w, uint32_t round)
{
	struct rank *r = &w->m.r;
	fill(r, w->small, round, SMALL);
	fill(r, w->large, round, WORDS);
	if (round % 2) {
		graph_launch(w->graph, r->stream);
	} else {
		kernels_sum(r, w->small, SMALL);
		kernels_sum(r, w->large, WORDS);
	}
	rank_sync(r);
	gpu_check(w->small, sum_of(r, round), SMALL, "the small sum");
	gpu_check(w->large, sum_of(r, round), WORDS, "the large sum");
}

/* Memory that is allocated, shared and freed in each iteration. */
static void fresh_memory(struct work *w, uint32_t round)
{
	struct buffer b;
	struct rank *r = &w->m.r;
	buffer_make(&b, round % 4 < 2 ? MEMORY_ALLOC : MEMORY_VMM, r->gpu, r->session, LARGE_BYTES);
	fill(r, b.p, round, WORDS);
	kernels_sum(r, b.p, WORDS);
	rank_sync(r);
	gpu_check(b.p, sum_of(r, round), WORDS, "the sum in new memory");
	const ncclsvc_result result = ncclsvc_mem_forget(r->session, at(b.p), WITHIN);
	CHECK(!result || result == NCCLSVC_TIMEOUT);
	buffer_free(&b);
}

static void messages(struct work *w, uint32_t round)
{
	struct rank *r = &w->m.r;
	const int next = (r->rank + 1) % r->n, previous = (r->rank + r->n - 1) % r->n;
	const size_t words = round % 2 ? SMALL : WORDS;
	fill(r, w->sent, round, words);
	CHECK_OK(ncclsvc_group_begin(r->session));
	kernels_send(r, w->sent, words, next, NULL);
	kernels_recv(r, w->received, words, previous, NULL);
	CHECK_OK(ncclsvc_group_end(r->session));
	rank_sync(r);
	gpu_check(w->received, round + (uint32_t)previous + 1, words, "the message");
}

static bool agree_to_stop(struct work *w)
{
	uint32_t stop = (uint32_t)shared_state->stop;
	struct rank *r = &w->m.r;
	gpu_put(w->small, &stop, sizeof(stop));
	CHECK_OK(ncclsvc_all_reduce(at(w->small), at(w->small), 1, NCCLSVC_UINT32, NCCLSVC_MAX,
				    r->comm, NULL));
	rank_sync(r);
	gpu_get(&stop, w->small, sizeof(stop));
	return stop;
}

static void work_open(struct work *w, struct client *c)
{
	struct rank *r = &w->m.r;
	meeting_open(&w->m, c);
	CHECK_CU(cu.cuMemAlloc(&w->small, SMALL * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&w->large, LARGE_BYTES));
	CHECK_CU(cu.cuMemAlloc(&w->sent, LARGE_BYTES));
	CHECK_CU(cu.cuMemAlloc(&w->received, LARGE_BYTES));
	w->part = *r;
	CHECK_OK(ncclsvc_comm_split(r->comm, 0, -r->rank, WAIT_MS, &w->part.comm));
	w->part.rank = ncclsvc_comm_rank(w->part.comm);
	graph_begin(r->stream);
	graph_sum(r, w->small, SMALL);
	graph_sum(r, w->large, WORDS);
	w->graph = graph_end(r->stream);
	meeting_sum(&w->m, w->large);
}

/* On NCCL, beside small ones in kernels: submitted, in a graph, and both without a pause. */
static void huge_sums(struct work *w, uint32_t round)
{
	struct rank *r = &w->m.r;
	const uint32_t n = (uint32_t)r->n;
	fill(r, w->huge, round, HUGE);
	fill(r, w->small, round, SMALL);
	kernels_sum(r, w->huge, HUGE);
	kernels_sum(r, w->small, SMALL);
	graph_launch(w->huge_graph, r->stream);
	kernels_sum(r, w->huge, HUGE);
	graph_launch(w->huge_graph, r->stream);
	rank_sync(r);
	gpu_check(w->huge, n * n * n * sum_of(r, round), HUGE, "the huge sum");
	gpu_check(w->small, n * n * sum_of(r, round), SMALL, "the sum beside it");
}

static void sleeps(ncclsvc_comm *comm)
{
	CHECK_OK(ncclsvc_comm_suspend(comm, 2 * WAIT_MS));
	CHECK_OK(ncclsvc_comm_resume(comm, 2 * WAIT_MS));
}

static void iterate(struct work *w, uint32_t round)
{
	if (round % 3 == 1)
		sleeps(round % 2 ? w->m.r.comm : w->part.comm);
	sums(w, round);
	if (w->huge)
		huge_sums(w, round);
	messages(w, round);
	fresh_memory(w, round);
	fill(&w->part, w->small, round, SMALL);
	kernels_sum(&w->part, w->small, SMALL);
	rank_sync(&w->part);
	gpu_check(w->small, sum_of(&w->part, round), SMALL, "the split's sum");
	if (round % 20 == 7) {
		uint32_t ten = 10;
		ncclsvc_redop scaled;
		CHECK_OK(
			ncclsvc_redop_create_premulsum(w->m.r.comm, &ten, NCCLSVC_UINT32, &scaled));
		fill(&w->m.r, w->small, round, SMALL);
		CHECK_OK(ncclsvc_all_reduce(at(w->small), at(w->small), SMALL, NCCLSVC_UINT32,
					    scaled, w->m.r.comm, NULL));
		rank_sync(&w->m.r);
		gpu_check(w->small, 10 * sum_of(&w->m.r, round), SMALL, "the scaled sum");
		CHECK_OK(ncclsvc_redop_destroy(w->m.r.comm, scaled));
	}
}

/* New memory becomes direct, and is free again at once. */
static void check_whole(struct work *w)
{
	struct buffer b;
	struct rank *r = &w->m.r;
	const uint64_t staged = kernels_staged(r);
	meeting_wait(&w->m);
	for (uint32_t round = 0; round < 4; round++)
		sums(w, round); /* of memory that was shared before the restarts */
	meeting_wait(&w->m);
	CHECK_EQ(kernels_staged(r), staged);
	buffer_make(&b, MEMORY_VMM, r->gpu, r->session, 4 * LARGE_BYTES);
	meeting_sum(&w->m, b.p);
	const size_t before = gpu_unused_memory();
	meeting_wait(&w->m);
	CHECK_OK(ncclsvc_mem_forget(r->session, at(b.p), WITHIN));
	buffer_free(&b);
	CHECK(gpu_has_unused(before + 4 * LARGE_BYTES, WAIT_MS));
	meeting_wait(&w->m);
}

static void work_close(struct work *w)
{
	graph_destroy(w->graph);
	if (w->huge)
		graph_destroy(w->huge_graph);
	CHECK_OK(ncclsvc_comm_leave(w->part.comm));
	meeting_close(&w->m);
}

static void huge_open(struct work *w)
{
	struct rank *r = &w->m.r;
	CHECK_CU(cu.cuMemAlloc(&w->huge, LARGE));
	graph_begin(r->stream);
	graph_sum(r, w->huge, HUGE);
	graph_sum(r, w->small, SMALL);
	w->huge_graph = graph_end(r->stream);
	huge_sums(w, 0); /* starts the workers */
}

static void work(struct client *c, bool huge)
{
	struct work w = {0};
	work_open(&w, c);
	if (huge)
		huge_open(&w);
	const int fds = open_fds(getpid());
	say(c, READY);
	for (uint32_t round = 0; !agree_to_stop(&w); round++) {
		stage("iteration %u", round);
		iterate(&w, round);
		shared_state->iterations[c->rank]++;
	}
	check_whole(&w);
	CHECK_EQ(open_fds(getpid()), fds);
	work_close(&w);
}

static void working_rank(struct client *c)
{
	work(c, false);
}

static void mixed_rank(struct client *c)
{
	work(c, true);
}

static void nccl_rank(struct client *c)
{
	setenv("NCCLSVC_PEER", "0", 1);
	work(c, false);
}

/* Planned messages, which NCCL carries, beside sums in kernels. */
#define GROUPS 3

static ncclsvc_plan *ring_plan(const struct rank *r)
{
	ncclsvc_plan *plan;
	CHECK_OK(ncclsvc_plan_start(r->comm, &plan));
	for (int g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_plan_group_start(plan));
		CHECK_OK(ncclsvc_plan_send(plan, SMALL, NCCLSVC_UINT32, (r->rank + 1) % r->n));
		CHECK_OK(ncclsvc_plan_recv(plan, SMALL, NCCLSVC_UINT32,
					   (r->rank + r->n - 1) % r->n));
		CHECK_OK(ncclsvc_plan_group_end(plan));
	}
	CHECK_OK(ncclsvc_plan_end(plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(plan));
	return plan;
}

static CUdeviceptr part_of(CUdeviceptr p, int group)
{
	return p + (size_t)group * SMALL * sizeof(uint32_t);
}

static void planned_rank(struct client *c)
{
	struct work w = {0};
	struct rank *r = &w.m.r;
	work_open(&w, c);
	ncclsvc_plan *plan = ring_plan(r);
	const int next = (r->rank + 1) % r->n, previous = (r->rank + r->n - 1) % r->n;
	say(c, READY);
	for (uint32_t round = 0; !agree_to_stop(&w); round++) {
		stage("iteration %u", round);
		for (int g = 0; g < GROUPS; g++) {
			fill(r, part_of(w.sent, g), 10 * round + (uint32_t)g, SMALL);
			CHECK_OK(ncclsvc_plan_submit_send(plan, at(part_of(w.sent, g)), SMALL,
							  NCCLSVC_UINT32, next, NULL));
			CHECK_OK(ncclsvc_plan_submit_recv(plan, at(part_of(w.received, g)), SMALL,
							  NCCLSVC_UINT32, previous, NULL));
		}
		sums(&w, round);
		CHECK_OK(ncclsvc_plan_reset(plan, WAIT_MS));
		for (int g = 0; g < GROUPS; g++)
			gpu_check(part_of(w.received, g), 10 * round + (uint32_t)(g + previous + 1),
				  SMALL, "the planned message");
		shared_state->iterations[c->rank]++;
	}
	CHECK_OK(ncclsvc_plan_terminate(plan, WAIT_MS));
	work_close(&w);
}

static void await_progress(int n)
{
	const uint64_t end = now_ns() + 2 * WAIT_MS * UINT64_C(1000000);
	unsigned before[RANKS_MAX];
	for (int k = 0; k < n; k++)
		before[k] = shared_state->iterations[k];
	for (int k = 0; k < n; k++)
		while (shared_state->iterations[k] < before[k] + PROGRESS) {
			CHECK(now_ns() < end);
			sleep_ms(1);
		}
}

static void start_again(struct daemon *d)
{
	daemon_restart(d, "--device", "cuda", "--log-level", "debug", NULL);
}

static void run(client_main *main, int n, int restarts)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	share_state();
	if (n > 1)
		kernels_daemon_start(&d);
	else
		gpu_daemon_start(&d);
	clients_start(ranks, n, &d, main, NULL);
	hear_all(ranks, n, READY);
	for (int i = 0; i < restarts; i++) {
		stage("restart %d of %d", i + 1, restarts);
		await_progress(n);
		sleep_ms((unsigned)(i * 3 % 11));
		if (i % 2)
			daemon_kill(&d);
		else
			daemon_terminate(&d);
		sleep_ms(i % 3 ? 0 : 200); /* kernels work meanwhile */
		start_again(&d);
		if (i % 2) { /* the members are coming back */
			sleep_ms((unsigned)(i * 5 % 13));
			daemon_kill(&d);
			start_again(&d);
		}
	}
	await_progress(n);
	shared_state->stop = 1;
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

static int rounds(int all, int quick)
{
	return setup.repeat ? setup.repeat : setup.quick ? quick : all;
}

static void test_work(void)
{
	run(working_rank, 2, rounds(20, 6));
}

static void test_mixed(void)
{
	run(mixed_rank, 2, rounds(20, 4));
}

static void test_nccl(void)
{
	run(nccl_rank, 2, rounds(20, 4));
}

static void test_alone(void)
{
	run(nccl_rank, 1, rounds(20, 4));
}

static void test_plan(void)
{
	run(planned_rank, 2, rounds(20, 4));
}

static void test_work_4(void)
{
	run(working_rank, 4, rounds(12, 4));
}

/* ---- Communicators that are being created ---- */

#define JOINS 100

static void joins_often(struct client *c)
{
	struct rank r;
	rank_prepare(&r, c, c->rank);
	say(c, READY);
	for (unsigned round = 0; round < JOINS; round++) {
		stage("join %u", round);
		c->id.bytes[3] = (char)round;
		rank_join(&r);
		rank_check_usable(&r);
		CHECK_OK(ncclsvc_comm_leave(r.comm));
		shared_state->iterations[c->rank]++;
	}
	ncclsvc_close(r.session);
}

/* Restarts the daemon at different times of the ranks' joins. */
static void test_joining(void)
{
	struct daemon d;
	struct client ranks[2];
	share_state();
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, joins_often, NULL);
	hear_all(ranks, 2, READY);
	for (unsigned i = 0; i < 200 && shared_state->iterations[0] < JOINS - 2; i++) {
		stage("restart %u, join %u", i, shared_state->iterations[0]);
		sleep_ms(1 + i * 7 % 41);
		daemon_kill(&d);
		start_again(&d);
	}
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- The drop-in ---- */

static void dropin_sums(const struct client *c, CUdeviceptr p, ncclComm_t comm, CUstream stream,
			uint32_t round, size_t words)
{
	const uint32_t n = (uint32_t)c->nranks;
	ncclResult_t error;
	gpu_fill(p, round + (uint32_t)c->rank + 1, words);
	CHECK_NC(nc.ncclAllReduce(at(p), at(p), words, NCCLSVC_UINT32, NCCLSVC_SUM, comm, stream));
	CHECK(gpu_stream_ends(stream, WAIT_MS));
	CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
	CHECK_NC(error);
	gpu_check(p, n * round + n * (n + 1) / 2, words, "the sum");
}

/* True: a rank was told to stop. */
static bool dropin_agrees(CUdeviceptr p, ncclComm_t comm, CUstream stream)
{
	uint32_t stop = (uint32_t)shared_state->stop;
	gpu_put(p, &stop, sizeof(stop));
	CHECK_NC(nc.ncclAllReduce(at(p), at(p), 1, NCCLSVC_UINT32, NCCLSVC_MAX, comm, stream));
	CHECK(gpu_stream_ends(stream, WAIT_MS));
	gpu_get(&stop, p, sizeof(stop));
	return stop;
}

static void dropin_rank(struct client *c)
{
	gpu_use(c->rank);
	ncclComm_t comm = dropin_join(c), part;
	CUstream stream = gpu_stream();
	CUdeviceptr p, fresh;
	CHECK_NC(nc.ncclCommSplit(comm, 0, -c->rank, &part, NULL));
	CHECK_CU(cu.cuMemAlloc(&p, LARGE_BYTES));
	say(c, READY);
	for (uint32_t round = 0; !dropin_agrees(p, comm, stream); round++) {
		stage("iteration %u", round);
		dropin_sums(c, p, comm, stream, round, SMALL);
		dropin_sums(c, p, part, stream, round, WORDS);
		CHECK_CU(cu.cuMemAlloc(&fresh, LARGE_BYTES));
		dropin_sums(c, fresh, comm, stream, round, WORDS);
		CHECK_EQ(nc.cuMemFree(fresh), 0);
		shared_state->iterations[c->rank]++;
	}
	CHECK_NC(nc.ncclCommDestroy(part));
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_dropin(void)
{
	run(dropin_rank, 2, rounds(20, 4));
}

/* ---- What cannot be continued ---- */

/* Starts ranks that wait for each of the test's words, and a daemon that ends as soon as they are
 * ready. */
static void run_lost(client_main *main, const char *within_ms,
		     void (*after)(struct daemon *d, struct client *ranks))
{
	struct daemon d;
	struct client ranks[2];
	share_state();
	setenv("NCCLSVC_REATTACH_MS", within_ms, 1);
	kernels_daemon_start(&d);
	clients_start(ranks, 2, &d, main, NULL);
	hear_all(ranks, 2, READY);
	daemon_kill(&d);
	after(&d, ranks);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

static void start_again_for(struct daemon *d, struct client *ranks)
{
	start_again(d);
	say_all(ranks, 2, GO);
}

/* Opens the rank, and allocates SMALL words. */
static CUdeviceptr open_with_words(struct rank *r, struct client *c)
{
	CUdeviceptr p;
	rank_open(r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SMALL * sizeof(uint32_t)));
	return p;
}

/* Waits until the communicator has ended. */
static void await_end(struct rank *r, ncclsvc_result expected, const char *why)
{
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	ncclsvc_result result;
	stage("waiting for the communicator's end");
	while (!(result = ncclsvc_comm_error(r->comm)) && now_ns() < end)
		sleep_ms(1);
	CHECK_RESULT(result, expected);
	if (!strstr(ncclsvc_last_error(), why))
		check_failed(__FILE__, __LINE__, "%s", ncclsvc_last_error());
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
}

/* No kernel reduces float8, so NCCL does. */
static ncclsvc_result sum_on_nccl(struct rank *r, CUdeviceptr p, ncclsvc_task *task)
{
	return ncclsvc_all_reduce(at(p), at(p), SMALL, NCCLSVC_FLOAT8E4M3, NCCLSVC_SUM, r->comm,
				  task);
}

/* Rank 0's operation on NCCL waits for rank 1's as the daemon is killed. */
static void pending_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task = 0;
	p = open_with_words(&r, c);
	if (!r.rank)
		CHECK_OK(sum_on_nccl(&r, p, &task));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	if (r.rank)
		CHECK_OK(sum_on_nccl(&r, p, &task));
	rank_wait(&r, task);
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_pending(void)
{
	run_lost(pending_rank, "20000", start_again_for);
}

/* A timeline that graphs of an earlier epoch have used. */
static void renewed_rank(struct client *c)
{
	struct work w = {0};
	setenv("NCCLSVC_PEER", "0", 1);
	work_open(&w, c);
	for (uint32_t round = 0; round < 4; round++)
		iterate(&w, round);
	graph_destroy(w.graph);
	CHECK_OK(ncclsvc_comm_leave(w.part.comm));
	meeting_wait(&w.m);
	ncclsvc_comm_abort(w.m.r.comm);
	kernels_rejoin(&w.m.r);
	w.part = w.m.r;
	CHECK_OK(ncclsvc_comm_split(w.m.r.comm, 0, -w.m.r.rank, WAIT_MS, &w.part.comm));
	w.part.rank = ncclsvc_comm_rank(w.part.comm);
	graph_begin(w.m.r.stream);
	graph_sum(&w.m.r, w.small, SMALL);
	graph_sum(&w.m.r, w.large, WORDS);
	w.graph = graph_end(w.m.r.stream);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	for (uint32_t round = 0; round < 4; round++)
		iterate(&w, round);
	work_close(&w);
}

static void test_renewed(void)
{
	run_lost(renewed_rank, "20000", start_again_for);
}

/* Rank 1 dies while there is no daemon, and rank 0's kernel waits for it. */
static void dying_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task;
	p = open_with_words(&r, c);
	say(c, READY);
	if (r.rank) {
		CHECK_EQ(hear(c), GO);
		_exit(0);
	}
	task = kernels_sum(&r, p, SMALL);
	CHECK_EQ(hear(c), GO);
	CHECK_RESULT(ncclsvc_wait(r.session, task, WAIT_MS), NCCLSVC_PEER_GONE);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	ncclsvc_close(r.session);
}

static void start_after_death(struct daemon *d, struct client *ranks)
{
	say(&ranks[1], GO);
	clients_end(&ranks[1], 1);
	start_again(d);
	say(&ranks[0], GO);
}

static void test_death(void)
{
	run_lost(dying_rank, "2000", start_after_death);
}

/* Rank 1 dies after the restart: the next daemon tells rank 0, and both have a new epoch. */
static void later_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	p = open_with_words(&r, c);
	rank_check_usable(&r);
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	rank_check_usable(&r);
	if (r.rank)
		_exit(0);
	kernels_may_end(&r, NCCLSVC_PEER_GONE);
	ncclsvc_status st;
	const ncclsvc_task task = kernels_sum(&r, p, SMALL);
	kernels_failed(&r, task, &st);
	kernels_over(&r, NCCLSVC_PEER_GONE);
	CHECK(strstr(ncclsvc_last_error(), "rank 1"));
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	kernels_rejoin(&r);
	rank_close(&r);
}

static void joining_rank(struct client *c)
{
	struct rank r;
	rank_open(&r, c);
	rank_check_usable(&r);
	rank_close(&r);
}

static void die_after_restart(struct daemon *d, struct client *ranks)
{
	start_again_for(d, ranks);
	hear_all(ranks, 1, READY);
	clients_end(&ranks[1], 1);
	client_start(&ranks[1], joining_rank);
	say(&ranks[0], GO);
}

static void test_later(void)
{
	run_lost(later_rank, "20000", die_after_restart);
}

/* No daemon comes in time. A kernel that waits is aborted. */
static void lost_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task = 0;
	p = open_with_words(&r, c);
	if (!r.rank)
		task = kernels_sum(&r, p, SMALL);
	say(c, READY);
	if (task)
		CHECK_RESULT(ncclsvc_wait(r.session, task, WAIT_MS), NCCLSVC_DAEMON_LOST);
	await_end(&r, NCCLSVC_DAEMON_LOST, "ended with its daemon");
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	CHECK_OK(ncclsvc_reattach(r.session, WAIT_MS));
	rank_check_usable(&r);
	rank_close(&r);
}

static void start_late(struct daemon *d, struct client *ranks)
{
	hear_all(ranks, 2, READY);
	start_again_for(d, ranks);
}

static void test_lost(void)
{
	run_lost(lost_rank, "500", start_late);
}

const struct gpu_test restart_tests[] = {
	{"restarts/work", test_work, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/joining", test_joining, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/dropin", test_dropin, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/mixed", test_mixed, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/nccl", test_nccl, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/alone", test_alone, 1, 120, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/plan", test_plan, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/pending", test_pending, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/renewed", test_renewed, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/death", test_death, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/later", test_later, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/lost", test_lost, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"restarts/work/4", test_work_4, 4, 180, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
