/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_rank.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "data.h"

#define SPOT_BYTES 64

bool gpu_rank_fail(struct gpu_rank *r, ncclsvc_result result, const char *format, ...)
{
	va_list args;
	r->reply.result = result;
	va_start(args, format);
	vsnprintf(r->reply.text, sizeof(r->reply.text), format, args);
	va_end(args);
	return false;
}

bool gpu_rank_fail_gpu(struct gpu_rank *r)
{
	return gpu_rank_fail(r, NCCLSVC_SYSTEM, "%.*s", JOB_TEXT_BYTES - 1, r->gpu.text);
}

/* A driver's call that the job fails with. */
#define DO(r, call, ...) (GPU_DO(&(r)->gpu, call, __VA_ARGS__) || gpu_rank_fail_gpu(r))

bool gpu_rank_open(struct gpu_rank *r, int ordinal)
{
	if (!gpu_open(&r->gpu, ordinal))
		return gpu_rank_fail_gpu(r);
	return DO(r, cuStreamCreate, &r->stream, CU_STREAM_NON_BLOCKING) &&
	       DO(r, cuStreamCreate, &r->compute, CU_STREAM_NON_BLOCKING) &&
	       DO(r, cuMemAlloc, &r->spot, SPOT_BYTES) &&
	       DO(r, cuMemsetD8Async, r->spot, 0, SPOT_BYTES, r->stream) &&
	       DO(r, cuStreamSynchronize, r->stream);
}

static bool release(struct gpu_rank *r, CUdeviceptr *p)
{
	CUdeviceptr old = *p;
	*p = 0;
	if (r->memory == MEMORY_LENT)
		return !old || r->side->give_back(r, old);
	return gpu_free(&r->gpu, r->memory, old) || gpu_rank_fail_gpu(r);
}

static bool allocate(struct gpu_rank *r, size_t bytes, CUdeviceptr *p)
{
	if (r->memory == MEMORY_LENT)
		return r->side->borrow(r, bytes, p);
	return gpu_alloc(&r->gpu, r->memory, bytes, p) || gpu_rank_fail_gpu(r);
}

/* ---- Buffers and what is in them ---- */

/* By way of the stream: the copy is over before anything that is put there next. */
bool gpu_rank_put(struct gpu_rank *r, CUdeviceptr to, uint64_t at, uint64_t bytes)
{
	return !bytes || (DO(r, cuMemcpyHtoDAsync, to, (char *)r->host + at, bytes, r->stream) &&
			  DO(r, cuStreamSynchronize, r->stream));
}

static bool put(struct gpu_rank *r, CUdeviceptr to, uint64_t bytes)
{
	return gpu_rank_put(r, to, 0, bytes);
}

static bool get(struct gpu_rank *r, CUdeviceptr from, uint64_t bytes)
{
	return DO(r, cuMemcpyDtoHAsync, r->host, from, bytes, r->stream) &&
	       DO(r, cuStreamSynchronize, r->stream);
}

static void host_free(struct gpu_rank *r)
{
	if (r->pinned)
		r->gpu.cu.cuMemHostUnregister(r->host);
	free(r->host);
	r->host = NULL;
	r->pinned = false;
}

/* Registered with the driver if it can be: copies are several times faster. */
static bool host_alloc(struct gpu_rank *r, size_t bytes)
{
	size_t size = (bytes + 4095) & ~(size_t)4095;
	r->host = aligned_alloc(4096, size);
	if (!r->host)
		return false;
	r->pinned = r->gpu.cu.cuMemHostRegister(r->host, size, 0) == CUDA_SUCCESS;
	return true;
}

void gpu_rank_close(struct gpu_rank *r)
{
	if (r->memory != MEMORY_LENT) { /* those went with the session */
		(void)release(r, &r->send);
		(void)release(r, &r->recv);
	}
	(void)gpu_free(&r->gpu, MEMORY_OWN, r->spot);
	if (r->stream)
		r->gpu.cu.cuStreamDestroy(r->stream);
	if (r->compute)
		r->gpu.cu.cuStreamDestroy(r->compute);
	host_free(r);
	gpu_close(&r->gpu);
}

