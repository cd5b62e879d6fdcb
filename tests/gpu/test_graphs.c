/* SPDX-License-Identifier: Apache-2.0
 * Operations in CUDA graphs: the results and order of launches, and refused captures. */
#include "graphs.h"

#include <string.h>

#define WORDS	 512
#define BYTES	 (WORDS * sizeof(uint32_t))
#define LAUNCHES 20
#define DELAY	 ((size_t)1 << 20)
#define MANY	 ((size_t)1 << 18) /* words of an operation in chunks */

/* ---- Launches, and work between them ---- */

struct scene {
	struct rank r;
	CUdeviceptr p, q, many, scratch;
	uint32_t value; /* of p's words, once the stream has run everything */
};

static void scene_begin(struct scene *s, struct client *c)
{
	*s = (struct scene){.value = 1};
	rank_open(&s->r, c);
	CHECK_CU(cu.cuMemAlloc(&s->p, BYTES));
	CHECK_CU(cu.cuMemAlloc(&s->q, BYTES));
	CHECK_CU(cu.cuMemAlloc(&s->many, MANY * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&s->scratch, 2 * DELAY));
	gpu_fill(s->p, 1, WORDS);
	gpu_fill(s->q, 1, WORDS);
	gpu_fill(s->many, 1, MANY);
}

static void scene_end(struct scene *s)
{
	CHECK_OK(ncclsvc_stream_set(s->r.session, s->r.stream, 0));
	rank_sync(&s->r);
	rank_check_usable(&s->r);
	CHECK_CU(cu.cuMemFree(s->p));
	CHECK_CU(cu.cuMemFree(s->q));
	CHECK_CU(cu.cuMemFree(s->many));
	CHECK_CU(cu.cuMemFree(s->scratch));
	rank_close(&s->r);
}

/* Delays the next work on the stream. */
static void come_late(const struct scene *s, CUstream stream)
{
	gpu_delay(stream, stream == s->r.stream ? s->scratch : s->scratch + DELAY, DELAY, 4);
}

/* Sums p over all ranks, outside of graphs. */
static void sum_single(struct scene *s)
{
	kernels_sum(&s->r, s->p, WORDS);
	s->value *= (uint32_t)s->r.n;
}

static void launch_sums(struct scene *s, CUgraphExec exec, unsigned sums)
{
	graph_launch(exec, s->r.stream);
	while (sums--)
		s->value *= (uint32_t)s->r.n;
}

static void check_value(struct scene *s, const char *what)
{
	CHECK(gpu_stream_ends(s->r.stream, WAIT_MS));
	gpu_check(s->p, s->value, WORDS, what);
}

/* The communicator's very first operation is captured. */
static void launches_rank(struct client *c)
{
	struct scene s;
	scene_begin(&s, c);
	stage("a graph of one sum");
	graph_begin(s.r.stream);
	graph_sum(&s.r, s.p, WORDS);
	CUgraphExec one = graph_end(s.r.stream);
	check_value(&s, "what was captured has not run");
	for (int i = 0; i < LAUNCHES; i++)
		launch_sums(&s, one, 1);
	check_value(&s, "sums of one graph");
	stage("single sums between launches");
	for (int i = 0; i < LAUNCHES; i++) {
		sum_single(&s);
		launch_sums(&s, one, 1);
	}
	check_value(&s, "sums of a graph and others");
	stage("two graphs in any order");
	graph_begin(s.r.stream);
	for (int i = 0; i < 3; i++)
		graph_sum(&s.r, s.p, WORDS);
	graph_sum(&s.r, s.many, MANY);
	CUgraphExec more = graph_end(s.r.stream);
	for (int i = 0; i < LAUNCHES; i++) {
		const bool first = i * 5 % 3;
		launch_sums(&s, first ? one : more, first ? 1 : 3);
		if (i % 4 == 0)
			sum_single(&s);
	}
	check_value(&s, "sums of two graphs and others");
	graph_destroy(one);
	sum_single(&s);
	launch_sums(&s, more, 3);
	graph_destroy(more);
	sum_single(&s);
	check_value(&s, "sums after the graphs");
	scene_end(&s);
}

