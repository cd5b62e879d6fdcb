/* SPDX-License-Identifier: Apache-2.0
 * Reductions in which each rank's elements are multiplied by the rank's own scalar. */
#include <stdlib.h>

#include "graphs.h"
#include "values.h"

#define FEW	    1000
#define MANY	    ((size_t)300000) /* too many for LL lines */
#define INPUT	    2
#define LAUNCHES    3
#define REDOPS_MOST 48 /* as ncclsvc.h says */

static const ncclsvc_type types[] = {
	NCCLSVC_FLOAT32, NCCLSVC_FLOAT16, NCCLSVC_BFLOAT16, NCCLSVC_FLOAT64, NCCLSVC_INT8,
	NCCLSVC_UINT8,	 NCCLSVC_INT32,	  NCCLSVC_UINT32,   NCCLSVC_INT64,   NCCLSVC_UINT64};
#define NTYPES (sizeof(types) / sizeof(types[0]))

struct scaled {
	struct rank r;
	bool kernels;
	CUdeviceptr from, to; /* room for MANY elements of any type */
};

static ncclsvc_redop make(struct scaled *s, ncclsvc_type type, double scalar)
{
	ncclsvc_redop redop;
	char element[8] = {0};
	value_store(element, 0, type, scalar);
	CHECK_OK(ncclsvc_redop_create_premulsum(s->r.comm, element, type, &redop));
	return redop;
}

static void fill(struct scaled *s, ncclsvc_type type, size_t n)
{
	char *host = malloc(n * 8);
	CHECK(host);
	for (size_t i = 0; i < n; i++)
		value_store(host, i, type, INPUT);
	gpu_put(s->from, host, n * ncclsvc_type_size(type));
	free(host);
}

/* Rank r's scalar is `by` times r + 1. */
static void verify(struct scaled *s, ncclsvc_type type, size_t n, double by)
{
	const double want = by * INPUT * s->r.n * (s->r.n + 1) / 2;
	char *host = malloc(n * 8);
	CHECK(host);
	gpu_get(host, s->to, n * ncclsvc_type_size(type));
	for (size_t i = 0; i < n; i++)
		if (value_load(host, i, type) != want)
			check_failed(__FILE__, __LINE__, "%s: element %zu is %g, not %g",
				     ncclsvc_type_name(type), i, value_load(host, i, type), want);
	free(host);
}

static void reduce(struct scaled *s, ncclsvc_type type, size_t n, double by)
{
	ncclsvc_task task;
	const ncclsvc_redop redop = make(s, type, by * (s->r.rank + 1));
	fill(s, type, n);
	CHECK_OK(ncclsvc_all_reduce(at(s->from), at(s->to), n, type, redop, s->r.comm, &task));
	rank_wait(&s->r, task);
	verify(s, type, n, by);
	CHECK_OK(ncclsvc_reduce_scatter(at(s->from), at(s->to), n / (size_t)s->r.n, type, redop,
					s->r.comm, &task));
	rank_wait(&s->r, task);
	verify(s, type, n / (size_t)s->r.n, by);
	CHECK_OK(ncclsvc_redop_destroy(s->r.comm, redop));
}

/* A graph keeps the scalars of its capture. */
static void capture(struct scaled *s)
{
	const ncclsvc_redop once = make(s, NCCLSVC_FLOAT32, s->r.rank + 1);
	graph_begin(s->r.stream);
	const ncclsvc_result result = ncclsvc_all_reduce(at(s->from), at(s->to), FEW,
							 NCCLSVC_FLOAT32, once, s->r.comm, NULL);
	CHECK_EQ(result, s->kernels ? NCCLSVC_OK : NCCLSVC_UNSUPPORTED);
	CHECK_OK(ncclsvc_redop_destroy(s->r.comm, once));
	const ncclsvc_redop other = make(s, NCCLSVC_FLOAT32, 100);
	if (result) {
		graph_drop(s->r.stream);
	} else {
		CUgraphExec exec = graph_end(s->r.stream);
		fill(s, NCCLSVC_FLOAT32, FEW);
		for (int i = 0; i < LAUNCHES; i++)
			graph_launch(exec, s->r.stream);
		CHECK(gpu_stream_ends(s->r.stream, WAIT_MS));
		verify(s, NCCLSVC_FLOAT32, FEW, 1);
		graph_destroy(exec);
	}
	CHECK_OK(ncclsvc_redop_destroy(s->r.comm, other));
}

static void misuse(struct scaled *s)
{
	const float one = 1;
	ncclsvc_redop all[REDOPS_MOST], more;
	for (int i = 0; i < REDOPS_MOST; i++)
		all[i] = make(s, NCCLSVC_FLOAT32, i);
	CHECK_RESULT(ncclsvc_redop_create_premulsum(s->r.comm, &one, NCCLSVC_FLOAT32, &more),
		     NCCLSVC_LIMIT);
	CHECK_RESULT(ncclsvc_all_reduce(at(s->from), at(s->to), FEW, NCCLSVC_INT32, all[0],
					s->r.comm, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	for (int i = 0; i < REDOPS_MOST; i++)
		CHECK_OK(ncclsvc_redop_destroy(s->r.comm, all[i]));
	CHECK_RESULT(ncclsvc_redop_destroy(s->r.comm, all[0]), NCCLSVC_INVALID_ARGUMENT);
	CHECK_RESULT(ncclsvc_all_reduce(at(s->from), at(s->to), FEW, NCCLSVC_FLOAT32, all[0],
					s->r.comm, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
}

static void scaled_rank(struct client *c)
{
	struct scaled s = {.kernels = !c->arg};
	rank_open(&s.r, c);
	CHECK_CU(cu.cuMemAlloc(&s.from, MANY * 8));
	CHECK_CU(cu.cuMemAlloc(&s.to, MANY * 8));
	for (size_t i = 0; i < NTYPES; i++) {
		stage("%s", ncclsvc_type_name(types[i]));
		reduce(&s, types[i], FEW, 1);
		reduce(&s, types[i], MANY, 2);
		reduce(&s, types[i], MANY, 3); /* the buffers are mapped now */
	}
	stage("a capture");
	capture(&s);
	stage("misuse");
	misuse(&s);
	rank_check_usable(&s.r);
	CHECK_CU(cu.cuMemFree(s.from));
	CHECK_CU(cu.cuMemFree(s.to));
	rank_close(&s.r);
}

static void test_kernels(void)
{
	kernels_run(ranks_count(), scaled_rank, NULL);
}

static void test_two(void)
{
	kernels_run(2, scaled_rank, NULL);
}

static void test_nccl(void)
{
	ranks_run(2, scaled_rank, (void *)"NCCL");
}

static void test_one_gpu(void)
{
	setup.per_gpu = 2;
	ranks_run(2, scaled_rank, NULL);
}

const struct gpu_test premulsum_tests[] = {
	{"kernels/premulsum", test_two, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"kernels/premulsum/4", test_kernels, 3, 120, TEST_QUICK | TEST_ONE_NODE},
	{"members/premulsum", test_nccl, 2, 120, TEST_QUICK | TEST_NCCL},
	{"shared_gpu/premulsum", test_one_gpu, 1, 120, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
