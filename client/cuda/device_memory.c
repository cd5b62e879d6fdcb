/* SPDX-License-Identifier: Apache-2.0
 * Device memory as regions of the daemon. An allocation is registered as a whole at its first use,
 * and identified by its base and CUDA's buffer id, because after a free the same address is a
 * different allocation. Freed allocations are noticed when their address is reused, when another
 * one is registered, and by ncclsvc_mem_sweep. */
#include <string.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "gpu_state.h"
#include "proto/names.h"

/* A pointer's properties, as CUDA reports them. */
struct memory {
	CUcontext context;
	int type, managed, device;
	uint64_t buffer, handle_types;
	CUdeviceptr base, mapping_base;
	size_t bytes, mapping_bytes;
	void *pool;
};

static CUresult look_up(const struct cuda *cuda, CUdeviceptr p, struct memory *m)
{
	int what[] = {
		CU_POINTER_ATTRIBUTE_CONTEXT,		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_BUFFER_ID,		CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,	CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
		CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
	};
	void *to[] = {
		&m->context,	  &m->type,	     &m->managed, &m->device,
		&m->buffer,	  &m->handle_types,  &m->base,	  &m->bytes,
		&m->mapping_base, &m->mapping_bytes, &m->pool,
	};
	_Static_assert(sizeof(what) / sizeof(what[0]) == sizeof(to) / sizeof(to[0]), "attributes");
	*m = (struct memory){0}; /* the driver writes only one byte of some attributes */
	return cuda->cuPointerGetAttributes(sizeof(what) / sizeof(what[0]), what, to, p);
}

static ncclsvc_result unshareable(const struct buffer *b, const char *why)
{
	return error_set(NCCLSVC_UNSUPPORTED, "%s: %s at %#llx %s", svc_op_name(b->op->record.op),
			 b->name, (unsigned long long)b->at, why);
}

static ncclsvc_result wrong_device(const struct buffer *b, int device)
{
	const ncclsvc_comm *comm = b->op->comm;
	return error_argument(
		"%s: %s at %#llx is memory of GPU %d, but communicator %s uses GPU %d",
		svc_op_name(b->op->record.op), b->name, (unsigned long long)b->at, device,
		comm->label, comm->device);
}

/* Refuses memory that other processes cannot import, naming its kind. */
static ncclsvc_result refuse(const struct buffer *b, const struct memory *m)
{
	if (m->managed)
		return unshareable(b,
				   "is managed memory (cudaMallocManaged), which cannot be shared "
				   "between processes: use cudaMalloc");
	if (m->type != CU_MEMORYTYPE_DEVICE)
		return unshareable(
			b, m->type == CU_MEMORYTYPE_HOST
				   ? "is host memory: a GPU communicator needs device memory"
				   : "is not memory that CUDA knows: a GPU communicator needs "
				     "device memory");
	if (m->device != b->op->comm->device)
		return wrong_device(b, m->device);
	if (m->pool)
		return unshareable(b, "is from a memory pool (cudaMallocAsync), which cannot be "
				      "shared between processes: use cudaMalloc");
	return NCCLSVC_OK;
}

ncclsvc_result device_too_long(const struct buffer *b, const struct device_region *r)
{
	unsigned long long left = r->bytes - (b->at - r->base);
	const char *op = svc_op_name(b->op->record.op);
	return error_argument("%s: %s at %#llx needs %llu bytes, but its memory ends after %llu",
			      op, b->name, (unsigned long long)b->at, (unsigned long long)b->bytes,
			      left);
}

/* Exports memory of cuMemCreate. The caller owns *fd. */
static ncclsvc_result export_mapping(const struct gpu *g, const struct buffer *b, int *fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult e = g->cuda->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)b->at);
	if (e)
		return cuda_error(g->cuda, e, "cannot find the buffer's allocation");
	e = g->cuda->cuMemExportToShareableHandle(fd, handle,
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	g->cuda->cuMemRelease(handle);
	return e ? cuda_error(g->cuda, e, "cannot export the buffer's allocation") : NCCLSVC_OK;
}

/* Exports memory of cuMemAlloc. The device attribute for this says no on systems where it works, so
 * it is just tried. */
