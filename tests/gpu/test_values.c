/* SPDX-License-Identifier: Apache-2.0
 * Every operation, type and reduction compared with the reference: all kinds of memory, in and out
 * of place, at any alignment, without any write outside the result. */
#include <stdlib.h>
#include <string.h>

#include "values.h"

#define GUARD	   512 /* bytes before and behind every buffer */
#define GUARD_BYTE 0xa5
#define COUNT_MAX  65537
#define BUFFER	   (2 * GUARD + 64 + (COUNT_MAX * 8 * 4))

static const ncclsvc_op collectives[] = {
	NCCLSVC_ALL_REDUCE, NCCLSVC_REDUCE_SCATTER, NCCLSVC_REDUCE, NCCLSVC_ALL_GATHER,
	NCCLSVC_BROADCAST,  NCCLSVC_ALL_TO_ALL,	    NCCLSVC_GATHER, NCCLSVC_SCATTER,
};
#define COLLECTIVES (sizeof(collectives) / sizeof(collectives[0]))

/* Two buffers of each kind, and their images on the host. */
struct bench {
	struct rank r;
	struct buffer buffers[MEMORY_KINDS][2];
	char *send, *recv, *scratch;
	int capability;
	unsigned calls;
};

static void bench_open(struct bench *b, struct client *c)
{
	rank_open(&b->r, c);
	for (int kind = 0; kind < MEMORY_KINDS; kind++)
		for (int i = 0; i < 2; i++)
			buffer_make(&b->buffers[kind][i], kind, b->r.gpu, b->r.session, BUFFER);
	b->send = malloc(BUFFER);
	b->recv = malloc(BUFFER);
	b->scratch = malloc(BUFFER);
	CHECK(b->send && b->recv && b->scratch);
	b->capability = gpu_capability(b->r.gpu);
	b->calls = 0;
}

static void bench_close(struct bench *b)
{
	for (int kind = 0; kind < MEMORY_KINDS; kind++)
		for (int i = 0; i < 2; i++)
			buffer_free(&b->buffers[kind][i]);
	free(b->send);
	free(b->recv);
	free(b->scratch);
	rank_close(&b->r);
}

static void fill(char *image, size_t at, const struct call *c)
{
	for (size_t i = 0; i < call_sends(c); i++)
		value_store(image + at, i, c->type, value_input(c, c->rank, i));
}

/* Checks the result, and that nothing else was touched: image is the previous content. */
static void check(const struct call *c, const char *is, const char *image, size_t at, size_t bytes)
{
	size_t size = ncclsvc_type_size(c->type), begin = GUARD + at, n = call_receives(c);
	bool exact;
	for (size_t i = 0; i < n; i++) {
		double want = value_expected(c, i, &exact);
		double v = value_load(is + begin, i, c->type);
		if (!value_close(c, v, want, exact))
			check_failed(__FILE__, __LINE__, "element %zu of %zu is %g, not %g", i, n,
				     v, want);
	}
	for (size_t i = 0; i < bytes; i++)
		if ((i < begin || i >= begin + n * size) && is[i] != image[i])
			check_failed(__FILE__, __LINE__,
				     "byte %zd from the result's start was overwritten",
				     (ssize_t)i - (ssize_t)begin);
}

