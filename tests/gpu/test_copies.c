/* SPDX-License-Identifier: Apache-2.0
 * Communicators that ask for copy engines or for fewer blocks, and misaligned buffers. */
#include <stdlib.h>
#include <string.h>

#include "dropin_calls.h"
#include "graphs.h"
#include "meeting.h"
#include "proto/abi/peer_staging.h"

/* The size of a rank's part: more than a slot, and odd. */
#define BYTES	     ((size_t)PEER_COPY_SLOT + 4099)
#define ROOT	     1
/* The smallest part that copy engines move. */
#define LEAST	     ((size_t)4 << 20)
#define LEAST_WORDS  (LEAST / sizeof(uint32_t))
/* More than one chunk. */
#define CHUNKS	     ((size_t)PEER_COPY_SLOT + LEAST)
#define CHUNKS_WORDS (CHUNKS / sizeof(uint32_t))

/* The ith eight bytes of what one rank has for another. */
static uint64_t value(int from, int to, size_t i)
{
	return (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)from * 31 + (uint64_t)to * 101;
}

static uint64_t *host_buffer(size_t bytes)
{
	uint64_t *host = calloc(bytes / sizeof(*host) + 1, sizeof(*host));
	CHECK(host);
	return host;
}

static void fill(CUdeviceptr p, int from, int to, size_t bytes)
{
	uint64_t *host = host_buffer(bytes);
	for (size_t i = 0; i <= bytes / sizeof(*host); i++)
		host[i] = value(from, to, i);
	CHECK_CU(cu.cuMemcpyHtoD(p, host, bytes));
	free(host);
}

static void check(CUdeviceptr p, int from, int to, size_t bytes, const char *what)
{
	uint64_t *host = host_buffer(bytes);
	CHECK_CU(cu.cuMemcpyDtoH(host, p, bytes));
	for (size_t at = 0, n; at < bytes; at += n) {
		const uint64_t expected = value(from, to, at / sizeof(*host));
		n = bytes - at < sizeof(*host) ? bytes - at : sizeof(*host);
		if (memcmp(&host[at / sizeof(*host)], &expected, n))
			check_failed(__FILE__, __LINE__, "%s: bytes %zu of rank %d are wrong", what,
				     at, from);
	}
	free(host);
}

/* Returns what the daemon lists about its newest communicator with kernels. */
static ncclsvc_comm_info comm_info(ncclsvc_session *session)
{
	ncclsvc_comm_info *list, found = {0};
	size_t n;
	CHECK_OK(ncclsvc_list_comms(session, &list, &n));
	for (size_t i = 0; i < n; i++)
		if (list[i].blocks && list[i].comm > found.comm)
			found = list[i];
	ncclsvc_list_free(list);
	return found;
}

/* ---- Every operation ---- */

/* Overwrites a buffer, so that the test notices if an operation does not fill it. */
static void poison(CUdeviceptr p, size_t bytes)
{
	CHECK_CU(cu.cuMemsetD8Async(p, 0xee, bytes, NULL));
	CHECK(gpu_stream_ends(NULL, WAIT_MS));
}

static void gather_all(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t bytes, bool in_place)
{
	poison(b, (size_t)r->n * bytes);
	const CUdeviceptr from = in_place ? b + (size_t)r->rank * bytes : a;
	fill(from, r->rank, 0, bytes);
	CHECK_OK(ncclsvc_all_gather(at(from), at(b), bytes, NCCLSVC_UINT8, r->comm, NULL));
	rank_sync(r);
	for (int p = 0; p < r->n; p++)
		check(b + (size_t)p * bytes, p, 0, bytes, "AllGather");
}

/* In place: a is b. */
static void exchange(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t bytes)
{
	poison(b, (size_t)r->n * bytes);
	for (int p = 0; p < r->n; p++)
		fill(a + (size_t)p * bytes, r->rank, p, bytes);
	CHECK_OK(ncclsvc_all_to_all(at(a), at(b), bytes, NCCLSVC_UINT8, r->comm, NULL));
	rank_sync(r);
	for (int p = 0; p < r->n; p++)
		check(b + (size_t)p * bytes, p, r->rank, bytes, "AllToAll");
}

