/* SPDX-License-Identifier: Apache-2.0
 * Copies and fills, in stream order. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

enum copy_kind { COPY_IN, COPY_OUT, COPY_WITHIN, FILL8, FILL32 };

struct copy {
	struct CUctx_st *context;
	enum copy_kind kind;
	CUdeviceptr to, from; /* device addresses */
	char *host;	      /* host address */
	bool registered;      /* host was registered when this was captured */
	unsigned value;
	size_t bytes;
	char pageable[]; /* COPY_IN: copied at once, as the driver does */
};

/* Words that kernels may write while the host reads them. */
#define WORDS_MOST 4096

#define PAGE	   4096
#define REMOVE_MIN (1 << 20) /* from this size on, removing pages is faster than memset */

static void words_out(char *to, const char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 4) {
		const uint32_t word = atomic_load_explicit(
			(const _Atomic uint32_t *)(const void *)(from + i), memory_order_acquire);
		memcpy(to + i, &word, 4);
	}
}

/* Most zeroed memory is never touched again, so its whole pages are returned to the kernel. */
static void zero(char *to, size_t bytes)
{
	const size_t head = -(uintptr_t)to % PAGE,
		     whole = bytes > head ? (bytes - head) / PAGE * PAGE : 0;
	if (bytes < REMOVE_MIN || madvise(to + head, whole, MADV_REMOVE)) {
		memset(to, 0, bytes);
		return;
	}
	memset(to, 0, head);
	memset(to + head + whole, 0, bytes - head - whole);
}

static void copy_do(const struct copy *c, char *to, const char *from)
{
	if (c->kind == FILL8 && !c->value) {
		zero(to, c->bytes);
	} else if (c->kind == FILL8) {
		memset(to, (int)c->value, c->bytes);
	} else if (c->kind == FILL32) {
		for (size_t i = 0; i < c->bytes; i += 4)
			memcpy(to + i, &c->value, 4);
	} else if (c->kind == COPY_IN && c->bytes == 8 && (uintptr_t)to % 8 == 0) {
		uint64_t word; /* a word that a stream may wait for */
		memcpy(&word, from, 8);
		atomic_store_explicit((_Atomic uint64_t *)(void *)to, word, memory_order_release);
	} else if (c->kind == COPY_OUT && c->bytes <= WORDS_MOST && c->bytes % 4 == 0 &&
		   (uintptr_t)from % 4 == 0) {
		words_out(to, from, c->bytes);
	} else {
		memmove(to, from, c->bytes);
	}
}

/* NULL: not mapped. For memory that is not the GPU's, the address itself. */
static char *reach(const struct copy *c, struct fake_pin *pin, CUdeviceptr p)
{
	if (!p && !c->registered)
		return c->host;
	return fake_pin(pin, p ? p : (uintptr_t)c->host, c->bytes) ? pin->at : NULL;
}

static void copy_run(void *arg, const atomic_int *stop)
{
	const struct copy *c = arg;
	struct fake_pin to = {.range = NULL}, from = {.range = NULL};
	if (atomic_load(stop))
		return;
	const bool fills = c->kind == FILL8 || c->kind == FILL32;
	char *to_at = reach(c, &to, c->to);
	const char *from_at = to_at && !fills ? reach(c, &from, c->from) : NULL;
	if (to_at && (from_at || fills))
		copy_do(c, to_at, from_at);
	else
		fake_context_fault(c->context);
	if (to.range)
		fake_unpin(&to);
	if (from.range)
		fake_unpin(&from);
}

static const struct fake_work copy_work = {CU_GRAPH_NODE_TYPE_MEMCPY, copy_run, free, NULL};
static const struct fake_work fill_work = {CU_GRAPH_NODE_TYPE_MEMSET, copy_run, free, NULL};

static bool is_device(CUdeviceptr p, size_t bytes)
{
	struct fake_pin pin;
	if (!fake_pin(&pin, p, bytes))
		return false;
	fake_unpin(&pin);
	return true;
}

static CUresult copy_put(CUstream handle, const struct copy *what, bool wait)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	if (what->bytes == 0)
		return CUDA_SUCCESS;
	bool to_device = what->kind != COPY_OUT;
	bool from_device = what->kind == COPY_OUT || what->kind == COPY_WITHIN;
	if ((to_device && !is_device(what->to, what->bytes)) ||
	    (from_device && !is_device(what->from, what->bytes)))
		return CUDA_ERROR_INVALID_VALUE;
	const bool registered = what->host && is_device((uintptr_t)what->host, what->bytes);
	const bool pageable = what->host && !registered;
	/* A captured copy runs at each launch of the graph. */
	const bool captured = capture_active(stream);
	const bool taken = what->kind == COPY_IN && pageable && !wait && !captured;
	if (wait)
		error = capture_refuse(stream);
	if (wait && !error)
		error = capture_unsafe();
	if (error)
		return error;
	struct copy *c = malloc(sizeof(*c) + (taken ? what->bytes : 0));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(c, what, sizeof(*c));
	c->context = stream_context(stream);
	c->registered = registered && captured;
	if (taken)
		c->host = memcpy(c->pageable, what->host, what->bytes);
	const bool fills = what->kind == FILL8 || what->kind == FILL32;
	error = stream_put(stream, fills ? &fill_work : &copy_work, c);
	if (!error && !captured && (wait || (what->kind == COPY_OUT && pageable)))
		error = stream_wait(stream);
	return error;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
	struct copy c = {
		.kind = COPY_IN, .to = to, .host = (char *)(uintptr_t)from, .bytes = bytes};
	return copy_put(NULL, &c, true);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
	struct copy c = {.kind = COPY_OUT, .host = to, .from = from, .bytes = bytes};
	return copy_put(NULL, &c, true);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	struct copy c = {
		.kind = COPY_IN, .to = to, .host = (char *)(uintptr_t)from, .bytes = bytes};
	return copy_put(stream, &c, false);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	struct copy c = {.kind = COPY_OUT, .host = to, .from = from, .bytes = bytes};
	return copy_put(stream, &c, false);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	struct copy c = {.kind = COPY_WITHIN, .to = to, .from = from, .bytes = bytes};
	return copy_put(stream, &c, false);
}

CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t bytes, CUstream stream)
{
	struct copy c = {.kind = FILL8, .to = p, .value = value, .bytes = bytes};
	return copy_put(stream, &c, false);
}

CUresult cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t words, CUstream stream)
{
	if (words > SIZE_MAX / 4 || p % 4)
		return CUDA_ERROR_INVALID_VALUE;
	struct copy c = {.kind = FILL32, .to = p, .value = value, .bytes = 4 * words};
	return copy_put(stream, &c, false);
}
