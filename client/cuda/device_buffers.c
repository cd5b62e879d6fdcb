/* SPDX-License-Identifier: Apache-2.0
 * The regions that hold operations' buffers. Some buffers span several mappings of cuMemCreate
 * memory, like those of expandable segments. Each mapping is a region of its own, registered at
 * first use. The regions that a buffer spans form one more region, a range, which the daemon maps
 * without gaps. A range is dropped with the first of its parts. */
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "gpu_state.h"
#include "proto/names.h"

/* ---- Ranges ---- */

static bool is_device(const struct gpu *g, uint64_t at)
{
	int type = 0;
	return !g->cuda->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) &&
	       type == CU_MEMORYTYPE_DEVICE;
}

/* Collects the mappings under the buffer in `parts`, *n of them, all alive and registered. */
static ncclsvc_result collect(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			      uint64_t since, uint16_t *parts, unsigned *n, bool *yielded)
{
	struct device_region *r = NULL, *before;
	*n = 0;
	for (uint64_t at = b->at; at - b->at < b->bytes; at = r->base + r->bytes) {
		const struct buffer rest = {b->op, b->name, at, 1};
		before = r;
		ncclsvc_result result = device_locate(s, g, &rest, since, &r, yielded);
		if (result && before && !is_device(g, at))
			return device_too_long(b, before);
		if (result || *yielded)
			return result;
		if (!r->mapping)
			return device_too_long(b, before);
		parts[(*n)++] = (uint16_t)(r - g->regions);
	}
	return NCCLSVC_OK;
}

/* Finds a range made of these parts, and unless `exact`, perhaps of more around them. */
static struct device_region *find(const struct gpu *g, const uint16_t *parts, unsigned n,
				  bool exact)
{
	for (struct device_region *range = g->ranges; range; range = range->next_range) {
		if (exact && range->nparts != n)
			continue;
		for (unsigned i = 0; i + n <= range->nparts; i++)
			if (!memcmp(range->parts + i, parts, n * sizeof(*parts)))
				return range;
	}
	return NULL;
}

static ncclsvc_result make(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			   uint64_t since, const uint16_t *parts, unsigned n)
{
	const struct device_region *first = &g->regions[parts[0]];
	struct device_region range = {
		.base = first->base,
		.clock = g->clock,
		.device = first->device,
		.busy = true,
		.parts = malloc(n * sizeof(*parts)),
		.nparts = n,
	};
	struct svc_region_range request = {
		.base = first->base, .device = b->op->comm->daemon_device, .count = n};
	if (!range.parts)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	memcpy(range.parts, parts, n * sizeof(*parts));
	for (unsigned i = 0; i < n; i++) {
		request.parts[i] = g->regions[parts[i]].id;
		range.bytes += g->regions[parts[i]].bytes;
	}
	request.bytes = range.bytes;
	struct device_region *region = device_region_insert(s, g, since, &range);
	if (!region) {
		free(range.parts);
		return NCCLSVC_LIMIT;
	}
	return device_introduce(s, g, region, SVC_REGION_RANGE, &request, -1);
}

/* A range of 2 to SVC_RANGE_PARTS parts: an existing one, or a new one (*yielded). */
static ncclsvc_result range_of(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			       uint64_t since, const uint16_t *parts, unsigned n, bool exact,
			       struct device_region **found, bool *yielded)
{
	struct device_region *range = find(g, parts, n, exact);
	*yielded = !range || range->busy;
	if (!range)
		return make(s, g, b, since, parts, n);
	if (range->busy && !session_wait(s, deadline_in(REQUEST_MS)))
		return error_set(NCCLSVC_TIMEOUT, "the daemon does not answer");
	if (*yielded)
		return NCCLSVC_OK;
	range->clock = g->clock;
	*found = range;
	return NCCLSVC_OK;
}

static ncclsvc_result range_locate(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
				   uint64_t since, struct device_region **found, bool *yielded)
{
	uint16_t parts[DEVICE_REGIONS];
	unsigned n;
	ncclsvc_result r = collect(s, g, b, since, parts, &n, yielded);
	/* A message has room for only so many parts; more than that become a range of ranges. */
	while (!r && !*yielded && n > SVC_RANGE_PARTS) {
		unsigned made = 0;
		for (unsigned i = 0; !r && !*yielded && i < n; i += SVC_RANGE_PARTS) {
			unsigned take = n - i < SVC_RANGE_PARTS ? n - i : SVC_RANGE_PARTS;
			struct device_region *part = &g->regions[parts[i]];
			if (take > 1)
				r = range_of(s, g, b, since, &parts[i], take, true, &part, yielded);
			parts[made++] = (uint16_t)(part - g->regions);
		}
		n = made;
	}
	return r || *yielded ? r : range_of(s, g, b, since, parts, n, false, found, yielded);
}