static void test_launches(void)
{
	kernels_run(ranks_count(), launches_rank, NULL);
}

static void test_launches_all(void)
{
	kernels_run(setup.gpus, launches_rank, NULL);
}

/* ---- All operations ---- */

/* Blocks of WORDS words in and out, one for each rank. */
struct blocks {
	struct rank *r;
	CUdeviceptr in, out;
};

static CUdeviceptr block_of(CUdeviceptr p, int rank)
{
	return p + (size_t)rank * BYTES;
}

#define ARGUMENTS WORDS, NCCLSVC_UINT32

static void capture_all(const struct blocks *b, int which)
{
	struct rank *r = b->r;
	const int next = (r->rank + 1) % r->n, last = (r->rank + r->n - 1) % r->n;
	void *in = at(b->in), *out = at(b->out);
	ncclsvc_comm *comm = r->comm;
	switch (which) {
	case 0:
		CHECK_OK(ncclsvc_all_gather(in, out, ARGUMENTS, comm, NULL));
		break;
	case 1:
		CHECK_OK(ncclsvc_reduce_scatter(in, out, ARGUMENTS, NCCLSVC_SUM, comm, NULL));
		break;
	case 2:
		CHECK_OK(ncclsvc_broadcast(in, out, ARGUMENTS, 1, comm, NULL));
		break;
	case 3:
		CHECK_OK(ncclsvc_all_to_all(in, out, ARGUMENTS, comm, NULL));
		break;
	case 4:
		CHECK_OK(ncclsvc_scatter(in, out, ARGUMENTS, 0, comm, NULL));
		break;
	case 5:
		CHECK_OK(ncclsvc_barrier(comm, NULL));
		break;
	default:
		CHECK_OK(ncclsvc_group_begin(r->session));
		CHECK_OK(ncclsvc_send(in, ARGUMENTS, next, comm, NULL));
		CHECK_OK(ncclsvc_recv(out, ARGUMENTS, last, comm, NULL));
		CHECK_OK(ncclsvc_group_end(r->session));
	}
}

#define OPERATIONS 7

/* Block k of a rank's input. */
static uint32_t input(int rank, int k, uint32_t round)
{
	return (uint32_t)(rank * 100 + k) + round * 10000;
}

static uint32_t output(const struct rank *r, int which, int k, uint32_t round)
{
	uint32_t sum = 0;
	for (int i = 0; i < r->n; i++)
		sum += input(i, r->rank, round);
	const uint32_t first[] = {0,
				  sum,
				  input(1, 0, round),
				  0,
				  input(0, r->rank, round),
				  0,
				  input((r->rank + r->n - 1) % r->n, 0, round)};
	return which == 0   ? input(k, 0, round)
	       : which == 3 ? input(k, r->rank, round)
			    : first[which];
}

static bool writes_block(int which, int k)
{
	return which == 0 || which == 3 || (which != 5 && k == 0);
}

static void check_output(const struct blocks *b, int which, uint32_t round)
{
	for (int k = 0; k < b->r->n; k++)
		if (writes_block(which, k))
			gpu_check(block_of(b->out, k), output(b->r, which, k, round), WORDS,
				  "an operation of a graph");
}

