/* SPDX-License-Identifier: Apache-2.0
 * The order of operations and other work: on the same stream, on other streams, and in groups. */
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "values.h"

#define WORDS	   100000
#define SCRATCH	   ((size_t)64 << 20)
#define LEGACY	   ((CUstream)0)
#define PER_THREAD ((CUstream)2)

static void *word(CUdeviceptr p, size_t i)
{
	return at(p + i * sizeof(uint32_t));
}

struct desk {
	struct rank r;
	CUdeviceptr in, out, copy, scratch;
	size_t scratch_bytes;
};

static void desk_open(struct desk *d, struct client *c)
{
	rank_open(&d->r, c);
	d->scratch_bytes = setup.fake ? SCRATCH / 64 : SCRATCH;
	CHECK_CU(cu.cuMemAlloc(&d->in, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&d->out, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&d->copy, WORDS * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&d->scratch, d->scratch_bytes));
}

static void desk_close(struct desk *d)
{
	CHECK_CU(cu.cuMemFree(d->in));
	CHECK_CU(cu.cuMemFree(d->out));
	CHECK_CU(cu.cuMemFree(d->copy));
	CHECK_CU(cu.cuMemFree(d->scratch));
	rank_close(&d->r);
}

static uint32_t ranks_sum(const struct rank *r)
{
	return (uint32_t)(r->n * (r->n + 1) / 2);
}

/* Garbage, a long delay, and only then the input. */
static void late_input(struct desk *d, CUstream s, uint32_t value)
{
	CHECK_CU(cu.cuMemsetD32Async(d->in, 0xdeadbeef, WORDS, s));
	gpu_delay(s, d->scratch, d->scratch_bytes, 20 + 40 * (unsigned)d->r.rank);
	CHECK_CU(cu.cuMemsetD32Async(d->in, value, WORDS, s));
}

static void take_copy(struct desk *d, CUstream s)
{
	CHECK_CU(cu.cuMemcpyDtoDAsync(d->copy, d->out, WORDS * sizeof(uint32_t), s));
	CHECK_CU(cu.cuMemsetD32Async(d->out, 0xdeadbeef, WORDS, s));
}

/* A task runs between earlier and later work on its stream. */
static void between(struct desk *d, CUstream s, unsigned rounds)
{
	struct rank *r = &d->r;
	CHECK_OK(ncclsvc_stream_set(r->session, s, 0));
	for (uint32_t k = 1; k <= rounds; k++) {
		stage("round %u", k);
		late_input(d, s, k * (uint32_t)(r->rank + 1));
		CHECK_OK(ncclsvc_all_reduce(at(d->in), at(d->out), WORDS, NCCLSVC_UINT32,
					    NCCLSVC_SUM, r->comm, NULL));
		CHECK_CU(cu.cuMemsetD32Async(d->in, 0xdeadbeef, WORDS, s));
		take_copy(d, s);
		CHECK_CU(cu.cuStreamSynchronize(s));
		gpu_check(d->copy, k * ranks_sum(r), WORDS, "what was copied behind the task");
	}
}

static void same_stream_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	between(&d, d.r.stream, setup.quick ? 5 : 30);
	desk_close(&d);
}

static void test_same_stream(void)
{
	ranks_run(ranks_count(), same_stream_rank, NULL);
}

static void default_streams_rank(struct client *c)
{
	struct desk d;
	desk_open(&d, c);
	stage("the legacy default stream");
	between(&d, LEGACY, 5);
	stage("the thread's default stream");
	if (!setup.fake) /* the stand-in has none */
		between(&d, PER_THREAD, 5);
	desk_close(&d);
}

static void test_default_streams(void)
{
	ranks_run(ranks_count(), default_streams_rank, NULL);
}

/* Work on the legacy default stream precedes later work on a blocking stream. */
static void blocking_stream_rank(struct client *c)
{
	struct desk d;
	CUstream s;
	desk_open(&d, c);
	CHECK_CU(cu.cuStreamCreate(&s, CU_STREAM_DEFAULT));
	CHECK_OK(ncclsvc_stream_set(d.r.session, s, 0));
	for (uint32_t k = 1; k <= 5; k++) {
		stage("round %u", k);
		late_input(&d, LEGACY, k * (uint32_t)(d.r.rank + 1));
		CHECK_OK(ncclsvc_all_reduce(at(d.in), at(d.out), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM,
					    d.r.comm, NULL));
		CHECK_CU(cu.cuStreamSynchronize(s));
		gpu_check(d.out, k * ranks_sum(&d.r), WORDS, "the sum");
	}
	CHECK_OK(ncclsvc_stream_set(d.r.session, NULL, 0));
	CHECK_CU(cu.cuStreamDestroy(s));
	desk_close(&d);
}

