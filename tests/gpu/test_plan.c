/* SPDX-License-Identifier: Apache-2.0
 * Plans on GPUs. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ncclsvc_plan.h"
#include "ranks.h"

#define WORDS ((size_t)50000)
#define BYTES (WORDS * sizeof(uint32_t))
#define ANY   NCCLSVC_PLAN_ANY, NCCLSVC_INT8

enum { GROUPS = 3 };
enum word { READY = 1, GO };

struct desk {
	struct rank r;
	ncclsvc_plan *plan;
	int next, last;	     /* ranks */
	CUdeviceptr out, in; /* GROUPS of WORDS each */
};

/* Plans groups of a Send to the next rank and a Recv from the previous one, without a launch. */
static void desk_plan(struct desk *d, struct client *c)
{
	rank_open(&d->r, c);
	d->next = (d->r.rank + 1) % d->r.n;
	d->last = (d->r.rank + d->r.n - 1) % d->r.n;
	CHECK_CU(cu.cuMemAlloc(&d->out, GROUPS * BYTES));
	CHECK_CU(cu.cuMemAlloc(&d->in, GROUPS * BYTES));
	CHECK_OK(ncclsvc_plan_start(d->r.comm, &d->plan));
	for (int g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_plan_group_start(d->plan));
		CHECK_OK(ncclsvc_plan_send(d->plan, ANY, d->next));
		CHECK_OK(ncclsvc_plan_recv(d->plan, WORDS, NCCLSVC_UINT32, d->last));
		CHECK_OK(ncclsvc_plan_group_end(d->plan));
	}
	CHECK_OK(ncclsvc_plan_end(d->plan, WAIT_MS));
}

static void desk_open(struct desk *d, struct client *c)
{
	desk_plan(d, c);
	CHECK_OK(ncclsvc_plan_launch(d->plan));
}

static void desk_close(struct desk *d)
{
	CHECK_OK(ncclsvc_plan_terminate(d->plan, WAIT_MS));
	CHECK_CU(cu.cuMemFree(d->out));
	CHECK_CU(cu.cuMemFree(d->in));
	rank_close(&d->r);
}

static CUdeviceptr part(CUdeviceptr p, int g)
{
	return p + (CUdeviceptr)g * BYTES;
}

static uint32_t word_of(int rank, int round, int g)
{
	return (uint32_t)(rank * 1000000 + round * 100 + g);
}

/* ---- In stream order, submitted as the host reaches them ---- */

static void stream_rank(struct client *c)
{
	struct desk d;
	ncclsvc_task tasks[GROUPS];
	desk_open(&d, c);
	for (int round = 0; round < (setup.quick ? 5 : 50); round++) {
		stage("round %d", round);
		for (int g = 0; g < GROUPS; g++) {
			CHECK_CU(cu.cuMemsetD32Async(part(d.out, g), word_of(d.r.rank, round, g),
						     WORDS, d.r.stream));
			CHECK_CU(cu.cuMemsetD32Async(part(d.in, g), 0xdeadbeef, WORDS, d.r.stream));
			/* Either may come first: both are in one group. */
			bool first = (round + d.r.rank) % 2;
			for (int half = 0; half < 2; half++)
				CHECK_OK((half == 0) == first
						 ? ncclsvc_plan_submit_send(
							   d.plan, at(part(d.out, g)), WORDS,
							   NCCLSVC_UINT32, d.next, NULL)
						 : ncclsvc_plan_submit_recv(
							   d.plan, at(part(d.in, g)), WORDS,
							   NCCLSVC_UINT32, d.last, &tasks[g]));
		}
		/* The GPU waits, the host does not. */
		CHECK_OK(ncclsvc_stream_wait(d.r.session, d.r.stream, tasks[GROUPS - 1]));
		CHECK(gpu_stream_ends(d.r.stream, WAIT_MS));
		for (int g = 0; g < GROUPS; g++)
			gpu_check(part(d.in, g), word_of(d.last, round, g), WORDS, "what came");
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		rank_check_usable(&d.r);
	}
	CHECK_EQ(ncclsvc_plan_iterations(d.plan), setup.quick ? 5 : 50);
	desk_close(&d);
}

static void test_streams(void)
{
	ranks_run(ranks_count(), stream_rank, NULL);
}

