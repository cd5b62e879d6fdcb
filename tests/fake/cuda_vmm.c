/* SPDX-License-Identifier: Apache-2.0
 * cuMemCreate and related calls: physical memory, reserved addresses, mappings, file descriptors.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/* A handle is the address of one. Freed with its last handle and mapping. */
struct vmm {
	struct vmm *next;
	unsigned handles, mappings;
	struct physical physical;
	int fd;
	int device;
	bool imported, exportable;
};

struct reservation {
	struct reservation *next;
	char *base;
	size_t span;
};

static struct vmm *vmms; /* all under the table's lock */
static struct reservation *reservations;

bool vmm_imported(const struct vmm *vmm)
{
	return vmm->imported;
}

bool vmm_exportable(const struct vmm *vmm)
{
	return vmm->exportable && !vmm->imported;
}

static struct vmm *vmm_find(CUmemGenericAllocationHandle handle)
{
	struct vmm *v = vmms;
	while (v && ((uintptr_t)v != handle || v->handles == 0))
		v = v->next;
	return v;
}

void vmm_unref(struct vmm *v)
{
	if (v->handles || v->mappings)
		return;
	struct vmm **link = &vmms;
	while (*link != v)
		link = &(*link)->next;
	*link = v->next;
	close(v->fd);
	shared_drop(&v->physical, !v->imported);
	free(v);
}