static void test_blocking_stream(void)
{
	ranks_run(ranks_count(), blocking_stream_rank, NULL);
}

static void other_stream_rank(struct client *c)
{
	struct desk d;
	ncclsvc_task task;
	desk_open(&d, c);
	struct rank *r = &d.r;
	CUstream other = gpu_stream();
	CHECK_OK(ncclsvc_stream_set(r->session, r->stream, NCCLSVC_STREAM_DETACHED));
	for (uint32_t k = 1; k <= (setup.quick ? 5 : 30); k++) {
		stage("round %u", k);
		late_input(&d, r->stream, k * (uint32_t)(r->rank + 1));
		CHECK_OK(ncclsvc_all_reduce(at(d.in), at(d.out), WORDS, NCCLSVC_UINT32, NCCLSVC_SUM,
					    r->comm, &task));
		CHECK_OK(ncclsvc_stream_wait(r->session, other, task));
		take_copy(&d, other);
		CHECK_CU(cu.cuStreamSynchronize(other));
		gpu_check(d.copy, k * ranks_sum(r), WORDS, "what the other stream copied");
	}
	/* Waiting for a task that is long over works, too. */
	rank_wait(r, task);
	CHECK_OK(ncclsvc_stream_wait(r->session, other, task));
	CHECK(gpu_stream_ends(other, WAIT_MS));
	CHECK_CU(cu.cuStreamDestroy(other));
	desk_close(&d);
}

static void test_other_stream(void)
{
	ranks_run(ranks_count(), other_stream_rank, NULL);
}

/* A stream waits for its task unless the task is detached: rank 0 submits long before the
 * others. */
static void detached_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_task task[2];
	rank_open(&r, c);
	CUstream streams[2] = {gpu_stream(), gpu_stream()};
	CHECK_CU(cu.cuMemAlloc(&p, 2 * sizeof(uint32_t)));
	gpu_fill(p, 1, 2);
	if (r.rank)
		CHECK_EQ(hear(c), 1);
	for (int i = 0; i < 2; i++) {
		CHECK_OK(
			ncclsvc_stream_set(r.session, streams[i], i ? NCCLSVC_STREAM_DETACHED : 0));
		CHECK_OK(ncclsvc_all_reduce(word(p, (size_t)i), word(p, (size_t)i), 1,
					    NCCLSVC_UINT32, NCCLSVC_SUM, r.comm, &task[i]));
	}
	if (!r.rank) {
		stage("looking at both streams");
		CHECK(gpu_stream_ends(streams[1], WAIT_MS));
		CHECK_RESULT(ncclsvc_test(r.session, task[1]), NCCLSVC_IN_PROGRESS);
		sleep_ms(50);
		CHECK_EQ(cu.cuStreamQuery(streams[0]), CUDA_ERROR_NOT_READY);
		say(c, 1);
	}
	CHECK(gpu_stream_ends(streams[0], WAIT_MS));
	rank_wait(&r, task[0]);
	rank_wait(&r, task[1]);
	gpu_check(p, (uint32_t)r.n, 2, "the sum");
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_detached(void)
{
	struct daemon d;
	struct client ranks[RANKS_MAX];
	int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, detached_rank, NULL);
	CHECK_EQ(hear(&ranks[0]), 1);
	say_all(ranks + 1, n - 1, 1);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

/* ---- Many ---- */

#define MANY 200

static void many_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, MANY * sizeof(uint32_t)));
	for (uint32_t round = 1; round <= 5; round++) {
		uint32_t values[MANY];
		stage("round %u", round);
		CHECK_CU(cu.cuMemsetD32Async(p, round, MANY, r.stream));
		/* Each task sums a different word. */
		for (size_t i = 0; i < MANY; i++)
			CHECK_OK(ncclsvc_all_reduce(word(p, i), word(p, i), 1, NCCLSVC_UINT32,
						    NCCLSVC_SUM, r.comm, NULL));
		CHECK_OK(ncclsvc_wait_all(r.session, WAIT_MS));
		gpu_get(values, p, sizeof(values));
		for (size_t i = 0; i < MANY; i++)
			CHECK_EQ(values[i], round * (uint32_t)r.n);
	}
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_many(void)
{
	ranks_run(ranks_count(), many_rank, NULL);
}