/* ---- Buffers of operations ---- */

/* Finds the buffer's region. The caller's records may name it until something yields. */
static ncclsvc_result locate(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
			     uint64_t since, struct device_region **found, bool *yielded)
{
	struct device_region *r = NULL;
	ncclsvc_result result = device_locate(s, g, b, since, &r, yielded);
	if (result || *yielded)
		return result;
	if (b->bytes > r->bytes - (b->at - r->base))
		return r->mapping ? range_locate(s, g, b, since, found, yielded)
				  : device_too_long(b, r);
	*found = r;
	return NCCLSVC_OK;
}

ncclsvc_result device_buffers_find(ncclsvc_session *s, struct gpu *g, struct op *op, uint64_t since,
				   bool *yielded)
{
	struct buffer src = {op, "sendbuf", (uintptr_t)op->src, op->src_bytes};
	struct buffer dst = {op, "recvbuf", (uintptr_t)op->dst, op->dst_bytes};
	struct device_region *from = NULL, *to = NULL;
	ncclsvc_result r = NCCLSVC_OK;
	if (src.bytes)
		r = locate(s, g, &src, since, &from, yielded);
	if (r || *yielded)
		return r;
	/* This region is known to be alive; most operations are in place, or have both buffers in
	 * one allocation. */
	if (from && dst.bytes && dst.at - from->base < from->bytes &&
	    dst.bytes <= from->bytes - (dst.at - from->base))
		to = from;
	else if (dst.bytes)
		r = locate(s, g, &dst, since, &to, yielded);
	if (r || *yielded)
		return r;
	op->regions.entries[0] = from ? (uint16_t)(from - g->regions + 1) : 0;
	op->regions.entries[1] = to ? (uint16_t)(to - g->regions + 1) : 0;
	op->record.src_region = from ? from->id : 0;
	op->record.dst_region = to ? to->id : 0;
	op->record.src_offset = from ? src.at - from->base : 0;
	op->record.dst_offset = to ? dst.at - to->base : 0;
	return NCCLSVC_OK;
}

ncclsvc_result host_check(const ncclsvc_session *s, const struct op *op, const char *buffer)
{
	const struct cuda *cuda = s->gpu->cuda;
	int type = 0;
	unsigned managed = 0;
	if (cuda->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					(uintptr_t)buffer) ||
	    type != CU_MEMORYTYPE_DEVICE ||
	    (!cuda->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
					  (uintptr_t)buffer) &&
	     managed))
		return NCCLSVC_OK;
	return error_set(NCCLSVC_UNSUPPORTED,
			 "%s: the buffer at %p is device memory, but communicator %s is a host "
			 "communicator: join it with a device",
			 svc_op_name(op->record.op), (const void *)buffer, op->comm->label);
}

/* Querying memory needs a current context: a thread that has none gets one meanwhile. */
ncclsvc_result device_buffers_find_all(ncclsvc_session *s, struct gpu *g, struct op *ops,
				       unsigned n, uint64_t since, bool *yielded)
{
	CUcontext now = NULL, own = NULL;
	ncclsvc_result r = NCCLSVC_OK;
	g->cuda->cuCtxGetCurrent(&now);
	for (unsigned i = 0; !r && !*yielded && i < n; i++) {
		if (ops[i].comm->device < 0)
			continue;
		if (!now && !own) {
			r = gpu_primary(g, ops[i].comm->device, &own);
			CUresult e = r ? CUDA_SUCCESS : g->cuda->cuCtxPushCurrent(own);
			if (e) {
				own = NULL;
				r = cuda_error(g->cuda, e, "cannot use the GPU's context");
			}
		}
		if (!r)
			r = device_buffers_find(s, g, &ops[i], since, yielded);
	}
	if (own)
		g->cuda->cuCtxPopCurrent(&own);
	return r;
}
