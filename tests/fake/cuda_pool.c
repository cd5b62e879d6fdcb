/* SPDX-License-Identifier: Apache-2.0
 * Memory pools. One that was created keeps what is freed for its next allocations, as the driver
 * does with those that can be shared: the same memory at the same address, and for work behind the
 * free on its stream at once. A default pool gives it back to the GPU. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

#define DATA_MAGIC UINT64_C(0x66616b65706f6f6c)
#define FREED	   ((struct CUstream_st *)1) /* nobody can have it back */

/* All under the table's lock. */
struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next;
	struct physical physical; /* a page that is nothing but the pool's identity */
	int fd;			  /* of that */
	int device;
	unsigned users;	    /* ranges */
	unsigned granted;   /* bits of devices that are not its own */
	struct range *kept; /* freed */
	bool exportable, imported, destroyed;
};

struct data {
	uint64_t magic, pool;
	struct physical physical;
	uint64_t bytes;
};
_Static_assert(sizeof(struct data) <= sizeof(CUmemPoolPtrExportData), "a pointer's data fits");

static struct CUmemPoolHandle_st *pools;
static struct CUmemPoolHandle_st defaults[FAKE_GPUS_MAX];

bool pool_exportable(const struct CUmemPoolHandle_st *pool)
{
	return pool->exportable && !pool->imported;
}

static bool is_default(const struct CUmemPoolHandle_st *pool)
{
	return pool >= defaults && pool < defaults + FAKE_GPUS_MAX;
}

/* NULL: no such pool. */
static struct CUmemPoolHandle_st *pool_find(CUmemoryPool handle)
{
	struct CUmemPoolHandle_st *pool = pools;
	if (is_default(handle))
		return handle;
	while (pool && (pool != handle || pool->destroyed))
		pool = pool->next;
	return pool;
}

