/* SPDX-License-Identifier: Apache-2.0
 * NCCL's memory, and windows in it. */
#include <stdlib.h>

#include "nccl_fake.h"

struct ncclWindow_vidmem {
	struct ncclComm *comm;
};

static ncclResult_t cuda_failed(const char *what, CUresult error)
{
	return nccl_error(ncclUnhandledCudaError, "%s: CUDA error %d", what, error);
}

static CUresult map_memory(CUmemGenericAllocationHandle handle, size_t bytes, CUdevice device,
			   CUdeviceptr *p)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
				  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult error = cuMemAddressReserve(p, bytes, 0, 0, 0);
	if (error)
		return error;
	error = cuMemMap(*p, bytes, 0, handle, 0);
	if (error) {
		cuMemAddressFree(*p, bytes);
		return error;
	}
	return cuMemSetAccess(*p, bytes, &access, 1);
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
	if (!p || !bytes || bytes > SIZE_MAX / 2)
		return nccl_error(ncclInvalidArgument, "invalid size");
	CUdevice device;
	size_t granularity;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	CUresult error = cuCtxGetDevice(&device);
	if (error)
		return cuda_failed("cuCtxGetDevice", error);
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes =
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	error = cuMemGetAllocationGranularity(&granularity, &prop,
					      CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (error)
		return cuda_failed("cuMemGetAllocationGranularity", error);
	bytes = (bytes + granularity - 1) / granularity * granularity;
	error = cuMemCreate(&handle, bytes, &prop, 0);
	if (error)
		return cuda_failed("cuMemCreate", error);
	error = map_memory(handle, bytes, device, &address);
	cuMemRelease(handle); /* the mapping keeps it */
	if (error)
		return cuda_failed("cuMemMap", error);
	*p = (void *)(uintptr_t)address;
	return ncclSuccess;
}

ncclResult_t ncclMemFree(void *p)
{
	if (!p)
		return ncclSuccess;
	CUdeviceptr base;
	size_t bytes;
	CUresult error = cuMemGetAddressRange(&base, &bytes, (uintptr_t)p);
	if (!error)
		error = cuMemUnmap(base, bytes);
	if (!error)
		error = cuMemAddressFree(base, bytes);
	return error ? cuda_failed("ncclMemFree", error) : ncclSuccess;
}

/* For all ranks: each waits for the others. */
ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *p, size_t bytes, ncclWindow_t *window,
				    int flags)
{
	if (!c || !p || !window || !bytes || flags & ~NCCL_WIN_COLL_SYMMETRIC)
		return nccl_error(ncclInvalidArgument, "invalid window");
	*window = NULL;
	struct fake_pin pin;
	CUmemGenericAllocationHandle handle;
	if (!fake_pin(&pin, (uintptr_t)p, bytes))
		return nccl_error(ncclInvalidArgument, "the window is no device memory");
	fake_unpin(&pin);
	if (fake_memory_imported((uintptr_t)p) || cuMemRetainAllocationHandle(&handle, p))
		return cuda_failed("cuMemExportToShareableHandle", CUDA_ERROR_INVALID_VALUE);
	cuMemRelease(handle);
	struct ncclWindow_vidmem *w = malloc(sizeof(*w));
	if (!w)
		return nccl_error(ncclSystemError, "out of memory");
	w->comm = c;
	unsigned round = 0;
	atomic_store(&c->board->seats[c->rank].windows, ++c->windows);
	for (int r = 0; r < c->nranks; r++) {
		while (atomic_load(&c->board->seats[r].windows) < c->windows &&
		       !atomic_load(&c->aborted))
			fake_pause(&round);
	}
	*window = w;
	return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t window)
{
	if (!c || !window || window->comm != c)
		return nccl_error(ncclInvalidArgument, "invalid window");
	free(window);
	return ncclSuccess;
}
