/* SPDX-License-Identifier: Apache-2.0
 * The stand-in for libcuda: memory pools. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "crew.h"
#include "fdio.h"

#define MIB ((size_t)1 << 20)

static void *host(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

static uint64_t buffer_id(CUdeviceptr p)
{
	uint64_t id;
	OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
	return id;
}

static CUmemoryPool pool_open(int types, uint64_t keep)
{
	CUmemoryPool pool;
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.handleTypes = types,
				.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	return pool;
}

static bool freed(CUdeviceptr p)
{
	uint64_t id;
	return cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) != 0;
}

/* ---- In one process ------------------------------------------------------------------------ */

/* Freed and allocated again: the same memory at the same address, but another allocation. */
static void reuse(struct crew *crew, int rank)
{
	(void)crew;
	(void)rank;
	CUdeviceptr a, b, c;
	CUmemPoolPtrExportData data;
	int fd;
	gpu_open(0);
	CUstream stream = stream_open(), other = stream_open();
	CUmemoryPool pool = pool_open(1, UINT64_MAX), private = pool_open(0, 0);
	OK(cuMemAllocFromPoolAsync(&a, MIB, pool, stream));
	const uint64_t id = buffer_id(a);
	OK(cuMemsetD8Async(a, 7, MIB, stream));
	OK(cuMemFreeAsync(a, stream));
	CHECK(freed(a));
	CHECK_EQ(cuMemFreeAsync(a, stream), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAllocFromPoolAsync(&b, MIB, pool, stream));
	OK(cuStreamSynchronize(stream));
	CHECK_EQ(b, a);
	CHECK(buffer_id(b) > id);
	CHECK_EQ(*(char *)host(b), 7);
	OK(cuMemFree(b));
	CHECK(freed(b));
	CHECK_EQ(cuMemFree(b), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemcpyDtoH(&fd, b, 4), CUDA_ERROR_INVALID_VALUE);
	/* Several lie side by side; what fits nowhere gets memory of its own. */
	OK(cuMemAllocFromPoolAsync(&a, 4096, pool, other));
	OK(cuMemAllocFromPoolAsync(&c, 100, pool, other));
	CHECK_EQ(a, b);
	CHECK_EQ(c, a + 4096);
	CHECK_EQ(cuMemFree(a + 8), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(a));
	OK(cuMemAllocFromPoolAsync(&a, 40 * MIB, pool, other));
	CHECK_EQ(files_named("memory-"), 2 + 2);
	/* What is kept goes by request, or, if no more than so much is to be kept, when it is seen.
	 */
	OK(cuMemFree(a));
	OK(cuStreamSynchronize(other));
	CHECK_EQ(files_named("memory-"), 2 + 2);
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK_EQ(files_named("memory-"), 2 + 1);
	OK(cuMemFreeAsync(c, other));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &(uint64_t){0}));
	OK(cuStreamSynchronize(other));
	CHECK_EQ(files_named("memory-"), 2);
	/* The pool goes with its last allocation. */
	OK(cuMemAllocFromPoolAsync(&a, MIB, pool, other));
	OK(cuMemPoolDestroy(pool));
	CHECK_EQ(cuMemAllocFromPoolAsync(&b, 4096, pool, other), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(files_named("memory-"), 2 + 1);
	OK(cuMemFreeAsync(a, other));
	OK(cuStreamSynchronize(other));
	CHECK_EQ(files_named("memory-"), 1);
	/* Private ones cannot be exported. */
	OK(cuMemAllocFromPoolAsync(&a, MIB, private, stream));
	CHECK_EQ(cuMemPoolExportToShareableHandle(&fd, private, 1, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemPoolExportPointer(&data, a), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAllocAsync(&b, MIB, stream));
	CHECK_EQ(cuMemPoolExportPointer(&data, b), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(a));
	OK(cuMemFree(b));
	OK(cuMemPoolDestroy(private));
	CHECK_EQ(files_named("memory-"), 0);
}

static void reuse_test(void **state)
{
	(void)state;
	crew_run(1, reuse, -1);
}

/* ---- Between two processes ----------------------------------------------------------------- */

/* What driver 580 did on an H200. E: in the exporter, I: in the importer. a: allocate as number n,
 * of size l, q, m or s, filled with a value; i: import; p: peek, at so many MiB; f: free; T: trim;
 * D: destroy the pool. =: the value, or x: CUDA_ERROR_INVALID_VALUE. */
static const char *const seen[] = {
	"Ea0l1 Ii0=1 Ef0 Ip0=1 Ea1l2 Ii1=2 Ip0=2 Ef1 Ip1=2 If1 If0=x",
	"Ea0l1 Ii0=1 Ef0 ET Ip0=1 Ea1l2 Ii1=2 Ip0=2 Ef1 Ip1=2 If1 If0=x",
	"Ea0l1 Ii0=1 Ef0 Ea1l2 If0 Ii1=2 Ef1 Ip1=2 If1",
	"Ea0l1 Ii0=1 Ef0 Ea1q2 Ea2q3 Ii1=2 Ii2=3 Ip0=2 Ip1=2 Ip2=3 If0 Ip1=x Ip2=3 If1=x Ip2=3 If2",
	"Ea0l1 Ii0=1 Ef0 Ea1q2 Ea2q3 If0 Ii1=2 Ii2=3 Ip1=2 Ip2=3 If1 Ip2=3 If2",
	"Ea0l1 Ii0=1 Ef0 ET Ea1q2 Ea2q3 Ii1=2 Ii2=3 Ip0=2 Ip08=0 If1 Ip08=x Ip2=3 If2",
	"Ea0l1 Ii0=1 Ef0 ET Ea1q2 Ea2q3 Ii2=3 Ip0=2 Ip2=3 Ii1=2 Ip1=2 If0 Ip1=x Ip2=3 If2",
	"Ea0m1 Ea1m2 Ii0=1 Ii1=2 Ef0 Ef1 Ea2q3 Ii2=3 Ip21=3 If1 Ip2=3 Ip21=3 If0 Ip2=x Ip21=x "
	"If2=x",
	"Ea0m1 Ea1m2 Ii0=1 Ii1=2 Ef0 Ef1 ET Ea2q3 Ii2=3 Ip21=3 Ip23=3 If1 Ip2=3 Ip23=x If0 Ip2=x "
	"Ip23=x "
	"If2=x",
	"Ea0s1 Ea1s2 Ii0=1 Ii1=2 Ip0=1 Ip1=2 If0 Ip1=2 Ef0 Ea2s3 Ii2=3 Ip2=3 Ip1=2 If1 Ip2=3 If2",
	"Ea0l1 Ii0=1 Ef0 Ea1l2 Ii1=2 Ip1=2 If1 Ip0=x If0=x Ef1 Ea2l3 Ii2=3 Ip2=3 If2 Ii2=3 Ip2=3 "
	"If2",
	"Ea0l1 Ii0=1 Ef0 ED Ip0=1 If0 ID",
	"Ea0l1 Ii0=1 Ef0 ED ID=x Ip0=1 If0",
	"Ea0l1 Ii0=1 ID=x Ip0=1 If0 ID",
};

struct peer {
	CUmemoryPool pool;
	CUdeviceptr at[4];
};

static size_t size_of(char letter)
{
	switch (letter) {
	case 'l':
		return 16 * MIB;
	case 'q':
		return 4 * MIB;
	case 'm':
		return 2 * MIB;
	default:
		return 4096;
	}
}

static int peek(CUdeviceptr p)
{
	unsigned char value;
	return cuMemcpyDtoH(&value, p, 1) ? -1 : value;
}

static void exporter_step(struct crew *crew, struct peer *me, const char *step)
{
	CUmemPoolPtrExportData *data = (void *)crew->scratch;
	const int n = step[1] ? step[1] - '0' : 0;
	switch (step[0]) {
	case 'a':
		OK(cuMemAllocFromPoolAsync(&me->at[n], size_of(step[2]), me->pool, NULL));
		memset(host(me->at[n]), step[3] - '0', size_of(step[2]));
		OK(cuMemPoolExportPointer(&data[n], me->at[n]));
		break;
	case 'f':
		OK(cuMemFreeAsync(me->at[n], NULL));
		OK(cuStreamSynchronize(NULL));
		break;
	case 'T':
		OK(cuMemPoolTrimTo(me->pool, 0));
		break;
	case 'D':
		OK(cuMemPoolDestroy(me->pool));
		break;
	default:
		CHECK(!step);
	}
}

static void importer_step(struct crew *crew, struct peer *me, const char *step)
{
	CUmemPoolPtrExportData *data = (void *)crew->scratch;
	const int n = step[1] ? step[1] - '0' : 0;
	const char *equals = strpbrk(step, "= ");
	const bool refused = equals && equals[0] == '=' && equals[1] == 'x';
	const int value = equals && equals[0] == '=' && !refused ? equals[1] - '0' : -1;
	switch (step[0]) {
	case 'i':
		OK(cuMemPoolImportPointer(&me->at[n], me->pool, &data[n]));
		CHECK_EQ(peek(me->at[n]), value);
		break;
	case 'p':
		CHECK_EQ(peek(me->at[n] + (CUdeviceptr)strtoul(step + 2, NULL, 10) * MIB), value);
		break;
	case 'f':
		CHECK_EQ(cuMemFree(me->at[n]), refused ? CUDA_ERROR_INVALID_VALUE : 0);
		break;
	case 'D':
		CHECK_EQ(cuMemPoolDestroy(me->pool), refused ? CUDA_ERROR_INVALID_VALUE : 0);
		break;
	default:
		CHECK(!step);
	}
}

static const char *script;

static void follow(struct crew *crew, int rank)
{
	struct peer me = {0};
	int fd;
	unsigned nfds;
	char c;
	gpu_open(0);
	if (rank == 0) {
		me.pool = pool_open(1, UINT64_MAX);
		OK(cuMemPoolExportToShareableHandle(&fd, me.pool, 1, 0));
		OK(svc_send(crew->socks[1][1], "x", 1, &fd, 1, 0));
	} else {
		CHECK_EQ(svc_recv(crew->socks[1][0], &c, 1, &fd, &nfds, 0), 1);
		OK(cuMemPoolImportFromShareableHandle(&me.pool, host((CUdeviceptr)fd), 1, 0));
	}
	close(fd);
	for (const char *step = script; step; step = strchr(step, ' ')) {
		step += *step == ' ';
		if (*step == 'E' && rank == 0)
			exporter_step(crew, &me, step + 1);
		if (*step == 'I' && rank == 1)
			importer_step(crew, &me, step + 1);
		crew_meet(crew, 2);
	}
}

static void seen_test(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++) {
		script = seen[i];
		print_message("%s\n", script);
		crew_run(2, follow, -1);
	}
}

