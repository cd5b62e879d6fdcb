/* SPDX-License-Identifier: Apache-2.0
 * Memory of cuMemAlloc, its handles for other processes, and registered host memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

#define HANDLE_MAGIC UINT64_C(0x66616b6568616e64)
#define SPAN	     ((size_t)64 << 10)

struct handle {
	uint64_t magic;
	struct physical physical;
	uint64_t bytes; /* the requested size */
	int pid;
	int restored;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle fits");

/* Maps the fd's memory and adds the range. *range has everything except addresses and buffer id. */
static CUresult map_add(int fd, struct range *range)
{
	/* At least one page behind it is unused; but as with the driver, an allocation of whole
	 * pages may have a neighbour. */
	const bool full = range->physical.bytes % SPAN == 0;
	range->span = ROUND_UP(range->physical.bytes + (full ? 0 : FAKE_PAGE), SPAN);
	pthread_rwlock_wrlock(&table_lock);
	CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
	range->base = range->at = arena_take(range->span);
	if (range->base) {
		void *p = mmap(range->base, range->physical.bytes, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_FIXED, fd, 0);
		if (p != MAP_FAILED && table_add(range))
			error = CUDA_SUCCESS;
		else
			arena_give(range->base, range->span);
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult memory_new(struct CUctx_st *context, size_t bytes, enum range_kind kind, CUdeviceptr *p)
{
	if (bytes == 0 || bytes > SIZE_MAX / 2)
		return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	if (fake_fault("memory"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct range range = {
		.bytes = bytes, .kind = kind, .device = context->device, .accessible = true};
	int fd;
	CUresult error = shared_create(fake_physical(context->device), ROUND_UP(bytes, FAKE_PAGE),
				       kind, &range.physical, &fd);
	if (error)
		return error;
	error = map_add(fd, &range);
	close(fd);
	if (error)
		shared_drop(&range.physical, true);
	else
		*p = (uintptr_t)range.base;
	return error;
}

CUresult memory_free(CUdeviceptr p, enum range_kind kind)
{
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = table_find(p);
	if (r && (uintptr_t)r->base == p && r->kind == kind && kind == RANGE_IMPORT &&
	    r->opens > 1) {
		r->opens--;
		pthread_rwlock_unlock(&table_lock);
		return CUDA_SUCCESS;
	}
	r = table_remove(p, kind);
	if (r)
		arena_give(r->base, r->span);
	pthread_rwlock_unlock(&table_lock);
	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	shared_drop(&r->physical, kind != RANGE_IMPORT);
	free(r);
	return CUDA_SUCCESS;
}

static CUresult move(struct range *r)
{
	int fd, from = shared_find(&r->physical);
	if (from < 0)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = shared_move(&r->physical, r->kind, from, &fd);
	close(from);
	if (error)
		return error;
	if (mmap(r->base, r->physical.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		 0) == MAP_FAILED)
		abort();
	close(fd);
	return CUDA_SUCCESS;
}

CUresult memory_move(void)
{
	struct range *r;
	pthread_rwlock_wrlock(&table_lock);
	CUresult error = vmms_move();
	for (size_t i = 0; !error && (r = table_next(i)); i++)
		if (r->kind == RANGE_ALLOC || r->kind == RANGE_POOL)
			error = move(r);
	pthread_rwlock_unlock(&table_lock);
	return error;
}

/* The driver cannot restore a process that has imported memory. */
static CUresult restorable(const struct range *r)
{
	if (r->kind == RANGE_IMPORT)
		return CUDA_ERROR_INVALID_VALUE;
	return r->kind == RANGE_VMM && vmm_imported(r->vmm) ? CUDA_ERROR_NOT_SUPPORTED
							    : CUDA_SUCCESS;
}

CUresult memory_restore(void)
{
	struct range *r;
	CUresult error = CUDA_SUCCESS;
	pthread_rwlock_wrlock(&table_lock);
	for (size_t i = 0; !error && (r = table_next(i)); i++)
		error = restorable(r);
	for (size_t i = 0; !error && (r = table_next(i)); i++) {
		r->exported = (struct physical){0};
		r->restored = true;
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (!error)
		error = capture_unsafe();
	return error ? error : memory_new(context, bytes, RANGE_ALLOC, p);
}

/* Waits for all the context's work, as the driver does. */
CUresult cuMemFree(CUdeviceptr p)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (!error)
		error = capture_unsafe();
	if (error || !p)
		return error;
	error = streams_wait(context);
	if (!error)
		error = memory_free(p, RANGE_ALLOC);
	return error == CUDA_ERROR_INVALID_VALUE ? memory_free(p, RANGE_POOL) : error;
}

CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!error)
		error = capture_refuse(stream);
	return error ? error : memory_new(stream_context(stream), bytes, RANGE_POOL, p);
}

static void free_run(void *arg, const atomic_int *stop)
{
	const CUdeviceptr *p = arg;
	if (!atomic_load(stop))
		memory_free(*p, RANGE_POOL);
}

static const struct fake_work free_work = {.run = free_run, .drop = free};

/* Graphs' own memory is not supported: neither this nor cuMemAllocAsync can be captured here. */
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!error)
		error = capture_refuse(stream);
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	struct range *r = table_find(p);
	bool pool = r && (uintptr_t)r->base == p && r->kind == RANGE_POOL;
	pthread_rwlock_unlock(&table_lock);
	CUdeviceptr *arg = pool ? malloc(sizeof(*arg)) : NULL;
	if (!arg)
		return pool ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	*arg = p;
	return stream_put(stream, &free_work, arg);
}

