/* SPDX-License-Identifier: Apache-2.0
 * Kernels of one communicator on several streams, of several communicators, and of several GPUs in
 * one process. */
#include <pthread.h>

#include "kernels.h"

#define STREAMS	   4
#define STEPS	   60
#define SCRATCH	   ((size_t)1 << 20)
#define LEGACY	   ((CUstream)0)
#define PER_THREAD ((CUstream)2)
#define SUM_BYTES  (SMALL * sizeof(uint32_t))

/* ---- One communicator ---- */

struct juggler {
	struct rank r;
	CUstream streams[STREAMS];
	CUdeviceptr p, copies, scratch;
	uint32_t value;
	unsigned steps;
};

/* Delays the next work on the stream. */
static void come_late(const struct juggler *j, CUstream stream)
{
	unsigned i = 0;
	while (i < STREAMS - 1 && j->streams[i] != stream)
		i++;
	gpu_delay(stream, j->scratch + i * SCRATCH, SCRATCH, 5);
}

/* Sums on one stream; `then` waits only for this task, and copies the result. Some streams are busy
 * first. */
static void juggle(struct juggler *j, CUstream stream, CUstream then, unsigned flags)
{
	struct rank *r = &j->r;
	CHECK_OK(ncclsvc_stream_set(r->session, stream, flags));
	if ((j->steps + (unsigned)r->rank) % 5 == 0)
		come_late(j, stream);
	const ncclsvc_task task = kernels_sum(r, j->p, SMALL);
	CHECK_OK(ncclsvc_stream_wait(r->session, then, task));
	CHECK_CU(cu.cuMemcpyDtoDAsync(j->copies + j->steps++ * SUM_BYTES, j->p, SUM_BYTES, then));
}

static void check_copies(struct juggler *j, unsigned from)
{
	CHECK_OK(ncclsvc_wait_all(j->r.session, WAIT_MS));
	for (int i = 0; i < STREAMS; i++)
		CHECK(gpu_stream_ends(j->streams[i], WAIT_MS));
	for (unsigned i = from; i < j->steps; i++) {
		j->value *= (uint32_t)j->r.n;
		gpu_check(j->copies + i * SUM_BYTES, j->value, SMALL, "a sum's copy");
	}
}

static CUstream stream_of(const struct juggler *j, unsigned i)
{
	return j->streams[i % STREAMS];
}

static void in_turn(struct juggler *j, unsigned flags)
{
	const unsigned from = j->steps;
	stage("streams in turn, flags %u", flags);
	for (unsigned i = 0; i < STEPS; i++)
		juggle(j, stream_of(j, i), stream_of(j, i + 1), flags);
	check_copies(j, from);
}

/* Sums on streams without an order between them: only the communicator orders the sums. */
static void unrelated(struct juggler *j)
{
	struct rank *r = &j->r;
	stage("streams that do not wait for one another");
	for (unsigned i = 0; i < STEPS; i++) {
		CHECK_OK(ncclsvc_stream_set(r->session, stream_of(j, i),
					    i % 3 ? 0 : NCCLSVC_STREAM_DETACHED));
		if ((i + (unsigned)r->rank) % 7 == 0)
			come_late(j, stream_of(j, i));
		kernels_sum(r, j->p, SMALL);
		j->value *= (uint32_t)r->n;
	}
	CHECK_OK(ncclsvc_wait_all(r->session, WAIT_MS));
	gpu_check(j->p, j->value, SMALL, "the sum of sums");
}

static void default_streams(struct juggler *j)
{
	const unsigned from = j->steps;
	const CUstream other = setup.fake ? LEGACY : PER_THREAD; /* the stand-in has none */
	stage("default streams");
	for (unsigned i = 0; i < 10; i++) {
		juggle(j, LEGACY, other, 0);
		juggle(j, other, j->streams[0], 0);
		juggle(j, j->streams[0], LEGACY, 0);
	}
	CHECK_CU(cu.cuStreamSynchronize(LEGACY));
	check_copies(j, from);
}

static void juggling_rank(struct client *c)
{
	struct juggler j = {.value = 1};
	rank_open(&j.r, c);
	CHECK_CU(cu.cuMemAlloc(&j.p, SUM_BYTES));
	CHECK_CU(cu.cuMemAlloc(&j.copies, 4 * STEPS * SUM_BYTES));
	CHECK_CU(cu.cuMemAlloc(&j.scratch, STREAMS * SCRATCH));
	for (int i = 0; i < STREAMS; i++)
		j.streams[i] = gpu_stream();
	gpu_fill(j.p, 1, SMALL);
	in_turn(&j, 0);
	in_turn(&j, NCCLSVC_STREAM_DETACHED);
	unrelated(&j);
	default_streams(&j);
	CHECK_OK(ncclsvc_stream_set(j.r.session, j.r.stream, 0));
	rank_check_usable(&j.r);
	for (int i = 0; i < STREAMS; i++)
		CHECK_CU(cu.cuStreamDestroy(j.streams[i]));
	CHECK_CU(cu.cuMemFree(j.p));
	CHECK_CU(cu.cuMemFree(j.copies));
	CHECK_CU(cu.cuMemFree(j.scratch));
	rank_close(&j.r);
}

static void test_streams(void)
{
	kernels_run(ranks_count(), juggling_rank, NULL);
}

/* ---- Two communicators ---- */

/* Each communicator has its own stream. Every other rank begins with the second communicator, so
 * kernels of both wait. */