/* ---- Several streams, in any order among them ---- */

static void order_rank(struct client *c)
{
	struct desk d;
	CUstream streams[GROUPS];
	desk_open(&d, c);
	for (int g = 0; g < GROUPS; g++)
		streams[g] = gpu_stream();
	for (int round = 0; round < 5; round++) {
		stage("round %d", round);
		for (int i = 0; i < GROUPS; i++) {
			int g = GROUPS - 1 - i;
			CHECK_OK(ncclsvc_stream_set(d.r.session, streams[g], 0));
			CHECK_CU(cu.cuMemsetD32Async(part(d.in, g), 0xdeadbeef, WORDS, streams[g]));
			/* The first Recv submitted belongs to the first group. */
			CHECK_OK(ncclsvc_plan_submit_recv(d.plan, at(part(d.in, g)), WORDS,
							  NCCLSVC_UINT32, d.last, NULL));
		}
		for (int i = 0; i < GROUPS; i++) {
			int g = GROUPS - 1 - i;
			CHECK_OK(ncclsvc_stream_set(d.r.session, streams[g], 0));
			CHECK_CU(cu.cuMemsetD32Async(part(d.out, g), word_of(d.r.rank, round, g),
						     WORDS, streams[g]));
			CHECK_OK(ncclsvc_plan_submit_send(d.plan, at(part(d.out, g)), WORDS,
							  NCCLSVC_UINT32, d.next, NULL));
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		for (int g = 0; g < GROUPS; g++)
			gpu_check(part(d.in, g), word_of(d.last, round, g), WORDS, "what came");
	}
	/* Refused: on one stream, a later group's task before an earlier one's. */
	stage("against the order");
	CHECK_OK(ncclsvc_stream_set(d.r.session, d.r.stream, 0));
	for (int g = 0; g < GROUPS; g++)
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, at(part(d.in, g)), WORDS, NCCLSVC_UINT32,
						  d.last, NULL));
	CHECK_RESULT(
		ncclsvc_plan_submit_send(d.plan, at(d.out), WORDS, NCCLSVC_UINT32, d.next, NULL),
		NCCLSVC_INVALID_ARGUMENT);
	CHECK(strstr(ncclsvc_last_error(), "order of the plan's groups"));
	for (int g = 0; g < GROUPS; g++) {
		CHECK_OK(ncclsvc_stream_set(d.r.session, streams[g], 0));
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, at(part(d.out, g)), WORDS, NCCLSVC_UINT32,
						  d.next, NULL));
	}
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	CHECK_OK(ncclsvc_stream_set(d.r.session, d.r.stream, 0));
	desk_close(&d);
}

static void test_any_order(void)
{
	ranks_run(ranks_count(), order_rank, NULL);
}

/* ---- One thread that blocks ---- */

static void blocking_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	for (int round = 0; round < (setup.quick ? 3 : 20); round++) {
		stage("round %d", round);
		for (int g = 0; g < GROUPS; g++) {
			CHECK_CU(cu.cuMemsetD32Async(d.out, word_of(d.r.rank, round, g), WORDS,
						     d.r.stream));
			CHECK_OK(ncclsvc_plan_submit_send_and_wait(
				d.plan, at(d.out), WORDS, NCCLSVC_UINT32, d.next, WAIT_MS));
			/* The Send has copied its buffer. */
			CHECK_CU(cu.cuMemsetD32Async(d.out, 0xdeadbeef, WORDS, d.r.stream));
			CHECK(gpu_stream_ends(d.r.stream, WAIT_MS));
			CHECK_OK(ncclsvc_plan_submit_recv_and_wait(
				d.plan, at(d.in), WORDS, NCCLSVC_UINT32, d.last, WAIT_MS));
			gpu_check(d.in, word_of(d.last, round, g), WORDS, "what came");
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	}
	desk_close(&d);
}

static void test_blocking(void)
{
	ranks_run(ranks_count(), blocking_rank, NULL);
}

/* ---- Tasks submitted with ncclsvc_plan_submit ---- */

