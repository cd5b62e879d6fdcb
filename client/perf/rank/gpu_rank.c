/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_rank.h"

#include <stdlib.h>

#define SPOT_BYTES 64

static struct gpu_rank *own(struct rank *r)
{
	return (struct gpu_rank *)r;
}

static bool failed(struct gpu_rank *g)
{
	return rank_fail(&g->rank, NCCLSVC_SYSTEM, "%.*s", COMMAND_TEXT_BYTES - 1, g->gpu.text);
}

/* Calls the driver; if it fails, so does the command. */
#define DO(g, call, ...) (GPU_DO(&(g)->gpu, call, __VA_ARGS__) || failed(g))

static CUdeviceptr device(const char *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

bool gpu_rank_open(struct gpu_rank *g, int ordinal)
{
	CUdeviceptr spot;
	if (!gpu_open(&g->gpu, ordinal))
		return failed(g);
	if (!DO(g, cuStreamCreate, &g->stream, CU_STREAM_NON_BLOCKING) ||
	    !DO(g, cuStreamCreate, &g->compute, CU_STREAM_NON_BLOCKING) ||
	    !DO(g, cuMemAlloc, &spot, SPOT_BYTES))
		return false;
	g->spot = (char *)(uintptr_t)spot;
	return DO(g, cuMemsetD8Async, spot, 0, SPOT_BYTES, g->stream) &&
	       DO(g, cuStreamSynchronize, g->stream);
}

static void unstage(struct gpu_rank *g)
{
	if (g->pinned)
		g->gpu.cu.cuMemHostUnregister(g->rank.host);
	free(g->rank.host);
	g->rank.host = NULL;
	g->pinned = false;
}

void gpu_rank_close(struct gpu_rank *g)
{
	(void)gpu_rank_release(&g->rank, g->rank.send);
	(void)gpu_rank_release(&g->rank, g->rank.recv);
	(void)gpu_rank_release(&g->rank, g->spot);
	if (g->stream)
		g->gpu.cu.cuStreamDestroy(g->stream);
	if (g->compute)
		g->gpu.cu.cuStreamDestroy(g->compute);
	unstage(g);
	gpu_close(&g->gpu);
}

/* ---- Memory ---- */

bool gpu_rank_allocate(struct rank *r, size_t bytes, char **p)
{
	struct gpu_rank *g = own(r);
	CUdeviceptr made = 0;
	bool good = DO(g, cuMemAlloc, &made, bytes);
	*p = (char *)(uintptr_t)made;
	return good;
}

bool gpu_rank_release(struct rank *r, char *p)
{
	struct gpu_rank *g = own(r);
	return !p || DO(g, cuMemFree, device(p));
}

/* Registered with the driver if possible, which makes copies several times faster. */
bool gpu_rank_stage(struct rank *r, size_t bytes)
{
	struct gpu_rank *g = own(r);
	const size_t size = (bytes + 4095) & ~(size_t)4095;
	unstage(g);
	r->host = aligned_alloc(4096, size);
	if (!r->host)
		return rank_fail(r, NCCLSVC_NO_MEMORY, "out of host memory for checking");
	g->pinned = g->gpu.cu.cuMemHostRegister(r->host, size, 0) == CUDA_SUCCESS;
	return true;
}

/* The copy uses the stream, so it is over before anything put there next. */
bool gpu_rank_put(struct rank *r, char *to, const char *from, uint64_t bytes)
{
	struct gpu_rank *g = own(r);
	return DO(g, cuMemcpyHtoDAsync, device(to), from, bytes, g->stream) && gpu_rank_wait(r);
}

bool gpu_rank_get(struct rank *r, char *to, const char *from, uint64_t bytes)
{
	struct gpu_rank *g = own(r);
	return DO(g, cuMemcpyDtoHAsync, to, device(from), bytes, g->stream) && gpu_rank_wait(r);
}

bool gpu_rank_free_memory(struct rank *r, size_t *bytes)
{
	size_t total;
	return DO(own(r), cuMemGetInfo, bytes, &total);
}

/* ---- Streams ---- */

bool gpu_rank_wait(struct rank *r)
{
	return DO(own(r), cuStreamSynchronize, own(r)->stream);
}

bool gpu_rank_barrier(struct rank *r)
{
	const struct backend *backend = r->backend;
	char *spot = own(r)->spot;
	struct work w = {.op = NCCLSVC_ALL_REDUCE,
			 .type = NCCLSVC_INT32,
			 .redop = NCCLSVC_SUM,
			 .nranks = (uint32_t)r->nranks,
			 .count = 1};
	r->sync = SYNC_EACH;
	return (!backend->begin || backend->begin(r, &w)) && backend->submit(r, &w, spot, spot) &&
	       backend->finish(r);
}

/* Puts a short kernel on the stream, because a trainer's stream usually ends with a kernel. After a
 * copy, a wait on the stream sits in the copy engine's queue, which notices its end up to 8 us
 * late. */
bool gpu_rank_prepare(struct rank *r)
{
	struct gpu_rank *g = own(r);
	return (gpu_prepare_busy(&g->gpu) && gpu_be_busy(&g->gpu, g->stream, 1)) || failed(g);
}

bool gpu_rank_compute(struct rank *r, uint32_t kernels, uint32_t spins)
{
	struct gpu_rank *g = own(r);
	for (uint32_t i = 0; i < kernels; i++) {
		if (!gpu_be_busy(&g->gpu, g->compute, spins))
			return failed(g);
	}
	return true;
}

bool gpu_rank_compute_wait(struct rank *r)
{
	return DO(own(r), cuStreamSynchronize, own(r)->compute);
}

bool gpu_rank_short_kernel(struct rank *r)
{
	struct gpu_rank *g = own(r);
	return (gpu_prepare_busy(&g->gpu) && gpu_be_short(&g->gpu, g->stream)) || failed(g);
}

/* ---- Graphs ---- */

/* Loads the kernels first, which must not happen during a capture. */
bool gpu_rank_capture_begin(struct rank *r)
{
	struct gpu_rank *g = own(r);
	return (gpu_prepare_busy(&g->gpu) || failed(g)) &&
	       DO(g, cuStreamBeginCapture, g->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

bool gpu_rank_capture_end(struct rank *r)
{
	struct gpu_rank *g = own(r);
	return gpu_graph_end(&g->gpu, g->stream, &g->graph) || failed(g);
}

bool gpu_rank_launch(struct rank *r)
{
	struct gpu_rank *g = own(r);
	return gpu_graph_launch(&g->gpu, g->graph, g->stream) || failed(g);
}

bool gpu_rank_drop(struct rank *r)
{
	struct gpu_rank *g = own(r);
	return gpu_graph_destroy(&g->gpu, g->graph) || failed(g);
}
