/* SPDX-License-Identifier: Apache-2.0
 * The page of session memory that holds the timelines, as GPUs access it. */
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "gpu_state.h"

#define FOR_GOOD (UINT64_C(1) << 62) /* beyond every value; comparisons are modulo 2^64 */

static void destroy(struct page *page)
{
	if (page->context && !cuda_push(page->cuda, page->context)) {
		if (page->ours)
			page->cuda->cuMemHostUnregister(page->timelines);
		cuda_pop(page->cuda, page->context);
	}
	if (page->context)
		page->cuda->cuDevicePrimaryCtxRelease(page->device);
	if (page->timelines)
		munmap(page->timelines, SVC_PAGE);
	free(page);
}

struct page *page_ref(struct page *page)
{
	atomic_fetch_add_explicit(&page->refs, 1, memory_order_relaxed);
	return page;
}

void page_unref(struct page *page)
{
	if (page && atomic_fetch_sub_explicit(&page->refs, 1, memory_order_acq_rel) == 1)
		destroy(page);
}

static CUresult register_with_gpu(struct page *page)
{
	CUresult e = page->cuda->cuDevicePrimaryCtxRetain(&page->context, page->device);
	if (e) {
		page->context = NULL;
		return e;
	}
	e = cuda_push(page->cuda, page->context);
	if (e)
		return e;
	e = page->cuda->cuMemHostRegister(page->timelines, SVC_PAGE,
					  CU_MEMHOSTREGISTER_PORTABLE |
						  CU_MEMHOSTREGISTER_DEVICEMAP);
	cuda_pop(page->cuda, page->context);
	page->ours = !e;
	return e == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ? CUDA_SUCCESS : e;
}

ncclsvc_result page_register(ncclsvc_session *s, struct gpu *g, int device)
{
	CUdevice cu;
	if (g->page)
		return NCCLSVC_OK;
	ncclsvc_result r = cuda_device(g->cuda, device, &cu);
	if (r)
		return r;
	struct page *page = malloc(sizeof(*page));
	if (!page)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	void *map = mmap(NULL, SVC_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, s->connection->memory,
			 SVC_TIMELINES_AT);
	*page = (struct page){.refs = 1,
			      .cuda = g->cuda,
			      .timelines = map == MAP_FAILED ? NULL : map,
			      .device = cu};
	if (map == MAP_FAILED) {
		page_unref(page);
		return error_set(NCCLSVC_NO_MEMORY, "cannot map the timelines: %m");
	}
	CUresult e = register_with_gpu(page);
	if (e) {
		page_unref(page);
		return cuda_error(g->cuda, e, "cannot register the timelines with the GPU");
	}
	g->page = page;
	return NCCLSVC_OK;
}

static void release(struct page *page)
{
	/* Whatever a stream waits for here will not come any more. */
	for (int i = 1; i < SVC_TIMELINES; i++)
		timeline_raise(&page->timelines[i].done, FOR_GOOD);
}

void page_retire(struct page *page, const CUcontext *contexts)
{
	const int mode = relaxed_begin(page->cuda); /* other threads may be capturing */
	release(page);
	for (int d = 0; d < GPU_DEVICES; d++) {
		if (!contexts[d] || cuda_push(page->cuda, contexts[d]))
			continue;
		page->cuda->cuCtxSynchronize();
		cuda_pop(page->cuda, contexts[d]);
	}
	relaxed_end(page->cuda, mode);
	page_unref(page);
}

ncclsvc_result page_address(struct gpu *g, const struct stream *st, CUdevice *device,
			    CUdeviceptr *address)
{
	CUcontext context = st->context;
	CUresult e = cuda_push(g->cuda, st->push);
	if (e)
		return cuda_error(g->cuda, e, "cannot use the stream's context");
	if (!context)
		e = g->cuda->cuStreamGetCtx(st->handle, &context);
	if (!e)
		e = cuda_push(g->cuda, context);
	if (!e) {
		e = g->cuda->cuCtxGetDevice(device);
		if (!e)
			e = g->cuda->cuMemHostGetDevicePointer(address, g->page->timelines, 0);
		cuda_pop(g->cuda, context);
	}
	cuda_pop(g->cuda, st->push);
	return e ? cuda_error(g->cuda, e, "cannot map the timelines for the stream") : NCCLSVC_OK;
}
