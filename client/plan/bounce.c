/* SPDX-License-Identifier: Apache-2.0
 * Copies of GPU buffers for blocking Sends, which may return before their group is complete. */
#include <stdlib.h>
#include <time.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "cuda/gpu_state.h"
#include "member_plan.h"

#define LOOK_NS 20000 /* interval of checks whether the copy is done */

/* Allocates *wanted bytes, or if that fails only `need`. */
static ncclsvc_result allocate(ncclsvc_plan *p, uint64_t needed, uint64_t *wanted, CUdeviceptr *at)
{
	struct gpu *g = p->session->gpu;
	CUcontext context;
	ncclsvc_result r = gpu_primary(g, p->comm->device, &context);
	if (r)
		return r;
	CUresult e = g->cuda->cuCtxPushCurrent(context);
	if (!e) {
		e = g->cuda->cuMemAlloc(at, *wanted);
		if (e && *wanted > needed)
			e = g->cuda->cuMemAlloc(at, *wanted = needed);
		g->cuda->cuCtxPopCurrent(&context);
	}
	return e ? cuda_error(g->cuda, e, "no memory to copy the Send's buffer") : NCCLSVC_OK;
}

/* A buffer that is too small is retired, not freed: cuMemFree would wait for all streams, and one
 * of them may wait for a peer that waits for this very Send. Buffers grow by at least half, so few
 * are retired. */
static ncclsvc_result replace(ncclsvc_plan *p, struct bounce *b, uint64_t bytes)
{
	CUdeviceptr at = 0;
	uint64_t wanted = b->bytes < bytes ? b->bytes + b->bytes / 2 : bytes;
	struct bounce *old = b->bytes ? malloc(sizeof(*old)) : NULL;
	if (b->bytes && !old)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	if (wanted < bytes)
		wanted = bytes;
	ncclsvc_result r = allocate(p, bytes, &wanted, &at);
	if (r) {
		free(old);
		return r;
	}
	if (old) {
		*old = *b;
		old->next = p->retired;
		p->retired = old;
	}
	*b = (struct bounce){.at = at, .bytes = wanted};
	return NCCLSVC_OK;
}

/* Provides the slot's memory for so many bytes on this stream. An abandoned copy runs before later
 * copies on its own stream, but may run after those on other streams. */
static ncclsvc_result make(ncclsvc_plan *p, struct bounce *b, CUstream stream, CUcontext push,
			   uint64_t bytes)
{
	const struct cuda *cuda = p->session->gpu->cuda;
	unsigned long long id = 0;
	CUcontext context = NULL;
	CUresult e = cuda_push(cuda, push);
	if (!e) {
		e = cuda->cuStreamGetId(stream, &id);
		if (!e)
			e = cuda->cuCtxGetCurrent(&context);
		cuda_pop(cuda, push);
	}
	if (e)
		return cuda_error(cuda, e, "the Send's buffer cannot be copied");
	const bool behind = !b->copying || (b->stream == id && b->context == context);
	ncclsvc_result r = NCCLSVC_OK;
	if (b->bytes < bytes || !behind)
		r = replace(p, b, bytes);
	if (!r) {
		b->stream = id;
		b->context = context;
	}
	return r;
}

/* Waits until the stream has made the copy; earlier work on the stream may take long. */
static ncclsvc_result wait_copied(ncclsvc_session *s, const struct gpu *g, CUstream stream,
				  uint64_t deadline)
{
	CUresult e;
	const struct timespec look = {.tv_nsec = LOOK_NS};
	session_unlock(s);
	while ((e = g->cuda->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY && now_ns() < deadline)
		nanosleep(&look, NULL);
	session_lock(s);
	if (e == CUDA_ERROR_NOT_READY)
		return error_set(NCCLSVC_TIMEOUT, "the stream did not reach the copy of the Send's "
						  "buffer: nothing was submitted");
	return e ? cuda_error(g->cuda, e, "the Send's buffer cannot be copied") : NCCLSVC_OK;
}

ncclsvc_result bounce_copy(ncclsvc_plan *p, uint32_t slot, struct op *op, uint64_t deadline)
{
	ncclsvc_session *s = p->session;
	struct gpu *g = s->gpu;
	CUcontext push = NULL;
	if (!op->src_bytes)
		return NCCLSVC_OK;
	p->bounce_device = p->comm->device;
	if (!p->bounces && !(p->bounces = calloc(p->ntasks, sizeof(*p->bounces))))
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	struct bounce *b = &p->bounces[slot];
	ncclsvc_result r = stream_context(g, p->comm->device, op->stream, &push);
	if (!r)
		r = make(p, b, op->stream, push, op->src_bytes);
	if (r)
		return r;
	const CUdeviceptr at = b->at;
	CUresult e = cuda_push(g->cuda, push);
	if (!e) {
		e = g->cuda->cuMemcpyDtoDAsync(at, (uintptr_t)op->src, op->src_bytes, op->stream);
		b->copying = b->copying || !e;
		r = e ? NCCLSVC_OK : wait_copied(s, g, op->stream, deadline);
		cuda_pop(g->cuda, push);
	}
	if (e)
		return cuda_error(g->cuda, e, "the Send's buffer cannot be copied");
	if (b->at == at) /* the epoch may have ended, and another copy may have the slot */
		b->copying = r;
	op->src = (const char *)(uintptr_t)at;
	return r;
}

void bounces_free(ncclsvc_plan *p)
{
	struct gpu *g = p->session->gpu;
	CUcontext context = NULL;
	bool usable = p->bounces && g && !gpu_primary(g, p->bounce_device, &context) &&
		      !g->cuda->cuCtxPushCurrent(context);
	for (uint32_t i = 0; usable && i < p->ntasks; i++)
		if (p->bounces[i].bytes)
			g->cuda->cuMemFree(p->bounces[i].at);
	while (p->retired) {
		struct bounce *old = p->retired;
		p->retired = old->next;
		if (usable)
			g->cuda->cuMemFree(old->at);
		free(old);
	}
	if (usable)
		g->cuda->cuCtxPopCurrent(&context);
	free(p->bounces);
	p->bounces = NULL;
}