static bool job_buffers(struct gpu_rank *r, const struct job *job)
{
	size_t size = job->bytes + DATA_GUARD;
	if (!release(r, &r->send) || !release(r, &r->recv) || !allocate(r, size, &r->send) ||
	    !allocate(r, size, &r->recv))
		return false;
	host_free(r);
	if (!host_alloc(r, size))
		return gpu_rank_fail(r, NCCLSVC_NO_MEMORY, "out of host memory for checking");
	r->bytes = job->bytes;
	data_poison(r->host, job->bytes);
	return put(r, r->send, size) && put(r, r->recv, size);
}

struct buffers {
	CUdeviceptr send, recv;
};

static struct buffers buffers_of(const struct gpu_rank *r, const struct work *w)
{
	struct work_sides sides = work_sides(w, (uint32_t)r->rank);
	size_t size = work_type_size(w->type);
	if (w->op == NCCLSVC_BARRIER)
		return (struct buffers){r->spot, r->spot};
	if (!w->in_place)
		return (struct buffers){r->send, r->recv};
	return (struct buffers){r->recv + sides.send_at * size, r->recv + sides.recv_at * size};
}

static bool fill(struct gpu_rank *r, const struct work *w, uint64_t seed)
{
	uint64_t n = work_sides(w, (uint32_t)r->rank).send * work_type_size(w->type);
	if (r->side->fill && w->op == NCCLSVC_ALL_GATHER)
		return r->side->fill(r, w, seed);
	data_fill(w, seed, (uint32_t)r->rank, r->host);
	return put(r, buffers_of(r, w).send, n);
}

/* ---- Operations ---- */

static bool begin(struct gpu_rank *r, enum sync sync)
{
	r->sync = sync;
	return !r->side->begin || r->side->begin(r);
}

/* Orders the stream and waits for it. */
static bool end(struct gpu_rank *r)
{
	if (r->sync == SYNC_LAST && r->side->order && !r->side->order(r))
		return false;
	return DO(r, cuStreamSynchronize, r->stream) && r->side->settle(r);
}

static bool submit(struct gpu_rank *r, const struct work *w, uint64_t n, struct pace *pace)
{
	struct buffers b = buffers_of(r, w);
	uint64_t cpu = perf_cpu_ns();
	for (uint64_t i = 0; i < n; i++) {
		pace_wait(pace);
		if (!r->side->submit(r, w, b.send, b.recv))
			return false;
		if (r->sync == SYNC_EACH && !DO(r, cuStreamSynchronize, r->stream))
			return false;
	}
	r->reply.cpu_ns = perf_cpu_ns() - cpu;
	return true;
}

static bool repeat_paced(struct gpu_rank *r, const struct work *w, uint64_t n, enum sync sync,
			 struct pace *pace)
{
	return !n || (begin(r, sync) && submit(r, w, n, pace) && end(r));
}

static bool repeat(struct gpu_rank *r, const struct work *w, uint64_t n, enum sync sync)
{
	struct pace none = pace_start(0);
	return repeat_paced(r, w, n, sync, &none);
}

/* The stream's last work was a kernel, as a trainer's is. After a copy, what waits on the stream
 * waits in the copy engine's queue, which sees that its wait is over up to 8 us later. */
static bool compute_a_little(struct gpu_rank *r)
{
	return (gpu_prepare_busy(&r->gpu) && gpu_be_busy(&r->gpu, r->stream, 1)) ||
	       gpu_rank_fail_gpu(r);
}

/* An operation that needs all ranks. */
static bool add_up(struct gpu_rank *r)
{
	struct work w = {.op = NCCLSVC_ALL_REDUCE,
			 .type = NCCLSVC_INT32,
			 .redop = NCCLSVC_SUM,
			 .nranks = (uint32_t)r->nranks,
			 .count = 1};
	return begin(r, SYNC_EACH) && r->side->submit(r, &w, r->spot, r->spot) && end(r);
}

