/* SPDX-License-Identifier: Apache-2.0
 * Memory pools in the process that made them. One that was created keeps what is freed for its next
 * allocations, for work behind the free on its stream at once, and what no allocation needs until
 * it is trimmed. A default pool gives it back to the GPU. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pool.h"

#define FREED ((struct CUstream_st *)1) /* nobody can have it back */

/* Whether the bytes from `at` meet an allocation, not counting what `stream` will have freed; then
 * *end is where that ends. */
static bool occupied(const struct pool *pool, const char *at, size_t bytes,
		     const struct CUstream_st *stream, const char **end)
{
	for (const struct range *r = pool->allocations; r; r = r->next)
		if (r->base < at + bytes && at < r->base + r->bytes &&
		    !(stream && r->freeing == stream)) {
			*end = r->base + ROUND_UP(r->bytes, POOL_ALIGN);
			return true;
		}
	return false;
}

/* Gives the GPU back what nothing is allocated in, and no operation is under way. */
static void trim(struct pool *pool, uint64_t keep)
{
	const char *end;
	uint64_t reserved = 0;
	for (const struct chunk *c = pool->chunks; c; c = c->next)
		reserved += c->physical.bytes;
	for (struct chunk *c = pool->chunks, *next; c && reserved > keep; c = next) {
		next = c->next;
		const size_t bytes = c->physical.bytes;
		const char *base = pool->base + c->at;
		if (occupied(pool, base, bytes, NULL, &end) ||
		    atomic_load(&table_find((uintptr_t)base)->pins))
			continue;
		chunk_drop(pool, c);
		reserved -= bytes;
	}
}

void pools_synchronized(void)
{
	pthread_rwlock_wrlock(&table_lock);
	for (struct pool *p = pools_next(NULL); p; p = pools_next(p))
		if (!p->imported && !p->destroyed)
			trim(p, p->threshold);
	pthread_rwlock_unlock(&table_lock);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct pool *pool = pool_find(handle);
	if (!pool || pool->imported)
		error = CUDA_ERROR_INVALID_VALUE;
	else if (!pool_is_default(pool))
		trim(pool, keep);
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int what, void *value)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct pool *pool = pool_find(handle);
	if (!pool || pool->imported || what != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		error = CUDA_ERROR_INVALID_VALUE;
	else
		memcpy(&pool->threshold, value, sizeof(pool->threshold));
	pthread_rwlock_unlock(&table_lock);
	return error;
}

/* ---- Pools --------------------------------------------------------------------------------- */

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	static const unsigned char zeros[sizeof(props->reserved)];
	CUresult error = enter();
	if (error)
		return error;
	if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !device_valid(props->location.id) ||
	    props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    props->win32SecurityAttributes || memcmp(props->reserved, zeros, sizeof(zeros)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct pool pool = {.device = props->location.id, .exportable = props->handleTypes};
	error = shared_create(fake_physical(pool.device), FAKE_PAGE, FAKE_POOL_ITSELF,
			      &pool.physical, &pool.fd);
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	error = pool_add(&pool, handle);
	pthread_rwlock_unlock(&table_lock);
	return error;
}

/* What is allocated keeps it; what is imported does not let it go. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct pool *pool = pool_find(handle);
	if (!pool || pool_is_default(pool) || (pool->imported && pool->users)) {
		error = CUDA_ERROR_INVALID_VALUE;
	} else if (pool->imported || !pool->users) {
		pool_handle_drop(handle);
		if (!pool->handles)
			pool_drop(pool);
	} else {
		pool->destroyed = true; /* its allocations still name the handle */
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

/* ---- Allocations --------------------------------------------------------------------------- */

struct range *pool_allocation(const struct range *chunk, CUdeviceptr p, size_t bytes)
{
	struct range *found = NULL;
	for (struct range *r = chunk->of->allocations; r; r = r->next)
		if (!r->freeing && (uintptr_t)r->base <= p && p - (uintptr_t)r->base < r->bytes &&
		    bytes <= r->bytes - (p - (uintptr_t)r->base) &&
		    (!found || r->base > found->base))
			found = r;
	return found;
}

