/* SPDX-License-Identifier: Apache-2.0
 * Memory that was used in an operation is free again as soon as its owner frees it. */
#include <stdlib.h>

#include "dropin_calls.h"

#define BYTES  ((size_t)64 << 20)
#define SOON   50   /* ms: a timeout that is expected to expire */
#define WITHIN 5000 /* ms: a timeout that is not */

static unsigned imports(const struct rank *r)
{
	return device_info(r->session, r->gpu).imports;
}

static void sum(const struct rank *r, CUdeviceptr p)
{
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), BYTES / 4, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm,
				    NULL));
}

/* While the operation waits on its blocked stream, its memory is not released. Other memory may not
 * be, either: the driver would wait for operations in flight. */
static void forget_while_busy(struct rank *r, CUdeviceptr used, CUdeviceptr other)
{
	CUdeviceptr gate;
	const uint64_t closed = 0, open = 1;
	CHECK_CU(cu.cuMemAlloc(&gate, sizeof(closed)));
	gpu_put(gate, &closed, sizeof(closed));
	sum(r, other);
	CHECK(gpu_stream_ends(r->stream, WAIT_MS));
	CHECK_CU(cu.cuStreamWaitValue64(r->stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	sum(r, used);
	CHECK_EQ(ncclsvc_mem_forget(r->session, at(used), SOON), NCCLSVC_TIMEOUT);
	CHECK_EQ(imports(r), 2);
	/* Until all ranks have submitted the operation, it is not in flight, and other memory is
	 * released. */
	const ncclsvc_result busy = ncclsvc_mem_forget(r->session, at(other + BYTES - 1), SOON);
	CHECK(busy == NCCLSVC_TIMEOUT || busy == NCCLSVC_OK);
	CHECK_EQ(imports(r), 1);
	gpu_put(gate, &open, sizeof(open));
	CHECK_OK(ncclsvc_mem_forget(r->session, at(used), WITHIN));
	CHECK_EQ(imports(r), 0);
	CHECK_CU(cu.cuMemFree(gate));
}

static void forget_rank(struct client *c)
{
	struct rank r;
	struct buffer b[MEMORY_KINDS];
	CHECK_EQ(setenv("NCCLSVC_PEER", "0", 1), 0); /* so that all operations go to NCCL */
	rank_open(&r, c);
	for (int kind = 0; kind < MEMORY_KINDS; kind++)
		buffer_make(&b[kind], kind, r.gpu, r.session, BYTES);
	for (int kind = 0; kind < MEMORY_KINDS; kind++) {
		stage("%s memory", memory_name(kind));
		for (int again = 0; again < 2; again++) {
			sum(&r, b[kind].p);
			CHECK_OK(ncclsvc_mem_forget(r.session, at(b[kind].p), WITHIN));
			CHECK_OK(ncclsvc_mem_forget(r.session, at(b[kind].p), WITHIN));
			CHECK_EQ(imports(&r), 0);
		}
	}
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	stage("memory in use");
	forget_while_busy(&r, b[MEMORY_ALLOC].p, b[MEMORY_VMM].p);
	CHECK(gpu_stream_ends(r.stream, WAIT_MS));
	stage("bad arguments");
	CHECK_EQ(ncclsvc_mem_forget(NULL, at(b[0].p), 0), NCCLSVC_INVALID_ARGUMENT);
	CHECK_EQ(ncclsvc_mem_forget(r.session, at(b[0].p), -1), NCCLSVC_INVALID_ARGUMENT);
	CHECK_EQ(ncclsvc_mem_forget(r.session, at(b[0].p), 10001), NCCLSVC_INVALID_ARGUMENT);
	CHECK_OK(ncclsvc_mem_forget(r.session, NULL, 0));
	for (int kind = 0; kind < MEMORY_KINDS; kind++)
		buffer_free(&b[kind]);
	rank_close(&r);
}

static void test_forget(void)
{
	ranks_run(2, forget_rank, NULL);
}

/* ---- The drop-in ---- */

/* The free waits for the operation and the worker, which may get no time to run, but not for ever:
 * then the next check for errors releases the memory, and the worker closes it when it can. */
static void memory_returns(ncclsvc_session *session, int rank, ncclComm_t comm, size_t least)
{
	ncclResult_t error;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	     device_info(session, rank).imports || gpu_unused_memory() < least; sleep_ms(1)) {
		CHECK(now_ns() < end);
		CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
		CHECK_NC(error);
	}
}

/* cuMemFree frees memory at once that the daemon has imported: a program that is out of memory
 * frees its cache, and retries at once. */
static void freed_rank(struct client *c)
{
	CHECK_EQ(setenv("NCCLSVC_PEER", "0", 1), 0); /* so that all operations go to NCCL */
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	ncclsvc_session *session = session_open(c->daemon);
	for (int round = 0; round < 5; round++) {
		CUdeviceptr p;
		stage("round %d", round);
		CHECK_CU(cu.cuMemAlloc(&p, BYTES));
		const size_t before = gpu_unused_memory();
		CHECK_NC(nc.ncclAllReduce(at(p), at(p), BYTES / 4, NCCLSVC_UINT32, NCCLSVC_SUM,
					  comm, s));
		/* In the last rounds the operation is still running. */
		if (round < 3)
			CHECK(gpu_stream_ends(s, WAIT_MS));
		CHECK_EQ(device_info(session, c->rank).imports, 1);
		CHECK_EQ(nc.cuMemFree(p), 0);
		memory_returns(session, c->rank, comm, before + BYTES / 2);
	}
	stage("memory that no operation has used, and memory of ncclMemAlloc");
	CUdeviceptr unused;
	void *block;
	CHECK_CU(cu.cuMemAlloc(&unused, BYTES));
	CHECK_EQ(nc.cuMemFree(unused), 0);
	CHECK_EQ(nc.cuMemFree(0), 0);
	CHECK_NC(nc.ncclMemAlloc(&block, BYTES));
	CHECK(nc.cuMemFree((uintptr_t)block));
	CHECK_NC(nc.ncclMemFree(block));
	ncclsvc_close(session);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_freed(void)
{
	ranks_run(2, freed_rank, NULL);
}

const struct gpu_test memory_freed_tests[] = {
	{"memory/forget", test_forget, 2, 60, TEST_QUICK},
	{"nccl/memory-freed", test_freed, 2, 120, TEST_QUICK},
	{0},
};