static ncclsvc_planned task_of(const struct desk *d, ncclsvc_op op, CUdeviceptr buf, uint32_t group,
			       unsigned flags)
{
	const bool sends = op == NCCLSVC_SEND;
	return (ncclsvc_planned){.size = sizeof(ncclsvc_planned),
				 .op = op,
				 .type = NCCLSVC_UINT32,
				 .sendbuf = sends ? at(buf) : NULL,
				 .recvbuf = sends ? NULL : at(buf),
				 .count = WORDS,
				 .peer = sends ? d->next : d->last,
				 .group = group,
				 .flags = flags};
}

static ncclsvc_result submit(const struct desk *d, ncclsvc_op op, CUdeviceptr buf, uint32_t group,
			     unsigned flags)
{
	const ncclsvc_planned x = task_of(d, op, buf, group, flags);
	return ncclsvc_plan_submit(d->plan, &x, WAIT_MS, NULL);
}

/* Groups in reverse order are accepted on separate streams, and refused on one. */
static void groups_rank(struct client *c)
{
	struct desk d;
	CUstream streams[GROUPS];
	desk_open(&d, c);
	for (int g = 0; g < GROUPS; g++)
		streams[g] = gpu_stream();
	for (int round = 0; round < 5; round++) {
		stage("round %d", round);
		for (int g = GROUPS - 1; g >= 0; g--) {
			CHECK_OK(ncclsvc_stream_set(d.r.session, streams[g], 0));
			CHECK_CU(cu.cuMemsetD32Async(part(d.out, g), word_of(d.r.rank, round, g),
						     WORDS, streams[g]));
			CHECK_OK(submit(&d, NCCLSVC_SEND, part(d.out, g), (uint32_t)g, 0));
			CHECK_OK(submit(&d, NCCLSVC_RECV, part(d.in, g), (uint32_t)g, 0));
		}
		CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
		for (int g = 0; g < GROUPS; g++)
			gpu_check(part(d.in, g), word_of(d.last, round, g), WORDS, "what came");
	}
	stage("against the order");
	CHECK_OK(ncclsvc_stream_set(d.r.session, d.r.stream, 0));
	CHECK_OK(submit(&d, NCCLSVC_RECV, d.in, 1, 0));
	CHECK_RESULT(submit(&d, NCCLSVC_SEND, d.out, 0, 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK(strstr(ncclsvc_last_error(), "order of the plan's groups"));
	desk_close(&d);
}

static void test_groups(void)
{
	ranks_run(ranks_count(), groups_rank, NULL);
}

/* Changes buffers, even one that was promised to be stable, to see which were copied. */
static void stable_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	for (int g = 0; g < GROUPS; g++) {
		const unsigned flags = g % 2 ? 0 : NCCLSVC_PLANNED_STABLE;
		gpu_fill(d.out, word_of(d.r.rank, 0, g), WORDS);
		CHECK_OK(
			submit(&d, NCCLSVC_SEND, d.out, (uint32_t)g, NCCLSVC_PLANNED_WAIT | flags));
		gpu_fill(d.out, word_of(d.r.rank, 1, g), WORDS);
		CHECK_OK(submit(&d, NCCLSVC_RECV, d.in, (uint32_t)g, NCCLSVC_PLANNED_WAIT));
		gpu_check(d.in, word_of(d.last, flags ? 1 : 0, g), WORDS, "what came");
	}
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	desk_close(&d);
}

static void test_stable(void)
{
	ranks_run(ranks_count(), stable_rank, NULL);
}

/* ---- A strict plan: a thread per task, started before the launch ---- */

struct blocking {
	struct desk *d;
	ncclsvc_op op;
	CUstream stream;
	pthread_t thread;
};

static void *block(void *arg)
{
	const struct blocking *b = arg;
	struct desk *d = b->d;
	const CUdeviceptr buf = b->op == NCCLSVC_SEND ? d->out : d->in;
	gpu_use(d->r.gpu);
	CHECK_OK(ncclsvc_stream_set(d->r.session, b->stream, 0));
	for (int g = 0; g < GROUPS; g++) {
		if (b->op == NCCLSVC_SEND)
			CHECK_CU(cu.cuMemsetD32Async(part(buf, g), word_of(d->r.rank, 0, g), WORDS,
						     b->stream));
		CHECK_OK(submit(d, b->op, part(buf, g), NCCLSVC_PLAN_FIRST, NCCLSVC_PLANNED_WAIT));
	}
	return NULL;
}

static void strict_rank(struct client *c)
{
	struct desk d;
	ncclsvc_task task;
	desk_plan(&d, c);
	CHECK_OK(ncclsvc_plan_set_strict(d.plan, true));
	struct blocking b[2] = {{&d, NCCLSVC_SEND, gpu_stream(), 0},
				{&d, NCCLSVC_RECV, gpu_stream(), 0}};
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&b[i].thread, NULL, block, &b[i]), 0);
	sleep_ms(20);
	CHECK_OK(ncclsvc_plan_launch(d.plan));
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(b[i].thread, NULL), 0);
	for (int g = 0; g < GROUPS; g++)
		gpu_check(part(d.in, g), word_of(d.last, 0, g), WORDS, "what came");
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	stage("one thread");
	const ncclsvc_planned x = task_of(&d, NCCLSVC_SEND, d.out, 0, NCCLSVC_PLANNED_WAIT);
	CHECK_RESULT(ncclsvc_plan_submit(d.plan, &x, 50, &task), NCCLSVC_TIMEOUT);
	CHECK(strstr(ncclsvc_last_error(), "has not submitted the Recv from rank"));
	CHECK_OK(submit(&d, NCCLSVC_RECV, d.in, 0, NCCLSVC_PLANNED_WAIT));
	CHECK_OK(ncclsvc_plan_wait(d.plan, task, WAIT_MS));
	desk_close(&d);
}