CUresult allocation_add(struct pool *pool, CUmemoryPool handle, const struct chunk *chunk,
			char *base, size_t bytes)
{
	struct range *r = malloc(sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*r = (struct range){.base = base,
			    .at = base,
			    .bytes = bytes,
			    .kind = pool->imported ? RANGE_POOL_IMPORT : RANGE_POOL,
			    .device = pool->device,
			    .physical = chunk->physical,
			    .pool = handle,
			    .of = pool,
			    .next = pool->allocations};
	table_renew(r);
	pool->allocations = r;
	pool->users++;
	return CUDA_SUCCESS;
}

/* The first place that is free, or will be when the stream gets there. */
static bool find_place(const struct pool *pool, size_t bytes, const struct CUstream_st *stream,
		       const struct chunk **chunk, char **base)
{
	for (const struct chunk *c = pool->chunks; c; c = c->next) {
		const char *at = pool->base + c->at, *end = at + c->physical.bytes;
		while (bytes <= (size_t)(end - at) && occupied(pool, at, bytes, stream, &at))
			if (at > end)
				at = end;
		if (bytes > (size_t)(end - at))
			continue;
		*chunk = c;
		*base = pool->base + (at - pool->base);
		return true;
	}
	return false;
}

static CUresult grow(struct pool *pool, size_t bytes)
{
	int fd;
	struct chunk chunk = {0};
	const size_t wanted = ROUND_UP(bytes, POOL_CHUNK);
	for (const struct chunk *c = pool->chunks; c && c->at - chunk.at < wanted; c = c->next)
		chunk.at = c->at + c->physical.bytes;
	if (wanted > POOL_SPAN - chunk.at || fake_fault("memory"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult error =
		shared_create(pool->physical.gpu, wanted, RANGE_POOL_CHUNK, &chunk.physical, &fd);
	if (error)
		return error;
	error = chunk_map(pool, &chunk, fd);
	close(fd);
	if (error)
		shared_drop(&chunk.physical, true);
	return error;
}

static CUresult allocate(CUdeviceptr *p, size_t bytes, CUmemoryPool handle,
			 const struct CUstream_st *stream)
{
	const struct chunk *chunk;
	char *base;
	CUresult error = CUDA_SUCCESS;
	pthread_rwlock_wrlock(&table_lock);
	struct pool *pool = pool_find(handle);
	if (!bytes || !pool || pool->imported) {
		error = CUDA_ERROR_INVALID_VALUE;
	} else if (pool_is_default(pool)) {
		pthread_rwlock_unlock(&table_lock);
		return memory_new(context_of(pool->device), bytes, RANGE_POOL, handle, p);
	} else if (bytes > POOL_SPAN) {
		error = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		bool there = find_place(pool, bytes, stream, &chunk, &base);
		if (!there)
			error = grow(pool, bytes);
		if (!error && !there && !find_place(pool, bytes, stream, &chunk, &base))
			error = CUDA_ERROR_OUT_OF_MEMORY;
		if (!error)
			error = allocation_add(pool, handle, chunk, base, bytes);
		if (!error)
			*p = (uintptr_t)base;
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	return allocate(p, bytes, pool_default(stream_context(stream)->device), stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	return stream ? allocate(p, bytes, pool, stream) : error;
}

/* What begins there and is not being freed. */
static struct range *pooled(CUdeviceptr p)
{
	struct range *r = table_find(p);
	if (r && r->kind == RANGE_POOL_CHUNK) {
		for (r = r->of->allocations; r && ((uintptr_t)r->base != p || r->freeing);)
			r = r->next;
		return r;
	}
	return r && (uintptr_t)r->base == p && r->kind == RANGE_POOL && !r->freeing ? r : NULL;
}

/* The lock is held. */
static void give_back(struct range *r)
{
	struct pool *pool = r->of;
	if (!pool) { /* a default pool's */
		r->freeing = FREED;
		r = table_remove((uintptr_t)r->base, r->kind);
		arena_give(r->base, r->span);
		shared_drop(&r->physical, true);
		free(r);
		return;
	}
	struct range **link = &pool->allocations;
	while (*link != r)
		link = &(*link)->next;
	*link = r->next;
	if (!--pool->users && pool->destroyed) {
		pool_handle_drop(r->pool);
		pool_drop(pool);
	}
	free(r);
}

bool pool_free(CUdeviceptr p)
{
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = pooled(p);
	if (r)
		give_back(r);
	pthread_rwlock_unlock(&table_lock);
	return r;
}

static void free_run(void *arg, const atomic_int *stop)
{
	if (atomic_load(stop))
		return;
	pthread_rwlock_wrlock(&table_lock);
	give_back(arg);
	pthread_rwlock_unlock(&table_lock);
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = pooled(p);
	if (r)
		r->freeing = stream; /* nobody else frees it */
	pthread_rwlock_unlock(&table_lock);
	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	error = stream_put(stream, free_run, r);
	if (error) {
		pthread_rwlock_wrlock(&table_lock);
		r->freeing = NULL;
		pthread_rwlock_unlock(&table_lock);
	}
	return error;
}
