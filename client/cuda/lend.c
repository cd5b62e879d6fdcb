/* SPDX-License-Identifier: Apache-2.0
 * Device memory lent by the daemon, and freeing, which is one call for all kinds of memory. */
#include <string.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/session_handle.h"
#include "core/task_slot.h"
#include "gpu_state.h"

#define REACH_BYTES                                                                                \
	((size_t)2 << 20) /* size of the allocation that tests whether a device is in reach */

void shared_unmap(const struct cuda *cuda, CUdeviceptr at, size_t bytes)
{
	cuda->cuMemUnmap(at, bytes);
	cuda->cuMemAddressFree(at, bytes);
}

CUresult allocation_map(const struct cuda *cuda, CUmemGenericAllocationHandle handle,
			CUdevice device, size_t bytes, CUdeviceptr *at)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUresult e = cuda->cuMemAddressReserve(at, bytes, 0, 0, 0);
	if (!e) {
		e = cuda->cuMemMap(*at, bytes, 0, handle, 0);
		if (e)
			cuda->cuMemAddressFree(*at, bytes);
	}
	cuda->cuMemRelease(handle); /* the mapping keeps the memory */
	if (e)
		return e;
	e = cuda->cuMemSetAccess(*at, bytes, &access, 1);
	if (e)
		shared_unmap(cuda, *at, bytes);
	return e;
}

CUresult shared_map(const struct cuda *cuda, int fd, CUdevice device, size_t bytes, CUdeviceptr *at)
{
	CUmemGenericAllocationHandle handle;
	CUresult e = cuda->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
							  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	return e ? e : allocation_map(cuda, handle, device, bytes, at);
}

/* Takes ownership of the fd. Not locked. */
static ncclsvc_result take(ncclsvc_session *s, int fd, int device, size_t bytes, CUdeviceptr *at)
{
	const struct cuda *cuda = s->gpu->cuda;
	CUcontext context = NULL;
	CUdevice cu = 0;
	session_lock(s);
	ncclsvc_result r = gpu_primary(s->gpu, device, &context);
	session_unlock(s);
	if (!r)
		r = cuda_device(cuda, device, &cu);
	if (!r) {
		CUresult e = cuda->cuCtxPushCurrent(context);
		if (!e) {
			e = shared_map(cuda, fd, cu, bytes, at);
			cuda->cuCtxPopCurrent(&context);
		}
		if (e)
			r = cuda_error(cuda, e, "cannot map the memory that the daemon lent");
	}
	close(fd);
	return r;
}

static ncclsvc_result ask(ncclsvc_session *s, int32_t number, size_t bytes, int *fd,
			  struct svc_region_lend_reply *reply, uint32_t *generation)
{
	struct call call = {.fd = -1};
	struct svc_region_lend request = {.bytes = bytes, .device = number};
	session_lock(s);
	ncclsvc_result r =
		call_run(s, &call, SVC_REGION_LEND, &request, -1, deadline_in(REQUEST_MS));
	*generation = s->generation;
	memcpy(reply, call.body, sizeof(*reply));
	if (!r && (!reply->region || reply->bytes < bytes || reply->bytes > SVC_REGION_MAX)) {
		close(call.fd);
		session_lose(s, "the daemon broke the protocol: it lent %llu bytes for %zu",
			     (unsigned long long)reply->bytes, bytes);
		r = session_check(s);
	}
	session_unlock(s);
	*fd = call.fd;
	return r;
}

static ncclsvc_result lent_map(ncclsvc_session *s, int32_t number, int device, size_t bytes,
			       struct lent *lent)
{
	struct svc_region_lend_reply reply;
	int fd;
	ncclsvc_result r = ask(s, number, bytes, &fd, &reply, &lent->generation);
	if (r)
		return r;
	*lent = (struct lent){
		.generation = lent->generation, .region = reply.region, .bytes = reply.bytes};
	r = take(s, fd, device, reply.bytes, &lent->at);
	if (r)
		lent_forget(s, lent);
	return r;
}

/* Whether this process can map that much memory of the daemon's device `number`. Also true if the
 * daemon lends none. */
static bool lent_can_map(ncclsvc_session *s, int32_t number, int device, size_t bytes)
{
	struct svc_region_lend_reply reply;
	struct lent lent;
	int fd;
	if (ask(s, number, bytes, &fd, &reply, &lent.generation))
		return true; /* unknown, so try */
	lent.region = reply.region;
	const bool can = !take(s, fd, device, reply.bytes, &lent.at);
	if (can)
		shared_unmap(s->gpu->cuda, lent.at, reply.bytes);
	lent_forget(s, &lent);
	return can;
}

void lent_forget(ncclsvc_session *s, const struct lent *lent)
{
	session_lock(s);
	if (lent->generation == s->generation)
		call_forget(s, SVC_REGION_DEL, &(struct svc_region_del){.region = lent->region});
	session_unlock(s);
}

static bool is_visible(const struct cuda *cuda, const uint8_t uuid[16])
{
	int n = 0;
	CUdevice cu;
	CUuuid own;
	if (cuda->cuDeviceGetCount(&n))
		return false;
	for (int i = 0; i < n; i++)
		if (!cuda->cuDeviceGet(&cu, i) && !cuda->cuDeviceGetUuid(&own, cu) &&
		    !memcmp(own.bytes, uuid, sizeof(own.bytes)))
			return true;
	return false;
}

