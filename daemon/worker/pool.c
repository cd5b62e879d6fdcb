/* SPDX-License-Identifier: Apache-2.0
 * Memory of trainers' pools. Every import has the pool opened for itself: the addresses of one
 * pool's imports would overlap, for what is freed and allocated again is the same memory. */
#include <string.h>

#include "worker.h"

static CUresult open_pool(const struct worker *w, CUmemoryPool *pool, int fd)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	int flags = 0;
	CUresult error = cu.cuMemPoolImportFromShareableHandle(
		pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (error)
		return error;
	/* The memory's own GPU has access, another one not yet. */
	error = cu.cuMemPoolGetAccess(&flags, *pool, &access.location);
	if (!error && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		error = cu.cuMemPoolSetAccess(*pool, &access, 1);
	if (error)
		cu.cuMemPoolDestroy(*pool);
	return error;
}

CUresult pool_open(const struct worker *w, struct import *i, const uint8_t *data, int fd)
{
	CUmemPoolPtrExportData pointer;
	_Static_assert(sizeof(pointer) == sizeof(((struct worker_message *)0)->region.handle),
		       "a message has room for it");
	if (!gpu_api_pools())
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult error = open_pool(w, &i->pool, fd);
	if (error)
		return error;
	memcpy(&pointer, data, sizeof(pointer));
	error = cu.cuMemPoolImportPointer(&i->address, i->pool, &pointer);
	/* That would be the end of both when one is freed. */
	if (!error && import_find(w, i->address))
		error = CUDA_ERROR_ALREADY_MAPPED;
	if (error)
		cu.cuMemPoolDestroy(i->pool);
	return error;
}

CUresult pool_close(const struct import *i)
{
	/* Freeing waits for nothing here, unlike what ends the other kinds. */
	CUresult error = cu.cuCtxSynchronize();
	if (!error)
		error = cu.cuMemFree(i->address);
	cu.cuMemPoolDestroy(i->pool);
	return error;
}