static CUresult pool_add(const struct CUmemPoolHandle_st *as, CUmemoryPool *handle)
{
	struct CUmemPoolHandle_st *pool = malloc(sizeof(*pool));
	if (!pool) {
		shared_drop(&as->physical, !as->imported);
		close(as->fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pool = *as;
	pthread_rwlock_wrlock(&table_lock);
	pool->next = pools;
	pools = pool;
	pthread_rwlock_unlock(&table_lock);
	*handle = pool;
	return CUDA_SUCCESS;
}

/* To the GPU. */
static void let_go(struct range *r)
{
	arena_give(r->base, r->span);
	shared_drop(&r->physical, r->kind == RANGE_POOL);
	free(r);
}

static void pool_unref(struct CUmemPoolHandle_st *pool)
{
	if (!pool->destroyed || pool->users)
		return;
	while (pool->kept) {
		struct range *r = pool->kept;
		pool->kept = r->next_kept;
		let_go(r);
	}
	struct CUmemPoolHandle_st **link = &pools;
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	close(pool->fd);
	shared_drop(&pool->physical, !pool->imported);
	free(pool);
}

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
	struct CUmemPoolHandle_st pool = {.device = props->location.id,
					  .exportable = props->handleTypes};
	error = shared_create(fake_physical(pool.device), FAKE_PAGE, FAKE_POOL_ITSELF,
			      &pool.physical, &pool.fd);
	return error ? error : pool_add(&pool, handle);
}

/* What is allocated keeps it. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct CUmemPoolHandle_st *pool = pool_find(handle);
	if (!pool || is_default(pool)) {
		error = CUDA_ERROR_INVALID_VALUE;
	} else {
		pool->destroyed = true;
		pool_unref(pool);
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

/* ---- Allocations --------------------------------------------------------------------------- */

/* A range whose free is on its way, on the same stream, or one that was freed. NULL: none fits. */
static struct range *reuse(struct CUmemPoolHandle_st *pool, size_t bytes,
			   const struct CUstream_st *stream)
{
	struct range *r;
	for (size_t i = 0; (r = table_next(i)); i++)
		if (r->pool == pool && r->freeing == stream && r->bytes <= bytes &&
		    bytes <= r->physical.bytes) {
			r->bytes = bytes;
			r->freeing = NULL;
			table_renew(r);
			return r;
		}
	for (struct range **link = &pool->kept; (r = *link); link = &r->next_kept) {
		if (bytes > r->physical.bytes)
			continue;
		const struct range new = {.base = r->base,
					  .at = r->at,
					  .bytes = bytes,
					  .span = r->span,
					  .kind = RANGE_POOL,
					  .device = r->device,
					  .physical = r->physical,
					  .pool = pool,
					  .accessible = true};
		struct range *added = table_add(&new);
		if (!added)
			return NULL;
		*link = r->next_kept;
		free(r);
		pool->users++;
		return added;
	}
	return NULL;
}

static CUresult allocate(CUdeviceptr *p, size_t bytes, CUmemoryPool handle,
			 const struct CUstream_st *stream)
{
	pthread_rwlock_wrlock(&table_lock);
	struct CUmemPoolHandle_st *pool = pool_find(handle);
	struct range *r = NULL;
	bool good = bytes && pool && !pool->imported;
	if (good && !is_default(pool))
		r = reuse(pool, bytes, stream);
	if (r)
		*p = (uintptr_t)r->base;
	else if (good)
		pool->users++;
	pthread_rwlock_unlock(&table_lock);
	if (!good || r)
		return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	CUresult error = memory_new(context_of(pool->device), bytes, RANGE_POOL, pool, p);
	if (!error)
		return CUDA_SUCCESS;
	pthread_rwlock_wrlock(&table_lock);
	pool->users--;
	pool_unref(pool);
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	const int device = stream_context(stream)->device;
	defaults[device].device = device;
	return allocate(p, bytes, &defaults[device], stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	return stream ? allocate(p, bytes, pool, stream) : error;
}

static struct range *pooled(CUdeviceptr p)
{
	struct range *r = table_find(p);
	return r && (uintptr_t)r->base == p && r->pool && r->freeing != FREED ? r : NULL;
}

/* The lock is held, and given up. */
static void give_back(struct range *r)
{
	struct CUmemPoolHandle_st *pool = r->pool;
	r->freeing = FREED;
	r = table_remove((uintptr_t)r->base, r->kind);
	if (r->kind == RANGE_POOL && !is_default(pool) && !pool->destroyed) {
		r->next_kept = pool->kept;
		pool->kept = r;
	} else {
		let_go(r);
	}
	pool->users--;
	pool_unref(pool);
	pthread_rwlock_unlock(&table_lock);
}

bool pool_free(CUdeviceptr p)
{
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = pooled(p);
	if (r && !r->freeing) {
		give_back(r);
		return true;
	}
	pthread_rwlock_unlock(&table_lock);
	return false;
}

struct free {
	CUdeviceptr p;
	uint64_t buffer_id;
};

static void free_run(void *arg, const atomic_int *stop)
{
	struct free *f = arg;
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = atomic_load(stop) ? NULL : pooled(f->p);
	if (r && r->buffer_id == f->buffer_id)
		give_back(r);
	else
		pthread_rwlock_unlock(&table_lock);
	free(f);
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	struct free *f = stream ? malloc(sizeof(*f)) : NULL;
	if (!f)
		return stream ? CUDA_ERROR_OUT_OF_MEMORY : error;
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = pooled(p);
	if (!r || r->freeing) {
		error = CUDA_ERROR_INVALID_VALUE;
	} else {
		*f = (struct free){p, r->buffer_id};
		r->freeing = stream;
	}
	pthread_rwlock_unlock(&table_lock);
	if (error) {
		free(f);
		return error;
	}
	error = stream_put(stream, free_run, f);
	if (error) {
		pthread_rwlock_wrlock(&table_lock);
		r->freeing = NULL; /* nobody else frees or reuses it */
		pthread_rwlock_unlock(&table_lock);
		free(f);
	}
	return error;
}

/* ---- Between processes --------------------------------------------------------------------- */

static bool granted(const struct CUmemPoolHandle_st *pool, int device)
{
	return fake_physical(device) == pool->physical.gpu || pool->granted >> device & 1;
}

CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool handle, CUmemLocation *location)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	const struct CUmemPoolHandle_st *pool = pool_find(handle);
	if (!pool || is_default(pool) || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !device_valid(location->id))
		error = CUDA_ERROR_INVALID_VALUE;
	else
		*flags = granted(pool, location->id) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t n)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct CUmemPoolHandle_st *pool = pool_find(handle);
	if (!pool || is_default(pool))
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
	const struct CUmemPoolHandle_st *pool = pool_find(handle);
	if (!pool || !pool_exportable(pool) || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    flags)
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
	struct CUmemPoolHandle_st pool = {.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0),
					  .device = context->device,
					  .physical = t.physical,
					  .imported = true};
	if (pool.fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	error = shared_hold(pool.fd, &pool.physical, t.kind);
	if (error) {
		close(pool.fd);
		return error;
	}
	return pool_add(&pool, handle);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
	CUresult error = enter();
	if (error)
		return error;
	struct data d = {.magic = DATA_MAGIC};
	pthread_rwlock_rdlock(&table_lock);
	const struct range *r = pooled(p);
	if (r && !r->freeing && pool_exportable(r->pool)) {
		d.pool = r->pool->physical.generation;
		d.physical = r->physical;
		d.bytes = r->bytes;
	}
	pthread_rwlock_unlock(&table_lock);
	if (!d.bytes)
		return CUDA_ERROR_INVALID_VALUE;
	memset(data, 0, sizeof(*data));
	memcpy(data, &d, sizeof(d));
	return CUDA_SUCCESS;
}

