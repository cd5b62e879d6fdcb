/* SPDX-License-Identifier: Apache-2.0
 * Buffers that span several mappings of cuMemCreate memory, like those of expandable segments. Each
 * mapping is a region of its own, registered at first use. The regions that a buffer spans form one
 * more region, a range, which the daemon maps without gaps. A range is dropped with the first of
 * its parts. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/comm.h"
#include "core/session.h"
#include "proto/names.h"
#include "state.h"

void range_unlink(struct gpu *g, const struct device_region *range)
{
	struct device_region **at = &g->ranges;
	while (*at != range)
		at = &(*at)->next_range;
	*at = range->next_range;
}

static bool has_part(const struct gpu *g, const struct device_region *range,
		     const struct device_region *part)
{
	for (unsigned i = 0; i < range->nparts; i++)
		if (&g->regions[range->parts[i]] == part)
			return true;
	return false;
}

void ranges_drop(ncclsvc_session *s, struct gpu *g, const struct device_region *part)
{
	struct device_region *range = g->ranges;
	while (range) {
		if (part->base - range->base < range->bytes && has_part(g, range, part)) {
			device_region_drop(s, g, range); /* and the ranges it is part of */
			range = g->ranges;
		} else {
			range = range->next_range;
		}
	}
}

bool ranges_hold(const struct gpu *g, const struct device_region *part)
{
	for (const struct device_region *range = g->ranges; range; range = range->next_range)
		if (part->base - range->base < range->bytes && has_part(g, range, part) &&
		    (range->busy || ranges_hold(g, range)))
			return true;
	return false;
}

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

ncclsvc_result range_locate(ncclsvc_session *s, struct gpu *g, const struct buffer *b,
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
