/* SPDX-License-Identifier: Apache-2.0
 * Random collectives and groups of messages, most of them in kernels, some on NCCL, of any size and
 * at any address. */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "random_messages.h"
#include "values.h"

#define BYTES_MAX  ((size_t)3 << 20) /* without blocks; TOTAL_MAX: of all blocks */
#define TOTAL_MAX  ((size_t)9 << 20)
#define KERNEL_MAX ((size_t)8 << 20)
#define GUARD	   256
#define GUARD_BYTE 0xa5
#define BUFFER	   (TOTAL_MAX + 3 * GUARD + 8)
#define LOOKED_AT  2000 /* elements of a result that are checked */
#define AT_ONCE	   2
#define FP8_FROM   NCCLSVC_FLOAT8E4M3

static const ncclsvc_op collectives[] = {
	NCCLSVC_ALL_REDUCE, NCCLSVC_REDUCE_SCATTER, NCCLSVC_REDUCE, NCCLSVC_ALL_GATHER,
	NCCLSVC_BROADCAST,  NCCLSVC_ALL_TO_ALL,	    NCCLSVC_GATHER, NCCLSVC_SCATTER,
};
#define COLLECTIVES (sizeof(collectives) / sizeof(collectives[0]))

/* One operation, with its buffers. */
struct desk {
	CUdeviceptr send, recv;
	char *in, *out; /* host copies of the buffers */
	struct call call;
	size_t send_at, recv_at, bytes; /* offsets in the host copies, and their size */
	size_t send_odd, recv_odd;	/* offsets of these in the device buffers */
	CUstream stream;
	ncclsvc_task task;
};

static bool has_blocks(const struct call *c)
{
	return c->op != NCCLSVC_ALL_REDUCE && c->op != NCCLSVC_REDUCE && c->op != NCCLSVC_BROADCAST;
}

/* All ranks draw the same call. Small sizes are as likely as large ones. */
static struct call draw_call(const struct rank *r, uint64_t *random)
{
	struct call c = {
		.op = collectives[draw(random) % COLLECTIVES],
		.type = (ncclsvc_type)(draw(random) % TYPES),
		.redop = (ncclsvc_redop)(draw(random) % REDOPS),
		.rank = r->rank,
		.n = r->n,
		.root = (int)(draw(random) % (unsigned)r->n),
		.in_place = draw(random) % 2,
	};
	if (op_reduces(c.op) && c.type >= FP8_FROM)
		c.type = NCCLSVC_FLOAT32;
	const uint32_t bits = draw(random) % 23;
	size_t bytes = draw(random) & ((1u << bits) - 1);
	const size_t most = has_blocks(&c) ? TOTAL_MAX / (size_t)c.n : BYTES_MAX;
	bytes = bytes < most ? bytes : most;
	c.count = bytes / ncclsvc_type_size(c.type);
	if (draw(random) % 16 == 0 && !has_blocks(&c)) /* on NCCL */
		c.count = TOTAL_MAX / ncclsvc_type_size(c.type);
	return c;
}

/* Each rank uses different offsets. Kernels accept elements at any address, NCCL only aligned
 * ones. */
static void place(struct desk *d, uint64_t *own)
{
	const struct call *c = &d->call;
	const size_t size = ncclsvc_type_size(c->type);
	const size_t shift = c->in_place ? call_shift(c) * size : 0;
	d->send_at = GUARD + draw(own) % 16 * size;
	d->recv_at = GUARD + draw(own) % 16 * size;
	if (c->in_place && call_sends(c) > call_receives(c))
		d->recv_at = d->send_at + shift;
	else if (c->in_place)
		d->send_at = d->recv_at + shift;
	const bool kernel = c->count * size * (has_blocks(c) ? (size_t)c->n : 1) <= KERNEL_MAX;
	d->send_odd = kernel ? draw(own) % size : 0;
	d->recv_odd = kernel ? draw(own) % size : 0;
	const size_t sends = call_sends(c) * size, receives = call_receives(c) * size;
	d->bytes = 3 * GUARD + (sends > receives ? sends : receives);
	CHECK(d->bytes <= BUFFER);
}

static CUdeviceptr desk_from(const struct desk *d)
{
	return d->send + d->send_odd;
}

static CUdeviceptr desk_to(const struct desk *d)
{
	return d->call.in_place ? desk_from(d) : d->recv + d->recv_odd;
}

static void submit(struct desk *d, struct rank *r)
{
	const struct call *c = &d->call;
	const CUdeviceptr from = desk_from(d), to = desk_to(d);
	memset(d->in, GUARD_BYTE, d->bytes);
	for (size_t i = 0; i < call_sends(c); i++)
		value_store(d->in + d->send_at, i, c->type, value_input(c, c->rank, i));
	CHECK_CU(cu.cuMemcpyHtoDAsync(from, d->in, d->bytes, d->stream));
	if (!c->in_place)
		CHECK_CU(cu.cuMemsetD8Async(to, GUARD_BYTE, d->bytes, d->stream));
	CHECK_OK(ncclsvc_stream_set(r->session, d->stream, 0));
	CHECK_OK(call_submit(c, r->comm, call_sends(c) || !c->count ? from + d->send_at : 0,
			     call_receives(c) || !c->count ? to + d->recv_at : 0, &d->task));
}

static void fetch(struct desk *d)
{
	CHECK_CU(cu.cuMemcpyDtoHAsync(d->out, desk_to(d), d->bytes, d->stream));
}