/* One allocation has one address in an imported pool. */
static bool imported_already(const struct CUmemPoolHandle_st *pool, const struct data *d)
{
	const struct range *r;
	for (size_t i = 0; (r = table_next(i)); i++)
		if (r->pool == pool && r->physical.generation == d->physical.generation)
			return true;
	return false;
}

static CUresult import(struct CUmemPoolHandle_st *pool, const struct data *d, struct range *range)
{
	struct trailer t;
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	int fd = shared_find(&d->physical);
	if (fd < 0)
		return error;
	if (trailer_read(fd, &t) && t.kind == RANGE_POOL && d->bytes <= t.physical.bytes) {
		range->bytes = d->bytes;
		range->physical = t.physical;
		range->pool = pool;
		error = shared_hold(fd, &range->physical, t.kind);
		if (!error) {
			error = memory_map(fd, range);
			if (error)
				shared_drop(&range->physical, false);
		}
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
	struct range range = {.kind = RANGE_POOL_IMPORT, .device = context->device};
	pthread_rwlock_wrlock(&table_lock);
	struct CUmemPoolHandle_st *pool = pool_find(handle);
	if (!pool || !pool->imported || d.magic != DATA_MAGIC || !d.bytes ||
	    d.pool != pool->physical.generation) {
		error = CUDA_ERROR_INVALID_VALUE;
	} else if (imported_already(pool, &d)) {
		error = CUDA_ERROR_ALREADY_MAPPED;
	} else {
		range.accessible = granted(pool, context->device);
		pool->users++;
	}
	pthread_rwlock_unlock(&table_lock);
	if (error)
		return error;
	error = import(pool, &d, &range);
	if (!error) {
		*p = (uintptr_t)range.base;
		return CUDA_SUCCESS;
	}
	pthread_rwlock_wrlock(&table_lock);
	pool->users--;
	pool_unref(pool);
	pthread_rwlock_unlock(&table_lock);
	return error;
}
