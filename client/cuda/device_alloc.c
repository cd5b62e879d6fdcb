/* SPDX-License-Identifier: Apache-2.0
 * Device memory that the library allocates for the program, and freeing, which is one call for all
 * kinds of memory. Operations register it at its first use, like any other memory. */
#include <stdio.h>
#include <stdlib.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/session_handle.h"
#include "core/task_slot.h"
#include "gpu_state.h"
#include "proto/cuda/allocation.h"

#define FORGET_MS 1000 /* how long freeing waits until the daemon has released the memory */

struct device_allocation {
	struct device_allocation *next;
	struct allocation memory;
};

static ncclsvc_result make(ncclsvc_session *s, int device, size_t bytes, struct allocation *a)
{
	const struct cuda *cuda = s->gpu->cuda;
	CUcontext context = NULL;
	CUdevice cu = 0;
	char what[80];
	ncclsvc_result r = cuda_device(cuda, device, &cu);
	if (r)
		return r;
	session_lock(s);
	r = gpu_primary(s->gpu, device, &context);
	session_unlock(s);
	if (r)
		return r;
	CUresult e = cuda_push(cuda, context);
	if (!e) {
		e = allocation_make(cuda, cu, bytes, a);
		cuda_pop(cuda, context);
	}
	snprintf(what, sizeof(what), "cannot allocate %zu bytes on GPU %d", bytes, device);
	return e ? cuda_error(cuda, e, what) : NCCLSVC_OK;
}

ncclsvc_result ncclsvc_mem_alloc_device(ncclsvc_session *s, int device, size_t bytes, void **ptr)
{
	if (!s || !ptr)
		return error_argument("ncclsvc_mem_alloc_device: the session or ptr is NULL");
	if (!bytes || bytes > SVC_REGION_MAX)
		return error_argument("cannot allocate %zu bytes: the valid range is 1 to %llu",
				      bytes, (unsigned long long)SVC_REGION_MAX);
	ncclsvc_result r = gpu_usable(s);
	if (r)
		return r;
	struct device_allocation *new = malloc(sizeof(*new));
	if (!new)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	const int mode = relaxed_begin(s->gpu->cuda);
	r = make(s, device, bytes, &new->memory);
	relaxed_end(s->gpu->cuda, mode);
	if (r) {
		free(new);
		return r;
	}
	*ptr = (void *)(uintptr_t) new->memory.base;
	session_lock(s);
	new->next = s->gpu->allocations;
	s->gpu->allocations = new;
	session_unlock(s);
	return NCCLSVC_OK;
}

static bool holds(const struct allocation *a, const void *p)
{
	return (uintptr_t)p - a->base < a->bytes;
}

/* Whether a pending task uses the memory. Locked; yields. */
static bool is_in_use(ncclsvc_session *s, const struct allocation *a)
{
	tasks_ask(s);
	for (uint32_t i = 0; i < s->tasks.entries; i++) {
		const struct slot *slot = &s->tasks.slots[i];
		if (slot->state == SLOT_PENDING && slot->peer &&
		    (holds(a, slot->in) || holds(a, slot->out)))
			return true;
	}
	struct device_region *region = device_region_find(s->gpu, a->base);
	return region && ranges_outermost(s->gpu, region)->pins;
}

static void release(const struct cuda *cuda, struct device_allocation *gone)
{
	const int mode = relaxed_begin(cuda);
	allocation_unmap(cuda, gone->memory.base, gone->memory.bytes);
	relaxed_end(cuda, mode);
	free(gone);
}

/* Locked; yields. */
static ncclsvc_result device_free(ncclsvc_session *s, void *ptr)
{
	struct gpu *g = s->gpu;
	struct device_allocation **at = g ? &g->allocations : NULL, *a;
	while (at && *at && (*at)->memory.base != (uintptr_t)ptr)
		at = &(*at)->next;
	a = at ? *at : NULL;
	if (!a)
		return error_set(NCCLSVC_NOT_FOUND, "%p is not memory of the session", ptr);
	*at = a->next; /* no other thread frees it meanwhile */
	bool used = is_in_use(s, &a->memory);
	/* After FORGET_MS, the memory is freed all the same, and the daemon releases it later. */
	if (!used && !session_check(s))
		used = device_forget(s, g, a->memory.base, deadline_in(FORGET_MS)) && !s->away &&
		       device_region_find(g, a->memory.base);
	if (used) {
		a->next = g->allocations;
		g->allocations = a;
		return error_set(NCCLSVC_BUSY, "pending tasks use the memory at %p", ptr);
	}
	session_unlock(s);
	release(g->cuda, a);
	session_lock(s);
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_mem_free(ncclsvc_session *s, void *ptr)
{
	if (!ptr)
		return NCCLSVC_OK;
	if (!s)
		return error_argument("ncclsvc_mem_free: the session is NULL");
	session_lock(s);
	struct region *region = region_find(&s->regions, ptr);
	const bool of_host = region && region->base == ptr;
	ncclsvc_result r = of_host ? region_free(s, region) : device_free(s, ptr);
	session_unlock(s);
	return r;
}

void device_allocations_free(struct gpu *g)
{
	while (g->allocations) {
		struct device_allocation *a = g->allocations;
		g->allocations = a->next;
		release(g->cuda, a);
	}
}
