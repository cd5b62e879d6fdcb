/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_context.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dynlib.h"

#define DRIVER_ENTRY(function, name, parameters) {name, offsetof(struct driver, function)},

struct driver cu;
static void *library;

void check_cuda(const char *file, int line, const char *call, CUresult result)
{
	const char *name = NULL, *text = NULL;
	if (!result)
		return;
	cu.cuGetErrorName(result, &name);
	cu.cuGetErrorString(result, &text);
	check_failed(file, line, "%s gives %s (%s)", call, name ? name : "an unknown error",
		     text ? text : "?");
}

int gpu_driver_open(char *text, size_t size)
{
	static const struct dynlib_symbol symbols[] = {CUDA_FUNCTIONS(DRIVER_ENTRY)};
	static const struct dynlib_symbol optional[] = {CUDA_CAPTURE_FUNCTIONS(DRIVER_ENTRY)};
	int n = 0;
	if (!library)
		library = dynlib_open("libcuda.so.1", symbols, sizeof(symbols) / sizeof(symbols[0]),
				      &cu, text, size);
	if (!library)
		return -1;
	dynlib_optional(library, optional, sizeof(optional) / sizeof(optional[0]), &cu);
	CUresult error = cu.cuInit(0);
	if (!error)
		error = cu.cuDeviceGetCount(&n);
	if (error == CUDA_ERROR_NO_DEVICE)
		return 0;
	if (error)
		snprintf(text, size, "the driver does not start: error %d", error);
	return error ? -1 : n;
}

void *gpu_function(const char *name)
{
	return dlsym(library, name);
}

void gpu_use(int ordinal)
{
	char text[256];
	CUdevice device;
	CUcontext context;
	CUresult error = CUDA_SUCCESS;
	int n = gpu_driver_open(text, sizeof(text));
	if (n < 0)
		check_failed(__FILE__, __LINE__, "%s", text);
	CHECK(ordinal < n);
	CHECK_CU(cu.cuDeviceGet(&device, ordinal));
	/* An MPS server that has just lost a client briefly refuses new ones. */
	for (int i = 0; i < 200; i++) {
		error = cu.cuDevicePrimaryCtxRetain(&context, device);
		if (error != CUDA_ERROR_MPS_SERVER_NOT_READY)
			break;
		sleep_ms(50);
	}
	CHECK_CU(error);
	CHECK_CU(cu.cuCtxSetCurrent(context));
}

size_t gpu_unused_memory(void)
{
	size_t unused, total;
	CHECK_CU(cu.cuMemGetInfo(&unused, &total));
	return unused;
}

bool gpu_has_unused(size_t least, unsigned timeout_ms)
{
	const uint64_t end = now_ns() + timeout_ms * UINT64_C(1000000);
	while (gpu_unused_memory() < least) {
		if (now_ns() >= end)
			return false;
		sleep_ms(1);
	}
	return true;
}

int gpu_capability(int ordinal)
{
	int major, minor;
	CUdevice device;
	CHECK_CU(cu.cuDeviceGet(&device, ordinal));
	CHECK_CU(cu.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
					 device));
	CHECK_CU(cu.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
					 device));
	return 10 * major + minor;
}

CUstream gpu_stream(void)
{
	CUstream stream;
	CHECK_CU(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

const char *memory_name(enum memory_kind kind)
{
	static const char *const names[] = {"cuMemAlloc", "cuMemCreate", "the session's"};
	return names[kind];
}

static void create(struct buffer *b, int ordinal)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
	};
	CUmemAccessDesc access = {.location = prop.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	size_t granule;
	CHECK_CU(cu.cuMemGetAllocationGranularity(&granule, &prop,
						  CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	b->bytes = (b->bytes + granule - 1) / granule * granule;
	CHECK_CU(cu.cuMemCreate(&handle, b->bytes, &prop, 0));
	CHECK_CU(cu.cuMemAddressReserve(&b->p, b->bytes, 0, 0, 0));
	CHECK_CU(cu.cuMemMap(b->p, b->bytes, 0, handle, 0));
	CHECK_CU(cu.cuMemRelease(handle)); /* the mapping keeps the memory */
	CHECK_CU(cu.cuMemSetAccess(b->p, b->bytes, &access, 1));
}

void buffer_make(struct buffer *b, enum memory_kind kind, int ordinal, ncclsvc_session *session,
		 size_t bytes)
{
	void *p;
	*b = (struct buffer){.kind = kind, .session = session, .bytes = bytes};
	switch (kind) {
	case MEMORY_VMM:
		create(b, ordinal);
		break;
	case MEMORY_SESSION:
		CHECK_OK(ncclsvc_mem_alloc_device(session, ordinal, bytes, &p));
		b->p = (uintptr_t)p;
		break;
	default:
		CHECK_CU(cu.cuMemAlloc(&b->p, bytes));
	}
}

void buffer_free(struct buffer *b)
{
	switch (b->kind) {
	case MEMORY_VMM:
		CHECK_CU(cu.cuMemUnmap(b->p, b->bytes));
		CHECK_CU(cu.cuMemAddressFree(b->p, b->bytes));
		break;
	case MEMORY_SESSION:
		CHECK_OK(ncclsvc_mem_free(b->session, at(b->p)));
		break;
	default:
		CHECK_CU(cu.cuMemFree(b->p));
	}
	b->p = 0;
}

/* cuMemcpyHtoD from pageable memory returns before the data has arrived, and only the legacy stream
 * waits for it; the tests' streams do not. */
void gpu_put(CUdeviceptr to, const void *from, size_t bytes)
{
	if (!bytes)
		return;
	CUstream stream = gpu_stream();
	CHECK_CU(cu.cuMemcpyHtoDAsync(to, from, bytes, stream));
	CHECK_CU(cu.cuStreamSynchronize(stream));
	CHECK_CU(cu.cuStreamDestroy(stream));
}

void gpu_get(void *to, CUdeviceptr from, size_t bytes)
{
	if (bytes)
		CHECK_CU(cu.cuMemcpyDtoH(to, from, bytes));
}

void gpu_fill(CUdeviceptr to, uint32_t value, size_t n)
{
	CUstream stream = gpu_stream();
	CHECK_CU(cu.cuMemsetD32Async(to, value, n, stream));
	CHECK_CU(cu.cuStreamSynchronize(stream));
	CHECK_CU(cu.cuStreamDestroy(stream));
}

void gpu_check(CUdeviceptr p, uint32_t value, size_t n, const char *what)
{
	uint32_t *words = malloc(n * sizeof(*words));
	CHECK(words);
	gpu_get(words, p, n * sizeof(*words));
	for (size_t i = 0; i < n; i++)
		if (words[i] != value)
			check_failed(__FILE__, __LINE__, "%s: word %zu of %zu is %u, not %u", what,
				     i, n, words[i], value);
	free(words);
}

void gpu_delay(CUstream stream, CUdeviceptr scratch, size_t bytes, unsigned rounds)
{
	for (unsigned i = 0; i < rounds; i++)
		CHECK_CU(cu.cuMemsetD8Async(scratch, (unsigned char)i, bytes, stream));
}

bool gpu_stream_ends(CUstream stream, unsigned ms)
{
	for (uint64_t end = now_ns() + ms * 1000000ull;; sleep_ms(1)) {
		CUresult error = cu.cuStreamQuery(stream);
		if (error != CUDA_ERROR_NOT_READY)
			CHECK_CU(error);
		if (!error)
			return true;
		if (now_ns() > end)
			return false;
	}
}