static void test_strict(void)
{
	ranks_run(ranks_count(), strict_rank, NULL);
}

/* ---- Blocking Sends beside a stream that waits for a peer ---- */

struct pipe {
	struct desk d;
	ncclsvc_comm *other;
	CUstream stuck; /* rank 0's waits until all ranks have reached `other` */
	CUdeviceptr word;
};

static void barrier(struct pipe *p)
{
	CHECK_OK(ncclsvc_stream_set(p->d.r.session, p->stuck, 0));
	CHECK_OK(ncclsvc_all_reduce(at(p->word), at(p->word), 1, NCCLSVC_UINT32, NCCLSVC_SUM,
				    p->other, NULL));
}

static ncclsvc_result send_words(struct pipe *p, CUstream stream, CUdeviceptr out, size_t n, int ms)
{
	CHECK_OK(ncclsvc_stream_set(p->d.r.session, stream, 0));
	return ncclsvc_plan_submit_send_and_wait(p->d.plan, at(out), n, NCCLSVC_UINT32, p->d.next,
						 ms);
}

static void recv_words(struct pipe *p, size_t n)
{
	CHECK_OK(ncclsvc_stream_set(p->d.r.session, p->d.r.stream, 0));
	CHECK_OK(ncclsvc_plan_submit_recv_and_wait(p->d.plan, at(p->d.in), n, NCCLSVC_UINT32,
						   p->d.last, WAIT_MS));
}

static void pipe_open(struct pipe *p, struct client *c)
{
	struct desk *d = &p->d;
	rank_open(&d->r, c);
	d->next = (d->r.rank + 1) % d->r.n;
	d->last = (d->r.rank + d->r.n - 1) % d->r.n;
	CHECK_CU(cu.cuMemAlloc(&d->out, GROUPS * BYTES));
	CHECK_CU(cu.cuMemAlloc(&d->in, GROUPS * BYTES));
	CHECK_CU(cu.cuMemAlloc(&p->word, sizeof(uint32_t)));
	for (int g = 0; g < GROUPS; g++)
		gpu_fill(part(d->out, g), word_of(d->r.rank, 0, g), WORDS);
	p->stuck = gpu_stream();
	CHECK_OK(ncclsvc_comm_split(d->r.comm, 0, d->r.rank, WAIT_MS, &p->other));
	CHECK_OK(ncclsvc_plan_start(d->r.comm, &d->plan));
	CHECK_OK(ncclsvc_plan_group_start(d->plan));
	CHECK_OK(ncclsvc_plan_send(d->plan, ANY, d->next));
	CHECK_OK(ncclsvc_plan_recv(d->plan, ANY, d->last));
	CHECK_OK(ncclsvc_plan_group_end(d->plan));
	CHECK_OK(ncclsvc_plan_end(d->plan, WAIT_MS));
	CHECK_OK(ncclsvc_plan_launch(d->plan));
}

