/* SPDX-License-Identifier: Apache-2.0
 * Memory of trainers' pools. A pool's imports mirror how the trainer has it: what it frees and
 * allocates again has one address in both, and to import the newer one maps its memory there under
 * whoever still has the older one's name. So an address is open once, whatever it was opened for,
 * and is freed when no name for it is left. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "worker.h"

/* Goes when nothing is imported from it any more, as the driver demands. */
struct pool {
	CUmemoryPool handle;
	uint32_t opens; /* how often to destroy it */
	uint32_t imports;
	int32_t pid; /* with number: which one it is */
	uint32_t number;
	struct pool *prev, *next;
};

static CUresult open_handle(const struct worker *w, CUmemoryPool *handle, int fd)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	int flags = 0;
	CUresult error = cu.cuMemPoolImportFromShareableHandle(
		handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (error)
		return error;
	/* The memory's own GPU has access, another one not yet. */
	error = cu.cuMemPoolGetAccess(&flags, *handle, &access.location);
	if (!error && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		error = cu.cuMemPoolSetAccess(*handle, &access, 1);
	if (error)
		cu.cuMemPoolDestroy(*handle);
	return error;
}

static struct pool *find_number(const struct worker *w, int32_t pid, uint32_t number)
{
	struct pool *p;
	DL_FOREACH (w->pools, p)
		if (number && p->number == number && p->pid == pid)
			return p;
	return NULL;
}

static struct pool *find_handle(const struct worker *w, CUmemoryPool handle)
{
	struct pool *p;
	DL_FOREACH (w->pools, p)
		if (p->handle == handle)
			return p;
	return NULL;
}

static CUresult open_pool(struct worker *w, int32_t pid, uint32_t number, int fd,
			  struct pool **pool)
{
	CUmemoryPool handle;
	struct pool *p = *pool = find_number(w, pid, number);
	if (p)
		return CUDA_SUCCESS;
	CUresult error = open_handle(w, &handle, fd);
	if (error)
		return error;
	p = find_handle(w, handle);
	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p) {
			cu.cuMemPoolDestroy(handle);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		DL_APPEND(w->pools, p);
	}
	*p = (struct pool){handle, p->opens + 1, p->imports, pid, number, p->prev, p->next};
	*pool = p;
	return CUDA_SUCCESS;
}

static void let_pool_go(struct worker *w, struct pool *p)
{
	if (!--p->imports)
		import_sweep_later(w);
}

static CUresult import_pointer(const struct pool *p, const uint8_t *data, CUdeviceptr *address)
{
	CUmemPoolPtrExportData pointer;
	_Static_assert(sizeof(pointer) == sizeof(((struct worker_message *)0)->region.handle),
		       "a message has room for it");
	memcpy(&pointer, data, sizeof(pointer));
	return cu.cuMemPoolImportPointer(address, p->handle, &pointer);
}

CUresult pool_open(struct worker *w, struct import *i, uint32_t number, const uint8_t *data, int fd)
{
	if (!gpu_api_pools())
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult error = open_pool(w, i->pid, number, fd, &i->pool);
	if (error)
		return error;
	i->pool->imports++;
	error = import_pointer(i->pool, data, &i->address);
	if (error)
		let_pool_go(w, i->pool);
	else
		i->extent = import_extent(i->address);
	return error;
}

CUresult pool_take_over(struct worker *w, struct import *known, const struct import *new,
			const uint8_t *data)
{
	CUresult error = CUDA_SUCCESS;
	CUdeviceptr address = 0;
	/* The driver goes on with the length that the older allocation had. Its tasks may still be
	 * under way, and need that; freeing waits for nothing, and takes no memory from them. */
	if (!known->users || new->extent < new->bytes) {
		error = cu.cuMemFree(known->address);
		known->opens = 0;
		if (!error)
			error = import_pointer(new->pool, data, &address);
		if (!error && address != known->address) {
			cu.cuMemFree(address);
			error = CUDA_ERROR_INVALID_VALUE;
		}
	}
	if (error) {
		let_pool_go(w, new->pool);
		return error;
	}
	known->opens = 1;
	let_pool_go(w, known->pool);
	known->pool = new->pool;
	known->bytes = new->bytes;
	known->extent = import_extent(known->address);
	known->buffer_id = new->buffer_id;
	known->pid = new->pid;
	known->users++;
	return CUDA_SUCCESS;
}

bool pool_covered(const struct worker *w, const struct import *i)
{
	const struct import *other;
	DL_FOREACH (w->imports, other)
		if (other->kind == SVC_REGION_POOL && other->users &&
		    other->address < i->address + i->extent &&
		    i->address < other->address + other->extent)
			return true;
	return false;
}

CUresult pool_close(const struct import *i)
{
	i->pool->imports--;
	if (!i->opens)
		return CUDA_SUCCESS;
	/* Freeing waits for nothing here, unlike what ends the other kinds. */
	CUresult error = cu.cuCtxSynchronize();
	return error ? error : cu.cuMemFree(i->address);
}

void pools_sweep(struct worker *w)
{
	struct pool *p, *tmp;
	DL_FOREACH_SAFE (w->pools, p, tmp) {
		if (p->imports)
			continue;
		/* While the same pool is also open by another handle, it may say no. */
		while (p->opens && !cu.cuMemPoolDestroy(p->handle))
			p->opens--;
		if (p->opens)
			continue;
		DL_DELETE(w->pools, p);
		free(p);
	}
}