/* Each result is the next input, so any disorder shows. */
static void chain_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	const size_t n = 1000;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, n * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemsetD32Async(p, 1, n, r.stream));
	uint32_t value = 1;
	for (int i = 0; i < 500; i++) {
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), n, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm,
					    NULL));
		value *= (uint32_t)r.n;
		if (i % 10 == 9) {
			value = (uint32_t)i;
			CHECK_CU(cu.cuMemsetD32Async(p, value, n, r.stream));
		}
	}
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	gpu_check(p, value, n, "the chain's end");
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_chain(void)
{
	ranks_run(ranks_count(), chain_rank, NULL);
}

enum word { READY = 1, GO };

/* With 512 tasks pending, the next one is refused at once. It must not block, so that another
 * thread of the process can still abort. */
static void full_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr p;
	ncclsvc_result result = NCCLSVC_OK;
	unsigned n = 0;
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, sizeof(uint32_t)));
	CHECK_CU(cu.cuMemsetD32Async(p, 1, 1, r.stream));
	if (c->rank == 0) {
		while (n < 2000 && !(result = ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_UINT32,
								 NCCLSVC_MAX, r.comm, NULL)))
			n++;
		CHECK_RESULT(result, NCCLSVC_AGAIN);
		CHECK_EQ(n, 512);
		CHECK(strstr(ncclsvc_last_error(), "pending on"));
	}
	say(c, READY);
	CHECK_EQ(hear(c), GO);
	for (int i = 0; c->rank && i < 512; i++)
		CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_UINT32, NCCLSVC_MAX, r.comm,
					    NULL));
	CHECK_OK(ncclsvc_wait_all(r.session, WAIT_MS));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), 1, NCCLSVC_UINT32, NCCLSVC_SUM, r.comm, NULL));
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	gpu_check(p, (uint32_t)r.n, 1, "after a full stream");
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_full(void)
{
	struct daemon d;
	struct client ranks[2];
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, full_rank, NULL);
	hear_all(ranks, 2, READY);
	say_all(ranks, 2, GO);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

/* ---- Streams that wait ---- */

#define HELD 6

/* On rank 0, tasks of more communicators wait for input than a process has connections to its GPU
 * through MPS by default. A task of one more communicator still runs. */
static void held_rank(struct client *c)
{
	struct rank r;
	ncclsvc_comm *comms[HELD];
	CUstream streams[HELD];
	CUdeviceptr p, gate;
	const uint64_t open = 1;
	/* The trainer itself needs enough connections. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&p, (HELD + 1) * sizeof(uint32_t)));
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(open)));
	gpu_fill(p, 1, HELD + 1);
	gpu_fill(gate, 0, 2);
	for (size_t i = 0; i < HELD; i++) {
		CHECK_OK(ncclsvc_comm_split(r.comm, 0, r.rank, WAIT_MS, &comms[i]));
		streams[i] = gpu_stream();
	}
	for (size_t i = 0; i < HELD; i++) {
		if (!r.rank)
			CHECK_CU(cu.cuStreamWaitValue64(streams[i], gate, 1,
							CU_STREAM_WAIT_VALUE_GEQ));
		CHECK_OK(ncclsvc_stream_set(r.session, streams[i], 0));
		CHECK_OK(ncclsvc_all_reduce(word(p, i), word(p, i), 1, NCCLSVC_UINT32, NCCLSVC_SUM,
					    comms[i], NULL));
	}
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	stage("a task while %d others wait", HELD);
	CHECK_OK(ncclsvc_all_reduce(word(p, HELD), word(p, HELD), 1, NCCLSVC_UINT32, NCCLSVC_SUM,
				    r.comm, NULL));
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	/* Other ranks' streams may have ended, because rank 0 has opened its gate. */
	for (size_t i = 0; !r.rank && i < HELD; i++)
		CHECK_EQ(cu.cuStreamQuery(streams[i]), CUDA_ERROR_NOT_READY);
	stage("opening the gate");
	gpu_put(gate, &open, sizeof(open));
	for (size_t i = 0; i < HELD; i++) {
		CHECK(gpu_stream_ends(streams[i], WAIT_MS));
		CHECK_CU(cu.cuStreamDestroy(streams[i]));
		CHECK_OK(ncclsvc_comm_leave(comms[i]));
	}
	gpu_check(p, (uint32_t)r.n, HELD + 1, "the sums");
	CHECK_CU(cu.cuMemFree(p));
	CHECK_CU(cu.cuMemFree(gate));
	rank_close(&r);
}

