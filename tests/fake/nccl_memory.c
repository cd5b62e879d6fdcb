/* SPDX-License-Identifier: Apache-2.0
 * NCCL's memory. */
#include "nccl_fake.h"

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