/* One call, with buffer positions chosen by `mix`. */
static void run_call(struct bench *b, const struct call *c, uint32_t mix)
{
	struct rank *r = &b->r;
	size_t size = ncclsvc_type_size(c->type);
	/* In place: both in one buffer, the smaller at its place in the larger one. */
	size_t shift = c->in_place ? call_shift(c) * size : 0;
	bool send_larger = call_sends(c) > call_receives(c);
	size_t send_at = mix % 7 * size, recv_at = mix / 7 % 7 * size;
	if (c->in_place) {
		send_at = send_larger ? send_at : send_at + shift;
		recv_at = send_larger ? send_at + shift : send_at - shift;
	}
	/* The ranks' kinds of memory differ too. */
	unsigned kind = mix / 49 + (unsigned)r->rank;
	CUdeviceptr from = b->buffers[kind % MEMORY_KINDS][0].p;
	CUdeviceptr to = c->in_place ? from : b->buffers[kind / 3 % MEMORY_KINDS][1].p;
	size_t bytes = 2 * GUARD + 64 + c->count * size * (size_t)c->n;
	stage("%s %s %s, %zu elements, root %d, %s, %s to %s, offsets %zu and %zu",
	      ncclsvc_op_name(c->op), ncclsvc_type_name(c->type), ncclsvc_redop_name(c->redop),
	      c->count, c->root, c->in_place ? "in place" : "out of place",
	      memory_name(kind % MEMORY_KINDS), memory_name(kind / 3 % MEMORY_KINDS), send_at,
	      recv_at);
	ncclsvc_task task;
	memset(b->send, GUARD_BYTE, bytes);
	memset(b->recv, GUARD_BYTE, bytes);
	fill(b->send, GUARD + send_at, c);
	CHECK_CU(cu.cuMemcpyHtoDAsync(from, b->send, bytes, r->stream));
	if (!c->in_place)
		CHECK_CU(cu.cuMemcpyHtoDAsync(to, b->recv, bytes, r->stream));
	CUdeviceptr s = call_sends(c) || !c->count ? from + GUARD + send_at : 0;
	CUdeviceptr d = call_receives(c) || !c->count ? to + GUARD + recv_at : 0;
	ncclsvc_result result = call_submit(c, r->comm, s, d, &task);
	if (!result)
		result = ncclsvc_wait(r->session, task, WAIT_MS);
	if (result)
		check_failed(__FILE__, __LINE__, "%s: %s", ncclsvc_result_name(result),
			     ncclsvc_last_error());
	CHECK_CU(cu.cuMemcpyDtoHAsync(b->scratch, to, bytes, r->stream));
	CHECK_CU(cu.cuStreamSynchronize(r->stream));
	check(c, b->scratch, c->in_place ? b->send : b->recv, recv_at, bytes);
	if (!c->in_place) {
		gpu_get(b->scratch, from, bytes);
		CHECK(!memcmp(b->scratch, b->send, bytes)); /* the input is unchanged */
	}
	b->calls++;
}

static bool defined(const struct bench *b, const struct call *c)
{
	bool fp8 = c->type == NCCLSVC_FLOAT8E4M3 || c->type == NCCLSVC_FLOAT8E5M2;
	if (!op_reduces(c->op))
		return c->redop == NCCLSVC_SUM;
	if (c->type >= TYPES)
		return false;
	return !fp8 || (!setup.staged && !setup.per_gpu && b->capability >= 90);
}

void values_rank(struct client *client)
{
	static const size_t all[] = {0, 1, 7, 1023, COUNT_MAX}, few[] = {1, 1023};
	const size_t *counts = setup.quick ? few : all;
	size_t ncounts = setup.quick ? 2 : 5;
	struct bench b;
	uint64_t random = setup.seed; /* the same on every rank */
	bench_open(&b, client);
	for (size_t o = 0; o < COLLECTIVES; o++)
		for (int type = 0; type < TYPES + MOVED; type++)
			for (int redop = 0; redop < REDOPS; redop++)
				for (size_t k = 0; k < 2 * ncounts; k++) {
					struct call c = {
						.op = collectives[o],
						.type = (ncclsvc_type)type,
						.redop = (ncclsvc_redop)redop,
						.count = counts[k / 2],
						.rank = b.r.rank,
						.n = b.r.n,
						.in_place = k % 2,
					};
					uint32_t mix = draw(&random);
					c.root = (int)(mix % (unsigned)c.n);
					if (defined(&b, &c))
						run_call(&b, &c, mix / 16);
				}
	if (!b.r.rank)
		report("%u calls", b.calls);
	bench_close(&b);
}

static void test_values_1(void)
{
	ranks_run(1, values_rank, NULL);
}

static void test_values_2(void)
{
	ranks_run(2, values_rank, NULL);
}

static void test_values_4(void)
{
	ranks_run(4, values_rank, NULL);
}

/* ---- AllToAll in place ---- */

#define IN_PLACE_ROUNDS 4

/* In odd rounds, odd ranks are not in place. */
static void in_place_round(struct rank *r, const struct call *c, int round, CUdeviceptr p,
			   CUdeviceptr other)
{
	const size_t elements = c->count * (size_t)c->n, bytes = elements * sizeof(int32_t);
	const CUdeviceptr to = round & r->rank & 1 ? other : p;
	int32_t *image = malloc(bytes);
	ncclsvc_task task;
	bool exact;
	CHECK(image);
	for (size_t i = 0; i < elements; i++)
		image[i] = (int32_t)value_input(c, c->rank, i) + round;
	gpu_put(p, image, bytes);
	CHECK_OK(call_submit(c, r->comm, p, to, &task));
	rank_wait(r, task);
	gpu_get(image, to, bytes);
	for (size_t i = 0; i < elements; i++)
		CHECK_EQ(image[i], value_expected(c, i, &exact) + round);
	free(image);
}