static void test_held(void)
{
	setenv("NCCLSVC_FAKE_CONNECTIONS", "2", 1);
	ranks_run(2, held_rank, NULL);
}

/* ---- Groups ---- */

/* AllToAll by Send and Recv, for every type. */
static void exchange(struct rank *r, CUdeviceptr send, CUdeviceptr recv, const struct call *c,
		     char *image, char *want)
{
	size_t size = ncclsvc_type_size(c->type), bytes = c->count * size;
	ncclsvc_task task = 0;
	bool exact;
	stage("exchange of %zu %s", c->count, ncclsvc_type_name(c->type));
	for (size_t i = 0; i < c->count * (size_t)c->n; i++) {
		value_store(image, i, c->type, value_input(c, c->rank, i));
		value_store(want, i, c->type, value_expected(c, i, &exact));
	}
	CHECK_CU(cu.cuMemcpyHtoDAsync(send, image, bytes * (size_t)c->n, r->stream));
	CHECK_OK(ncclsvc_group_begin(r->session));
	for (int k = 0; k < c->n; k++) {
		CHECK_OK(ncclsvc_send(at(send + (size_t)k * bytes), c->count, c->type, k, r->comm,
				      NULL));
		CHECK_OK(ncclsvc_recv(at(recv + (size_t)k * bytes), c->count, c->type, k, r->comm,
				      &task));
	}
	CHECK_OK(ncclsvc_group_end(r->session));
	CHECK_CU(cu.cuMemcpyDtoHAsync(image, recv, bytes * (size_t)c->n, r->stream));
	CHECK_CU(cu.cuStreamSynchronize(r->stream));
	rank_wait(r, task);
	for (size_t i = 0; i < bytes * (size_t)c->n; i++)
		CHECK_EQ(image[i], want[i]);
}

static void exchange_rank(struct client *client)
{
	static const size_t counts[] = {0, 1, 1023, 65537};
	struct rank r;
	rank_open(&r, client);
	size_t bytes = 65537 * sizeof(double) * (size_t)r.n;
	struct buffer send, recv;
	char *image = malloc(bytes), *want = malloc(bytes);
	CHECK(image && want);
	buffer_make(&send, MEMORY_VMM, r.gpu, r.session, bytes);
	buffer_make(&recv, MEMORY_ALLOC, r.gpu, r.session, bytes);
	for (size_t k = 0; k < (setup.quick ? 3 : 4); k++)
		for (int type = 0; type < TYPES; type++)
			exchange(&r, send.p, recv.p,
				 &(struct call){.op = NCCLSVC_ALL_TO_ALL,
						.type = (ncclsvc_type)type,
						.count = counts[k],
						.rank = r.rank,
						.n = r.n},
				 image, want);
	buffer_free(&send);
	buffer_free(&recv);
	free(image);
	free(want);
	rank_close(&r);
}

static void test_exchange(void)
{
	ranks_run(ranks_count(), exchange_rank, NULL);
}

