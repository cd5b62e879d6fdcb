/* SPDX-License-Identifier: Apache-2.0
 * Memory for tensors, and buffers that are kept for later lists. */
#include <stdlib.h>

#include "base/error.h"
#include "core/session_handle.h"
#include "tensors.h"

#define SMALLEST ((uint64_t)64 << 10)
#define DOUBLED                                                                                    \
	((uint64_t)64 << 20) /* sizes up to this are powers of two, so that buffers are reused */
#define LARGE_UNIT   ((uint64_t)16 << 20)
#define BUFFERS_IDLE 8

/* ---- Memory ---- */

static ncclsvc_result memory_get(ncclsvc_tensors *l, uint64_t bytes, void **at)
{
	return on_gpu(l) ? ncclsvc_mem_alloc_device(l->session, l->comm->device, bytes, at)
			 : ncclsvc_mem_alloc(l->session, bytes, at);
}

ncclsvc_result ncclsvc_tensors_allocate(ncclsvc_tensors *l, ncclsvc_tensor *tensors, size_t n,
					void **memory)
{
	struct list list;
	void *at = NULL;
	if (!l || !memory)
		return error_argument("ncclsvc_tensors_allocate: lists or memory is NULL");
	ncclsvc_result r = list_take(&list, tensors, n, false);
	if (r)
		return r;
	if (list.total)
		r = memory_get(l, list.total, &at);
	for (size_t i = 0; !r && i < n; i++)
		tensors[i].data = list.bytes[i] ? (char *)at + list.offsets[i] : NULL;
	if (!r)
		*memory = at;
	list_free(&list);
	return r;
}

/* ---- Buffers ---- */

/* Whether a list uses it, or a failed list has left its copy on a stream. */
static bool in_use(ncclsvc_tensors *l, struct stage_buffer *buffer)
{
	return buffer->busy || copy_done(l, &buffer->copied) == NCCLSVC_IN_PROGRESS;
}

static ncclsvc_result buffer_free(ncclsvc_tensors *l, struct stage_buffer *buffer)
{
	ncclsvc_result r = ncclsvc_mem_free(l->session, buffer->at);
	if (r)
		return r;
	struct stage_buffer **at = &l->buffers;
	while (*at != buffer)
		at = &(*at)->next;
	*at = buffer->next;
	free(buffer);
	return NCCLSVC_OK;
}

/* Frees the smallest of the unused buffers if there are too many. */
static void tidy(ncclsvc_tensors *l)
{
	struct stage_buffer *smallest = NULL;
	unsigned idle = 0;
	for (struct stage_buffer *b = l->buffers; b; b = b->next) {
		if (in_use(l, b))
			continue;
		idle++;
		if (!smallest || b->bytes < smallest->bytes)
			smallest = b;
	}
	if (idle > BUFFERS_IDLE)
		buffer_free(l, smallest);
}

static uint64_t round_up(uint64_t bytes)
{
	uint64_t size = SMALLEST;
	if (bytes > DOUBLED)
		return (bytes + LARGE_UNIT - 1) / LARGE_UNIT * LARGE_UNIT;
	while (size < bytes)
		size *= 2;
	return size;
}

static ncclsvc_result make(ncclsvc_tensors *l, uint64_t bytes, struct stage_buffer **out)
{
	void *at;
	if (bytes > SVC_REGION_MAX - LARGE_UNIT)
		return error_argument("a list of %llu bytes is too large",
				      (unsigned long long)bytes);
	const uint64_t size = round_up(bytes);
	struct stage_buffer *b = calloc(1, sizeof(*b));
	if (!b)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	ncclsvc_result r = memory_get(l, size, &at);
	if (r) {
		free(b);
		return r;
	}
	*b = (struct stage_buffer){.next = l->buffers, .at = at, .bytes = size};
	l->buffers = b;
	*out = b;
	return NCCLSVC_OK;
}

ncclsvc_result buffer_get(ncclsvc_tensors *l, uint64_t bytes, struct stage_buffer **buffer)
{
	struct stage_buffer *best = NULL;
	ncclsvc_result r = NCCLSVC_OK;
	tidy(l);
	for (struct stage_buffer *b = l->buffers; b; b = b->next)
		if (!in_use(l, b) && b->bytes >= bytes && (!best || b->bytes < best->bytes))
			best = b;
	if (!best)
		r = make(l, bytes, &best);
	if (r)
		return r;
	best->busy = true;
	*buffer = best;
	return NCCLSVC_OK;
}

void buffer_put(struct stage_buffer *buffer)
{
	if (buffer)
		buffer->busy = false;
}

ncclsvc_result buffers_free(ncclsvc_tensors *l)
{
	ncclsvc_result r = NCCLSVC_OK;
	while (!r && l->buffers)
		r = buffer_free(l, l->buffers);
	return r;
}
