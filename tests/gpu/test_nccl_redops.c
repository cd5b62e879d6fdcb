/* SPDX-License-Identifier: Apache-2.0
 * The drop-in: reductions with a user's scalar. */
#include <stdlib.h>

#include "dropin_calls.h"

#define CHECKED	  1
#define BIT(type) (1u << (type))
static const unsigned scaled_types = BIT(NCCLSVC_FLOAT32) | BIT(NCCLSVC_FLOAT16) |
				     BIT(NCCLSVC_FLOAT64) | BIT(NCCLSVC_BFLOAT16) |
				     BIT(NCCLSVC_INT32) | BIT(NCCLSVC_UINT64);

static void fill_with(CUdeviceptr p, int type, double value, size_t n)
{
	char *host = malloc(n * 8);
	CHECK(host);
	for (size_t i = 0; i < n; i++)
		value_store(host, i, (ncclsvc_type)type, value);
	gpu_put(p, host, n * ncclsvc_type_size((unsigned)type));
	free(host);
}

static void verify_all(CUdeviceptr p, int type, double value, size_t n)
{
	char *host = malloc(n * 8);
	CHECK(host);
	gpu_get(host, p, n * ncclsvc_type_size((unsigned)type));
	for (size_t i = 0; i < n; i++)
		if (value_load(host, i, (ncclsvc_type)type) != value)
			check_failed(__FILE__, __LINE__, "%s: element %zu is %g, not %g",
				     ncclsvc_type_name((unsigned)type), i,
				     value_load(host, i, (ncclsvc_type)type), value);
	free(host);
}

/* Every rank has a different scalar; the reduction is destroyed before the task is done. */
static void scaled(struct member *s, int rank, int n, int type, bool on_device, double by)
{
	char scalar[8] = {0};
	ncclRedOp_t op;
	CUdeviceptr where = s->recv + 2 * MEMBER_COUNT * 8;
	value_store(scalar, 0, (ncclsvc_type)type, by * (rank + 1));
	gpu_put(where, scalar, sizeof(scalar));
	fill_with(s->send, type, 2, MEMBER_COUNT);
	CHECK_NC(nc.ncclRedOpCreatePreMulSum(&op, on_device ? at(where) : scalar, type,
					     on_device ? ncclScalarDevice : ncclScalarHostImmediate,
					     s->comm));
	CHECK_NC(nc.ncclAllReduce(at(s->send), at(s->recv), MEMBER_COUNT, type, op, s->comm,
				  s->stream));
	CHECK_NC(nc.ncclReduceScatter(at(s->send), at(s->recv + MEMBER_COUNT * 8),
				      MEMBER_COUNT / (size_t)n, type, op, s->comm, s->stream));
	CHECK_NC(nc.ncclRedOpDestroy(op, s->comm));
	CHECK(gpu_stream_ends(s->stream, WAIT_MS));
	verify_all(s->recv, type, by * n * (n + 1), MEMBER_COUNT);
	verify_all(s->recv + MEMBER_COUNT * 8, type, by * n * (n + 1), MEMBER_COUNT / (size_t)n);
}

/* Reductions that are destroyed before their group is submitted: new ones must not replace them. */
static void scaled_in_group(struct member *s, int rank, int n)
{
	enum { OPS = 3 };
	fill_with(s->send, NCCLSVC_FLOAT32, 2, MEMBER_COUNT);
	CHECK_NC(nc.ncclGroupStart());
	for (int i = 0; i < OPS; i++) {
		ncclRedOp_t op;
		float by = (float)((2000 + i) * (rank + 1));
		CHECK_NC(nc.ncclRedOpCreatePreMulSum(&op, &by, NCCLSVC_FLOAT32,
						     ncclScalarHostImmediate, s->comm));
		CHECK_NC(nc.ncclAllReduce(at(s->send),
					  at(s->recv + (CUdeviceptr)i * MEMBER_COUNT * 4),
					  MEMBER_COUNT, NCCLSVC_FLOAT32, op, s->comm, s->stream));
		CHECK_NC(nc.ncclRedOpDestroy(op, s->comm));
	}
	CHECK_NC(nc.ncclGroupEnd());
	CHECK(gpu_stream_ends(s->stream, WAIT_MS));
	for (int i = 0; i < OPS; i++)
		verify_all(s->recv + (CUdeviceptr)i * MEMBER_COUNT * 4, NCCLSVC_FLOAT32,
			   (2000 + i) * n * (n + 1), MEMBER_COUNT);
}