static void check_element(const struct desk *d, size_t i)
{
	const struct call *c = &d->call;
	bool exact;
	const double want = value_expected(c, i, &exact);
	const double is = value_load(d->out + d->recv_at, i, c->type);
	if (!value_close(c, is, want, exact))
		check_failed(__FILE__, __LINE__,
			     "seed %llu: %s %s %s: element %zu of %zu is %g, not %g",
			     (unsigned long long)setup.seed, ncclsvc_op_name(c->op),
			     ncclsvc_type_name(c->type), ncclsvc_redop_name(c->redop), i,
			     call_receives(c), is, want);
}

/* Checks some random elements, the last one, and all bytes around the result. */
static void check(const struct desk *d, uint64_t *own)
{
	const struct call *c = &d->call;
	const size_t n = call_receives(c), end = d->recv_at + n * ncclsvc_type_size(c->type);
	for (size_t i = 0; i < n && i < LOOKED_AT; i++)
		check_element(d, n <= LOOKED_AT ? i : draw(own) % n);
	if (n)
		check_element(d, n - 1);
	for (size_t i = 0; i < d->bytes; i++) {
		const char before = c->in_place ? d->in[i] : (char)GUARD_BYTE;
		if ((i < d->recv_at || i >= end) && d->out[i] != before)
			check_failed(__FILE__, __LINE__,
				     "seed %llu: %s: byte %zd from the result was overwritten",
				     (unsigned long long)setup.seed, ncclsvc_op_name(c->op),
				     (ssize_t)i - (ssize_t)d->recv_at);
	}
}

static void tell(const struct desk *d)
{
	stage("seed %llu: %s %s %s, %zu elements, root %d, places %zu and %zu%s",
	      (unsigned long long)setup.seed, ncclsvc_op_name(d->call.op),
	      ncclsvc_type_name(d->call.type), ncclsvc_redop_name(d->call.redop), d->call.count,
	      d->call.root, d->send_at, d->recv_at, d->call.in_place ? ", in place" : "");
}

static void step(struct rank *r, struct desk *desks, uint64_t *random, uint64_t *own)
{
	for (int i = 0; i < AT_ONCE; i++) {
		struct desk *d = &desks[i];
		d->call = draw_call(r, random);
		place(d, own);
		tell(d);
		submit(d, r);
		fetch(d);
	}
	for (int i = 0; i < AT_ONCE; i++) {
		rank_wait(r, desks[i].task);
		CHECK_CU(cu.cuStreamSynchronize(desks[i].stream));
		check(&desks[i], own);
	}
}

/* Messages, and sometimes a collective before or after them. */
static void group(struct rank *r, struct desk *d, struct letters *l, uint64_t *random,
		  uint64_t *own)
{
	const uint32_t where = draw(random) % 3; /* the collective's; 2: there is none */
	d->call = draw_call(r, random);
	place(d, own);
	letters_draw(l, r, random, own);
	tell(d);
	CHECK_OK(ncclsvc_group_begin(r->session));
	if (where == 0)
		submit(d, r);
	letters_submit(l, r);
	if (where == 1)
		submit(d, r);
	stage("seed %llu: a group of %u messages", (unsigned long long)setup.seed, l->n);
	CHECK_OK(ncclsvc_group_end(r->session));
	if (where < 2)
		fetch(d);
	letters_check(l, r);
	if (where < 2) {
		CHECK_CU(cu.cuStreamSynchronize(d->stream));
		check(d, own);
	}
	CHECK_OK(ncclsvc_wait_all(r->session, WAIT_MS));
}

static void desk_open(struct desk *d)
{
	CHECK_CU(cu.cuMemAlloc(&d->send, BUFFER));
	CHECK_CU(cu.cuMemAlloc(&d->recv, BUFFER));
	d->in = malloc(BUFFER);
	d->out = malloc(BUFFER);
	CHECK(d->in && d->out);
	d->stream = gpu_stream();
}

static void desk_close(struct desk *d)
{
	CHECK_CU(cu.cuMemFree(d->send));
	CHECK_CU(cu.cuMemFree(d->recv));
	CHECK_CU(cu.cuStreamDestroy(d->stream));
	free(d->in);
	free(d->out);
}

static void any_rank(struct client *c)
{
	struct rank r;
	struct desk desks[AT_ONCE];
	struct letters letters;
	uint64_t random = setup.seed, own = setup.seed + 1000 * (uint64_t)(c->rank + 1);
	rank_open(&r, c);
	const unsigned steps = setup.quick ? 80 / (unsigned)r.n : 400;
	for (int i = 0; i < AT_ONCE; i++)
		desk_open(&desks[i]);
	letters_open(&letters);
	for (unsigned i = 0; i < steps; i++) {
		step(&r, desks, &random, &own);
		if (draw(&random) % 2)
			group(&r, &desks[0], &letters, &random, &own);
	}
	CHECK_OK(ncclsvc_stream_set(r.session, r.stream, 0));
	rank_check_usable(&r);
	for (int i = 0; i < AT_ONCE; i++)
		desk_close(&desks[i]);
	letters_close(&letters);
	rank_close(&r);
	if (!c->rank)
		report("%u collectives, and groups, seed %llu", steps * AT_ONCE,
		       (unsigned long long)setup.seed);
}

static void test_random_2(void)
{
	kernels_run(2, any_rank, NULL);
}

static void test_random_4(void)
{
	kernels_run(4, any_rank, NULL);
}

static void test_random_8(void)
{
	kernels_run(8, any_rank, NULL);
}

const struct gpu_test kernel_random_tests[] = {
	{"kernels/random/2", test_random_2, 2, 90, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/random/4", test_random_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/random/8", test_random_8, 8, 240, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