static void operations_rank(struct client *c)
{
	struct rank r;
	CUgraphExec execs[OPERATIONS];
	rank_open(&r, c);
	struct blocks b = {.r = &r};
	CHECK_CU(cu.cuMemAlloc(&b.in, (size_t)r.n * BYTES));
	CHECK_CU(cu.cuMemAlloc(&b.out, (size_t)r.n * BYTES));
	for (int i = 0; i < OPERATIONS; i++) {
		graph_begin(r.stream);
		capture_all(&b, i);
		execs[i] = graph_end(r.stream);
	}
	for (uint32_t round = 0; round < 4 * OPERATIONS; round++) {
		const int which = (int)(round * 3 % OPERATIONS);
		stage("operation %d, round %u", which, round);
		for (int k = 0; k < r.n; k++)
			gpu_fill(block_of(b.in, k), input(r.rank, k, round), WORDS);
		graph_launch(execs[which], r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		check_output(&b, which, round);
		if (round % 3 == 0)
			rank_check_usable(&r);
	}
	for (int i = 0; i < OPERATIONS; i++)
		graph_destroy(execs[i]);
	CHECK_CU(cu.cuMemFree(b.in));
	CHECK_CU(cu.cuMemFree(b.out));
	rank_check_usable(&r);
	rank_close(&r);
}

static void test_operations(void)
{
	kernels_run(ranks_count(), operations_rank, NULL);
}

/* ---- Streams ---- */

/* In a capture of two streams, sums on both run in the order of their calls. */
static void forked(struct scene *s, CUstream other)
{
	CUevent fork, join;
	struct rank *r = &s->r;
	CHECK_CU(cu.cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	CHECK_CU(cu.cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	stage("a capture of two streams");
	graph_begin(r->stream);
	CHECK_CU(cu.cuEventRecord(fork, r->stream));
	CHECK_CU(cu.cuStreamWaitEvent(other, fork, 0));
	for (int i = 0; i < 4; i++) {
		if ((i + r->rank) % 2)
			come_late(s, i & 1 ? other : r->stream);
		CHECK_OK(ncclsvc_stream_set(r->session, i & 1 ? other : r->stream, 0));
		graph_sum(r, s->p, WORDS);
	}
	CHECK_CU(cu.cuEventRecord(join, other));
	CHECK_CU(cu.cuStreamWaitEvent(r->stream, join, 0));
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	CUgraphExec exec = graph_end(r->stream);
	for (int i = 0; i < 5; i++)
		launch_sums(s, exec, 4);
	check_value(s, "sums on two streams of a graph");
	graph_destroy(exec);
	CHECK_CU(cu.cuEventDestroy(fork));
	CHECK_CU(cu.cuEventDestroy(join));
}

/* Sums of p and q on two streams without an order between them. Each rank's streams are late in
 * other rounds, and all ranks run the sums in the order of the calls. */
static void unordered(struct scene *s, CUstream other)
{
	struct rank *r = &s->r;
	stage("launches and single sums on unordered streams");
	graph_begin(r->stream);
	graph_sum(r, s->p, WORDS);
	graph_sum(r, s->p, WORDS);
	CUgraphExec exec = graph_end(r->stream);
	uint32_t q = 1;
	for (int i = 0; i < LAUNCHES; i++) {
		if ((i + r->rank) % 3 == 0)
			come_late(s, r->stream);
		launch_sums(s, exec, 2);
		if ((i + r->rank) % 4 == 0)
			come_late(s, other);
		CHECK_OK(ncclsvc_stream_set(r->session, other, 0));
		kernels_sum(r, s->q, WORDS);
		q *= (uint32_t)r->n;
		CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	}
	check_value(s, "sums of a graph");
	CHECK(gpu_stream_ends(other, WAIT_MS));
	gpu_check(s->q, q, WORDS, "sums beside a graph");
	graph_destroy(exec);
}

/* Two executables of one graph, on two streams. */
static void twins(struct scene *s, CUstream other)
{
	CUgraph graph;
	struct rank *r = &s->r;
	stage("two executable graphs of one");
	graph_begin(r->stream);
	graph_sum(r, s->p, WORDS);
	CHECK_CU(cu.cuStreamEndCapture(r->stream, &graph));
	CUgraphExec one = graph_instantiate(graph), two = graph_instantiate(graph);
	CHECK_CU(cu.cuGraphDestroy(graph));
	for (int i = 0; i < LAUNCHES; i++) {
		if ((i + r->rank) % 3 == 0)
			come_late(s, i & 1 ? other : r->stream);
		graph_launch(i & 1 ? two : one, i & 1 ? other : r->stream);
		s->value *= (uint32_t)r->n;
	}
	CHECK(gpu_stream_ends(other, WAIT_MS));
	check_value(s, "sums of two executable graphs");
	graph_destroy(one);
	graph_destroy(two);
}

static void streams_rank(struct client *c)
{
	struct scene s;
	scene_begin(&s, c);
	const CUstream other = gpu_stream();
	forked(&s, other);
	unordered(&s, other);
	twins(&s, other);
	scene_end(&s);
	CHECK_CU(cu.cuStreamDestroy(other));
}

static void test_streams(void)
{
	kernels_run(ranks_count(), streams_rank, NULL);
}

/* ---- Updates ---- */

/* A new capture on other buffers updates the executable, also in a later epoch. The executable then
 * keeps the memory of that epoch, and no longer that of the previous one. */
static void updates_rank(struct client *c)
{
	struct scene s;
	scene_begin(&s, c);
	struct rank *r = &s.r;
	graph_begin(r->stream);
	graph_sum(r, s.p, WORDS);
	graph_sum(r, s.p, WORDS);
	CUgraphExec exec = graph_end(r->stream);
	launch_sums(&s, exec, 2);
	check_value(&s, "sums");
	for (int epoch = 0; epoch < 3; epoch++) {
		stage("captured again, epoch %d", epoch);
		graph_begin(r->stream);
		graph_sum(r, s.q, WORDS);
		graph_sum(r, s.q, WORDS);
		graph_update(exec, r->stream);
		gpu_fill(s.q, 1, WORDS);
		graph_launch(exec, r->stream);
		sum_single(&s);
		graph_launch(exec, r->stream);
		check_value(&s, "a single sum");
		gpu_check(s.q, (uint32_t)(r->n * r->n * r->n * r->n), WORDS, "sums of the update");
		stage("joining again");
		CHECK_OK(ncclsvc_comm_leave(r->comm));
		rank_join(r);
		rank_check_usable(r);
	}
	gpu_fill(s.q, 1, WORDS);
	graph_launch(exec, r->stream); /* does nothing: its epoch is over */
	check_value(&s, "nothing");
	gpu_check(s.q, 1, WORDS, "nothing");
	graph_destroy(exec);
	scene_end(&s);
}

static void test_updates(void)
{
	kernels_run(ranks_count(), updates_rank, NULL);
}

/* ---- Refused captures ---- */

static void is_refused(ncclsvc_result result, ncclsvc_result expected, const char *text)
{
	CHECK_RESULT(result, expected);
	if (!strstr(ncclsvc_last_error(), text))
		check_failed(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", ncclsvc_last_error(),
			     text);
}

static void refused_rank(struct client *c)
{
	struct scene s;
	scene_begin(&s, c);
	struct rank *r = &s.r;
	const CUstream other = gpu_stream();
	stage("waiting for a task outside graphs");
	const ncclsvc_task task = kernels_sum(r, s.q, WORDS);
	CHECK_CU(cu.cuStreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	rank_wait(r, task);
	graph_drop(r->stream); /* the capture is still valid */
	graph_begin(r->stream);
	stage("a detached stream");
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, NCCLSVC_STREAM_DETACHED));
	is_refused(ncclsvc_all_reduce(at(s.p), at(s.p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				      NULL),
		   NCCLSVC_UNSUPPORTED, "detached");
	stage("a group with another stream");
	CHECK_OK(ncclsvc_group_begin(r->session));
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	CHECK_OK(ncclsvc_all_reduce(at(s.p), at(s.p), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    NULL));
	CHECK_OK(ncclsvc_stream_set(r->session, other, 0));
	CHECK_OK(ncclsvc_all_reduce(at(s.q), at(s.q), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    NULL));
	is_refused(ncclsvc_group_end(r->session), NCCLSVC_INVALID_ARGUMENT, "other streams");
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
	stage("a sum in the same capture");
	graph_sum(r, s.p, WORDS);
	CUgraphExec exec = graph_end(r->stream); /* the capture is still valid */
	launch_sums(&s, exec, 1);
	check_value(&s, "the sum");
	graph_destroy(exec);
	scene_end(&s);
	CHECK_CU(cu.cuStreamDestroy(other));
}

static void test_refused(void)
{
	kernels_run(ranks_count(), refused_rank, NULL);
}

const struct gpu_test graph_tests[] = {
	{"graphs/launches", test_launches, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/launches/4", test_launches, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/launches/8", test_launches_all, 8, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/operations", test_operations, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/operations/4", test_operations, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/streams", test_streams, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/streams/4", test_streams, 4, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/updates", test_updates, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"graphs/refused", test_refused, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
