/* SPDX-License-Identifier: Apache-2.0
 *
 * The process's memory pools by number, for the daemon imports a pool once. CUDA's handle of a pool
 * that was destroyed may be the next one's, and nobody tells. So two allocations are of one pool if
 * they have its handle and were there at the same time, or have the same physical memory.
 */
#include <pthread.h>
#include <sys/random.h>

#include "gpu.h"

#define POOLS 64

struct pool {
	CUmemoryPool handle; /* NULL: the place is free */
	uint32_t number;
	/* The allocation that was last seen of it. */
	CUdeviceptr base;
	uint64_t buffer, block;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[POOLS];
static unsigned oldest;
static uint32_t last;

/* Another process may have had our pid, and the daemon not yet have let go of its pools. */
static uint32_t next_number(void)
{
	if (!last && getrandom(&last, sizeof(last), 0) != (ssize_t)sizeof(last))
		last = 0;
	last += last == UINT32_MAX ? 2 : 1;
	return last;
}

static struct pool *find(CUmemoryPool handle)
{
	for (unsigned i = 0; i < POOLS; i++)
		if (pools[i].handle == handle)
			return &pools[i];
	struct pool *p = &pools[oldest++ % POOLS];
	*p = (struct pool){.handle = handle};
	return p;
}

static bool same(const struct cuda *cuda, const struct pool *p, uint64_t block)
{
	uint64_t id = 0;
	return (block && p->block == block) ||
	       (!cuda->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p->base) &&
		id == p->buffer);
}

uint32_t pool_number(const struct cuda *cuda, CUmemoryPool handle, CUdeviceptr base,
		     uint64_t buffer)
{
	uint64_t block = 0; /* which older drivers do not know */
	if (cuda->cuPointerGetAttribute(&block, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, base))
		block = 0;
	pthread_mutex_lock(&lock);
	struct pool *p = find(handle);
	const uint32_t number = p->number && same(cuda, p, block) ? p->number : next_number();
	*p = (struct pool){handle, number, base, buffer, block};
	pthread_mutex_unlock(&lock);
	return number;
}