static void from_root(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t bytes)
{
	const bool root = r->rank == ROOT;
	poison(b, bytes);
	fill(a, r->rank, 0, bytes);
	CHECK_OK(ncclsvc_broadcast(at(a), at(b), bytes, NCCLSVC_UINT8, ROOT, r->comm, NULL));
	rank_sync(r);
	check(b, ROOT, 0, bytes, "Broadcast");
	poison(b, bytes);
	for (int p = 0; root && p < r->n; p++)
		fill(a + (size_t)p * bytes, r->rank, p, bytes);
	CHECK_OK(ncclsvc_scatter(at(a), at(b), bytes, NCCLSVC_UINT8, ROOT, r->comm, NULL));
	rank_sync(r);
	check(b, ROOT, r->rank, bytes, "Scatter");
}

static void to_root(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t bytes)
{
	poison(b, (size_t)r->n * bytes);
	fill(a, r->rank, 0, bytes);
	CHECK_OK(ncclsvc_gather(at(a), at(b), bytes, NCCLSVC_UINT8, ROOT, r->comm, NULL));
	rank_sync(r);
	for (int p = 0; r->rank == ROOT && p < r->n; p++)
		check(b + (size_t)p * bytes, p, 0, bytes, "Gather");
}

static void sum(struct rank *r, CUdeviceptr p, size_t words)
{
	gpu_fill(p, (uint32_t)r->rank + 1, words);
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), words, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    NULL));
	rank_sync(r);
	gpu_check(p, (uint32_t)(r->n * (r->n + 1) / 2), words, "AllReduce");
}

/* Several at once, which wait for nothing in between: each rank's data goes to all, the root's over
 * everybody's first part, and the parts to where they came from. */
static void in_a_row(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t bytes)
{
	ncclsvc_task task;
	fill(a, r->rank, 0, bytes);
	CHECK_OK(ncclsvc_all_gather(at(a), at(b), bytes, NCCLSVC_UINT8, r->comm, NULL));
	CHECK_OK(ncclsvc_broadcast(at(a), at(b), bytes, NCCLSVC_UINT8, ROOT, r->comm, NULL));
	CHECK_OK(ncclsvc_all_to_all(at(b), at(a), bytes, NCCLSVC_UINT8, r->comm, &task));
	rank_wait(r, task);
	rank_sync(r);
	for (int p = 0; p < r->n; p++)
		check(a + (size_t)p * bytes, r->rank ? r->rank : ROOT, 0, bytes,
		      "AllToAll of AllGather");
}

static void copies_rank(struct client *c)
{
	struct meeting m;
	struct rank *const r = &m.r;
	CUdeviceptr a, b;
	ncclsvc_comm_tuning_next(0, 1);
	meeting_open(&m, c);
	const size_t bytes = r->n > 2 ? BYTES / 4 : BYTES;
	CHECK_EQ(comm_info(r->session).copy_engines, 1);
	CHECK_CU(cu.cuMemAlloc(&a, (size_t)r->n * bytes));
	CHECK_CU(cu.cuMemAlloc(&b, (size_t)r->n * bytes));
	gather_all(r, a, b, bytes, false);
	gather_all(r, a, b, bytes, true);
	exchange(r, a, b, bytes);
	exchange(r, b, b, bytes);
	from_root(r, a, b, bytes);
	to_root(r, a, b, bytes);
	in_a_row(r, a, b, bytes);
	/* No rank has mapped the buffers, so kernels would have counted as staged. */
	meeting_wait(&m);
	CHECK_EQ(kernels_staged(r), 0);
	sum(r, a, PART_WORDS);
	gather_all(r, a, b, bytes, false);
	CHECK_CU(cu.cuMemFree(a));
	CHECK_CU(cu.cuMemFree(b));
	meeting_close(&m);
}

static void test_copies(void)
{
	ranks_run(2, copies_rank, NULL);
}

static void test_copies_4(void)
{
	ranks_run(4, copies_rank, NULL);
}

/* ---- In a CUDA graph ---- */