static void scaled_rank(struct client *c)
{
	struct member s;
	ncclComm_t alone;
	ncclRedOp_t ops[48], more;
	float one = 1;
	dropin_open(c->daemon);
	member_join(&s, c);
	for (int type = 0; type < TYPES; type++)
		for (int k = 0; k < 2 && scaled_types & BIT(type); k++) {
			stage("%s, on the %s", ncclsvc_type_name((unsigned)type),
			      k ? "device" : "host");
			scaled(&s, c->rank, c->nranks, type, k, 1);
			scaled(&s, c->rank, c->nranks, type, k, 2);
		}
	stage("more reductions than fit");
	for (int i = 0; i < 100; i++)
		scaled(&s, c->rank, c->nranks, NCCLSVC_FLOAT32, false, i + 1);
	scaled_in_group(&s, c->rank, c->nranks);
	for (int i = 0; i < 48; i++) { /* all slots are free again */
		float by = (float)i + 0.5f;
		CHECK_NC(nc.ncclRedOpCreatePreMulSum(&ops[i], &by, NCCLSVC_FLOAT32,
						     ncclScalarHostImmediate, s.comm));
	}
	CHECK_NC_IS(nc.ncclRedOpCreatePreMulSum(&more, &one, NCCLSVC_FLOAT32,
						ncclScalarHostImmediate, s.comm),
		    ncclInvalidUsage);
	for (int i = 0; i < 48; i++)
		CHECK_NC(nc.ncclRedOpDestroy(ops[i], s.comm));
	CHECK_NC_IS(nc.ncclRedOpDestroy(ops[0], s.comm), ncclInvalidArgument);
	stage("invalid uses of a reduction");
	CHECK_NC(nc.ncclRedOpCreatePreMulSum(&more, &one, NCCLSVC_FLOAT32, ncclScalarHostImmediate,
					     s.comm));
	CHECK_NC_IS(
		nc.ncclAllReduce(at(s.send), at(s.recv), 1, NCCLSVC_INT32, more, s.comm, s.stream),
		ncclInvalidArgument);
	CHECK_SAYS(NULL, "another data type");
	CHECK_NC(nc.ncclRedOpDestroy(more, s.comm));
	CHECK_NC_IS(nc.ncclAllReduce(at(s.send), at(s.recv), 1, NCCLSVC_FLOAT32, more, s.comm,
				     s.stream),
		    ncclInvalidArgument);
	stage("one rank");
	CHECK_NC(nc.ncclCommSplit(s.comm, c->rank, 0, &alone, NULL));
	struct member self = s;
	self.comm = alone;
	scaled(&self, 0, 1, NCCLSVC_FLOAT32, false, 3);
	CHECK_NC(nc.ncclCommDestroy(alone));
	stage("a plain sum on rank 0, a scaled one on the others");
	CHECK_NC(nc.ncclRedOpCreatePreMulSum(&more, &one, NCCLSVC_FLOAT32, ncclScalarHostImmediate,
					     s.comm));
	CHECK_NC(nc.ncclAllReduce(at(s.send), at(s.recv), 1, NCCLSVC_FLOAT32,
				  c->rank ? more : NCCLSVC_SUM, s.comm, s.stream));
	const ncclResult_t failed = dropin_fails(s.comm, WAIT_MS);
	CHECK_SAYS(s.comm, "premulsum");
	CHECK_EQ(failed, ncclInvalidUsage);
	say(c, CHECKED); /* otherwise others might only see this rank's end */
	CHECK_EQ(hear(c), CHECKED);
	member_close(&s);
}

static void test_scaled(void)
{
	struct client ranks[RANKS_MAX];
	struct daemon d;
	const int n = ranks_count();
	gpu_daemon_start(&d);
	clients_start(ranks, n, &d, scaled_rank, NULL);
	hear_all(ranks, n, CHECKED);
	say_all(ranks, n, CHECKED);
	ranks_end(ranks, n);
	gpu_daemon_stop(&d);
}

const struct gpu_test nccl_redop_tests[] = {
	{"nccl/premulsum", test_scaled, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
