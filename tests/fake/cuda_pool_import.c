/* SPDX-License-Identifier: Apache-2.0
 * Memory pools between processes. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "pool.h"

#define DATA_MAGIC UINT32_C(0x706f6f6c)

struct data {
	uint32_t magic;
	uint32_t chunk;		  /* which POOL_CHUNK it begins with */
	uint64_t pool, at, bytes; /* at: from the pool's base */
	struct physical physical;
};
_Static_assert(sizeof(struct data) <= sizeof(CUmemPoolPtrExportData), "a pointer's data fits");

CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool handle, CUmemLocation *location)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	const struct pool *pool = pool_find(handle);
	if (!pool || pool_is_default(pool) || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !device_valid(location->id))
		error = CUDA_ERROR_INVALID_VALUE;
	else
		*flags = pool_granted(pool, location->id) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t n)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct pool *pool = pool_find(handle);
	if (!pool || pool_is_default(pool))
		error = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n && !error; i++) {
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    !device_valid(access[i].location.id) ||
		    access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			error = CUDA_ERROR_INVALID_VALUE;
		else
			pool->granted |= 1u << access[i].location.id;
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool handle, int type,
					  unsigned long long flags)
{
	CUresult error = enter();
	if (error)
		return error;
	int fd = -1;
	pthread_rwlock_rdlock(&table_lock);
	const struct pool *pool = pool_find(handle);
	if (!pool || !pool->exportable || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
		error = CUDA_ERROR_INVALID_VALUE;
	else
		fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
	pthread_rwlock_unlock(&table_lock);
	if (!error && fd < 0)
		error = CUDA_ERROR_OUT_OF_MEMORY;
	if (!error)
		memcpy(shareable, &fd, sizeof(fd));
	return error;
}

static struct pool *find_imported(uint64_t generation, int device)
{
	struct pool *p = pools_next(NULL);
	while (p && (!p->imported || p->physical.generation != generation || p->device != device))
		p = pools_next(p);
	return p;
}

/* The same pool again is the same memory at the same addresses. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shareable, int type,
					    unsigned long long flags)
{
	struct CUctx_st *context;
	struct trailer t;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	int fd = (int)(intptr_t)shareable;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || !trailer_read(fd, &t) ||
	    t.kind != FAKE_POOL_ITSELF)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&table_lock);
	struct pool *known = find_imported(t.physical.generation, context->device);
	struct pool pool = {.fd = known ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0),
			    .device = context->device,
			    .physical = t.physical,
			    .imported = true};
	if (known)
		error = pool_handle(known, handle);
	else if (pool.fd < 0)
		error = CUDA_ERROR_OUT_OF_MEMORY;
	else
		error = shared_hold(pool.fd, &pool.physical, t.kind);
	if (!known && !error)
		error = pool_add(&pool, handle);
	else if (pool.fd >= 0)
		close(pool.fd);
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	CUresult error = enter();
	if (error)
		return error;
	struct data d = {.magic = DATA_MAGIC};
	pthread_rwlock_rdlock(&table_lock);
	const struct range *chunk = table_find(p), *r = NULL;
	if (chunk && chunk->kind == RANGE_POOL_CHUNK && chunk->of->exportable)
		r = pool_allocation(chunk, p, 1);
	if (r && (uintptr_t)r->base == p) {
		d.pool = r->of->physical.generation;
		d.chunk = (uint32_t)((size_t)(chunk->base - r->of->base) / POOL_CHUNK);
		d.at = (size_t)(r->base - r->of->base);
		d.bytes = r->bytes;
		d.physical = r->physical;
	}
	pthread_rwlock_unlock(&table_lock);
	if (!d.bytes)
		return CUDA_ERROR_INVALID_VALUE;
	memset(data, 0, sizeof(*data));
	memcpy(data, &d, sizeof(d));
	return CUDA_SUCCESS;
}

static struct chunk *find_chunk(const struct pool *pool, const struct data *d)
{
	struct chunk *c = pool->chunks;
	while (c &&
	       (c->at != d->chunk * POOL_CHUNK || c->physical.generation != d->physical.generation))
		c = c->next;
	return c;
}

/* Maps the chunk in the place of what was there. */
static CUresult import_chunk(struct pool *pool, const struct data *d)
{
	struct trailer t;
	struct chunk chunk = {.at = d->chunk * POOL_CHUNK};
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	int fd = shared_find(&d->physical);
	if (fd < 0)
		return error;
	if (trailer_read(fd, &t) && t.kind == RANGE_POOL_CHUNK &&
	    t.physical.bytes <= POOL_SPAN - chunk.at) {
		chunk.physical = t.physical;
		error = shared_hold(fd, &chunk.physical, t.kind);
	}
	for (struct chunk *c = error ? NULL : pool->chunks, *next; c; c = next) {
		next = c->next;
		if (c->at < chunk.at + chunk.physical.bytes && chunk.at < c->at + c->physical.bytes)
			chunk_drop(pool, c);
	}
	if (!error) {
		error = chunk_map(pool, &chunk, fd);
		if (error)
			shared_drop(&chunk.physical, false);
	}
	close(fd);
	return error;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *p, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
	struct CUctx_st *context;
	struct data d;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	memcpy(&d, data, sizeof(d));
	if (fake_fault("memory"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_rwlock_wrlock(&table_lock);
	struct pool *pool = pool_find(handle);
	const uint64_t start = d.chunk * POOL_CHUNK;
	if (!pool || !pool->imported || d.magic != DATA_MAGIC || !d.bytes ||
	    d.pool != pool->physical.generation || start >= POOL_SPAN || d.at < start ||
	    d.bytes > d.physical.bytes || d.at - start > d.physical.bytes - d.bytes)
		error = CUDA_ERROR_INVALID_VALUE;
	else if (!find_chunk(pool, &d))
		error = import_chunk(pool, &d);
	if (!error) {
		char *base = pool->base + d.at;
		const struct range *open = pool->allocations;
		while (open && open->base != base)
			open = open->next;
		if (!open)
			error = allocation_add(pool, handle, find_chunk(pool, &d), base, d.bytes);
		*p = (uintptr_t)base;
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}
