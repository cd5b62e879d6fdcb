/* SPDX-License-Identifier: Apache-2.0
 * Most of a GPU's memory is used in operations, freed, and allocated again at once, as PyTorch does
 * when it is out of memory. */
#include "dropin_calls.h"
#include "meeting.h"
#include "segment.h"

#define MIB    ((size_t)1 << 20)
#define ROUNDS 20
#define WITHIN 10000 /* ms: more than the ranks need to unmap memory */
#define CHUNKS 30

/* Returns the bytes that the GPU has left once NCCL and the driver have what they need. */
static size_t most(struct meeting *m)
{
	struct buffer b;
	buffer_make(&b, MEMORY_VMM, m->r.gpu, m->r.session, 4 * PART);
	meeting_use(m, b.p, b.bytes);
	CHECK_OK(ncclsvc_mem_forget(m->r.session, at(b.p), WITHIN));
	buffer_free(&b);
	meeting_wait(m);
	return gpu_unused_memory() / 100 * 85 / (2 * MIB) * (2 * MIB);
}

/* ---- One allocation ---- */

static void no_more_fits(size_t bytes)
{
	CUdeviceptr p;
	CHECK_EQ(cu.cuMemAlloc(&p, bytes), CUDA_ERROR_OUT_OF_MEMORY);
}

static void again_rank(struct client *c)
{
	struct meeting m;
	struct buffer b;
	meeting_open(&m, c);
	const size_t bytes = most(&m);
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++)
		for (int round = 0; round < ROUNDS; round++) {
			stage("%s memory, round %d", memory_name(kind), round);
			buffer_make(&b, kind, m.r.gpu, m.r.session, bytes);
			meeting_use(&m, b.p, bytes);
			no_more_fits(bytes);
			CHECK_OK(ncclsvc_mem_forget(m.r.session, at(b.p), WITHIN));
			buffer_free(&b);
		}
	meeting_close(&m);
}

static void test_again(void)
{
	ranks_run(ranks_count(), again_rank, NULL);
}

/* ---- Memory that the library does not see being freed ---- */

static void sweep_rank(struct client *c)
{
	struct meeting m;
	struct buffer b;
	meeting_open(&m, c);
	const size_t bytes = most(&m);
	const size_t unused = gpu_unused_memory();
	for (int kind = MEMORY_ALLOC; kind <= MEMORY_VMM; kind++)
		for (int round = 0; round < (setup.quick ? 3 : ROUNDS); round++) {
			stage("%s memory, round %d", memory_name(kind), round);
			buffer_make(&b, kind, m.r.gpu, m.r.session, bytes);
			meeting_use(&m, b.p, bytes);
			buffer_free(&b);
			no_more_fits(bytes);
			ncclsvc_mem_sweep(m.r.session);
			CHECK(gpu_has_unused(unused - 2 * MIB, WAIT_MS));
		}
	meeting_close(&m);
}

static void test_sweep(void)
{
	ranks_run(ranks_count(), sweep_rank, NULL);
}

/* ---- Expandable segments ---- */

/* Frees the chunks behind these first ones, as the drop-in does at cuMemUnmap. */
static void shrink(struct meeting *m, struct segment *s, size_t chunks)
{
	while (s->mapped > chunks) {
		const CUdeviceptr last = s->base + (s->mapped - 1) * s->chunk;
		CHECK_OK(ncclsvc_mem_forget(m->r.session, at(last), WITHIN));
		segment_size(s, s->mapped - 1);
	}
}

/* Uses memory on both sides of borders between chunks, and at the end. */
static void use_borders(struct meeting *m, const struct segment *s, uint64_t *random)
{
	const size_t k = 1 + draw(random) % (s->mapped - 1);
	const CUdeviceptr border = s->base + k * s->chunk, end = s->base + s->mapped * s->chunk;
	meeting_sum(m, border - PART / 4);
	meeting_pass(m, border - 3 * PART / 4, end - PART);
	meeting_wait(m);
}

/* All memory that the segment has given back is allocated at once. */
static void use_rest(struct meeting *m, size_t bytes)
{
	struct buffer b;
	buffer_make(&b, MEMORY_ALLOC, m->r.gpu, m->r.session, bytes);
	meeting_use(m, b.p, bytes);
	CHECK_OK(ncclsvc_mem_forget(m->r.session, at(b.p), WITHIN));
	buffer_free(&b);
}

