/* SPDX-License-Identifier: Apache-2.0
 * Memory pools, their handles, and the chunks of memory at their addresses. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

static struct CUmemPoolHandle_st *handles;
static struct pool *pools;
static struct pool default_pools[FAKE_GPUS_MAX];
static struct CUmemPoolHandle_st defaults[FAKE_GPUS_MAX];

bool pool_exportable(CUmemoryPool handle)
{
	return handle->of->exportable;
}

CUmemoryPool pool_default(int device)
{
	default_pools[device].device = device;
	defaults[device].of = &default_pools[device];
	return &defaults[device];
}

bool pool_is_default(const struct pool *pool)
{
	return !pool->base;
}

struct pool *pool_find(CUmemoryPool handle)
{
	const struct CUmemPoolHandle_st *h = handles;
	if (handle >= defaults && handle < defaults + FAKE_GPUS_MAX)
		return handle->of;
	while (h && h != handle)
		h = h->next;
	return h && !h->of->destroyed ? h->of : NULL;
}

CUresult pool_handle(struct pool *pool, CUmemoryPool *handle)
{
	struct CUmemPoolHandle_st *h = malloc(sizeof(*h));
	if (!h)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*h = (struct CUmemPoolHandle_st){handles, pool};
	handles = h;
	pool->handles++;
	*handle = h;
	return CUDA_SUCCESS;
}

void pool_handle_drop(CUmemoryPool handle)
{
	struct CUmemPoolHandle_st **link = &handles;
	while (*link != handle)
		link = &(*link)->next;
	*link = handle->next;
	handle->of->handles--;
	free(handle);
}

CUresult pool_add(const struct pool *as, CUmemoryPool *handle)
{
	struct pool *pool = malloc(sizeof(*pool));
	CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
	if (pool) {
		*pool = *as;
		pool->base = arena_take(POOL_SPAN);
	}
	if (pool && pool->base)
		error = pool_handle(pool, handle);
	if (!error) {
		pool->next = pools;
		pools = pool;
		return CUDA_SUCCESS;
	}
	if (pool && pool->base)
		arena_give(pool->base, POOL_SPAN);
	shared_drop(&as->physical, !as->imported);
	close(as->fd);
	free(pool);
	return error;
}

struct pool *pools_next(const struct pool *pool)
{
	return pool ? pool->next : pools;
}

/* ---- Chunks -------------------------------------------------------------------------------- */

bool pool_granted(const struct pool *pool, int device)
{
	return fake_physical(device) == pool->physical.gpu || pool->granted >> device & 1;
}

CUresult chunk_map(struct pool *pool, const struct chunk *chunk, int fd)
{
	struct chunk *c = malloc(sizeof(*c));
	const struct range range = {.base = pool->base + chunk->at,
				    .at = pool->base + chunk->at,
				    .bytes = chunk->physical.bytes,
				    .kind = RANGE_POOL_CHUNK,
				    .device = pool->device,
				    .of = pool,
				    .accessible = pool_granted(pool, pool->device)};
	if (!c || !table_add(&range)) {
		free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* An operation that is under way at the address goes on there. */
	if (mmap(range.base, range.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
	    MAP_FAILED)
		abort();
	*c = *chunk;
	struct chunk **link = &pool->chunks;
	while (*link && (*link)->at < c->at)
		link = &(*link)->next;
	c->next = *link;
	*link = c;
	return CUDA_SUCCESS;
}

void chunk_drop(struct pool *pool, struct chunk *chunk)
{
	char *base = pool->base + chunk->at;
	struct chunk **link = &pool->chunks;
	while (*link != chunk)
		link = &(*link)->next;
	*link = chunk->next;
	free(table_remove((uintptr_t)base, RANGE_POOL_CHUNK));
	if (mmap(base, chunk->physical.bytes, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		abort();
	shared_drop(&chunk->physical, !pool->imported);
	free(chunk);
}

void pool_drop(struct pool *pool)
{
	struct pool **link = &pools;
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	while (pool->chunks)
		chunk_drop(pool, pool->chunks);
	arena_give(pool->base, POOL_SPAN);
	close(pool->fd);
	shared_drop(&pool->physical, !pool->imported);
	free(pool);
}
