/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libnccl stand-in: every operation across real processes, and failures. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "proto/ncclsvc_types.h"

#define N 3 /* ranks */

static void *host(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

/* ---- Data movement ------------------------------------------------------------------------- */

/* Larger than the stand-in's chunks, and not a multiple of their size. */
#define COUNT ((size_t)100003)

static int32_t word(int from, size_t i)
{
	return (int32_t)(from * 1000000 + (int)i);
}

static void fill(CUdeviceptr p, int rank, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((int32_t *)host(p))[i] = word(rank, i);
}

/* Checks for n words of rank `from`, starting at its word `first`. */
static void check(CUdeviceptr p, size_t at, int from, size_t first, size_t n)
{
	for (size_t i = 0; i < n; i++)
		CHECK_EQ(((int32_t *)host(p))[at + i], word(from, first + i));
}

static void collectives(struct ranks *ranks, int rank)
{
	ncclComm_t comm = comm_open(ranks, rank, N);
	CUstream s = stream_open();
	size_t all = N * COUNT;
	CUdeviceptr src = gpu_alloc(all * 4), dst = gpu_alloc(all * 4);
	int32_t *from = host(src), *to = host(dst);
	fill(src, rank, all);
	OK(ncclAllGather(from, to, COUNT, NCCLSVC_INT32, comm, s));
	OK(cuStreamSynchronize(s));
	for (int r = 0; r < N; r++)
		check(dst, (size_t)r * COUNT, r, 0, COUNT);
	OK(ncclBroadcast(from, to, COUNT, NCCLSVC_INT32, 1, comm, s));
	OK(cuStreamSynchronize(s));
	check(dst, 0, 1, 0, COUNT);
	OK(ncclAlltoAll(from, to, COUNT, NCCLSVC_INT32, comm, s));
	OK(cuStreamSynchronize(s));
	for (int r = 0; r < N; r++)
		check(dst, (size_t)r * COUNT, r, (size_t)rank * COUNT, COUNT);
	OK(ncclGather(from, to, COUNT, NCCLSVC_INT32, 2, comm, s));
	OK(cuStreamSynchronize(s));
	for (int r = 0; r < N && rank == 2; r++)
		check(dst, (size_t)r * COUNT, r, 0, COUNT);
	OK(ncclScatter(from, to, COUNT, NCCLSVC_INT32, 0, comm, s));
	OK(cuStreamSynchronize(s));
	check(dst, 0, 0, (size_t)rank * COUNT, COUNT);
	OK(ncclReduce(from, to, COUNT, NCCLSVC_INT32, NCCLSVC_MAX, 1, comm, s));
	OK(cuStreamSynchronize(s));
	if (rank == 1)
		check(dst, 0, N - 1, 0, COUNT);
	OK(ncclReduceScatter(from, to, COUNT, NCCLSVC_INT32, NCCLSVC_MIN, comm, s));
	OK(cuStreamSynchronize(s));
	check(dst, 0, 0, (size_t)rank * COUNT, COUNT);
	/* In place, with several operations in flight on two streams: they run in call order. */
	CUstream t = stream_open();
	OK(ncclReduceScatter(from, from + (size_t)rank * COUNT, COUNT, NCCLSVC_INT32, NCCLSVC_MAX,
			     comm, s));
	OK(ncclAllGather(from + (size_t)rank * COUNT, from, COUNT, NCCLSVC_INT32, comm, t));
	OK(ncclBroadcast(from, from, 7, NCCLSVC_INT32, 0, comm, s));
	OK(cuCtxSynchronize());
	check(src, 0, N - 1, 0, all);
	/* A count of 0, and invalid arguments. */
	OK(ncclAllReduce(from, to, 0, NCCLSVC_INT32, NCCLSVC_SUM, comm, s));
	CHECK_EQ(ncclAllReduce(from, NULL, 1, NCCLSVC_INT32, NCCLSVC_SUM, comm, s),
		 ncclInvalidArgument);
	CHECK_EQ(ncclBroadcast(from, to, 1, NCCLSVC_INT32, N, comm, s), ncclInvalidArgument);
	CHECK_EQ(ncclBroadcast(from, to, 1, 12, 0, comm, s), ncclInvalidArgument);
	OK(ncclCommFinalize(comm));
	OK(ncclCommDestroy(comm));
}

static void collectives_test(void **state)
{
	(void)state;
	ranks_run(N, collectives, -1);
}

static void exchange(struct ranks *ranks, int rank)
{
	ncclComm_t comm = comm_open(ranks, rank, N);
	CUstream s = stream_open(), t = stream_open();
	CUdeviceptr src = gpu_alloc(2 * N * COUNT * 4), dst = gpu_alloc(2 * N * COUNT * 4);
	int32_t *from = host(src), *to = host(dst);
	fill(src, rank, 2 * N * COUNT);
	/* Every rank exchanges two blocks with every rank, including itself, each in a different
	 * order. */
	OK(ncclGroupStart());
	for (int k = 0; k < 2; k++) {
		for (int i = 0; i < N; i++) {
			int r = (i + rank) % N;
			size_t block = (size_t)(2 * r + k) * COUNT;
			OK(ncclSend(from + block, COUNT, NCCLSVC_INT32, r, comm, s));
			OK(ncclRecv(to + block, COUNT, NCCLSVC_INT32, r, comm, i ? s : t));
		}
	}
	OK(ncclGroupEnd());
	OK(cuStreamSynchronize(s));
	OK(cuStreamSynchronize(t));
	for (int r = 0; r < N; r++) {
		for (int k = 0; k < 2; k++)
			check(dst, (size_t)(2 * r + k) * COUNT, r, (size_t)(2 * rank + k) * COUNT,
			      COUNT);
	}
	/* A ring whose messages are small enough to need no group, then a Send and Recv between two
	 * ranks. */
	OK(ncclSend(from, 10, NCCLSVC_INT32, (rank + 1) % N, comm, s));
	OK(ncclRecv(to, 10, NCCLSVC_INT32, (rank + N - 1) % N, comm, s));
	OK(cuStreamSynchronize(s));
	check(dst, 0, (rank + N - 1) % N, 0, 10);
	if (rank == 0)
		OK(ncclSend(from, COUNT, NCCLSVC_INT32, 2, comm, s));
	if (rank == 2)
		OK(ncclRecv(to, COUNT, NCCLSVC_INT32, 0, comm, s));
	OK(cuStreamSynchronize(s));
	if (rank == 2)
		check(dst, 0, 0, 0, COUNT);
	/* Nested groups with collectives. One error fails the whole group. */
	OK(ncclGroupStart());
	OK(ncclGroupStart());
	OK(ncclBroadcast(from, to, 5, NCCLSVC_INT32, 1, comm, s));
	OK(ncclGroupEnd());
	CHECK_EQ(cuStreamQuery(s), CUDA_SUCCESS);
	OK(ncclAllGather(from, to + 100, 5, NCCLSVC_INT32, comm, s));
	OK(ncclGroupEnd());
	OK(cuStreamSynchronize(s));
	check(dst, 0, 1, 0, 5);
	check(dst, 105, 1, 0, 5);
	OK(ncclGroupStart());
	OK(ncclBroadcast(from, to, 5, NCCLSVC_INT32, 1, comm, s));
	CHECK_EQ(ncclBroadcast(from, to, 5, NCCLSVC_INT32, 9, comm, s), ncclInvalidArgument);
	CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
	CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
	OK(ncclCommDestroy(comm));
}

static void exchange_test(void **state)
{
	(void)state;
	ranks_run(N, exchange, -1);
}

/* ---- Failures ------------------------------------------------------------------------------ */

static void killed_peer(struct ranks *ranks, int rank)
{
	ncclComm_t comm = comm_open(ranks, rank, N);
	CUstream s = stream_open();
	ncclResult_t error;
	CUdeviceptr p = gpu_alloc(4096), mark = gpu_alloc(64);
	OK(ncclAllReduce(host(p), host(p), 16, NCCLSVC_INT32, NCCLSVC_SUM, comm, s));
	OK(cuStreamSynchronize(s));
	ranks_barrier(ranks, N);
	if (rank == 2)
		raise(SIGKILL);
	OK(ncclAllReduce(host(p), host(p), 16, NCCLSVC_INT32, NCCLSVC_SUM, comm, s));
	OK(ncclAllReduce(host(p), host(p), 16, NCCLSVC_INT32, NCCLSVC_SUM, comm, s));
	OK(cuStreamWriteValue64(s, mark, 1, 0));
	snooze(200);
	CHECK_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(ncclCommGetAsyncError(comm, &error));
	CHECK_EQ(error, ncclSuccess);
	OK(ncclCommAbort(comm));
	OK(cuStreamSynchronize(s));
	CHECK_EQ(*(uint64_t *)host(mark), 1);
	/* The two surviving ranks continue on a new communicator. */
	comm = comm_open(ranks, rank, 2);
	OK(ncclBroadcast(host(p), host(p), 16, NCCLSVC_INT32, 1, comm, s));
	OK(cuStreamSynchronize(s));
	OK(ncclCommDestroy(comm));
}

static void killed_peer_test(void **state)
{
	(void)state;
	ranks_run(N, killed_peer, 2);
}

static bool is_invalid_usage(void *arg)
{
	ncclResult_t error;
	OK(ncclCommGetAsyncError(arg, &error));
	return error == ncclInvalidUsage;
}

static void mismatch(struct ranks *ranks, int rank)
{
	CUdeviceptr p;
	CUstream s;
	for (int what = 0; what < 4; what++) {
		ncclComm_t comm = comm_open(ranks, rank, 2);
		if (what == 0) {
			p = gpu_alloc(1 << 20);
			s = stream_open();
		}
		if (what == 3 && rank == 0)
			OK(ncclSend(host(p), 100, NCCLSVC_INT32, 1, comm, s));
		else if (what == 3)
			OK(ncclRecv(host(p), 101, NCCLSVC_INT32, 0, comm, s));
		else if (what == 2 && rank == 0)
			OK(ncclBroadcast(host(p), host(p), 100, NCCLSVC_INT32, 0, comm, s));
		else
			OK(ncclAllReduce(host(p), host(p), (size_t)(100 + (what == 0 ? rank : 0)),
					 what == 1 && rank ? NCCLSVC_UINT32 : NCCLSVC_INT32,
					 NCCLSVC_SUM, comm, s));
		CHECK(soon(is_invalid_usage, comm));
		OK(ncclCommAbort(comm));
		OK(cuStreamSynchronize(s));
	}
}

static void mismatch_test(void **state)
{
	(void)state;
	ranks_run(2, mismatch, -1);
}

static void bad_joins(struct ranks *ranks, int rank)
{
	ncclComm_t comm;
	ncclConfig_t config = {0};
	gpu_open(0);
	if (rank == 0)
		OK(ncclGetUniqueId(&ranks->id));
	ranks_barrier(ranks, 2);
	/* Both ranks use the same GPU. */
	if (rank == 1) {
		CHECK_EQ(ncclCommInitRankConfig(&comm, 2, ranks->id, 1, &config),
			 ncclInvalidArgument);
		CHECK_EQ(ncclCommInitRankConfig(&comm, 2, ranks->id, 2, NULL), ncclInvalidArgument);
		ncclResult_t error = ncclCommInitRankConfig(&comm, 2, ranks->id, 1, NULL);
		CHECK(error == ncclInvalidUsage || error == ncclSystemError);
	} else {
		ncclResult_t error = ncclCommInitRankConfig(&comm, 2, ranks->id, 0, NULL);
		CHECK(error == ncclInvalidUsage || error == ncclSystemError);
	}
	CHECK(strlen(ncclGetLastError(NULL)) > 10);
	ranks_barrier(ranks, 2);
	/* One rank never joins: the join of the other rank fails. */
	if (rank == 0) {
		OK(ncclGetUniqueId(&ranks->id));
		atomic_store(&ranks->step, 1);
		CHECK_EQ(ncclCommInitRankConfig(&comm, 2, ranks->id, 0, NULL), ncclSystemError);
		return;
	}
	ranks_wait(ranks, 1);
}

static void bad_joins_test(void **state)
{
	(void)state;
	ranks_run(2, bad_joins, -1);
}

static void fault_parts(struct ranks *ranks, int rank)
{
	int version;
	ncclResult_t error;
	ncclComm_t comm = comm_open(ranks, rank, 2);
	CUstream s = stream_open();
	CUdeviceptr p = gpu_alloc(4096);
	if (rank == 0) {
		fault_on("nccl-old", 0);
		OK(ncclGetVersion(&version));
		CHECK_EQ(version, 21500);
		fault_off("nccl-old");
		fault_on("init-fail", 0);
		ncclComm_t none;
		CHECK_EQ(ncclCommInitRankConfig(&none, 2, ranks->id, rank, NULL), ncclSystemError);
		CHECK(strstr(ncclGetLastError(NULL), "init-fail"));
		fault_off("init-fail");
		fault_on("async-error", 0);
	}
	ranks_barrier(ranks, 2); /* the faults apply to both processes */
	OK(ncclGetVersion(&version));
	CHECK(version >= NCCL_VERSION_NEEDED);
	OK(ncclAllReduce(host(p), host(p), 16, NCCLSVC_INT32, NCCLSVC_SUM, comm, s));
	OK(ncclCommGetAsyncError(comm, &error));
	CHECK_EQ(error, ncclSystemError);
	snooze(100);
	CHECK_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(ncclCommAbort(comm));
	OK(cuStreamSynchronize(s));
	ranks_barrier(ranks, 2);
	if (rank == 0)
		fault_off("async-error");
	comm = comm_open(ranks, rank, 2);
	/* Not even an abort ends this operation; only the end of the process does. */
	if (rank == 0)
		fault_on("kernel-hang", ranks->pids[0]);
	ranks_barrier(ranks, 2);
	OK(ncclAllReduce(host(p), host(p), 16, NCCLSVC_INT32, NCCLSVC_SUM, comm, s));
	if (rank == 0) {
		atomic_store(&ranks->step, 1);
		ncclCommAbort(comm);
		CHECK(false);
	}
	ranks_wait(ranks, 1);
	snooze(200);
	kill(ranks->pids[0], SIGKILL);
	OK(ncclCommAbort(comm));
	OK(cuStreamSynchronize(s));
}

static void faults_test(void **state)
{
	(void)state;
	ranks_run(2, fault_parts, 0);
}

static void illegal(struct ranks *ranks, int rank)
{
	ncclComm_t comm = comm_open(ranks, rank, 2);
	CUstream s = stream_open();
	CUdeviceptr p = gpu_alloc(4096);
	/* One rank's buffer ends too early: its context fails, the other rank hangs. */
	OK(ncclAllReduce(host(p), host(p), rank ? 1024 : 1025, NCCLSVC_INT32, NCCLSVC_SUM, comm,
			 s));
	if (rank == 0) {
		CHECK_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
		CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
		atomic_store(&ranks->step, 1);
	} else {
		ranks_wait(ranks, 1);
		CHECK_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	}
	OK(ncclCommAbort(comm));
}

static void illegal_test(void **state)
{
	(void)state;
	ranks_run(2, illegal, -1);
}

int main(void)
{
	setenv("NCCLSVC_FAKE_GPUS", "4", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(collectives_test), cmocka_unit_test(exchange_test),
		cmocka_unit_test(killed_peer_test), cmocka_unit_test(mismatch_test),
		cmocka_unit_test(bad_joins_test),   cmocka_unit_test(faults_test),
		cmocka_unit_test(illegal_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