static void in_place_rank(struct client *client)
{
	static const size_t counts[] = {1, 1023, COUNT_MAX};
	struct rank r;
	struct call c = {.op = NCCLSVC_ALL_TO_ALL, .type = NCCLSVC_INT32};
	struct buffer b[2];
	rank_open(&r, client);
	c.rank = r.rank;
	c.n = r.n;
	for (int i = 0; i < 2; i++)
		buffer_make(&b[i], MEMORY_ALLOC, r.gpu, r.session, COUNT_MAX * 4 * (size_t)c.n);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		c.count = counts[i];
		stage("AllToAll of %zu in place", c.count);
		for (int round = 0; round < IN_PLACE_ROUNDS; round++)
			in_place_round(&r, &c, round, b[0].p, b[1].p);
	}
	stage("two in a group");
	c.count = 1023;
	int32_t *image = malloc(2 * c.count * 4 * (size_t)c.n);
	ncclsvc_task tasks[2];
	const size_t elements = c.count * (size_t)c.n;
	bool exact;
	CHECK(image);
	for (size_t i = 0; i < 2 * elements; i++)
		image[i] = (int32_t)value_input(&c, c.rank, i % elements);
	gpu_put(b[0].p, image, 2 * elements * 4);
	CHECK_OK(ncclsvc_group_begin(r.session));
	for (unsigned i = 0; i < 2; i++)
		CHECK_OK(call_submit(&c, r.comm, b[0].p + i * elements * 4,
				     b[0].p + i * elements * 4, &tasks[i]));
	CHECK_OK(ncclsvc_group_end(r.session));
	rank_wait(&r, tasks[0]);
	rank_wait(&r, tasks[1]);
	gpu_get(image, b[0].p, 2 * elements * 4);
	for (size_t i = 0; i < 2 * elements; i++)
		CHECK_EQ(image[i], value_expected(&c, i % elements, &exact));
	free(image);
	buffer_free(&b[0]);
	buffer_free(&b[1]);
	rank_close(&r);
}

static void test_all_to_all_in_place(void)
{
	ranks_run(ranks_count(), in_place_rank, NULL);
}

/* ---- More than 2^31 elements ---- */

static void big_rank(struct client *client)
{
	const size_t count = (UINT64_C(1) << 31) + 4099;
	const size_t places[] = {0, 1, (1u << 31) - 1, 1u << 31, count - 1};
	struct rank r;
	struct buffer b;
	ncclsvc_task task;
	rank_open(&r, client);
	size_t unused = gpu_unused_memory();
	say(client, unused >= count + (UINT64_C(512) << 20));
	if (!hear(client)) {
		rank_close(&r);
		return;
	}
	buffer_make(&b, MEMORY_ALLOC, r.gpu, r.session, count);
	CHECK_CU(cu.cuMemsetD8Async(b.p, (unsigned char)(r.rank + 1), count, r.stream));
	for (size_t i = 0; i < 5; i++)
		CHECK_CU(cu.cuMemsetD8Async(
			b.p + places[i], (unsigned char)(10 * (r.rank + 1) + (int)i), 1, r.stream));
	stage("AllReduce of %zu int8", count);
	CHECK_OK(ncclsvc_all_reduce(at(b.p), at(b.p), count, NCCLSVC_INT8, NCCLSVC_SUM, r.comm,
				    &task));
	CHECK_OK(ncclsvc_wait(r.session, task, 200000));
	stage("reading it");
	char *image = malloc(count);
	CHECK(image);
	gpu_get(image, b.p, count);
	int ranks = r.n * (r.n + 1) / 2;
	for (size_t i = 0, k = 0; i < count; i++) {
		int want = ranks;
		if (k < 5 && i == places[k])
			want = 10 * ranks + r.n * (int)k++;
		if (image[i] != (char)want)
			check_failed(__FILE__, __LINE__, "element %zu is %d, not %d", i, image[i],
				     want);
	}
	free(image);
	buffer_free(&b);
	rank_close(&r);
}

static void test_big(void)
{
	struct daemon d;
	struct client ranks[2];
	bool enough = true;
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, big_rank, NULL);
	for (int i = 0; i < 2; i++)
		enough = hear(&ranks[i]) && enough;
	say_all(ranks, 2, enough);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
	if (!enough)
		skip_test("less than 2.5 GiB of GPU memory is free");
}

const struct gpu_test values_tests[] = {
	{"values/1", test_values_1, 1, 120, 0},
	{"values/2", test_values_2, 2, 120, TEST_QUICK},
	{"values/4", test_values_4, 4, 180, TEST_QUICK},
	{"values/all_to_all_in_place", test_all_to_all_in_place, 2, 60, TEST_QUICK},
	{"values/big", test_big, 2, 300, 0},
	{0},
};
