/* SPDX-License-Identifier: Apache-2.0
 * Copies of what blocking Sends send from GPUs, where they return before their group is whole. */
#include <stdlib.h>
#include <time.h>

#include "gpu.h"
#include "plan.h"

#define LOOK_NS 20000 /* between questions whether the copy is made */

static ncclsvc_result make(struct gpu *g, int device, struct bounce *b, uint64_t bytes)
{
	CUcontext context;
	ncclsvc_result r = gpu_primary(g, device, &context);
	if (r || b->bytes >= bytes)
		return r;
	CUresult e = g->cuda->cuCtxPushCurrent(context);
	if (!e) {
		CUdeviceptr p = 0;
		if (b->bytes)
			g->cuda->cuMemFree(b->at);
		b->bytes = 0;
		e = g->cuda->cuMemAlloc(&p, bytes);
		g->cuda->cuCtxPopCurrent(&context);
		if (!e)
			*b = (struct bounce){p, bytes};
	}
	return e ? cuda_error(g->cuda, e, "no memory for a copy of what is sent") : NCCLSVC_OK;
}

/* Until the stream has made the copy; what it waits for itself may take its time. */
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
		return error_set(NCCLSVC_TIMEOUT,
				 "the stream did not come to the copy of what is sent: nothing was "
				 "submitted");
	return e ? cuda_error(g->cuda, e, "what is sent cannot be copied") : NCCLSVC_OK;
}

ncclsvc_result bounce_copy(ncclsvc_plan *p, uint32_t place, struct op *op, uint64_t deadline)
{
	ncclsvc_session *s = p->session;
	struct gpu *g = s->gpu;
	CUcontext push = NULL;
	if (!op->src_bytes)
		return NCCLSVC_OK;
	p->bounce_device = p->comm->device;
	if (!p->bounces && !(p->bounces = calloc(p->ntasks, sizeof(*p->bounces))))
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	struct bounce *b = &p->bounces[place];
	ncclsvc_result r = make(g, p->comm->device, b, op->src_bytes);
	if (!r)
		r = stream_context(g, p->comm->device, op->stream, &push);
	if (r)
		return r;
	CUresult e = cuda_push(g->cuda, push);
	if (!e) {
		e = g->cuda->cuMemcpyDtoDAsync(b->at, (uintptr_t)op->src, op->src_bytes,
					       op->stream);
		r = e ? NCCLSVC_OK : wait_copied(s, g, op->stream, deadline);
		cuda_pop(g->cuda, push);
	}
	if (e)
		return cuda_error(g->cuda, e, "what is sent cannot be copied");
	op->src = (const char *)(uintptr_t)b->at;
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
	if (usable)
		g->cuda->cuCtxPopCurrent(&context);
	free(p->bounces);
	p->bounces = NULL;
}
