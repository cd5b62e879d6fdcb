/* SPDX-License-Identifier: Apache-2.0
 * A caller's list of tensors, checked, and copied because the caller may free it before the
 * operation has ended. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/cuda.h"
#include "cuda/gpu_state.h"
#include "tensors.h"

ncclsvc_result list_make(struct list *l, size_t n, size_t dims)
{
	*l = (struct list){.n = n};
	size_t each = sizeof(*l->tensors) + 3 * sizeof(uint64_t);
	if (n > NCCLSVC_TENSORS_MAX || dims > n * NCCLSVC_DIMS_MAX)
		return error_argument("a list has %zu tensors, the limit is %d", n,
				      NCCLSVC_TENSORS_MAX);
	char *memory = calloc(1, n * each + dims * sizeof(int64_t) + 1);
	if (!memory)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	l->tensors = (ncclsvc_tensor *)memory;
	l->counts = (uint64_t *)(l->tensors + n);
	l->bytes = l->counts + n;
	l->offsets = l->bytes + n;
	l->dims = (int64_t *)(l->offsets + n);
	return NCCLSVC_OK;
}

void list_free(struct list *l)
{
	free(l->tensors);
	*l = (struct list){0};
}

/* Prefixes the error with the tensor's number. */
static ncclsvc_result of_tensor(ncclsvc_result result, size_t i)
{
	return error_set(result, "tensor %zu: %s", i, ncclsvc_last_error());
}

ncclsvc_result list_measure(struct list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		ncclsvc_result r = ncclsvc_tensor_size(&l->tensors[i], &l->counts[i], &l->bytes[i]);
		if (r)
			return of_tensor(r, i);
	}
	return ncclsvc_aggregate(l->bytes, l->n, l->offsets, &l->total);
}

static ncclsvc_result check_wild(const ncclsvc_tensor *t)
{
	if (!ncclsvc_type_size(t->type))
		return error_argument("the type %d is unknown", (int)t->type);
	if (t->ndims < -1 || t->ndims > NCCLSVC_DIMS_MAX || (t->ndims > 0 && !t->dims))
		return error_argument(
			"it has %d dimensions: use 0 to %d and set their values, or use -1",
			t->ndims, NCCLSVC_DIMS_MAX);
	for (int k = 0; k < t->ndims; k++)
		if (t->dims[k] < -1)
			return error_argument("dimension %d is %lld", k, (long long)t->dims[k]);
	return NCCLSVC_OK;
}

ncclsvc_result list_take(struct list *l, const ncclsvc_tensor *tensors, size_t n, bool wild)
{
	size_t dims = 0;
	*l = (struct list){0};
	if (n && !tensors)
		return error_argument("the tensors are NULL");
	if (n > NCCLSVC_TENSORS_MAX)
		return error_argument("a list has %zu tensors, the limit is %d", n,
				      NCCLSVC_TENSORS_MAX);
	for (size_t i = 0; i < n; i++) {
		ncclsvc_result r = wild ? check_wild(&tensors[i])
					: ncclsvc_tensor_size(&tensors[i], NULL, NULL);
		if (r)
			return of_tensor(r, i);
		dims += tensors[i].ndims > 0 ? (size_t)tensors[i].ndims : 0;
	}
	ncclsvc_result r = list_make(l, n, dims);
	if (r)
		return r;
	int64_t *to = l->dims;
	for (size_t i = 0; i < n; i++) {
		size_t k = tensors[i].ndims > 0 ? (size_t)tensors[i].ndims : 0;
		l->tensors[i] = tensors[i];
		l->tensors[i].dims = to;
		if (k)
			memcpy(to, tensors[i].dims, k * sizeof(*to));
		to += k;
	}
	r = wild ? NCCLSVC_OK : list_measure(l);
	if (r)
		list_free(l);
	return r;
}