/* The others have come as far. */
static bool meet(struct gpu_rank *r)
{
	return compute_a_little(r) && add_up(r);
}

/* What others do on the GPU meanwhile counts, too. */
static bool free_bytes(struct gpu_rank *r, size_t *bytes)
{
	size_t total;
	return DO(r, cuMemGetInfo, bytes, &total);
}

static bool job_init(struct gpu_rank *r, const struct job *job)
{
	size_t before, after;
	if (!free_bytes(r, &before))
		return false;
	uint64_t start = perf_now_ns();
	bool good = r->side->join(r, job) && add_up(r);
	r->reply.elapsed_ns = perf_now_ns() - start;
	if (!good || !free_bytes(r, &after))
		return false;
	r->reply.gpu_bytes = (int64_t)before - (int64_t)after;
	return true;
}

static bool compute(struct gpu_rank *r, const struct job *job)
{
	for (uint32_t i = 0; i < job->kernels; i++) {
		if (!gpu_be_busy(&r->gpu, r->compute, job->spins))
			return gpu_rank_fail_gpu(r);
	}
	return true;
}

static bool job_time(struct gpu_rank *r, const struct job *job)
{
	const struct work *w = &job->work;
	struct pace pace = pace_start(job->every_us);
	if ((job->fill && !fill(r, w, job->seed)) ||
	    !repeat_paced(r, w, job->warmup, (enum sync)job->sync, &pace) || !meet(r))
		return false;
	uint64_t start = perf_now_ns();
	pace = pace_start(job->every_us);
	bool good = compute(r, job) &&
		    repeat_paced(r, w, job->iters, (enum sync)job->sync, &pace) &&
		    (!job->kernels || DO(r, cuStreamSynchronize, r->compute));
	r->reply.elapsed_ns = perf_now_ns() - start - pace.paused_ns;
	return good;
}

static bool job_check(struct gpu_rank *r, const struct job *job)
{
	const struct work *w = &job->work;
	uint64_t used = work_bytes(w);
	data_poison(r->host, used);
	if (!put(r, r->recv, used + DATA_GUARD) || !fill(r, w, job->seed) ||
	    !repeat(r, w, 1, (enum sync)job->sync) || !get(r, r->recv, used + DATA_GUARD))
		return false;
	char *result =
		(char *)r->host + (w->op == NCCLSVC_BARRIER ? 0 : buffers_of(r, w).recv - r->recv);
	r->reply.wrong = data_wrong(w, job->seed, (uint32_t)r->rank, result) +
			 data_guard_wrong(r->host, used);
	return true;
}

static bool perform(struct gpu_rank *r, const struct job *job)
{
	if (job->work.count && work_bytes(&job->work) > r->bytes)
		return gpu_rank_fail(r, NCCLSVC_INVALID_ARGUMENT, "the buffers are too small");
	switch (job->kind) {
	case JOB_INIT:
		return job_init(r, job);
	case JOB_BUFFERS:
		return job_buffers(r, job);
	case JOB_TIME:
		return job_time(r, job);
	case JOB_CHECK:
		return job_check(r, job);
	}
	return gpu_rank_fail(r, NCCLSVC_INVALID_ARGUMENT, "no job %u", job->kind);
}

bool gpu_rank_serve(struct gpu_rank *r, int fd)
{
	struct job job;
	bool good = true, heard = true;
	while (heard && job_receive(fd, &job) && job.kind != JOB_QUIT) {
		/* A failed rank stays until the coordinator has heard the others, or they would
		 * only report that this one left. */
		if (!good)
			continue;
		r->reply = (struct job_reply){0};
		good = perform(r, &job);
		heard = job_send(fd, &r->reply, sizeof(r->reply));
	}
	return good;
}