/* The other ranks reach `other` only after they have received their words. */
static void beside_rank(struct client *c)
{
	struct pipe p;
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* no stream waits behind the stuck one */
	pipe_open(&p, c);
	const struct rank *r = &p.d.r;
	for (size_t n = WORDS / 4; n <= GROUPS * WORDS; n *= 3) {
		stage("%zu words", n);
		if (r->rank == 0)
			barrier(&p);
		CHECK_OK(send_words(&p, r->stream, p.d.out, n, WAIT_MS));
		recv_words(&p, n);
		if (r->rank != 0)
			barrier(&p);
		CHECK(gpu_stream_ends(p.stuck, WAIT_MS));
		gpu_check(p.d.in, word_of(p.d.last, 0, 0), n < WORDS ? n : WORDS, "what came");
		CHECK_OK(ncclsvc_plan_reset(p.d.plan, WAIT_MS));
	}
	stage("a copy that comes late");
	if (r->rank == 0) {
		barrier(&p);
		for (int i = 0; i < 2; i++)
			CHECK_RESULT(send_words(&p, p.stuck, p.d.out, WORDS, 50), NCCLSVC_TIMEOUT);
		CHECK_OK(send_words(&p, r->stream, part(p.d.out, 1), WORDS, WAIT_MS));
		say(c, READY);
	} else {
		CHECK_EQ(hear(c), GO);
		barrier(&p);
		CHECK_OK(send_words(&p, r->stream, part(p.d.out, 1), WORDS, WAIT_MS));
	}
	CHECK(gpu_stream_ends(p.stuck, WAIT_MS));
	recv_words(&p, WORDS);
	gpu_check(p.d.in, word_of(p.d.last, 0, 1), WORDS, "what came of two copies");
	CHECK_OK(ncclsvc_plan_reset(p.d.plan, WAIT_MS));
	CHECK_OK(ncclsvc_comm_leave(p.other));
	CHECK_CU(cu.cuMemFree(p.word));
	desk_close(&p.d);
}

/* The others are told to go on when rank 0 is ready. */
static void run_beside(void (*rank)(struct client *c))
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, rank, NULL);
	CHECK_EQ(hear(&ranks[0]), READY);
	say_all(&ranks[1], n - 1, GO);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

static void test_beside(void)
{
	run_beside(beside_rank);
}

/* Terminating a plan does not wait for such a stream, either. */
static void ending_rank(struct client *c)
{
	struct pipe p;
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	pipe_open(&p, c);
	CHECK_OK(send_words(&p, p.d.r.stream, p.d.out, WORDS, WAIT_MS));
	recv_words(&p, WORDS);
	CHECK_OK(ncclsvc_plan_reset(p.d.plan, WAIT_MS));
	if (p.d.r.rank != 0)
		CHECK_EQ(hear(c), GO);
	barrier(&p);
	CHECK_OK(ncclsvc_plan_terminate(p.d.plan, WAIT_MS));
	if (p.d.r.rank == 0)
		say(c, READY);
	CHECK(gpu_stream_ends(p.stuck, WAIT_MS));
	stage("another plan, when nothing is pending");
	CHECK_OK(ncclsvc_plan_start(p.d.r.comm, &p.d.plan));
	CHECK_OK(ncclsvc_comm_leave(p.other));
	CHECK_CU(cu.cuMemFree(p.word));
	desk_close(&p.d);
}

static void test_ending(void)
{
	run_beside(ending_rank);
}

/* ---- Refusals and failures ---- */