static void crossing_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p[2];
	CUstream streams[2];
	rank_open(&r, c);
	ncclsvc_comm *comms[2] = {r.comm, NULL};
	CHECK_OK(ncclsvc_comm_split(r.comm, 0, -r.rank, WAIT_MS, &comms[1]));
	for (int i = 0; i < 2; i++) {
		streams[i] = gpu_stream();
		CHECK_CU(cu.cuMemAlloc(&p[i], SUM_BYTES));
		gpu_fill(p[i], 1, SMALL);
	}
	uint32_t value = 1;
	for (int k = 0; k < STEPS; k++) {
		for (int i = 0; i < 2; i++) {
			const int which = (r.rank + i) % 2;
			if (i && k % 10 == 0)
				sleep_ms(2);
			r.comm = comms[which];
			CHECK_OK(ncclsvc_stream_set(r.session, streams[which], 0));
			kernels_sum(&r, p[which], SMALL);
		}
		value *= (uint32_t)r.n;
	}
	r.comm = comms[0];
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	for (int i = 0; i < 2; i++) {
		stage("waiting for communicator %d", i);
		CHECK(gpu_stream_ends(streams[i], WAIT_MS));
		gpu_check(p[i], value, SMALL, "the sum of sums");
	}
	CHECK_OK(ncclsvc_wait_all(r.session, WAIT_MS));
	rank_check_usable(&r);
	for (int i = 0; i < 2; i++) {
		CHECK_CU(cu.cuStreamDestroy(streams[i]));
		CHECK_CU(cu.cuMemFree(p[i]));
	}
	CHECK_OK(ncclsvc_comm_leave(comms[1]));
	rank_close(&r);
}

static void test_crossing(void)
{
	kernels_run(ranks_count(), crossing_rank, NULL);
}

/* ---- Two GPUs in one process ---- */

/* A rank in its own thread, with its own GPU of the process. */
static void *thread_rank(void *arg)
{
	struct client *c = arg;
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, SUM_BYTES));
	gpu_fill(p, 1, SMALL);
	uint32_t value = 1;
	for (int k = 0; k < STEPS; k++) {
		const ncclsvc_task task = kernels_sum(&r, p, SMALL);
		value *= (uint32_t)r.n;
		if (k % 4 == r.rank)
			rank_wait(&r, task);
	}
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	gpu_check(p, value, SMALL, "the sum of sums");
	rank_check_usable(&r);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
	return NULL;
}

static void threads_rank(struct client *c)
{
	rank_threads(c, thread_rank);
}

static void test_threads(void)
{
	kernels_run(1, threads_rank, NULL);
}

/* ---- Two ranks of one session, in one group ---- */

struct joiner {
	struct client *c;
	ncclsvc_session *session;
	int rank;
	ncclsvc_comm *comm;
};

static void *join_main(void *arg)
{
	struct joiner *j = arg;
	gpu_use(j->rank);
	CHECK_OK(ncclsvc_comm_join_device(j->session, &j->c->id, 2, j->rank, j->rank, WAIT_MS,
					  &j->comm));
	return NULL;
}

/* Both ranks send and receive in one group, all Recvs first. */
static void both(struct joiner j[2], CUstream streams[2], CUdeviceptr p[2], uint32_t value)
{
	ncclsvc_session *s = j->session;
	for (int k = 0; k < 2; k++) {
		gpu_use(k);
		CHECK_CU(cu.cuMemsetD32Async(p[k], value + (unsigned)k, SMALL, streams[k]));
	}
	CHECK_OK(ncclsvc_group_begin(s));
	for (int i = 0; i < 4; i++) {
		const int k = i % 2;
		gpu_use(k);
		CHECK_OK(ncclsvc_stream_set(s, streams[k], 0));
		if (i < 2)
			CHECK_OK(ncclsvc_recv(at(p[k] + 4096), SMALL, NCCLSVC_UINT32, !k, j[k].comm,
					      NULL));
		else
			CHECK_OK(
				ncclsvc_send(at(p[k]), SMALL, NCCLSVC_UINT32, !k, j[k].comm, NULL));
	}
	CHECK_OK(ncclsvc_group_end(s));
	for (int k = 0; k < 2; k++) {
		gpu_use(k);
		CHECK(gpu_stream_ends(streams[k], WAIT_MS));
		gpu_check(p[k] + 4096, value + !k, SMALL, "what the other one sent");
	}
}

static void both_ranks(struct client *c)
{
	struct joiner j[2];
	pthread_t threads[2];
	CUstream streams[2];
	CUdeviceptr p[2];
	ncclsvc_session *session = session_open(c->daemon);
	for (int k = 0; k < 2; k++) {
		j[k] = (struct joiner){.c = c, .session = session, .rank = k};
		CHECK_EQ(pthread_create(&threads[k], NULL, join_main, &j[k]), 0);
	}
	for (int k = 0; k < 2; k++) {
		CHECK_EQ(pthread_join(threads[k], NULL), 0);
		gpu_use(k);
		streams[k] = gpu_stream();
		CHECK_CU(cu.cuMemAlloc(&p[k], 8192));
	}
	for (uint32_t value = 1; value < 20; value++)
		both(j, streams, p, value);
	for (int k = 0; k < 2; k++) {
		gpu_use(k);
		CHECK_OK(ncclsvc_comm_leave(j[k].comm));
		CHECK_CU(cu.cuStreamDestroy(streams[k]));
		CHECK_CU(cu.cuMemFree(p[k]));
	}
	ncclsvc_close(session);
}

static void test_both(void)
{
	kernels_run(1, both_ranks, NULL);
}

const struct gpu_test kernel_stream_tests[] = {
	{"kernels/streams", test_streams, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/streams/4", test_streams, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/crossing", test_crossing, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/threads", test_threads, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/messages/one_session", test_both, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
