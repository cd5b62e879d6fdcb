/* SPDX-License-Identifier: Apache-2.0
 * For staged device memory: copies between the GPU and the staging memory, in both directions at
 * once. Nothing on these streams waits for other processes, so each copy ends by itself. */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/timings.h"
#include "nvtx.h"
#include "worker.h"
#include "worker_launch.h"

bool copy_start(struct worker *w, uint64_t pinned, char *text, size_t size)
{
	struct stat st;
	int least = 0, greatest = 0;
	if (fstat(WORKER_STAGING_FD, &st) || pinned > (uint64_t)st.st_size) {
		snprintf(text, size, "there is no staging memory");
		return false;
	}
	w->staging_bytes = (uint64_t)st.st_size;
	void *p = mmap(NULL, w->staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		       WORKER_STAGING_FD, 0);
	if (p == MAP_FAILED) {
		snprintf(text, size, "the staging memory cannot be mapped");
		return false;
	}
	w->staging = p;
	CUresult error = cu.cuMemHostRegister(p, pinned, CU_MEMHOSTREGISTER_PORTABLE);
	if (error) {
		snprintf(text, size,
			 "%llu bytes of host memory cannot be pinned (staging_bytes): %s",
			 (unsigned long long)pinned, gpu_api_cuda_error(error));
		return false;
	}
	cu.cuCtxGetStreamPriorityRange(&least, &greatest);
	for (int i = 0; i < COPY_SLOTS && !error; i++) {
		w->copies[i].enqueued = atomic_load(&w->queue->slots[i].completed);
		error = cu.cuStreamCreateWithPriority(&w->copies[i].stream, CU_STREAM_NON_BLOCKING,
						      greatest);
	}
	if (error)
		snprintf(text, size, "cannot create a stream: %s", gpu_api_cuda_error(error));
	return !error;
}

/* The task of a failed copy is not known here, and a missing copy would go unnoticed, so the worker
 * exits. */
static void copy_failed(struct worker *w, CUresult error)
{
	if (!worker_bad(w, error, "memory cannot be copied between GPU and host") || w->dying[0])
		return;
	struct worker_message m = {.kind = WORKER_DYING, .result = NCCLSVC_WORKER_LOST};
	snprintf(w->dying, sizeof(w->dying), "a copy failed: %s", gpu_api_cuda_error(error));
	snprintf(m.text, sizeof(m.text), "%s", w->dying);
	w->quit = true;
	worker_send(w, &m);
}

static CUresult copy(const struct worker *w, const struct launch *l)
{
	CUstream stream = w->copies[l->slot].stream;
	CUresult error = CUDA_SUCCESS;
	for (uint32_t i = 0; i < l->blocks && !error; i++) {
		char *host = w->staging + l->host + i * l->host_stride;
		const uint64_t at = i * l->stride;
		error = l->slot == COPY_IN
				? cu.cuMemcpyDtoHAsync(host, l->src + at, l->count, stream)
				: cu.cuMemcpyHtoDAsync(l->dst + at, host, l->count, stream);
	}
	return error;
}

/* Launches for an earlier worker of this GPU have addresses in that worker. */
static bool for_us(const struct worker *w, const struct launch *l)
{
	const uint64_t bytes = w->staging_bytes;
	return l->generation == w->generation && l->slot < COPY_SLOTS && l->host <= bytes &&
	       (!l->blocks || (l->count <= bytes - l->host &&
			       (l->blocks - 1) * l->host_stride <= bytes - l->host - l->count));
}

bool copy_next(struct worker *w)
{
	uint64_t head = atomic_load_explicit(&w->queue->head, memory_order_acquire);
	const struct launch *l = &w->queue->launches[w->tail & (WORKER_LAUNCHES - 1)];
	if (w->tail == head)
		return false;
	if (for_us(w, l)) {
		const struct nvtx_names *names = nvtx_names_of(l->op);
		nvtx_begin(l->slot == COPY_IN ? names->pre : names->post);
		CUresult error = copy(w, l);
		if (!error)
			error = cu.cuStreamWriteValue64(
				w->copies[l->slot].stream,
				w->progress + l->slot * sizeof(struct slot_progress), l->seq,
				CU_STREAM_WRITE_VALUE_DEFAULT);
		nvtx_end();
		w->copies[l->slot].enqueued = l->seq;
		copy_failed(w, error);
	}
	atomic_store_explicit(&w->queue->tail, ++w->tail, memory_order_release);
	return true;
}

void copy_watch(struct worker *w)
{
	const uint64_t now = clock_now();
	const bool look = now - w->checked_ns >= WORKER_WATCH_NS;
	w->in_flight = 0;
	for (int i = 0; i < COPY_SLOTS; i++) {
		if (atomic_load(&w->queue->slots[i].completed) >= w->copies[i].enqueued)
			continue;
		w->in_flight++;
		CUresult error = look ? cu.cuStreamQuery(w->copies[i].stream) : CUDA_SUCCESS;
		if (error != CUDA_ERROR_NOT_READY)
			copy_failed(w, error);
	}
	if (look)
		w->checked_ns = now;
}
