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

CUresult mapping_export(const struct cuda *cuda, CUdeviceptr at, int *fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult e = cuda->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at);
	if (e)
		return e;
	e = cuda->cuMemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					       0);
	cuda->cuMemRelease(handle);
	return e;
}

static CUresult allocation_handle(const struct cuda *cuda, CUcontext context, CUdeviceptr base,
				  uint8_t *to)
{
	CUipcMemHandle handle;
	CUresult e = cuda_push(cuda, context);
	if (e)
		return e;
	e = cuda->cuIpcGetMemHandle(&handle, base);
	cuda_pop(cuda, context);
	if (!e)
		memcpy(to, &handle, sizeof(handle));
	return e;
}

/* Exports memory of cuMemAlloc. The device attribute for this says no on systems where it works, so
 * it is just tried. */
static ncclsvc_result export_allocation(struct gpu *g, const struct buffer *b,
					const struct memory *m, uint8_t *to)
{
	CUmemGenericAllocationHandle created;
	CUcontext context = m->context;
	ncclsvc_result r = context ? NCCLSVC_OK : gpu_primary(g, m->device, &context);
	if (r)
		return r;
	CUresult e = allocation_handle(g->cuda, context, m->base, to);
	if (!e)
		return NCCLSVC_OK;
	if (g->cuda->cuMemRetainAllocationHandle(&created, (void *)(uintptr_t)b->at))
		return cuda_error(g->cuda, e, "cannot share the buffer's allocation");
	g->cuda->cuMemRelease(created);
	return unshareable(
		b, "is from cuMemCreate without a POSIX handle type, so it cannot be shared "
		   "between processes: request CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
}

/* At once: the daemon may be another one when the caller looks, and must have it, too. */
static void introduced(ncclsvc_session *s, struct call *call)
{
	struct svc_region_reply reply;
	struct device_region *region = call->arg;
	(void)s;
	memcpy(&reply, call->body, sizeof(reply));
	region->id = reply.region;
}

ncclsvc_result device_introduce(ncclsvc_session *s, struct gpu *g, struct device_region *region,
				unsigned opcode, const void *request, int fd)
{
	struct call call = {.on_reply = introduced, .arg = region};
	uint32_t generation = s->generation;
	ncclsvc_result r = call_run(s, &call, opcode, request, fd, deadline_in(REQUEST_MS));
	if (generation != s->generation)
		return r ? r
			 : error_set(NCCLSVC_DAEMON_LOST, "the daemon was lost in the meantime");
	region->busy = false;
	pthread_cond_broadcast(&s->changed);
	if (!r && !region->id) {
		session_lose(s, "the daemon broke the protocol: it gave region number 0");
		r = session_check(s);
	}
	if (r)
		device_region_drop(s, g, region);
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
	if (!mapping)
		r = export_allocation(g, b, &m, request.handle);
	else if ((e = mapping_export(g->cuda, b->at, &fd)))
		r = cuda_error(g->cuda, e, "cannot export the buffer's allocation");
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

/* ---- After a restart of the daemon ---- */

/* The daemon's number for the device; -1: the session has no communicator there. */
static int32_t device_number(const ncclsvc_session *s, int device)
{
	const ncclsvc_comm *c = s->comms;
	while (c && c->device != device)
		c = c->next;
	return c ? c->daemon_device : -1;
}

static ncclsvc_result register_again(ncclsvc_session *s, uint32_t id, unsigned opcode,
				     const void *request, int fd)
{
	struct call call = {0};
	struct svc_region_reply reply;
	call_forget(s, SVC_RESUME, &(struct svc_resume){.kind = SVC_RESUME_REGION, .number = id});
	ncclsvc_result r = call_run(s, &call, opcode, request, fd, deadline_in(REQUEST_MS));
	memcpy(&reply, call.body, sizeof(reply));
	if (!r && reply.region != id)
		r = error_set(NCCLSVC_UNSUPPORTED, "the new daemon cannot continue sessions on "
						   "GPUs: install a newer ncclsvcd");
	return r;
}

static ncclsvc_result range_again(ncclsvc_session *s, const struct gpu *g,
				  const struct device_region *r, int32_t device)
{
	struct svc_region_range request = {
		.base = r->base, .bytes = r->bytes, .device = device, .count = r->nparts};
	for (unsigned i = 0; i < r->nparts; i++)
		request.parts[i] = g->regions[r->parts[i]].id;
	return register_again(s, r->id, SVC_REGION_RANGE, &request, -1);
}

static ncclsvc_result region_again(ncclsvc_session *s, struct gpu *g, const struct device_region *r,
				   int32_t device)
{
	struct memory m;
	struct svc_region_cuda request = {
		.bytes = r->bytes, .base = r->base, .buffer_id = r->buffer, .device = device};
	int fd = -1;
	CUresult e = look_up(g->cuda, r->base, &m);
	if (!e)
		e = r->mapping ? mapping_export(g->cuda, r->base, &fd)
			       : allocation_handle(g->cuda, m.context, r->base, request.handle);
	if (e)
		return cuda_error(g->cuda, e, "cannot share a buffer's allocation");
	const ncclsvc_result result = register_again(
		s, r->id, r->mapping ? SVC_REGION_CUDA_FD : SVC_REGION_CUDA, &request, fd);
	if (fd >= 0)
		close(fd);
	return result;
}

static void number_drop(ncclsvc_session *s, struct gpu *g, struct device_region *r)
{
	r->id = 0;
	if (!r->gone && !r->busy && !ranges_hold(g, r))
		device_region_drop(s, g, r);
}

/* Memory that has been freed meanwhile gets no number from the next daemon. */
static bool is_needed(const ncclsvc_session *s, const struct gpu *g, const struct device_region *r)
{
	return !r->gone && device_number(s, r->device) >= 0 && device_region_alive(g, r, r->base);
}

static bool is_whole(const struct gpu *g, const struct device_region *range)
{
	for (unsigned i = 0; i < range->nparts; i++)
		if (!g->regions[range->parts[i]].id)
			return false;
	return true;
}

/* Parts of ranges are ranges that were made before. */
static ncclsvc_result ranges_again(ncclsvc_session *s, struct gpu *g)
{
	struct device_region *ranges[DEVICE_REGIONS];
	ncclsvc_result result = NCCLSVC_OK;
	unsigned n = 0;
	for (unsigned i = 0; i < DEVICE_REGIONS; i++) /* no other range has it as a part */
		if (g->regions[i].parts && g->regions[i].gone)
			g->regions[i].id = 0;
	for (struct device_region *r = g->ranges; r; r = r->next_range)
		ranges[n++] = r;
	while (!result && n--) {
		struct device_region *r = ranges[n];
		if (r->id && is_whole(g, r))
			result = range_again(s, g, r, device_number(s, r->device));
		else if (r->id)
			number_drop(s, g, r);
	}
	return result;
}

/* The driver needs a context for queries. */
static ncclsvc_result mapped_again(ncclsvc_session *s, struct gpu *g, struct device_region *r)
{
	CUcontext context;
	ncclsvc_result result = gpu_primary(g, r->device, &context);
	if (result)
		return result;
	const CUresult e = cuda_push(g->cuda, context);
	if (e)
		return cuda_error(g->cuda, e, "cannot use the GPU's context");
	const bool needed = is_needed(s, g, r);
	if (needed)
		result = region_again(s, g, r, device_number(s, r->device));
	if (!needed || (result && !is_needed(s, g, r))) { /* it may have been freed meanwhile */
		number_drop(s, g, r);
		result = NCCLSVC_OK;
	}
	cuda_pop(g->cuda, context);
	return result;
}

ncclsvc_result device_regions_again(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	const int mode = relaxed_begin(g->cuda);
	ncclsvc_result result = NCCLSVC_OK;
	for (unsigned i = 0; !result && i < DEVICE_REGIONS; i++) {
		struct device_region *r = &g->regions[i];
		if (r->bytes && r->id && !r->parts)
			result = mapped_again(s, g, r);
	}
	if (!result)
		result = ranges_again(s, g);
	relaxed_end(g->cuda, mode);
	return result;
}

bool device_region_registered(const ncclsvc_session *s, uint32_t id)
{
	for (unsigned i = 0; s->gpu && i < DEVICE_REGIONS; i++)
		if (s->gpu->regions[i].bytes && s->gpu->regions[i].id == id)
			return true;
	return false;
}