static void graph_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr a, b, p;
	ncclsvc_comm_tuning_next(0, 1);
	rank_open(&r, c);
	CHECK_EQ(comm_info(r.session).copy_engines, 1);
	CHECK_CU(cu.cuMemAlloc(&a, CHUNKS));
	CHECK_CU(cu.cuMemAlloc(&b, (size_t)r.n * CHUNKS));
	CHECK_CU(cu.cuMemAlloc(&p, CHUNKS));
	CHECK_CU(cu.cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CHECK_OK(ncclsvc_all_gather(at(a), at(b), CHUNKS_WORDS, NCCLSVC_UINT32, r.comm, NULL));
	CHECK_OK(ncclsvc_broadcast(at(a), at(p), CHUNKS_WORDS, NCCLSVC_UINT32, ROOT, r.comm, NULL));
	graph_sum(&r, a, PART_WORDS);
	CUgraphExec exec = graph_end(r.stream);
	for (uint32_t round = 1; round < 4; round++) {
		gpu_fill(a, 10 * round + (uint32_t)r.rank, CHUNKS_WORDS);
		graph_launch(exec, r.stream);
		CHECK(gpu_stream_ends(r.stream, WAIT_MS));
		for (int k = 0; k < r.n; k++)
			gpu_check(b + (size_t)k * CHUNKS, 10 * round + (uint32_t)k, CHUNKS_WORDS,
				  "gathered by a graph");
		gpu_check(p, 10 * round + ROOT, CHUNKS_WORDS, "broadcast by a graph");
		sum(&r, a, PART_WORDS);
	}
	graph_destroy(exec);
	graphs_reach(&r, 0);
	CHECK_CU(cu.cuMemFree(a));
	CHECK_CU(cu.cuMemFree(b));
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_graph(void)
{
	ranks_run(2, graph_rank, NULL);
}

/* ---- Ranks that disagree, that leave, and that do not ask ---- */

static void fails_rank(struct client *c)
{
	struct meeting m;
	struct rank *const r = &m.r;
	CUdeviceptr p;
	ncclsvc_task task = 0;
	ncclsvc_status st;
	ncclsvc_comm_tuning_next(0, 1);
	meeting_open(&m, c);
	CHECK_CU(cu.cuMemAlloc(&p, 3 * LEAST));
	stage("another operation");
	kernels_may_end(r, NCCLSVC_MISMATCH);
	kernels_submitted(r,
			  r->rank ? ncclsvc_all_reduce(at(p), at(p), SMALL, NCCLSVC_UINT32,
						       NCCLSVC_SUM, r->comm, &task)
				  : ncclsvc_broadcast(at(p), at(p), LEAST_WORDS, NCCLSVC_UINT32,
						      ROOT, r->comm, &task),
			  &task);
	kernels_failed(r, task, &st);
	kernels_over(r, NCCLSVC_MISMATCH);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	kernels_rejoin(r);
	CHECK_EQ(comm_info(r->session).copy_engines, 1);
	meeting_wait(&m); /* no rank leaves before the other one has looked */
	stage("a rank that leaves");
	if (r->rank) {
		CHECK_OK(ncclsvc_comm_leave(r->comm));
	} else {
		kernels_may_end(r, NCCLSVC_PEER_GONE);
		kernels_submitted(r,
				  ncclsvc_broadcast(at(p), at(p), LEAST_WORDS, NCCLSVC_UINT32, ROOT,
						    r->comm, &task),
				  &task);
		kernels_failed(r, task, &st);
		kernels_over(r, NCCLSVC_PEER_GONE);
		CHECK(gpu_stream_ends(r->stream, WAIT_MS));
		CHECK_OK(ncclsvc_comm_leave(r->comm));
	}
	r->comm = NULL;
	stage("one rank that does not ask");
	ncclsvc_comm_tuning_next(0, !r->rank);
	rank_join(r);
	CHECK_EQ(comm_info(r->session).copy_engines, 0);
	gather_all(r, p, p + LEAST, LEAST, false);
	CHECK_CU(cu.cuMemFree(p));
	meeting_close(&m);
}

static void test_fails(void)
{
	ranks_run(2, fails_rank, NULL);
}

/* ---- Many that are pending ---- */

#define PENDING 21

static ncclsvc_result broadcast(const struct rank *r, CUdeviceptr p)
{
	return ncclsvc_broadcast(at(p), at(p), LEAST_WORDS, NCCLSVC_UINT32, ROOT, r->comm, NULL);
}

/* A group counts as a whole, so that it does not fill the stream's queue. */
static void pending_rank(struct client *c)
{
	struct meeting m;
	struct rank *const r = &m.r;
	CUdeviceptr p;
	ncclsvc_result result = NCCLSVC_OK;
	unsigned n = 0;
	ncclsvc_comm_tuning_next(0, 1);
	meeting_open(&m, c);
	CHECK_CU(cu.cuMemAlloc(&p, LEAST));
	gpu_fill(p, 10 + (uint32_t)r->rank, LEAST_WORDS);
	meeting_wait(&m);
	if (r->rank != ROOT) {
		CHECK_OK(broadcast(r, p));
		CHECK_OK(ncclsvc_group_begin(r->session));
		for (unsigned i = 0; i < PENDING; i++)
			CHECK_OK(broadcast(r, p));
		CHECK_RESULT(ncclsvc_group_end(r->session), NCCLSVC_AGAIN);
		for (n = 1; n < 2 * PENDING && !(result = broadcast(r, p));)
			n++;
		CHECK_RESULT(result, NCCLSVC_AGAIN);
		CHECK_EQ(n, PENDING);
	}
	meeting_reach(&m);
	for (unsigned i = 0; r->rank == ROOT && i < PENDING; i++)
		CHECK_OK(broadcast(r, p));
	CHECK_OK(ncclsvc_wait_all(r->session, WAIT_MS));
	rank_sync(r);
	gpu_check(p, 10 + ROOT, LEAST_WORDS, "broadcast");
	meeting_wait(&m);
	CHECK_OK(ncclsvc_group_begin(r->session));
	for (unsigned i = 0; i < 2 * PENDING; i++)
		CHECK_OK(broadcast(r, p));
	CHECK_OK(ncclsvc_group_end(r->session));
	rank_sync(r);
	CHECK_CU(cu.cuMemFree(p));
	meeting_close(&m);
}

static void test_pending(void)
{
	ranks_run(2, pending_rank, NULL);
}

/* ---- Fewer blocks ---- */

static void blocks_rank(struct client *c)
{
	struct rank r;
	CUdeviceptr a, b;
	ncclsvc_comm_tuning_next(c->rank ? 3 : 7, 0);
	rank_open(&r, c);
	CHECK_CU(cu.cuMemAlloc(&a, PART));
	CHECK_CU(cu.cuMemAlloc(&b, PART));
	CHECK_EQ(comm_info(r.session).blocks, 3);
	for (uint32_t round = 0; round < 3; round++) {
		const int to = (r.rank + 1) % r.n, from = (r.rank + r.n - 1) % r.n;
		sum(&r, a, PART_WORDS);
		sum(&r, a, SMALL);
		gpu_fill(a, 100 * round + (uint32_t)r.rank, PART_WORDS);
		CHECK_OK(ncclsvc_group_begin(r.session));
		kernels_send(&r, a, PART_WORDS, to, NULL);
		kernels_recv(&r, b, PART_WORDS, from, NULL);
		CHECK_OK(ncclsvc_group_end(r.session));
		rank_sync(&r);
		gpu_check(b, 100 * round + (uint32_t)from, PART_WORDS, "received");
	}
	CHECK_CU(cu.cuMemFree(a));
	CHECK_CU(cu.cuMemFree(b));
	rank_close(&r);
}

static void test_blocks(void)
{
	ranks_run(2, blocks_rank, NULL);
}

/* ---- The drop-in's configuration ---- */

/* No rank returns, and may leave, before all have looked. */
static void check_tuning(ncclComm_t comm, ncclsvc_session *session, uint32_t blocks,
			 uint32_t copy_engines)
{
	const ncclsvc_comm_info info = comm_info(session);
	CHECK_EQ(info.blocks, blocks);
	CHECK_EQ(info.copy_engines, copy_engines);
	dropin_check_usable(comm);
}

static ncclComm_t configured(const struct client *c, int number, ncclConfig_t *config)
{
	ncclComm_t comm;
	CHECK_NC(nc.ncclCommInitRankConfig(&comm, c->nranks, dropin_id_number(c, number), c->rank,
					   config));
	return comm;
}

static void dropin_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	ncclComm_t child;
	ncclConfig_t config = dropin_config();
	ncclsvc_session *session = session_open(c->daemon);
	check_tuning(comm, session, PEER_BLOCKS, 0);
	CHECK_NC(nc.ncclCommDestroy(comm));
	stage("the config, and a split that inherits it");
	config.maxCTAs = 6;
	config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
	comm = configured(c, 1, &config);
	check_tuning(comm, session, 6, 1);
	CHECK_NC(nc.ncclCommSplit(comm, 0, c->rank, &child, NULL));
	check_tuning(child, session, 6, 1);
	CHECK_NC(nc.ncclCommDestroy(child));
	CHECK_NC(nc.ncclCommDestroy(comm));
	stage("variables that override it");
	CHECK_EQ(setenv("NCCL_MAX_CTAS", "9", 1), 0);
	CHECK_EQ(setenv("NCCL_CTA_POLICY", "0", 1), 0);
	comm = configured(c, 2, &config);
	check_tuning(comm, session, 9, 0);
	CHECK_NC(nc.ncclCommDestroy(comm));
	stage("variables that are no numbers");
	CHECK_EQ(setenv("NCCL_MAX_CTAS", "9 blocks", 1), 0);
	CHECK_EQ(setenv("NCCL_CTA_POLICY", "4", 1), 0);
	comm = configured(c, 3, &config);
	check_tuning(comm, session, 6, 1);
	CHECK_NC(nc.ncclCommDestroy(comm));
	ncclsvc_close(session);
}

