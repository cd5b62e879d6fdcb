/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libcuda stand-in: devices, and memory shared between processes. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "proto/dynlib.h"
#include "proto/fdio.h"

#define MIB ((size_t)1 << 20)

static void *host(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

/* ---- Devices ------------------------------------------------------------------------------- */

static void every_function_is_there(void **state)
{
	(void)state;
#define SYMBOL(function, exported, parameters)	  {exported, 0},
#define NCCL_SYMBOL(function, result, parameters) {#function, 0},
	static const struct dynlib_symbol cuda[] = {
		CUDA_FUNCTIONS(SYMBOL) CUDA_KERNEL_FUNCTIONS(SYMBOL) CUDA_OPTIONAL_FUNCTIONS(SYMBOL)
			CUDA_CAPTURE_FUNCTIONS(SYMBOL) CUDA_GRAPH_FUNCTIONS(SYMBOL)};
	static const struct dynlib_symbol nccl[] = {NCCL_FUNCTIONS(NCCL_SYMBOL)};
	void *table[1];
	char text[256] = "";
	/* All functions use the same table entry, because the test only checks that the symbols
	 * exist. */
	if (!dynlib_open("libcuda.so.1", cuda, sizeof(cuda) / sizeof(cuda[0]), table, text,
			 sizeof(text)) ||
	    !dynlib_open("libnccl.so.2", nccl, sizeof(nccl) / sizeof(nccl[0]), table, text,
			 sizeof(text)))
		fail_msg("%s", text);
}

static void devices(struct ranks *ranks, int rank)
{
	(void)ranks;
	(void)rank;
	int n;
	char name[64], id[16];
	CUuuid a, b;
	CUcontext current;
	CHECK_EQ(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	CHECK_EQ(n, 2);
	OK(cuDeviceGetUuid(&a, 0));
	OK(cuDeviceGetUuid(&b, 1));
	CHECK(memcmp(&a, &b, sizeof(a)) != 0);
	OK(cuDeviceGetName(name, sizeof(name), 0));
	OK(cuDeviceGetPCIBusId(id, sizeof(id), 1));
	CHECK_EQ(cuDeviceGetUuid(&a, 2), CUDA_ERROR_INVALID_DEVICE);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
	CUcontext context = gpu_open(1);
	OK(cuCtxGetDevice(&n));
	CHECK_EQ(n, 1);
	OK(cuCtxPushCurrent(context));
	OK(cuCtxPopCurrent(&current));
	CHECK(current == context);
	OK(cuDriverGetVersion(&n));
	CHECK_EQ(n, 13000);
}

static void devices_test(void **state)
{
	(void)state;
	ranks_run(1, devices, -1);
}

static void visible(struct ranks *ranks, int rank)
{
	/* The uuid of GPU 3 in the second process comes from the first. */
	int n;
	CUuuid uuid;
	if (rank == 0) {
		OK(cuInit(0));
		OK(cuDeviceGetUuid((CUuuid *)(void *)ranks->scratch, 3));
		atomic_store(&ranks->step, 1);
		return;
	}
	ranks_wait(ranks, 1);
	const unsigned char *u = (const unsigned char *)ranks->scratch;
	char list[128];
	int at = snprintf(list, sizeof(list), "1, GPU-");
	for (int i = 0; i < 16; i++)
		at += snprintf(list + at, sizeof(list) - (size_t)at, "%s%02x",
			       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
	snprintf(list + at, sizeof(list) - (size_t)at, ",0,9,2");
	setenv("CUDA_VISIBLE_DEVICES", list, 1);
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	CHECK_EQ(n, 3);
	OK(cuDeviceGetUuid(&uuid, 1));
	CHECK(memcmp(&uuid, u, 16) == 0);
	CHECK_EQ(fake_physical(0), 1);
	CHECK_EQ(fake_physical(2), 0);
}

static void visible_test(void **state)
{
	(void)state;
	setenv("NCCLSVC_FAKE_GPUS", "4", 1);
	ranks_run(2, visible, -1);
	unsetenv("NCCLSVC_FAKE_GPUS");
}

/* ---- Memory -------------------------------------------------------------------------------- */

static uint64_t buffer_id(CUdeviceptr p)
{
	uint64_t id;
	OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
	return id;
}

static void addresses(struct ranks *ranks, int rank)
{
	(void)ranks;
	(void)rank;
	int stack = 0, ordinal = -1, type = 0;
	unsigned char capable = 9;
	gpu_open(1);
	CUdeviceptr a = gpu_alloc(1000), b = gpu_alloc(3 * MIB), base;
	size_t bytes;
	uint64_t id = buffer_id(a);
	CHECK_EQ(buffer_id(a + 999), id);
	CHECK(buffer_id(b) != id);
	OK(cuMemGetAddressRange(&base, &bytes, a + 500));
	CHECK_EQ(base, a);
	CHECK_EQ(bytes, 1000);
	CHECK_EQ(cuMemGetAddressRange(&base, &bytes, (uintptr_t)&stack), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&stack),
		 CUDA_ERROR_INVALID_VALUE);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
	CHECK_EQ(type, CU_MEMORYTYPE_DEVICE);
	int what[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
	void *values[] = {&ordinal, &capable};
	OK(cuPointerGetAttributes(2, what, values, b));
	CHECK_EQ(ordinal, 1);
	CHECK_EQ(capable, 1);
	OK(cuPointerGetAttributes(2, what, values, (uintptr_t)&stack));
	CHECK_EQ(ordinal, -2);
	/* A new allocation at the same address has a new buffer id. */
	for (int i = 0; i < 10; i++) {
		OK(cuMemFree(a));
		CHECK_EQ(cuMemGetAddressRange(&base, &bytes, a), CUDA_ERROR_INVALID_VALUE);
		CHECK_EQ(gpu_alloc(1000), a);
		CHECK(buffer_id(a) > id);
		id = buffer_id(a);
	}
	CHECK_EQ(cuMemFree(a + 8), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(a));
	OK(cuMemFree(b));
	OK(cuMemFree(0));
	CHECK_EQ(cuMemFree(b), CUDA_ERROR_INVALID_VALUE);
	/* Memory from a pool has no IPC handle. */
	CUipcMemHandle handle;
	OK(cuMemAllocAsync(&a, 4096, NULL));
	OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
	CHECK_EQ(capable, 0);
	CHECK_EQ(cuIpcGetMemHandle(&handle, a), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeAsync(a, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK_EQ(buffer_id(gpu_alloc(5000)) > id, 1);
}

static void addresses_test(void **state)
{
	(void)state;
	ranks_run(1, addresses, -1);
}

static size_t unused(void)
{
	size_t bytes, total;
	OK(cuMemGetInfo(&bytes, &total));
	CHECK_EQ(total, 64 * MIB);
	return bytes;
}

static bool all_unused(void *arg)
{
	(void)arg;
	return unused() == 64 * MIB;
}

static void limits(struct ranks *ranks, int rank)
{
	CUdeviceptr p;
	gpu_open(0);
	if (rank == 1) {
		gpu_alloc(40 * MIB);
		atomic_store(&ranks->step, 1);
		pause();
	}
	ranks_wait(ranks, 1);
	CHECK_EQ(unused(), 24 * MIB);
	CHECK_EQ(cuMemAlloc(&p, 25 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc(&p, 20 * MIB));
	CHECK_EQ(unused(), 4 * MIB);
	kill(ranks->pids[1], SIGKILL);
	OK(cuMemFree(p));
	CHECK(soon(all_unused, NULL));
	OK(cuMemAlloc(&p, 64 * MIB));
	CHECK_EQ(files_named("memory-"), 1);
	OK(cuMemFree(p));
	CHECK_EQ(files_named("memory-"), 0);
}

static void limits_test(void **state)
{
	(void)state;
	setenv("NCCLSVC_FAKE_MEMORY", "67108864", 1);
	ranks_run(2, limits, 1);
	unsetenv("NCCLSVC_FAKE_MEMORY");
}

static int open_fds(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void ipc(struct ranks *ranks, int rank)
{
	CUdeviceptr p, q;
	CUipcMemHandle old;
	gpu_open(rank);
	if (rank == 0) {
		p = gpu_alloc(MIB + 5);
		strcpy(host(p), "hello");
		OK(cuIpcGetMemHandle(&ranks->handle, p + 100));
		CHECK_EQ(cuIpcOpenMemHandle(&q, ranks->handle, 1), CUDA_ERROR_INVALID_CONTEXT);
		atomic_store(&ranks->step, 1);
		ranks_wait(ranks, 2);
		CHECK(strcmp(host(p + MIB), "back") == 0);
		OK(cuMemFree(p));
		CHECK_EQ(gpu_alloc(MIB + 5), p);
		OK(cuIpcGetMemHandle(&ranks->handle, p));
		atomic_store(&ranks->step, 3);
		ranks_wait(ranks, 4);
		return;
	}
	ranks_wait(ranks, 1);
	int fds = open_fds();
	old = ranks->handle;
	OK(cuIpcOpenMemHandle(&p, old, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(cuIpcOpenMemHandle(&q, old, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK_EQ(p, q);
	OK(cuIpcCloseMemHandle(q));
	CHECK(strcmp(host(p), "hello") == 0);
	strcpy(host(p + MIB), "back");
	/* Imported memory cannot be exported. */
	CHECK_EQ(cuIpcGetMemHandle(&ranks->handle, p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
	atomic_store(&ranks->step, 2);
	ranks_wait(ranks, 3);
	/* The owner has freed the memory and reused its address: the old import keeps the old
	 * memory. */
	CHECK(strcmp(host(p), "hello") == 0);
	OK(cuIpcOpenMemHandle(&q, ranks->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(q != p);
	CHECK_EQ(*(char *)host(q), 0);
	OK(cuIpcCloseMemHandle(p));
	CHECK_EQ(cuIpcOpenMemHandle(&p, old, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
		 CUDA_ERROR_INVALID_VALUE);
	OK(cuIpcCloseMemHandle(q));
	CHECK_EQ(cuIpcCloseMemHandle(q), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(open_fds(), fds);
	atomic_store(&ranks->step, 4);
}

static void ipc_test(void **state)
{
	(void)state;
	ranks_run(2, ipc, -1);
}

static CUdeviceptr vmm_map(CUmemGenericAllocationHandle handle, size_t bytes, int device)
{
	CUdeviceptr p;
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
				  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
	OK(cuMemMap(p, bytes, 0, handle, 0));
	OK(cuMemSetAccess(p, bytes, &access, 1));
	return p;
}

static void vmm(struct ranks *ranks, int rank)
{
	CUmemGenericAllocationHandle handle, again;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes =
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUdeviceptr p;
	uint64_t types;
	int fd, fds;
	unsigned nfds;
	size_t bytes = 4 * MIB;
	char c;
	gpu_open(0);
	if (rank == 0) {
		fds = open_fds();
		CHECK_EQ(cuMemCreate(&handle, bytes + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
		OK(cuMemCreate(&handle, bytes, &prop, 0));
		p = vmm_map(handle, bytes, 0);
		OK(cuMemRelease(handle)); /* the mapping keeps the memory */
		strcpy(host(p), "mapped");
		OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
		CHECK_EQ(types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		OK(cuMemRetainAllocationHandle(&again, host(p + 5)));
		OK(cuMemExportToShareableHandle(&fd, again, 1, 0));
		OK(cuMemRelease(again));
		OK(svc_send(ranks->socks[1][1], "x", 1, &fd, 1, 0));
		close(fd);
		OK(cuMemUnmap(p, bytes));
		OK(cuMemAddressFree(p, bytes));
		CHECK_EQ(open_fds(), fds);
		/* Memory created without a handle type cannot be exported. */
		prop.requestedHandleTypes = 0;
		OK(cuMemCreate(&handle, bytes, &prop, 0));
		CHECK_EQ(vmm_map(handle, bytes, 0), p);
		OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
		CHECK_EQ(types, 0);
		CHECK_EQ(cuMemExportToShareableHandle(&fd, handle, 1, 0), CUDA_ERROR_INVALID_VALUE);
		return;
	}
	CHECK_EQ(svc_recv(ranks->socks[1][0], &c, 1, &fd, &nfds, 0), 1);
	OK(cuMemImportFromShareableHandle(&handle, host((CUdeviceptr)fd),
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	p = vmm_map(handle, bytes, 0);
	OK(cuMemRelease(handle));
	CHECK(strcmp(host(p), "mapped") == 0);
	OK(cuMemRetainAllocationHandle(&again, host(p)));
	CHECK_EQ(cuMemExportToShareableHandle(&fd, again, 1, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemRelease(again));
	OK(cuMemUnmap(p, bytes));
	OK(cuMemAddressFree(p, bytes));
	/* An fd of other memory cannot be imported. */
	fd = svc_memfd_create("plain", bytes, false);
	CHECK_EQ(cuMemImportFromShareableHandle(&handle, host((CUdeviceptr)fd), 1),
		 CUDA_ERROR_INVALID_VALUE);
	close(fd);
}

static void vmm_test(void **state)
{
	(void)state;
	ranks_run(2, vmm, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_function_is_there),
		cmocka_unit_test(devices_test),
		cmocka_unit_test(visible_test),
		cmocka_unit_test(addresses_test),
		cmocka_unit_test(limits_test),
		cmocka_unit_test(ipc_test),
		cmocka_unit_test(vmm_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