static uint16_t try_devices(ncclsvc_session *s, int device)
{
	ncclsvc_device_info *list = NULL;
	size_t n = 0;
	uint16_t out = 0;
	if (ncclsvc_list_devices(s, &list, &n))
		return 0;
	for (size_t i = 0; i < n; i++) {
		const int32_t number = list[i].device;
		if (number < 0 || number >= 16 || list[i].state != NCCLSVC_DEVICE_READY ||
		    is_visible(s->gpu->cuda, list[i].uuid))
			continue;
		if (!lent_can_map(s, number, device, REACH_BYTES))
			out |= (uint16_t)(1u << number);
	}
	ncclsvc_list_free(list);
	return out;
}

/* A device that CUDA shows is in reach. For the others, a small allocation is tried: a device that
 * only CUDA_VISIBLE_DEVICES hides can be mapped, one without a device node cannot. The answer holds
 * for the process; the numbers are this daemon's. */
uint16_t devices_out_of_reach(ncclsvc_session *s, int device)
{
	struct gpu *g = s->gpu;
	session_lock(s);
	const bool known = g->reach_generation == s->generation + 1;
	const uint16_t before = g->out_of_reach;
	session_unlock(s);
	if (known)
		return before;
	const uint16_t out = try_devices(s, device);
	session_lock(s);
	g->out_of_reach = out;
	g->reach_generation = s->generation + 1;
	session_unlock(s);
	return out;
}

static ncclsvc_result allocate(ncclsvc_session *s, int device, size_t bytes, void **ptr)
{
	struct lent lent;
	int32_t number;
	ncclsvc_result r = device_match(s, device, &number);
	if (!r)
		r = lent_map(s, number, device, bytes, &lent);
	if (r)
		return r;
	struct device_region new = {
		.base = lent.at,
		.bytes = lent.bytes,
		.id = lent.region,
		.device = device,
		.lent = true,
	};
	session_lock(s);
	if (lent.generation != s->generation)
		r = error_set(NCCLSVC_DAEMON_LOST, "the daemon was lost in the meantime");
	if (!r) /* it may reuse the addresses of freed memory */
		device_regions_sweep(s, s->gpu);
	if (!r && !device_region_insert(s, s->gpu, ++s->gpu->clock, &new))
		r = NCCLSVC_LIMIT;
	session_unlock(s);
	if (r) {
		lent_forget(s, &lent);
		shared_unmap(s->gpu->cuda, lent.at, lent.bytes);
		return r;
	}
	*ptr = (void *)(uintptr_t)lent.at;
	return NCCLSVC_OK;
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
	const int mode = relaxed_begin(s->gpu->cuda);
	r = allocate(s, device, bytes, ptr);
	relaxed_end(s->gpu->cuda, mode);
	return r;
}

static bool holds(const struct device_region *region, const void *p)
{
	return (uintptr_t)p - region->base < region->bytes;
}

/* Whether a pending kernel uses the memory. The daemon knows about other tasks. Locked; yields. */
static bool is_in_kernels(ncclsvc_session *s, const struct device_region *region)
{
	for (uint32_t i = 0; i < s->tasks.entries; i++) {
		const struct slot *slot = &s->tasks.slots[i];
		if (slot->state == SLOT_PENDING && slot->peer &&
		    (holds(region, slot->in) || holds(region, slot->out)) &&
		    task_ask(s, slot->number) == TASK_PENDING)
			return true;
	}
	return false;
}

/* Locked; yields. */
static ncclsvc_result give_back(ncclsvc_session *s, void *ptr)
{
	struct call call = {0};
	struct gpu *g = s->gpu;
	ncclsvc_result r = NCCLSVC_OK;
	struct device_region *region = g ? device_region_find(g, (uintptr_t)ptr) : NULL;
	if (!region || region->base != (uintptr_t)ptr || !region->lent || region->busy)
		return error_set(NCCLSVC_NOT_FOUND, "%p is not memory of the session", ptr);
	uint32_t generation = s->generation;
	region->busy = true;
	if (is_in_kernels(s, region))
		r = error_set(NCCLSVC_BUSY, "pending tasks use the memory at %p", ptr);
	if (!r && !s->lost && region->id)
		r = call_run(s, &call, SVC_REGION_DEL,
			     &(struct svc_region_del){.region = region->id}, -1,
			     deadline_in(REQUEST_MS));
	if (r != NCCLSVC_BUSY && (s->lost || generation != s->generation || r == NCCLSVC_NOT_FOUND))
		r = NCCLSVC_OK;
	region->busy = false;
	if (r)
		return r;
	struct device_region gone = *region;
	region->id = 0; /* the daemon has forgotten it */
	region->lent = false;
	device_region_drop(s, g, region);
	session_unlock(s);
	const int mode = relaxed_begin(g->cuda);
	shared_unmap(g->cuda, gone.base, gone.bytes);
	relaxed_end(g->cuda, mode);
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
	ncclsvc_result r = of_host ? region_free(s, region) : give_back(s, ptr);
	session_unlock(s);
	return r;
}

void device_lent_free(struct gpu *g)
{
	for (unsigned i = 0; i < DEVICE_REGIONS; i++)
		if (g->regions[i].lent)
			shared_unmap(g->cuda, g->regions[i].base, g->regions[i].bytes);
}
