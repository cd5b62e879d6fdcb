/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libcuda stand-in: registered memory, streams, events and faults. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "fake_ranks.h"

#define MIB ((size_t)1 << 20)

static void *host(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

/* ---- Streams ------------------------------------------------------------------------------- */

static void host_memory(struct ranks *ranks, int rank)
{
	(void)ranks;
	(void)rank;
	char *p = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr device;
	gpu_open(0);
	CHECK_EQ(cuMemHostRegister(p + 8, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	OK(munmap(p + 8192, 4096));
	CHECK_EQ(cuMemHostRegister(p, 3 * 4096, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemHostRegister(p, 2 * 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK_EQ(cuMemHostRegister(p + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	OK(cuMemHostGetDevicePointer(&device, p + 64, 0));
	CHECK_EQ(device, (uintptr_t)p + 64);
	OK(cuStreamWriteValue64(NULL, device, 77, 0));
	OK(cuStreamSynchronize(NULL));
	CHECK_EQ(*(uint64_t *)(void *)(p + 64), 77);
	OK(cuMemHostUnregister(p));
	CHECK_EQ(cuMemHostUnregister(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuStreamWriteValue64(NULL, device, 78, 0), CUDA_ERROR_INVALID_VALUE);
	/* Unregistering a word that a stream waits for faults the context. */
	CUstream s;
	OK(cuMemHostRegister(p, 4096, 0));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamWaitValue64(s, (uintptr_t)p, 5, 0));
	CHECK_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(cuMemHostUnregister(p));
	CHECK_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuMemAlloc(&device, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void host_memory_test(void **state)
{
	(void)state;
	ranks_run(1, host_memory, -1);
}

static CUstreamBatchMemOpParams wait_value(CUdeviceptr p, uint64_t value)
{
	return (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
							.address = p,
							.value64 = value}};
}

static CUstreamBatchMemOpParams write_value(CUdeviceptr p, uint64_t value)
{
	return (CUstreamBatchMemOpParams){
		.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
			       .address = p,
			       .value64 = value}};
}

static void timelines(struct ranks *ranks, int rank)
{
	/* As in ncclsvc, streams of two processes wait for each other through words in shared
	 * memory. */
	_Atomic uint64_t *ready = (_Atomic uint64_t *)(void *)ranks->scratch, *done = ready + 1;
	char *page = (char *)((uintptr_t)ranks->scratch / 4096 * 4096);
	gpu_open(rank);
	OK(cuMemHostRegister(page, 4096, 0));
	CUdeviceptr r = (uintptr_t)ready, d = (uintptr_t)done;
	CUstream s;
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	for (uint64_t n = 1; n <= 200; n++) {
		CUstreamBatchMemOpParams client[2] = {write_value(r, n), wait_value(d, n)};
		CUstreamBatchMemOpParams worker[2] = {wait_value(r, n), write_value(d, n)};
		OK(cuStreamBatchMemOp(s, 2, rank ? worker : client, 0));
	}
	OK(cuStreamSynchronize(s));
	CHECK_EQ(atomic_load(done), 200);
	ranks_barrier(ranks, 2);
	/* A CPU store in the other process ends the wait. The values wrap around. */
	if (rank == 0) {
		atomic_store(ready, UINT64_MAX - 1);
		OK(cuStreamWaitValue64(s, r, 3, 0));
		ranks_barrier(ranks, 2);
		OK(cuStreamSynchronize(s));
		CHECK_EQ(atomic_load(ready), 3);
	} else {
		ranks_barrier(ranks, 2);
		snooze(20);
		atomic_store(ready, 3);
	}
	OK(cuStreamDestroy(s));
}

static void timelines_test(void **state)
{
	(void)state;
	ranks_run(2, timelines, -1);
}

/* 32-bit waits on a word with neighbours. */
static void short_word_waits(_Atomic uint32_t *word, CUdeviceptr p)
{
	CUstreamBatchMemOpParams op = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
						     .address = p + 4,
						     .value = 3}};
	CUstream s;
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	memset(word, 0xff, 12);
	atomic_store_explicit(&word[1], UINT32_MAX - 1, memory_order_release);
	OK(cuStreamBatchMemOp(s, 1, &op, 0));
	snooze(20);
	CHECK_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	atomic_store_explicit(&word[1], 2, memory_order_release);
	snooze(20);
	CHECK_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	atomic_store_explicit(&word[1], 3, memory_order_release);
	OK(cuStreamSynchronize(s));
	op.waitValue.value = UINT32_MAX;
	OK(cuStreamBatchMemOp(s, 1, &op, 0));
	OK(cuStreamSynchronize(s));
	op.waitValue.address = p + 2;
	CHECK_EQ(cuStreamBatchMemOp(s, 1, &op, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuStreamDestroy(s));
}

static void short_words(struct ranks *ranks, int rank)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
				  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;
	char *page = (char *)((uintptr_t)ranks->scratch / 4096 * 4096);
	(void)rank;
	gpu_open(0);
	OK(cuMemHostRegister(page, 4096, 0));
	OK(cuMemHostGetDevicePointer(&p, page, 0));
	short_word_waits((_Atomic uint32_t *)(void *)page, p);
	OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
	OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
	OK(cuMemMap(p, 2 * MIB, 0, handle, 0));
	OK(cuMemSetAccess(p, 2 * MIB, &access, 1));
	short_word_waits(host(p), p);
}

static void short_words_test(void **state)
{
	(void)state;
	ranks_run(1, short_words, -1);
}

static void streams(struct ranks *ranks, int rank)
{
	(void)ranks;
	(void)rank;
	CUstream s, t, u;
	CUevent never, event, start;
	unsigned long long ids[3];
	float ms;
	char out[16] = "";
	CUcontext context = gpu_open(0), of;
	CUdeviceptr p = gpu_alloc(4096), word = gpu_alloc(64);
	OK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -5));
	OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	OK(cuStreamGetCtx(s, &of));
	CHECK(of == context);
	OK(cuEventCreate(&never, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&start, 0));
	OK(cuEventCreate(&event, 0));
	/* A wait for an event that was never recorded has no effect. */
	OK(cuStreamWaitEvent(s, never, 0));
	OK(cuStreamSynchronize(s));
	/* t runs after s, which waits for the CPU. */
	OK(cuEventRecord(start, s));
	OK(cuEventSynchronize(start)); /* now, not when the stream's thread gets to run */
	OK(cuStreamWaitValue64(s, word, 1, 0));
	char source[16] = "first";
	OK(cuMemcpyHtoDAsync(p, source, 6, s));
	strcpy(source, "wrong"); /* the call has already copied the pageable memory */
	OK(cuEventRecord(event, s));
	OK(cuStreamWaitEvent(t, event, 0));
	OK(cuMemcpyDtoDAsync(p + 100, p, 6, t));
	snooze(20);
	CHECK_EQ(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK_EQ(cuEventElapsedTime(&ms, start, event), CUDA_ERROR_NOT_READY);
	atomic_store_explicit((_Atomic uint64_t *)host(word), 1, memory_order_release);
	OK(cuEventSynchronize(event));
	OK(cuMemcpyDtoHAsync(out, p + 100, 6, t));
	CHECK(strcmp(out, "first") == 0);
	OK(cuEventElapsedTime(&ms, start, event));
	CHECK(ms >= 10);
	OK(cuMemsetD8Async(p, 7, 9, NULL));
	OK(cuMemsetD32Async(p + 16, 0x01020304, 4, NULL));
	OK(cuMemcpyDtoH(out, p, 10));
	CHECK_EQ(out[8], 7);
	OK(cuCtxSynchronize());
	CHECK_EQ(*(int *)host(p + 28), 0x01020304);
	CHECK_EQ(cuMemsetD8Async(p, 7, 4097, NULL), CUDA_ERROR_INVALID_VALUE);
	/* Handles are reused, ids are not. */
	OK(cuStreamGetId(s, &ids[0]));
	OK(cuStreamGetId(t, &ids[1]));
	OK(cuStreamDestroy(s));
	CHECK_EQ(cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
	OK(cuStreamCreate(&u, CU_STREAM_NON_BLOCKING));
	CHECK(u == s);
	OK(cuStreamGetId(u, &ids[2]));
	CHECK(ids[2] > ids[1] && ids[1] > ids[0]);
	/* A stream destroyed with pending work still runs that work. */
	OK(cuStreamWaitValue64(u, word, 5, 0));
	OK(cuStreamWriteValue64(u, word + 8, 6, 0));
	OK(cuStreamDestroy(u));
	atomic_store_explicit((_Atomic uint64_t *)host(word), 5, memory_order_release);
	while (atomic_load_explicit((_Atomic uint64_t *)host(word + 8), memory_order_acquire) != 6)
		snooze(1);
	OK(cuStreamDestroy(t));
	OK(cuEventDestroy(never));
	OK(cuEventDestroy(event));
	OK(cuEventDestroy(start));
	/* cuMemFree waits for pending work. */
	OK(cuStreamWaitValue64(NULL, word, 5, 0));
	OK(cuMemFree(p));
	OK(cuMemFree(word));
}

static void streams_test(void **state)
{
	(void)state;
	ranks_run(1, streams, -1);
}

/* ---- Faults -------------------------------------------------------------------------------- */

static void faults(struct ranks *ranks, int rank)
{
	CUdeviceptr p, word;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUstream s;
	int version;
	gpu_open(0);
	if (rank == 0) {
		OK(cuIpcGetMemHandle(&ranks->handle, gpu_alloc(MIB)));
		atomic_store(&ranks->step, 1);
		ranks_wait(ranks, 2);
		OK(cuCtxSynchronize()); /* the other process's fault does not affect this one */
		fault_on("wedge", getpid());
		atomic_store(&ranks->step, 3);
		cuCtxSynchronize();
		CHECK(false);
	}
	ranks_wait(ranks, 1);
	fault_on("ipc-open", 0);
	CHECK_EQ(cuIpcOpenMemHandle(&p, ranks->handle, 1), CUDA_ERROR_MAP_FAILED);
	fault_off("ipc-open");
	OK(cuIpcOpenMemHandle(&p, ranks->handle, 1));
	fault_on("memory", ranks->pids[0]);
	word = gpu_alloc(64);
	fault_on("memory", getpid());
	CHECK_EQ(cuMemAlloc(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	fault_off("memory");
	fault_on("driver-old", 0);
	OK(cuDriverGetVersion(&version));
	CHECK_EQ(version, 11040);
	fault_off("driver-old");
	CUstreamBatchMemOpParams op = write_value(word, 1);
	fault_on("batch-fail", 0);
	CHECK_EQ(cuStreamBatchMemOp(NULL, 1, &op, 0), CUDA_ERROR_NOT_SUPPORTED);
	fault_off("batch-fail");
	OK(cuStreamBatchMemOp(NULL, 1, &op, 0));
	/* The error is permanent, and the streams stop. */
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamWaitValue64(s, word, 100, 0));
	fault_on("sticky", getpid());
	CHECK_EQ(cuStreamQuery(s), CUDA_ERROR_ILLEGAL_ADDRESS);
	fault_off("sticky");
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuMemAlloc(&p, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuStreamDestroy(s), CUDA_ERROR_ILLEGAL_ADDRESS);
	atomic_store(&ranks->step, 2);
	ranks_wait(ranks, 3);
	snooze(50);
	kill(ranks->pids[0], SIGKILL);
}

static void faults_test(void **state)
{
	(void)state;
	ranks_run(2, faults, 0);
}

static void listed(struct ranks *ranks, int rank)
{
	CUdeviceptr p;
	int version;
	(void)ranks;
	(void)rank;
	setenv("NCCLSVC_FAKE_FAULTS", "nothing,memory:3:fake_stream,driver-old:1:no-such-word", 1);
	gpu_open(0);
	OK(cuMemAlloc(&p, 1));
	OK(cuMemAlloc(&p, 1));
	CHECK_EQ(cuMemAlloc(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuDriverGetVersion(&version));
	CHECK_EQ(version, 13000);
}

static void listed_test(void **state)
{
	(void)state;
	ranks_run(1, listed, -1);
}

/* A stream waits for the event's latest record at the time of cuStreamWaitEvent, not for a later
 * one by another stream. */
static void recorded_twice(struct ranks *ranks, int rank)
{
	CUdeviceptr gate;
	CUstream late, ahead, waits;
	CUevent event;
	_Atomic uint64_t *word = (_Atomic uint64_t *)(void *)ranks->scratch;
	(void)rank;
	gpu_open(0);
	OK(cuMemHostRegister(ranks->scratch, sizeof(ranks->scratch), 0));
	OK(cuMemHostGetDevicePointer(&gate, ranks->scratch, 0));
	OK(cuStreamCreate(&late, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&ahead, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&waits, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuStreamWaitValue64(late, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuEventRecord(event, late));
	OK(cuStreamWaitEvent(waits, event, 0));
	OK(cuEventRecord(event, ahead));
	OK(cuStreamSynchronize(ahead));
	snooze(20);
	CHECK_EQ(cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
	atomic_store(word, 1);
	OK(cuStreamSynchronize(waits));
	OK(cuEventDestroy(event));
	OK(cuStreamDestroy(late));
	OK(cuStreamDestroy(ahead));
	OK(cuStreamDestroy(waits));
}

static void recorded_twice_test(void **state)
{
	(void)state;
	ranks_run(1, recorded_twice, -1);
}

static void forked(struct ranks *ranks, int rank)
{
	(void)ranks;
	(void)rank;
	gpu_open(0);
	int pid = fork(), n, status = -1;
	if (pid == 0)
		_exit(cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	OK(cuDeviceGetCount(&n));
}

static void forked_test(void **state)
{
	(void)state;
	ranks_run(1, forked, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(host_memory_test),    cmocka_unit_test(timelines_test),
		cmocka_unit_test(short_words_test),    cmocka_unit_test(streams_test),
		cmocka_unit_test(faults_test),	       cmocka_unit_test(listed_test),
		cmocka_unit_test(recorded_twice_test), cmocka_unit_test(forked_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