static void segment_rank(struct client *c)
{
	struct meeting m;
	struct segment s;
	uint64_t random = setup.seed; /* the same on all ranks */
	meeting_open(&m, c);
	const size_t bytes = most(&m);
	segment_open(&s, m.r.gpu, bytes / CHUNKS / (2 * MIB) * (2 * MIB), CHUNKS);
	for (int round = 0; round < ROUNDS; round++) {
		const size_t least = 2 + draw(&random) % (CHUNKS / 2);
		stage("round %d, %zu chunks", round, least);
		segment_size(&s, CHUNKS);
		use_borders(&m, &s, &random);
		shrink(&m, &s, least);
		use_borders(&m, &s, &random);
		use_rest(&m, (CHUNKS - least) * s.chunk);
		meeting_wait(&m);
	}
	shrink(&m, &s, 0);
	segment_close(&s);
	meeting_close(&m);
}

static void test_segment(void)
{
	ranks_run(ranks_count(), segment_rank, NULL);
}

/* ---- The drop-in, whose programs wait for their streams, not for tasks ---- */

static void dropin_use(ncclComm_t comm, CUstream s, CUdeviceptr p, size_t bytes)
{
	int rank, n;
	const CUdeviceptr end = p + bytes - PART;
	CHECK_NC(nc.ncclCommUserRank(comm, &rank));
	CHECK_NC(nc.ncclCommCount(comm, &n));
	gpu_fill(p, (uint32_t)rank + 1, PART_WORDS);
	for (int i = 0; i < 3; i++) /* the first ones may go through staging memory */
		CHECK_NC(nc.ncclAllReduce(at(p), at(end), PART_WORDS, NCCLSVC_UINT32, NCCLSVC_SUM,
					  comm, s));
	CHECK(gpu_stream_ends(s, WAIT_MS));
	gpu_check(end, (uint32_t)(n * (n + 1) / 2), PART_WORDS, "the sum");
}

static void dropin_rank(struct client *c)
{
	CUdeviceptr p;
	ncclsvc_task task;
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	ncclsvc_session *session = session_open(c->daemon);
	ncclsvc_comm *host = meeting_join(c, session);
	const size_t bytes = gpu_unused_memory() / 100 * 85 / (2 * MIB) * (2 * MIB);
	CHECK_CU(cu.cuMemAlloc(&p, bytes));
	for (int round = 0; round < ROUNDS; round++) {
		stage("round %d", round);
		dropin_use(comm, s, p, bytes);
		/* No kernel of another rank waits for this one, which frees. */
		CHECK_OK(ncclsvc_barrier(host, &task));
		wait_for(session, task, NCCLSVC_OK);
		no_more_fits(bytes);
		CHECK_EQ(nc.cuMemFree(p), 0);
		/* The drop-in waits for 1 s, which is little on a loaded machine. */
		CHECK(!setup.fake || gpu_has_unused(bytes, WAIT_MS));
		CHECK_CU(cu.cuMemAlloc(&p, bytes));
		CHECK_OK(ncclsvc_barrier(host, &task));
		wait_for(session, task, NCCLSVC_OK);
	}
	CHECK_CU(cu.cuMemFree(p));
	CHECK_OK(ncclsvc_comm_leave(host));
	ncclsvc_close(session);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_dropin(void)
{
	ranks_run(ranks_count(), dropin_rank, NULL);
}

const struct gpu_test memory_most_tests[] = {
	{"memory/most", test_again, 2, 300, TEST_QUICK | TEST_ONE_NODE},
	{"memory/most/nccl", test_again, 2, 300, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"memory/most/segment", test_segment, 2, 300, TEST_QUICK | TEST_ONE_NODE},
	{"memory/most/segment/nccl", test_segment, 2, 300, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"memory/most/sweep", test_sweep, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"memory/most/sweep/nccl", test_sweep, 2, 120, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{"memory/most/dropin", test_dropin, 2, 120, TEST_QUICK | TEST_ONE_NODE},
	{"memory/most/dropin/nccl", test_dropin, 2, 120, TEST_QUICK | TEST_ONE_NODE | TEST_NCCL},
	{0},
};