static ncclsvc_result export_allocation(struct gpu *g, const struct buffer *b,
					const struct memory *m, uint8_t *to)
{
	CUipcMemHandle handle;
	CUmemGenericAllocationHandle created;
	CUcontext context = m->context;
	ncclsvc_result r = context ? NCCLSVC_OK : gpu_primary(g, m->device, &context);
	if (r)
		return r;
	CUresult e = g->cuda->cuCtxPushCurrent(context);
	if (!e) {
		e = g->cuda->cuIpcGetMemHandle(&handle, m->base);
		g->cuda->cuCtxPopCurrent(&context);
	}
	if (!e) {
		memcpy(to, &handle, sizeof(handle));
		return NCCLSVC_OK;
	}
	if (g->cuda->cuMemRetainAllocationHandle(&created, (void *)(uintptr_t)b->at))
		return cuda_error(g->cuda, e, "cannot share the buffer's allocation");
	g->cuda->cuMemRelease(created);
	return unshareable(
		b, "is from cuMemCreate without a POSIX handle type, so it cannot be shared "
		   "between processes: request CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
}

ncclsvc_result device_introduce(ncclsvc_session *s, struct gpu *g, struct device_region *region,
				unsigned opcode, const void *request, int fd)
{
	struct call call = {0};
	struct svc_region_reply reply;
	uint32_t generation = s->generation;
	ncclsvc_result r = call_run(s, &call, opcode, request, fd, deadline_in(REQUEST_MS));
	if (generation != s->generation)
		return r ? r
			 : error_set(NCCLSVC_DAEMON_LOST, "the daemon was lost in the meantime");
	region->busy = false;
	pthread_cond_broadcast(&s->changed);
	memcpy(&reply, call.body, sizeof(reply));
	if (!r && !reply.region) {
		session_lose(s, "the daemon broke the protocol: it gave region number 0");
		r = session_check(s);
	}
	if (r)
		device_region_drop(s, g, region);
	else
		region->id = reply.region;
	return r;
}

static ncclsvc_result add(ncclsvc_session *s, struct gpu *g, const struct buffer *b, uint64_t since)
{
	struct memory m;
	CUresult e = look_up(g->cuda, b->at, &m);
	ncclsvc_result r = e ? cuda_error(g->cuda, e, "cannot look up the buffer") : refuse(b, &m);
	if (!r)
		r = checkpoint_watch(g, m.device);
	if (r)
		return r;
	bool mapping = m.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	struct device_region new = {
		.base = mapping ? m.mapping_base : m.base,
		.bytes = mapping ? m.mapping_bytes : m.bytes,
		.buffer = m.buffer,
		.restores = g->restores,
		.clock = g->clock,
		.device = m.device,
		.busy = true,
		.mapping = mapping,
	};
	if (b->at - new.base >= new.bytes)
		return error_set(NCCLSVC_SYSTEM,
				 "CUDA reports that %#llx is outside its allocation",
				 (unsigned long long)b->at);
	if (!mapping && b->bytes > new.bytes - (b->at - new.base))
		return device_too_long(b, &new);
	struct svc_region_cuda request = {
		.bytes = new.bytes,
		.base = new.base,
		.buffer_id = new.buffer,
		.device = b->op->comm->daemon_device,
	};
	int fd = -1;
	r = mapping ? export_mapping(g, b, &fd) : export_allocation(g, b, &m, request.handle);
	if (r)
		return r;
	device_regions_sweep(s, g);
	struct device_region *region = device_region_insert(s, g, since, &new);
	if (region)
		r = device_introduce(s, g, region, mapping ? SVC_REGION_CUDA_FD : SVC_REGION_CUDA,
				     &request, fd);
	else
		r = NCCLSVC_LIMIT;
	if (fd >= 0)
		close(fd);
	return r;
}

ncclsvc_result device_locate(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			     uint64_t since, struct device_region **found, bool *yielded)
{
	struct device_region *r;
	bool alive = false;
	while ((r = device_region_find(g, b->at)) && !r->busy &&
	       !(alive = device_region_alive(g, r, b->at)) && !ranges_hold(g, r))
		device_region_drop(s, g, r);
	if (!r) {
		*yielded = true;
		return add(s, g, b, since);
	}
	if (r->busy || !alive) {
		*yielded = true;
		if (!session_wait(s, deadline_in(REQUEST_MS)))
			return error_set(NCCLSVC_TIMEOUT, "the daemon does not answer");
		return NCCLSVC_OK;
	}
	if (r->device != b->op->comm->device)
		return wrong_device(b, r->device);
	r->clock = g->clock;
	*found = r;
	return NCCLSVC_OK;
}