/* Sends and Recvs outside of groups, one direction at a time. */
static void send_recv_rank(struct client *client)
{
	struct rank r;
	CUdeviceptr p;
	rank_open(&r, client);
	CHECK_CU(cu.cuMemAlloc(&p, WORDS * sizeof(uint32_t)));
	for (uint32_t round = 1; round <= 10; round++) {
		stage("round %u", round);
		CHECK_CU(cu.cuMemsetD32Async(p, r.rank ? 0 : round, WORDS, r.stream));
		if (r.rank == 0) /* from rank to rank */
			CHECK_OK(ncclsvc_send(at(p), WORDS, NCCLSVC_UINT32, 1, r.comm, NULL));
		else
			CHECK_OK(ncclsvc_recv(at(p), WORDS, NCCLSVC_UINT32, r.rank - 1, r.comm,
					      NULL));
		if (r.rank && r.rank + 1 < r.n)
			CHECK_OK(ncclsvc_send(at(p), WORDS, NCCLSVC_UINT32, r.rank + 1, r.comm,
					      NULL));
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		gpu_check(p, round, WORDS, "what came along the line");
	}
	rank_check_usable(&r); /* leaving too early would end the others' exchange */
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_send_recv(void)
{
	ranks_run(ranks_count(), send_recv_rank, NULL);
}

/* Two communicators, two streams, collectives and an exchange, all in one group. */
static void mixed_rank(struct client *client)
{
	struct desk d;
	ncclsvc_comm *second;
	ncclsvc_unique_id id = client->id;
	desk_open(&d, client);
	struct rank *r = &d.r;
	const int last = r->n - 1;
	CUstream other = gpu_stream();
	id.bytes[1] ^= 1;
	/* Its ranks are in reverse order. */
	CHECK_OK(ncclsvc_comm_join_device(r->session, &id, r->n, last - r->rank, r->gpu, WAIT_MS,
					  &second));
	for (uint32_t k = 1; k <= 10; k++) {
		ncclsvc_task task[4];
		const size_t quarter = WORDS / 4;
		const ncclsvc_type type = NCCLSVC_UINT32;
		stage("round %u", k);
		/* The streams use separate halves, each with its own input. */
		CHECK_CU(cu.cuMemsetD32Async(d.in, k + (uint32_t)r->rank, 2 * quarter, r->stream));
		CHECK_CU(cu.cuMemsetD32Async(d.in + 8 * quarter, k + (uint32_t)r->rank, 2 * quarter,
					     other));
		CHECK_OK(ncclsvc_group_begin(r->session));
		CHECK_OK(ncclsvc_stream_set(r->session, r->stream, 0));
		CHECK_OK(ncclsvc_all_reduce(word(d.in, 0), word(d.out, 0), quarter, type,
					    NCCLSVC_MAX, r->comm, &task[0]));
		CHECK_OK(ncclsvc_broadcast(word(d.in, quarter), word(d.out, quarter), quarter, type,
					   last, r->comm, &task[1]));
		CHECK_OK(ncclsvc_stream_set(r->session, other, 0));
		CHECK_OK(ncclsvc_all_reduce(word(d.in, 2 * quarter), word(d.out, 2 * quarter),
					    quarter, type, NCCLSVC_MIN, second, &task[2]));
		/* Rank 0 of `second` is the last rank of the first communicator. */
		CHECK_OK(ncclsvc_broadcast(word(d.in, 3 * quarter), word(d.out, 3 * quarter),
					   quarter, type, 0, second, &task[3]));
		CHECK_OK(ncclsvc_group_end(r->session));
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		CHECK(gpu_stream_ends(other, WAIT_MS));
		for (int i = 0; i < 4; i++)
			rank_wait(r, task[i]);
		gpu_check(d.out, k + (uint32_t)last, 2 * quarter, "max and broadcast");
		gpu_check(d.out + 8 * quarter, k, quarter, "min");
		gpu_check(d.out + 12 * quarter, k + (uint32_t)last, quarter, "second broadcast");
	}
	CHECK_OK(ncclsvc_comm_leave(second));
	desk_close(&d);
	CHECK_CU(cu.cuStreamDestroy(other));
}

static void test_mixed(void)
{
	ranks_run(ranks_count(), mixed_rank, NULL);
}

const struct gpu_test order_tests[] = {
	{"order/same_stream", test_same_stream, 2, 60, TEST_QUICK},
	{"order/blocking_stream", test_blocking_stream, 2, 60, TEST_QUICK | TEST_REAL},
	{"order/default_streams", test_default_streams, 2, 60, TEST_QUICK},
	{"order/other_stream", test_other_stream, 2, 60, TEST_QUICK},
	{"order/detached", test_detached, 2, 60, TEST_QUICK},
	{"order/full", test_full, 2, 60, TEST_QUICK},
	{"order/many", test_many, 2, 60, TEST_QUICK},
	{"order/chain", test_chain, 2, 60, 0},
	{"order/send_recv", test_send_recv, 2, 60, 0},
	{"order/held", test_held, 2, 60, TEST_QUICK},
	{"groups/exchange", test_exchange, 2, 60, TEST_QUICK},
	{"groups/mixed", test_mixed, 2, 60, TEST_QUICK},
	{0},
};
