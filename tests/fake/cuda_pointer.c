/* SPDX-License-Identifier: Apache-2.0
 * Queries about pointers. */
#include <string.h>

#include "fake.h"

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr p)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	const struct range *r = table_find(p);
	bool device = r && r->kind != RANGE_HOST;
	if (device && base)
		*base = (uintptr_t)r->base;
	if (device && bytes)
		*bytes = r->bytes;
	pthread_rwlock_unlock(&table_lock);
	return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static size_t width_of(int what)
{
	switch (what) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return 4;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return 1;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return 8;
	}
	return 0;
}

/* r may be NULL: the pointer is unknown. */
static uint64_t attribute(const struct range *r, int what)
{
	if (!r)
		return what == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (uint64_t)-2 : 0;
	switch (what) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		/* Memory of cuMemCreate and of pools belongs to no context. */
		return r->kind == RANGE_VMM || r->kind == RANGE_POOL
			       ? 0
			       : (uintptr_t)context_of(r->device);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return r->kind == RANGE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return (uint64_t)r->device;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return r->buffer_id;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return r->kind == RANGE_ALLOC;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return 1;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return r->kind == RANGE_VMM && vmm_exportable(r->vmm)
			       ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
			       : 0;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return r->kind == RANGE_POOL ? (uintptr_t)&table_lock : 0;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return (uintptr_t)r->base;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return r->bytes;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return r->kind == RANGE_HOST ? 0 : r->physical.generation;
	}
	return 0; /* IS_MANAGED */
}

static void attribute_write(void *value, const struct range *r, int what)
{
	uint64_t x = attribute(r, what);
	memcpy(value, &x, width_of(what)); /* little endian */
}

CUresult cuPointerGetAttribute(void *value, int what, CUdeviceptr p)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	const struct range *r = table_find(p);
	if (!value || !width_of(what) || !r)
		error = CUDA_ERROR_INVALID_VALUE;
	else
		attribute_write(value, r, what);
	pthread_rwlock_unlock(&table_lock);
	return error;
}

/* For a pointer that is not CUDA's, this call returns zeros. */
CUresult cuPointerGetAttributes(unsigned n, int *what, void **values, CUdeviceptr p)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	for (unsigned i = 0; i < n && !error; i++) {
		if (!values[i] || !width_of(what[i]))
			error = CUDA_ERROR_INVALID_VALUE;
	}
	if (error)
		return error;
	pthread_rwlock_rdlock(&table_lock);
	for (unsigned i = 0; i < n; i++)
		attribute_write(values[i], table_find(p), what[i]);
	pthread_rwlock_unlock(&table_lock);
	return CUDA_SUCCESS;
}