static void failing_rank(struct client *c)
{
	struct desk d;
	ncclsvc_task task;
	desk_open(&d, c);
	/* A task held past its deadline fails, and its stream is released. The rest of its group
	 * fails, too; later groups run. */
	CHECK_OK(ncclsvc_comm_set_timeout(d.r.comm, 100));
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, at(d.out), WORDS, NCCLSVC_UINT32, d.next, &task));
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, task, WAIT_MS), NCCLSVC_TIMEOUT);
	CHECK_OK(ncclsvc_stream_wait(d.r.session, d.r.stream, task));
	CHECK(gpu_stream_ends(d.r.stream, WAIT_MS));
	CHECK_OK(ncclsvc_comm_set_timeout(d.r.comm, NCCLSVC_NO_TIMEOUT));
	CHECK_OK(ncclsvc_plan_submit_recv(d.plan, at(d.in), WORDS, NCCLSVC_UINT32, d.last, &task));
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, task, WAIT_MS), NCCLSVC_TIMEOUT);
	for (int g = 1; g < GROUPS; g++) {
		gpu_fill(part(d.out, g), (uint32_t)g, WORDS);
		CHECK_OK(ncclsvc_plan_submit_send(d.plan, at(part(d.out, g)), WORDS, NCCLSVC_UINT32,
						  d.next, NULL));
		CHECK_OK(ncclsvc_plan_submit_recv(d.plan, at(part(d.in, g)), WORDS, NCCLSVC_UINT32,
						  d.last, NULL));
	}
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	for (int g = 1; g < GROUPS; g++)
		gpu_check(part(d.in, g), (uint32_t)g, WORDS, "what came");
	rank_check_usable(&d.r);
	desk_close(&d);
}

static void test_failing(void)
{
	ranks_run(ranks_count(), failing_rank, NULL);
}

/* ---- A member dies ---- */

static void iterate(struct desk *d)
{
	for (int g = 0; g < GROUPS; g++) {
		gpu_fill(part(d->out, g), (uint32_t)(d->r.rank + g), WORDS);
		CHECK_OK(ncclsvc_plan_submit_recv(d->plan, at(part(d->in, g)), WORDS,
						  NCCLSVC_UINT32, d->last, NULL));
		CHECK_OK(ncclsvc_plan_submit_send(d->plan, at(part(d->out, g)), WORDS,
						  NCCLSVC_UINT32, d->next, NULL));
	}
	CHECK_OK(ncclsvc_plan_reset(d->plan, WAIT_MS));
	for (int g = 0; g < GROUPS; g++)
		gpu_check(part(d->in, g), (uint32_t)(d->last + g), WORDS, "what came");
}

static void restarted_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	iterate(&d);
	desk_close(&d);
}

static void mourning_rank(struct client *c)
{
	struct desk d;
	ncclsvc_task held;
	desk_open(&d, c);
	iterate(&d);
	CHECK_OK(ncclsvc_plan_submit_send(d.plan, at(d.out), WORDS, NCCLSVC_UINT32, d.next, &held));
	CHECK_OK(ncclsvc_stream_wait(d.r.session, d.r.stream, held));
	say(c, READY);
	if (d.r.rank == d.r.n - 1)
		hear(c); /* killed here */
	CHECK_RESULT(ncclsvc_plan_wait(d.plan, held, WAIT_MS), NCCLSVC_PEER_GONE);
	say(c, now_ns());
	CHECK(gpu_stream_ends(d.r.stream, WAIT_MS));
	CHECK_OK(ncclsvc_comm_rejoin(d.r.comm, WAIT_MS));
	CHECK_OK(ncclsvc_plan_reset(d.plan, WAIT_MS));
	iterate(&d);
	desk_close(&d);
}

static void test_death(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, mourning_rank, NULL);
	hear_all(ranks, n, READY);
	ncclsvc_session *s = session_open(&d);
	tasks_reach(s, NCCLSVC_WAITING_GROUP, (size_t)n);
	ncclsvc_close(s);
	uint64_t then = now_ns();
	client_kill(&ranks[n - 1]);
	for (int i = 0; i < n - 1; i++)
		CHECK(hear(&ranks[i]) - then < limit_ms(100) * UINT64_C(1000000));
	client_start(&ranks[n - 1], restarted_rank);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test plan_tests[] = {
	{"plan/streams", test_streams, 2, 120, TEST_QUICK},
	{"plan/any-order", test_any_order, 2, 60, TEST_QUICK},
	{"plan/one-thread", test_blocking, 2, 60, TEST_QUICK},
	{"plan/by-group", test_groups, 2, 60, TEST_QUICK},
	{"plan/stable", test_stable, 2, 60, TEST_QUICK},
	{"plan/strict", test_strict, 2, 60, TEST_QUICK},
	{"plan/beside-waiting", test_beside, 2, 60, TEST_QUICK},
	{"plan/ends-beside-waiting", test_ending, 2, 60, TEST_QUICK},
	{"plan/deadlines", test_failing, 2, 60, TEST_QUICK},
	{"plan/death", test_death, 2, 120, TEST_QUICK},
	{0},
};