static void test_dropin(void)
{
	ranks_run(2, dropin_rank, NULL);
}

/* ---- Misaligned buffers ---- */

#define ODD_WORDS (PART_WORDS + 5)
#define GUARD	  64 /* bytes around a result */

/* Sums words of 16 or 32 bits, small integers, from one misaligned buffer to another. */
static void sum_misaligned(struct rank *r, CUdeviceptr a, CUdeviceptr b, size_t from, size_t to,
			   ncclsvc_type type)
{
	const size_t size = type == NCCLSVC_BFLOAT16 ? 2 : 4, bytes = ODD_WORDS * size;
	uint8_t *host = (uint8_t *)host_buffer(bytes + 2 * GUARD);
	stage("sum of %zu bytes, from %zu to %zu", size, from, to);
	for (size_t i = 0; i < ODD_WORDS; i++) { /* bfloat16 is a float's upper half */
		const float x = (float)(i % 7 + 1 + (size_t)r->rank);
		const char *upper = (const char *)&x + (4 - size);
		memcpy(host + i * size, upper, size);
	}
	CHECK_CU(cu.cuMemcpyHtoD(a + GUARD + from, host, bytes));
	poison(b, bytes + 2 * GUARD);
	CHECK_OK(ncclsvc_all_reduce(at(a + GUARD + from), at(b + GUARD + to), ODD_WORDS, type,
				    NCCLSVC_SUM, r->comm, NULL));
	rank_sync(r);
	CHECK_CU(cu.cuMemcpyDtoH(host, b, bytes + 2 * GUARD));
	for (size_t i = 0; i < bytes + 2 * GUARD; i++) {
		const size_t at = i - GUARD - to, word = at / size;
		const float x =
			(float)((word % 7 + 1) * (size_t)r->n + (size_t)(r->n * (r->n - 1) / 2));
		const uint8_t due = at < bytes ? ((const uint8_t *)&x)[4 - size + at % size] : 0xee;
		if (host[i] != due)
			check_failed(__FILE__, __LINE__, "byte %zu is %#x, not %#x", i, host[i],
				     due);
	}
	free(host);
}

