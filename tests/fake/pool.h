/* SPDX-License-Identifier: Apache-2.0
 * Memory pools of the stand-in: cuda_pool.c, cuda_pool_import.c, cuda_pool_table.c.
 *
 * A pool has addresses of its own, and in them chunks of physical memory, each of which holds many
 * allocations. An import in another process mirrors that. As seen of the driver (580, H200):
 * - the importer maps a chunk when the first allocation in it is imported, over what it had there
 *   before, and keeps it until the pool goes;
 * - an address that is open is opened once: importing there again only maps what has changed, with
 *   the length that it was first opened with, and the first cuMemFree ends it;
 * - whatever overlaps otherwise is open side by side;
 * - a pool of which anything is open is not destroyed.
 * An operation reaches the chunk, as a kernel does. A call is refused what no allocation holds. */
#ifndef POOL_H
#define POOL_H

#include "fake.h"

#define POOL_SPAN  ((size_t)4 << 30) /* addresses */
#define POOL_CHUNK ((size_t)32 << 20)
#define POOL_ALIGN ((size_t)512)

/* All under the table's lock. */
struct chunk {
	size_t at; /* from the pool's base */
	struct physical physical;
	struct chunk *next;
};

struct pool {
	struct pool *next;
	struct physical physical; /* a page that is nothing but the pool's identity */
	int fd;			  /* of that */
	int device;
	unsigned granted; /* bits of devices that are not its own */
	char *base;	  /* NULL: a default pool, whose allocations have chunks of their own */
	struct chunk *chunks;
	struct range *allocations; /* or imports; linked by next */
	unsigned users;		   /* these, and a default pool's ranges */
	unsigned handles;
	uint64_t threshold; /* what it keeps at a synchronisation */
	bool exportable, imported, destroyed;
};

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next;
	struct pool *of;
};

/* NULL: no such pool. */
struct pool *pool_find(CUmemoryPool handle);
struct pool *pools_next(const struct pool *pool); /* NULL: the first */
CUmemoryPool pool_default(int device);
bool pool_is_default(const struct pool *pool);
/* Takes what `as` holds, also if that fails. */
CUresult pool_add(const struct pool *as, CUmemoryPool *handle);
CUresult pool_handle(struct pool *pool, CUmemoryPool *handle);
void pool_handle_drop(CUmemoryPool handle);
/* Maps the chunk; what was there is gone. */
CUresult chunk_map(struct pool *pool, const struct chunk *chunk, int fd);
void chunk_drop(struct pool *pool, struct chunk *chunk);
void pool_drop(struct pool *pool);
CUresult allocation_add(struct pool *pool, CUmemoryPool handle, const struct chunk *chunk,
			char *base, size_t bytes);
bool pool_granted(const struct pool *pool, int device);

#endif
