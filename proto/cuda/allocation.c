/* SPDX-License-Identifier: Apache-2.0 */
#include "allocation.h"

#define DEVICES_MOST 64

static CUresult create(const struct cuda *cuda, CUdevice device, size_t *bytes,
		       CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes =
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	size_t page = 0;
	int rdma = 0;
	CUresult e = cuda->cuDeviceGetAttribute(
		&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
	prop.allocFlags.gpuDirectRDMACapable = rdma != 0;
	if (!e)
		e = cuda->cuMemGetAllocationGranularity(&page, &prop,
							CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (!e && *bytes > SIZE_MAX - page)
		e = CUDA_ERROR_OUT_OF_MEMORY;
	if (e)
		return e;
	*bytes = (*bytes + page - 1) / page * page;
	return cuda->cuMemCreate(handle, *bytes, &prop, 0);
}

CUresult allocation_unmap(const struct cuda *cuda, CUdeviceptr base, size_t bytes)
{
	const CUresult e = cuda->cuMemUnmap(base, bytes);
	return e ? e : cuda->cuMemAddressFree(base, bytes);
}

/* Takes ownership of the handle: the mapping keeps the memory. */
static CUresult map_at(const struct cuda *cuda, CUmemGenericAllocationHandle handle, size_t bytes,
		       const CUmemAccessDesc *access, size_t n, CUdeviceptr base)
{
	CUresult e = cuda->cuMemMap(base, bytes, 0, handle, 0);
	cuda->cuMemRelease(handle);
	if (e)
		return e;
	e = cuda->cuMemSetAccess(base, bytes, access, n);
	if (e)
		cuda->cuMemUnmap(base, bytes);
	return e;
}

/* The same at new addresses. On failure, *base is 0. */
static CUresult map(const struct cuda *cuda, CUmemGenericAllocationHandle handle, size_t bytes,
		    const CUmemAccessDesc *access, size_t n, CUdeviceptr *base)
{
	CUresult e = cuda->cuMemAddressReserve(base, bytes, 0, 0, 0);
	if (e) {
		cuda->cuMemRelease(handle);
	} else {
		e = map_at(cuda, handle, bytes, access, n, *base);
		if (e)
			cuda->cuMemAddressFree(*base, bytes);
	}
	if (e)
		*base = 0;
	return e;
}

static CUmemAccessDesc access_by(CUdevice device)
{
	return (CUmemAccessDesc){.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

/* For all GPUs of the process that can reach the memory, as in NCCL. */
static CUresult access_by_all(const struct cuda *cuda, CUdevice device,
			      CUmemAccessDesc access[DEVICES_MOST], size_t *n)
{
	int count = 0, can;
	CUdevice other;
	CUresult e = cuda->cuDeviceGetCount(&count);
	*n = 0;
	for (int i = 0; !e && i < count && *n < DEVICES_MOST; i++) {
		e = cuda->cuDeviceGet(&other, i);
		can = other == device;
		if (!e && !can)
			e = cuda->cuDeviceCanAccessPeer(&can, other, device);
		if (!e && can)
			access[(*n)++] = access_by(other);
	}
	return e;
}

CUresult allocation_make(const struct cuda *cuda, CUdevice device, size_t bytes,
			 struct allocation *a)
{
	CUmemGenericAllocationHandle handle;
	CUmemAccessDesc access[DEVICES_MOST];
	size_t n;
	*a = (struct allocation){.bytes = bytes, .device = device};
	CUresult e = access_by_all(cuda, device, access, &n);
	if (!e)
		e = create(cuda, device, &a->bytes, &handle);
	return e ? e : map(cuda, handle, a->bytes, access, n, &a->base);
}

/* The caller owns *handle and *fd. */
static CUresult create_exported(const struct cuda *cuda, CUdevice device, size_t *bytes,
				CUmemGenericAllocationHandle *handle, int *fd)
{
	CUresult e = create(cuda, device, bytes, handle);
	if (e)
		return e;
	e = cuda->cuMemExportToShareableHandle(fd, *handle,
					       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (e) {
		*fd = -1;
		cuda->cuMemRelease(*handle);
	}
	return e;
}

CUresult allocation_make_exported(const struct cuda *cuda, CUdevice device, size_t bytes,
				  struct allocation *a, int *fd)
{
	CUmemGenericAllocationHandle handle;
	const CUmemAccessDesc access = access_by(device);
	*a = (struct allocation){.bytes = bytes, .device = device};
	const CUresult e = create_exported(cuda, device, &a->bytes, &handle, fd);
	return e ? e : map(cuda, handle, a->bytes, &access, 1, &a->base);
}

CUresult allocation_remap(const struct cuda *cuda, const struct allocation *a, int *fd)
{
	CUmemGenericAllocationHandle handle;
	const CUmemAccessDesc access = access_by(a->device);
	size_t bytes = a->bytes;
	const CUresult e = create_exported(cuda, a->device, &bytes, &handle, fd);
	return e ? e : map_at(cuda, handle, a->bytes, &access, 1, a->base);
}

static CUresult import(const struct cuda *cuda, int fd, CUmemGenericAllocationHandle *handle)
{
	return cuda->cuMemImportFromShareableHandle(handle, (void *)(uintptr_t)fd,
						    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult allocation_import(const struct cuda *cuda, int fd, CUdevice device, size_t bytes,
			   CUdeviceptr *base)
{
	CUmemGenericAllocationHandle handle;
	const CUmemAccessDesc access = access_by(device);
	const CUresult e = import(cuda, fd, &handle);
	return e ? e : map(cuda, handle, bytes, &access, 1, base);
}

CUresult allocation_import_at(const struct cuda *cuda, int fd, CUdevice device, size_t bytes,
			      CUdeviceptr base)
{
	CUmemGenericAllocationHandle handle;
	const CUmemAccessDesc access = access_by(device);
	const CUresult e = import(cuda, fd, &handle);
	return e ? e : map_at(cuda, handle, bytes, &access, 1, base);
}