static void misaligned_rank(struct client *c)
{
	struct meeting m;
	struct rank *const r = &m.r;
	CUdeviceptr a, b;
	meeting_open(&m, c);
	CHECK_CU(cu.cuMemAlloc(&a, (size_t)r->n * (2 * PART + 2 * GUARD)));
	CHECK_CU(cu.cuMemAlloc(&b, (size_t)r->n * (2 * PART + 2 * GUARD)));
	meeting_sum(&m, a);
	meeting_sum(&m, b);
	for (size_t k = 0; k < 16; k += 2) {
		sum_misaligned(r, a, b, k, k, NCCLSVC_BFLOAT16);
		sum_misaligned(r, a, b, k, 14 - k, NCCLSVC_BFLOAT16);
		if (k % 4 == 0)
			sum_misaligned(r, a, b, k, 12 - k, NCCLSVC_FLOAT32);
	}
	for (size_t k = 1; k < 16; k += 2)
		gather_all(r, a + k, b + (15 - k), PART + k, k % 4 == 1);
	meeting_wait(&m);
	CHECK_CU(cu.cuMemFree(a));
	CHECK_CU(cu.cuMemFree(b));
	meeting_close(&m);
}

static void test_misaligned(void)
{
	ranks_run(2, misaligned_rank, NULL);
}

static void test_misaligned_4(void)
{
	ranks_run(4, misaligned_rank, NULL);
}

const struct gpu_test copies_tests[] = {
	{"copies/operations", test_copies, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"copies/operations/4", test_copies_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{"copies/graph", test_graph, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"copies/fails", test_fails, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"copies/pending", test_pending, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"copies/blocks", test_blocks, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"copies/dropin", test_dropin, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"copies/misaligned", test_misaligned, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"copies/misaligned/4", test_misaligned_4, 4, 120, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
