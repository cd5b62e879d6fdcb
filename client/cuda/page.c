/* SPDX-License-Identifier: Apache-2.0
 * The page of the session memory that holds the timelines, as GPUs reach it. */
#include "core/session.h"
#include "core/timeline.h"
#include "state.h"
#include "trigger.h"

#define FOR_GOOD (UINT64_C(1) << 62) /* beyond every value; comparisons are cyclic */

ncclsvc_result page_register(ncclsvc_session *s, struct gpu *g, int device)
{
	CUcontext context;
	if (g->page.connection == s->connection)
		return NCCLSVC_OK;
	ncclsvc_result r = gpu_primary(g, device, &context);
	if (r)
		return r;
	CUresult e = cuda_push(g->cuda, context);
	if (!e) {
		e = g->cuda->cuMemHostRegister(svc_timelines(s->connection->ring), SVC_PAGE,
					       CU_MEMHOSTREGISTER_PORTABLE |
						       CU_MEMHOSTREGISTER_DEVICEMAP);
		cuda_pop(g->cuda, context);
	}
	if (e && e != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		return cuda_error(g->cuda, e, "the timelines cannot be registered with the GPU");
	g->page = (struct page){
		.connection = connection_ref(s->connection), .device = device, .ours = !e};
	return NCCLSVC_OK;
}

bool page_unregister(const struct cuda *cuda, struct page *page, const CUcontext *contexts)
{
	struct svc_timeline *timelines = svc_timelines(page->connection->ring);
	const bool stays = page->triggers && triggers_live_anywhere();
	/* Whatever a stream waits for here, it will not come any more. */
	for (int i = 1; i < SVC_TIMELINES; i++)
		timeline_raise(&timelines[i].done, FOR_GOOD);
	for (int d = 0; d < GPU_DEVICES; d++) {
		if (!contexts[d] || cuda_push(cuda, contexts[d]))
			continue;
		cuda->cuCtxSynchronize();
		if (page->ours && d == page->device && !stays)
			cuda->cuMemHostUnregister(timelines);
		cuda_pop(cuda, contexts[d]);
	}
	page->ours = false;
	return !stays;
}

ncclsvc_result page_address(struct gpu *g, const struct stream *st, CUdevice *device,
			    CUdeviceptr *address)
{
	CUcontext context = st->context;
	CUresult e = cuda_push(g->cuda, st->push);
	if (e)
		return cuda_error(g->cuda, e, "the stream's context cannot be used");
	if (!context)
		e = g->cuda->cuStreamGetCtx(st->handle, &context);
	if (!e)
		e = cuda_push(g->cuda, context);
	if (!e) {
		e = g->cuda->cuCtxGetDevice(device);
		if (!e)
			e = g->cuda->cuMemHostGetDevicePointer(
				address, svc_timelines(g->page.connection->ring), 0);
		cuda_pop(g->cuda, context);
	}
	cuda_pop(g->cuda, st->push);
	return e ? cuda_error(g->cuda, e, "the stream cannot reach the timelines") : NCCLSVC_OK;
}
