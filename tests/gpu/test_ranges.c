/* SPDX-License-Identifier: Apache-2.0
 * Buffers that span several mappings of cuMemCreate memory, as in PyTorch's expandable segments. */
#include <signal.h>

#include "ranks.h"
#include "segment.h"

#define MIB	 ((size_t)1 << 20)
#define CHUNK	 (2 * MIB)
#define CHUNKS	 16
#define RESERVED 256 /* chunks */

enum word { READY = 1, GO };

/* Sums n words at p over all ranks, in place, and checks the result. */
static void sum_here(struct rank *r, CUdeviceptr p, uint32_t value, size_t n)
{
	ncclsvc_task task;
	CHECK_CU(cu.cuMemsetD32Async(p, value * (uint32_t)(r->rank + 1), n, r->stream));
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), n, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task));
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	rank_wait(r, task);
	gpu_check(p, value * (uint32_t)(r->n * (r->n + 1) / 2), n, "a sum across mappings");
}

static void ranges_rank(struct client *c)
{
	struct rank r;
	struct segment s;
	uint64_t random = setup.seed + (uint64_t)c->rank; /* different offsets on every rank */
	uint64_t sizes = setup.seed;			  /* the same lengths */
	rank_open(&r, c);
	segment_open(&s, r.gpu, CHUNK, RESERVED);
	segment_size(&s, CHUNKS);
	const size_t most = (setup.quick ? 2 : CHUNKS / 2) * CHUNK / 4;
	for (uint32_t k = 1; k <= (setup.quick ? 14u : 100u); k++) {
		const size_t n = 1 + draw(&sizes) % most;
		const size_t room = s.mapped * CHUNK / 4 - n;
		const size_t offset = draw(&random) % (room + 1);
		stage("round %u: %zu words at %zu", k, n, offset);
		sum_here(&r, s.base + offset * 4, k, n);
		if (k % 7 == 0) /* other memory at known addresses */
			segment_size(&s, CHUNKS / 2);
		segment_size(&s, CHUNKS + k % 3);
	}
	stage("from one part of the range to another");
	ncclsvc_task task;
	const size_t n = 3 * CHUNK / 4;
	segment_size(&s, CHUNKS);
	gpu_fill(s.base + 4, (uint32_t)r.rank + 1, n);
	CHECK_OK(ncclsvc_all_reduce(at(s.base + 4), at(s.base + 8 * CHUNK + 4), n, NCCLSVC_UINT32,
				    NCCLSVC_SUM, r.comm, &task));
	rank_wait(&r, task);
	gpu_check(s.base + 8 * CHUNK + 4, (uint32_t)(r.n * (r.n + 1) / 2), n, "another's sum");
	if (!setup.quick) {
		stage("more parts than fit into a message");
		segment_size(&s, 250);
		sum_here(&r, s.base + 12, 5, (250 * CHUNK - 12) / 4);
	}
	stage("beyond the end");
	CHECK_RESULT(ncclsvc_all_reduce(at(s.base + 4), at(s.base + 4), s.mapped * CHUNK / 4,
					NCCLSVC_UINT32, NCCLSVC_SUM, r.comm, NULL),
		     NCCLSVC_INVALID_ARGUMENT);
	segment_close(&s);
	/* The range's imports are dropped once other memory is used. */
	CUdeviceptr p;
	CHECK_CU(cu.cuMemAlloc(&p, MIB));
	sum_here(&r, p, 3, 100);
	for (uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	     device_info(r.session, r.gpu).imports > 1; sleep_ms(5))
		CHECK(now_ns() < end);
	CHECK_CU(cu.cuMemFree(p));
	rank_close(&r);
}

static void test_ranges(void)
{
	ranks_run(ranks_count(), ranges_rank, NULL);
}

/* The daemon rebuilds a range for the next worker. */
static void restored_rank(struct client *c)
{
	struct rank r;
	struct segment s;
	ncclsvc_result result;
	rank_open(&r, c);
	segment_open(&s, r.gpu, CHUNK, RESERVED);
	segment_size(&s, CHUNKS);
	sum_here(&r, s.base + 400, 1, CHUNK);
	say(c, READY);
	stage("waiting for the worker's end");
	for (uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	     !(result = ncclsvc_comm_error(r.comm)); sleep_ms(1))
		CHECK(now_ns() < end);
	CHECK_RESULT(result, NCCLSVC_WORKER_LOST);
	stage("rejoining");
	CHECK_OK(ncclsvc_comm_rejoin(r.comm, WAIT_MS));
	sum_here(&r, s.base + 400, 2, CHUNK);
	segment_close(&s);
	rank_close(&r);
}

static void test_restored(void)
{
	struct daemon d;
	struct client ranks[2];
	gpu_daemon_start(&d);
	clients_start(ranks, 2, &d, restored_rank, NULL);
	hear_all(ranks, 2, READY);
	ncclsvc_session *s = session_open(&d);
	CHECK_EQ(kill(device_info(s, 0).pid, SIGKILL), 0);
	ncclsvc_close(s);
	ranks_end(ranks, 2);
	gpu_daemon_stop(&d);
}

const struct gpu_test range_tests[] = {
	{"memory/ranges", test_ranges, 1, 300, TEST_QUICK | TEST_NCCL},
	{"memory/ranges_restored", test_restored, 2, 120, TEST_QUICK | TEST_NCCL},
	{0},
};