CUresult cuMemGetInfo(size_t *unused, size_t *total)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	*unused = shared_unused(fake_physical(context->device));
	*total = device_memory();
	return CUDA_SUCCESS;
}

/* ---- Between processes --------------------------------------------------------------------- */

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	struct handle h = {.magic = HANDLE_MAGIC, .pid = getpid()};
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = table_find(p);
	bool own = r && r->kind == RANGE_ALLOC;
	if (own) {
		if (!r->exported.generation)
			r->exported = r->physical;
		h.physical = r->exported;
		h.bytes = r->bytes;
		h.restored = r->restored;
	}
	pthread_rwlock_unlock(&table_lock);
	if (!own)
		return CUDA_ERROR_INVALID_VALUE;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &h, sizeof(h));
	return CUDA_SUCCESS;
}

/* A handle that is opened twice is one mapping. */
static bool opened_again(const struct handle *h, CUdeviceptr *p)
{
	bool found = false;
	pthread_rwlock_wrlock(&table_lock);
	struct range *r;
	for (size_t i = 0; !found && (r = table_next(i)); i++) {
		found = r->kind == RANGE_IMPORT && r->physical.generation == h->physical.generation;
		if (found) {
			r->opens++;
			*p = (uintptr_t)r->base;
		}
	}
	pthread_rwlock_unlock(&table_lock);
	return found;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (!error)
		error = capture_unsafe();
	if (error)
		return error;
	struct handle h;
	struct trailer t;
	memcpy(&h, &handle, sizeof(h));
	if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || h.magic != HANDLE_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	if (h.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (h.restored)
		return CUDA_ERROR_NOT_PERMITTED;
	if (fake_fault("ipc-open"))
		return CUDA_ERROR_MAP_FAILED;
	if (fake_fault("memory"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (opened_again(&h, p))
		return CUDA_SUCCESS;
	int fd = shared_find(&h.physical);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct range range = {
		.kind = RANGE_IMPORT, .device = context->device, .opens = 1, .accessible = true};
	error = CUDA_ERROR_INVALID_VALUE;
	if (trailer_read(fd, &t) && h.bytes && h.bytes <= t.physical.bytes) {
		range.bytes = h.bytes;
		range.physical = t.physical;
		error = shared_hold(fd, &range.physical, t.kind);
		if (!error) {
			error = map_add(fd, &range);
			if (error)
				shared_drop(&range.physical, false);
		}
	}
	close(fd);
	if (!error)
		*p = (uintptr_t)range.base;
	return error;
}

/* Waits for all the context's work, as the driver does when it unmaps. */
CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (!error)
		error = capture_unsafe();
	if (!error)
		error = streams_wait(context);
	return error ? error : memory_free(p, RANGE_IMPORT);
}

/* ---- Host memory --------------------------------------------------------------------------- */

CUresult cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (!error)
		error = capture_unsafe();
	if (error)
		return error;
	if (!p || !bytes || (uintptr_t)p % FAKE_PAGE ||
	    flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
		return CUDA_ERROR_INVALID_VALUE;
	size_t span = ROUND_UP(bytes, FAKE_PAGE);
	/* Fails if a part of it is not mapped. */
	if (msync(p, span, MS_ASYNC))
		return CUDA_ERROR_INVALID_VALUE;
	struct range range = {.base = p,
			      .bytes = bytes,
			      .span = span,
			      .kind = RANGE_HOST,
			      .device = context->device,
			      .accessible = true};
	/* A GPU keeps the pages even if the process unmaps them, and so does an alias of shared
	 * memory. */
	range.at = mremap(p, 0, span, MREMAP_MAYMOVE);
	if (range.at == MAP_FAILED)
		range.at = p;
	pthread_rwlock_wrlock(&table_lock);
	if (table_overlaps(p, bytes))
		error = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!table_add(&range))
		error = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_rwlock_unlock(&table_lock);
	if (error && range.at != range.base)
		munmap(range.at, span);
	return error;
}

CUresult cuMemHostUnregister(void *p)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (!error)
		error = capture_unsafe();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = table_remove((uintptr_t)p, RANGE_HOST);
	pthread_rwlock_unlock(&table_lock);
	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	if (r->at != r->base)
		munmap(r->at, r->span);
	free(r);
	return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *p, void *host, unsigned flags)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	struct range *r = table_find((uintptr_t)host);
	bool registered = r && r->kind == RANGE_HOST;
	pthread_rwlock_unlock(&table_lock);
	if (!registered || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*p = (uintptr_t)host;
	return CUDA_SUCCESS;
}