static void owner(struct crew *crew)
{
	CUdeviceptr p;
	CUmemPoolPtrExportData *data = (void *)crew->scratch;
	int fd;
	CUmemoryPool pool = pool_open(1, UINT64_MAX);
	OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
	OK(cuMemPoolExportPointer(data, p));
	CHECK_EQ(cuMemPoolExportPointer(data, p + 8), CUDA_ERROR_INVALID_VALUE);
	/* The data is of the place and its memory, not of the allocation. */
	CUmemPoolPtrExportData again;
	OK(cuMemFree(p));
	OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
	OK(cuMemPoolExportPointer(&again, p));
	CHECK(memcmp(&again, data, sizeof(again)) == 0);
	strcpy(host(p), "pooled");
	OK(svc_send(crew->socks[1][1], "x", 1, &fd, 1, 0));
	close(fd);
	crew_wait(crew, 1);
}

/* The pool's limits, and a second import of it. */
static void ipc(struct crew *crew, int rank)
{
	CUdeviceptr p, q, base;
	CUmemoryPool pool, second;
	CUmemPoolPtrExportData data, bad;
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1},
				  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUcontext context;
	int fd, flags = 9;
	unsigned nfds;
	size_t bytes;
	char c;
	gpu_open(0);
	if (rank == 0) {
		owner(crew);
		return;
	}
	CHECK_EQ(svc_recv(crew->socks[1][0], &c, 1, &fd, &nfds, 0), 1);
	memcpy(&data, crew->scratch, sizeof(data));
	const int fds = open_fds();
	OK(cuMemPoolImportFromShareableHandle(&pool, host((CUdeviceptr)fd), 1, 0));
	OK(cuMemPoolGetAccess(&flags, pool, &(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0}));
	CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CHECK_EQ(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemPoolExportToShareableHandle(&flags, pool, 1, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
	memset(&bad, 0x5a, sizeof(bad));
	CHECK_EQ(cuMemPoolImportPointer(&base, pool, &bad), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemPoolImportPointer(&p, pool, &data));
	OK(cuMemGetAddressRange(&base, &bytes, p + 100));
	CHECK_EQ(base, p);
	CHECK_EQ(bytes, MIB);
	CHECK(strcmp(host(p), "pooled") == 0);
	CHECK_EQ(fake_memory_imported(p), 1);
	/* Once more, it is the same. */
	OK(cuMemPoolImportFromShareableHandle(&second, host((CUdeviceptr)fd), 1, 0));
	OK(cuMemPoolImportPointer(&q, second, &data));
	CHECK_EQ(q, p);
	CHECK_EQ(cuMemPoolDestroy(second), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeAsync(q, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK_EQ(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
	/* What a kernel reaches, that was launched before. */
	struct fake_pin pin;
	CHECK(!fake_memory_there(p, 8));
	CHECK(fake_pin(&pin, p, 8));
	fake_unpin(&pin);
	OK(cuMemPoolDestroy(pool));
	OK(cuMemPoolDestroy(second));
	CHECK(!fake_pin(&pin, p, 8));
	CHECK_EQ(open_fds(), fds);
	/* Another GPU asks for access first. */
	OK(cuDevicePrimaryCtxRetain(&context, 1));
	OK(cuCtxSetCurrent(context));
	for (int may = 0; may < 2; may++) {
		OK(cuMemPoolImportFromShareableHandle(&pool, host((CUdeviceptr)fd), 1, 0));
		OK(cuMemPoolGetAccess(&flags, pool, &access.location));
		CHECK_EQ(flags, 0);
		if (may)
			OK(cuMemPoolSetAccess(pool, &access, 1));
		OK(cuMemPoolImportPointer(&p, pool, &data));
		CHECK_EQ(fake_pin(&pin, p, 8), may);
		if (may)
			fake_unpin(&pin);
		OK(cuMemFree(p));
		OK(cuMemPoolDestroy(pool));
	}
	close(fd);
	fd = svc_memfd_create("plain", MIB, false);
	CHECK_EQ(cuMemPoolImportFromShareableHandle(&pool, host((CUdeviceptr)fd), 1, 0),
		 CUDA_ERROR_INVALID_VALUE);
	close(fd);
	atomic_store(&crew->step, 1);
}

static void ipc_test(void **state)
{
	(void)state;
	crew_run(2, ipc, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reuse_test),
		cmocka_unit_test(seen_test),
		cmocka_unit_test(ipc_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