/* A copy would access the wrong kind of memory, so ask the driver which kind it is. */
static ncclsvc_result check_memory(const ncclsvc_tensors *lists, const void *data, size_t i)
{
	const struct cuda *cuda = lists->session->gpu->cuda;
	int type = 0;
	unsigned managed = 0;
	bool known = !cuda->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
						  (uintptr_t)data);
	bool device = known && type == CU_MEMORYTYPE_DEVICE;
	if (device && !on_gpu(lists) &&
	    !cuda->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
					 (uintptr_t)data) &&
	    managed)
		return NCCLSVC_OK;
	if (device == on_gpu(lists))
		return NCCLSVC_OK;
	return error_set(NCCLSVC_UNSUPPORTED,
			 device ? "tensor %zu at %p is device memory, but communicator %s is a "
				  "host communicator"
				: "tensor %zu at %p is not device memory, but communicator %s is a "
				  "GPU communicator",
			 i, data, lists->comm->label);
}

ncclsvc_result list_placed(const ncclsvc_tensors *lists, const struct list *l)
{
	bool ask = on_gpu(lists) || lists->session->gpu;
	for (size_t i = 0; i < l->n; i++) {
		const void *data = l->tensors[i].data;
		if (!l->bytes[i])
			continue;
		if (!data || l->bytes[i] > UINTPTR_MAX - (uintptr_t)data)
			return error_argument("tensor %zu is at %p, but %llu bytes are needed", i,
					      data, (unsigned long long)l->bytes[i]);
		ncclsvc_result r = ask ? check_memory(lists, data, i) : NCCLSVC_OK;
		if (r)
			return r;
	}
	return NCCLSVC_OK;
}

char *list_as_it_lies(const struct list *l, bool gaps)
{
	uintptr_t base = 0;
	uint64_t end = 0;
	bool any = false;
	for (size_t i = 0; i < l->n; i++) {
		uintptr_t at = (uintptr_t)l->tensors[i].data;
		if (!l->bytes[i])
			continue;
		if (!any && l->offsets[i])
			return NULL;
		if (!any)
			base = at;
		if (at < base || at - base != l->offsets[i] || (!gaps && l->offsets[i] != end))
			return NULL;
		any = true;
		end = l->offsets[i] + l->bytes[i];
	}
	return any && end == l->total ? (char *)base : NULL;
}

uint64_t list_memory_id(const ncclsvc_tensors *lists, const char *at)
{
	uint64_t id = 0;
	return lists->session->gpu->cuda->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
								(uintptr_t)at)
		       ? 0
		       : id;
}

/* Allocations may be adjacent by chance; the memory between them belongs to nobody, or to somebody
 * else. */
static bool one_allocation(const ncclsvc_tensors *lists, const struct list *l, const char *base,
			   uint64_t bytes)
{
	ncclsvc_session *s = lists->session;
	uint64_t first = 0, id;
	for (size_t i = 0; on_gpu(lists) && i < l->n; i++) {
		if (!l->bytes[i])
			continue;
		id = list_memory_id(lists, l->tensors[i].data);
		if (!id || (first && id != first))
			return false;
		first = id;
	}
	if (on_gpu(lists))
		return true;
	session_lock(s);
	const struct region *region = region_find(&s->regions, base);
	bool holds = region && bytes <= region->bytes - (size_t)(base - region->base);
	session_unlock(s);
	return holds;
}

char *list_in_place(const ncclsvc_tensors *lists, const struct list *l, bool gaps)
{
	char *base = list_as_it_lies(l, gaps);
	return base && one_allocation(lists, l, base, l->total) ? base : NULL;
}

char *list_in_a_row(const ncclsvc_tensors *lists, const struct list *l, uint64_t *bytes)
{
	uintptr_t base = 0;
	size_t n = 0;
	bool row = true;
	*bytes = 0; /* no overflow: the aggregated size is at least as large */
	for (size_t i = 0; i < l->n; i++) {
		uintptr_t at = (uintptr_t)l->tensors[i].data;
		if (!l->bytes[i])
			continue;
		base = n++ ? base : at;
		row = row && at - base == *bytes;
		*bytes += l->bytes[i];
	}
	const bool one = n == 1 || (row && one_allocation(lists, l, (char *)base, *bytes));
	return n && one ? (char *)base : NULL;
}