static CUresult vmm_add(const struct vmm *vmm, CUmemGenericAllocationHandle *handle)
{
	struct vmm *v = malloc(sizeof(*v));
	if (!v) {
		close(vmm->fd);
		shared_drop(&vmm->physical, !vmm->imported);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*v = *vmm;
	v->handles = 1;
	pthread_rwlock_wrlock(&table_lock);
	v->next = vmms;
	vmms = v;
	pthread_rwlock_unlock(&table_lock);
	*handle = (uintptr_t)v;
	return CUDA_SUCCESS;
}

static bool prop_valid(const CUmemAllocationProp *prop)
{
	return prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       device_valid(prop->location.id) &&
	       !(prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!prop_valid(prop) || option < 0 || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = FAKE_GRANULE;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (!prop_valid(prop) || flags || bytes == 0 || bytes % FAKE_GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_fault("memory"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct vmm v = {.device = prop->location.id, .exportable = prop->requestedHandleTypes != 0};
	error = shared_create(fake_physical(v.device), bytes, RANGE_VMM, &v.physical, &v.fd);
	return error ? error : vmm_add(&v, handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct vmm *v = vmm_find(handle);
	if (v) {
		v->handles--;
		vmm_unref(v);
	}
	pthread_rwlock_unlock(&table_lock);
	return v ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr at,
			     unsigned long long flags)
{
	(void)at; /* only a hint */
	CUresult error = enter();
	if (error)
		return error;
	if (bytes == 0 || bytes % FAKE_GRANULE || alignment > FAKE_GRANULE || flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct reservation *r = malloc(sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_rwlock_wrlock(&table_lock);
	*r = (struct reservation){.next = reservations, .base = arena_take(bytes), .span = bytes};
	if (r->base)
		reservations = r;
	pthread_rwlock_unlock(&table_lock);
	if (!r->base) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*p = (uintptr_t)r->base;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct reservation **link = &reservations;
	while (*link && (uintptr_t)(*link)->base != p)
		link = &(*link)->next;
	struct reservation *r = *link;
	if (!r || r->span != bytes || table_overlaps(r->base, r->span)) {
		error = CUDA_ERROR_INVALID_VALUE;
	} else {
		*link = r->next;
		arena_give(r->base, r->span);
		free(r);
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

static bool reserved(CUdeviceptr p, size_t bytes)
{
	for (const struct reservation *r = reservations; r; r = r->next) {
		if (p >= (uintptr_t)r->base && p - (uintptr_t)r->base < r->span)
			return bytes <= r->span - (size_t)(p - (uintptr_t)r->base);
	}
	return false;
}

static CUresult map(struct vmm *v, CUdeviceptr p, size_t bytes)
{
	if (!v || bytes == 0 || bytes % FAKE_GRANULE || p % FAKE_GRANULE ||
	    bytes > v->physical.bytes || !reserved(p, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	char *base = (char *)(uintptr_t)p;
	if (table_overlaps(base, bytes))
		return CUDA_ERROR_ALREADY_MAPPED;
	struct range range = {.base = base,
			      .at = base,
			      .bytes = bytes,
			      .span = bytes,
			      .kind = RANGE_VMM,
			      .device = v->device,
			      .physical = v->physical,
			      .vmm = v};
	if (mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, v->fd, 0) == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!table_add(&range))
		return CUDA_ERROR_OUT_OF_MEMORY;
	v->mappings++;
	return CUDA_SUCCESS;
}

static void map_again(struct range *r)
{
	if (mmap(r->base, r->span, r->accessible ? PROT_READ | PROT_WRITE : PROT_NONE,
		 MAP_SHARED | MAP_FIXED, r->vmm->fd, 0) == MAP_FAILED)
		abort();
	r->physical = r->vmm->physical;
}

CUresult vmms_move(void)
{
	struct range *r;
	CUresult error = CUDA_SUCCESS;
	for (struct vmm *v = vmms; !error && v; v = v->next) {
		int fd;
		if (v->imported)
			continue;
		error = shared_move(&v->physical, RANGE_VMM, v->fd, &fd);
		if (error)
			break;
		close(v->fd);
		v->fd = fd;
	}
	for (size_t i = 0; (r = table_next(i)); i++)
		if (r->kind == RANGE_VMM && !r->vmm->imported)
			map_again(r);
	return error;
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	CUresult error = enter();
	if (error)
		return error;
	if (offset || flags) /* the driver accepts no offset either */
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&table_lock);
	error = map(vmm_find(handle), p, bytes);
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = table_find(p);
	if (!r || (uintptr_t)r->base != p || r->bytes != bytes)
		r = NULL;
	else
		r = table_remove(p, RANGE_VMM);
	if (r) {
		if (mmap(r->base, r->span, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
			 0) == MAP_FAILED)
			abort();
		r->vmm->mappings--;
		vmm_unref(r->vmm);
		free(r);
	}
	pthread_rwlock_unlock(&table_lock);
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *access, size_t n)
{
	CUresult error = enter();
	if (error)
		return error;
	for (size_t i = 0; i < n; i++) {
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    !device_valid(access[i].location.id) ||
		    access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_wrlock(&table_lock);
	CUdeviceptr end = p + bytes;
	while (p < end) {
		struct range *r = table_find(p);
		if (!r || r->kind != RANGE_VMM || (uintptr_t)r->base != p || r->bytes > end - p ||
		    mprotect(r->base, r->span, PROT_READ | PROT_WRITE)) {
			error = CUDA_ERROR_INVALID_VALUE;
			break;
		}
		r->accessible = true;
		p += r->bytes;
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      int type, unsigned long long flags)
{
	CUresult error = enter();
	if (error)
		return error;
	int fd = -1;
	pthread_rwlock_rdlock(&table_lock);
	const struct vmm *v = vmm_find(handle);
	if (!v || !vmm_exportable(v) || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
		error = CUDA_ERROR_INVALID_VALUE;
	else
		fd = fcntl(v->fd, F_DUPFD_CLOEXEC, 0);
	pthread_rwlock_unlock(&table_lock);
	if (error)
		return error;
	if (fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(shareable, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					int type)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	struct trailer t;
	int fd = (int)(intptr_t)shareable;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !trailer_read(fd, &t) ||
	    t.kind != RANGE_VMM)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_fault("memory"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct vmm v = {.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0),
			.device = context->device,
			.physical = t.physical,
			.imported = true,
			.exportable = true};
	if (v.fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	error = shared_hold(v.fd, &v.physical, t.kind);
	if (error) {
		close(v.fd);
		return error;
	}
	return vmm_add(&v, handle);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *p)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_wrlock(&table_lock);
	struct range *r = table_find((uintptr_t)p);
	if (r && r->kind == RANGE_VMM) {
		r->vmm->handles++;
		*handle = (uintptr_t)r->vmm;
	} else {
		error = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_unlock(&table_lock);
	return error;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						CUmemGenericAllocationHandle handle)
{
	CUresult error = enter();
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	const struct vmm *v = vmm_find(handle);
	if (v) {
		memset(prop, 0, sizeof(*prop));
		prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
		prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		prop->location.id = v->device;
		prop->requestedHandleTypes =
			v->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
	}
	pthread_rwlock_unlock(&table_lock);
	return v ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
