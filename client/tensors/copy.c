/* SPDX-License-Identifier: Apache-2.0
 * Copies between tensors and buffers, done by the CPU or put on the request's stream. */
#include <string.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "cuda/gpu_state.h"
#include "tensors.h"

#define EVENT_DISABLE_TIMING 2u

/* The request's stream, prepared for copies. */
struct use {
	const struct cuda *cuda;
	CUstream stream;
	CUcontext push; /* context made current, or NULL */
	int mode;	/* for relaxed_end: other threads may be capturing */
};

static ncclsvc_result choose_context(ncclsvc_tensors *l, struct use *u)
{
	CUcontext current = NULL;
	CUdevice now, due;
	ncclsvc_result r = cuda_device(u->cuda, l->comm->device, &due);
	u->cuda->cuCtxGetCurrent(&current);
	if (r || (current && !u->cuda->cuCtxGetDevice(&now) && now == due))
		return r;
	session_lock(l->session);
	r = gpu_primary(l->session->gpu, l->comm->device, &u->push);
	session_unlock(l->session);
	return r;
}

static ncclsvc_result check_stream(ncclsvc_tensors *l, struct use *u)
{
	int capture = CU_STREAM_CAPTURE_STATUS_NONE;
	ncclsvc_result r = choose_context(l, u);
	CUresult e = r ? CUDA_SUCCESS : cuda_push(u->cuda, u->push);
	if (e)
		return cuda_error(u->cuda, e, "cannot use the GPU's context");
	if (r)
		return r;
	e = u->cuda->cuStreamIsCapturing(u->stream, &capture);
	if (!e && capture == CU_STREAM_CAPTURE_STATUS_NONE)
		return NCCLSVC_OK;
	cuda_pop(u->cuda, u->push);
	if (!e || e == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return error_set(NCCLSVC_UNSUPPORTED, "the stream is being captured into a CUDA "
						      "graph, and lists cannot be captured");
	return cuda_error(u->cuda, e, "cannot use the stream");
}

static ncclsvc_result use_stream(ncclsvc_tensors *l, struct use *u)
{
	*u = (struct use){.cuda = l->session->gpu->cuda, .stream = l->stream.handle};
	u->mode = relaxed_begin(u->cuda);
	ncclsvc_result r = check_stream(l, u);
	if (r)
		relaxed_end(u->cuda, u->mode);
	return r;
}

static CUdeviceptr device(const char *at)
{
	return (CUdeviceptr)(uintptr_t)at;
}

static CUresult put(ncclsvc_tensors *l, const struct use *u, char *to, const char *from,
		    uint64_t bytes)
{
	if (!bytes || to == from)
		return CUDA_SUCCESS;
	l->copied += bytes;
	if (on_gpu(l))
		return u->cuda->cuMemcpyDtoDAsync(device(to), device(from), bytes, u->stream);
	memmove(to, from, bytes); /* the caller's tensors may overlap */
	return CUDA_SUCCESS;
}

/* Allocations may be adjacent by chance, and a CUDA copy must stay within one. */
static bool together(const ncclsvc_tensors *l, const char *a, const char *b)
{
	const uint64_t id = on_gpu(l) ? list_memory_id(l, a) : 0;
	return !on_gpu(l) || (id && id == list_memory_id(l, b));
}

/* Parts that are contiguous on both sides are copied as one, because each copy has a cost. */
static size_t run_of(const ncclsvc_tensors *l, const struct piece *pieces, size_t i, size_t n,
		     uint64_t *bytes)
{
	size_t end = i + 1;
	*bytes = pieces[i].bytes;
	while (end < n && pieces[end].at == pieces[i].at + *bytes &&
	       pieces[end].offset == pieces[i].offset + *bytes &&
	       together(l, pieces[i].at, pieces[end].at))
		*bytes += pieces[end++].bytes;
	return end;
}

static CUresult put_all(ncclsvc_tensors *l, const struct use *u, char *buffer,
			const struct piece *pieces, size_t n, bool in)
{
	CUresult e = CUDA_SUCCESS;
	uint64_t bytes;
	for (size_t i = 0, end; !e && i < n; i = end) {
		char *at = buffer + pieces[i].offset;
		end = run_of(l, pieces, i, n, &bytes);
		e = in ? put(l, u, at, pieces[i].at, bytes) : put(l, u, pieces[i].at, at, bytes);
	}
	return e;
}

static CUresult clear(const ncclsvc_tensors *l, const struct use *u, char *at, uint64_t bytes)
{
	if (!bytes)
		return CUDA_SUCCESS;
	if (on_gpu(l))
		return u->cuda->cuMemsetD8Async(device(at), 0, bytes, u->stream);
	memset(at, 0, bytes);
	return CUDA_SUCCESS;
}

/* Bytes of an earlier list must not be sent with this one. */
static CUresult clear_gaps(const ncclsvc_tensors *l, const struct use *u, char *buffer,
			   const struct piece *pieces, size_t n, uint64_t at, uint64_t end)
{
	CUresult e = CUDA_SUCCESS;
	for (size_t i = 0; !e && i < n; i++) {
		e = clear(l, u, buffer + at, pieces[i].offset - at);
		at = pieces[i].offset + pieces[i].bytes;
	}
	return e ? e : clear(l, u, buffer + at, end - at);
}

static ncclsvc_result begin(ncclsvc_tensors *l, struct use *u)
{
	*u = (struct use){0};
	return on_gpu(l) ? use_stream(l, u) : NCCLSVC_OK;
}

static ncclsvc_result finish(const struct use *u, CUresult e)
{
	if (u->cuda) {
		cuda_pop(u->cuda, u->push);
		relaxed_end(u->cuda, u->mode);
	}
	return e ? cuda_error(u->cuda, e, "cannot copy the tensors") : NCCLSVC_OK;
}

static CUresult mark(const struct use *u, CUevent *event)
{
	CUresult e = u->cuda->cuEventCreate(event, EVENT_DISABLE_TIMING);
	if (!e && (e = u->cuda->cuEventRecord(*event, u->stream)))
		u->cuda->cuEventDestroy(*event);
	if (e)
		*event = NULL;
	return e;
}

ncclsvc_result copy_in(ncclsvc_tensors *l, struct stage_buffer *buffer, const struct piece *pieces,
		       size_t n, uint64_t start, uint64_t end, uint64_t layout)
{
	struct use u;
	CUresult e = CUDA_SUCCESS;
	ncclsvc_result r = begin(l, &u);
	if (r)
		return r;
	if (!layout || buffer->clean != layout)
		e = clear_gaps(l, &u, buffer->at, pieces, n, start, end);
	if (!e)
		e = put_all(l, &u, buffer->at, pieces, n, true);
	buffer->clean = e ? 0 : layout;
	if (on_gpu(l)) {
		const CUresult marked = mark(&u, &buffer->copied);
		e = e ? e : marked;
	}
	return finish(&u, e);
}

/* A stream that does not wait for its tasks must wait for this one. */
static ncclsvc_result after(ncclsvc_tensors *l, const struct use *u, ncclsvc_task task)
{
	return l->stream.detached && task ? ncclsvc_stream_wait(l->session, u->stream, task)
					  : NCCLSVC_OK;
}

ncclsvc_result copy_out(ncclsvc_tensors *l, const struct stage_buffer *buffer,
			const struct piece *pieces, size_t n, ncclsvc_task task, CUevent *event)
{
	struct use u;
	CUresult e = CUDA_SUCCESS;
	ncclsvc_result r = begin(l, &u);
	if (r)
		return r;
	if (on_gpu(l))
		r = after(l, &u, task);
	if (!r)
		e = put_all(l, &u, buffer->at, pieces, n, false);
	if (!r && !e && on_gpu(l) && event)
		e = mark(&u, event);
	ncclsvc_result finished = finish(&u, e);
	return r ? r : finished;
}

ncclsvc_result copy_through(ncclsvc_tensors *l, const struct piece *from, char *const *at, size_t n)
{
	struct use u;
	CUresult e = CUDA_SUCCESS;
	ncclsvc_result r = begin(l, &u);
	if (r)
		return r;
	for (size_t i = 0; !e && i < n; i++)
		e = put(l, &u, at[i], from[i].at, from[i].bytes);
	return finish(&u, e);
}

ncclsvc_result copy_done(ncclsvc_tensors *l, CUevent *event)
{
	if (!*event)
		return NCCLSVC_OK;
	const struct cuda *cuda = l->session->gpu->cuda;
	const int mode = relaxed_begin(cuda);
	CUresult e = cuda->cuEventQuery(*event);
	relaxed_end(cuda, mode);
	if (e == CUDA_ERROR_NOT_READY)
		return NCCLSVC_IN_PROGRESS;
	cuda->cuEventDestroy(*event);
	*event = NULL;
	return e ? cuda_error(cuda, e, "the tensors were not copied") : NCCLSVC_OK;
}
