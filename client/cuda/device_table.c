/* SPDX-License-Identifier: Apache-2.0
 * The table of a session's device memory, and of the pending tasks that use it. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/call.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "gpu_state.h"

/* How many sorted regions have a base up to p. */
static unsigned upper_bound(const struct gpu *g, uint64_t p)
{
	unsigned low = 0, high = g->nsorted;
	while (low < high) {
		unsigned middle = low + (high - low) / 2;
		if (g->regions[g->sorted[middle]].base <= p)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct device_region *device_region_find(const struct gpu *g, uint64_t p)
{
	unsigned at = upper_bound(g, p);
	if (!at)
		return NULL;
	struct device_region *r = &g->regions[g->sorted[at - 1]];
	return p - r->base < r->bytes ? r : NULL;
}

static void unsort(struct gpu *g, const struct device_region *r)
{
	unsigned at = upper_bound(g, r->base) - 1;
	/* A freed region that is not dropped yet may have the same base. */
	while (&g->regions[g->sorted[at]] != r)
		at--;
	memmove(&g->sorted[at], &g->sorted[at + 1], (g->nsorted - at - 1) * sizeof(g->sorted[0]));
	g->nsorted--;
}

static void range_unlink(struct gpu *g, const struct device_region *range)
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

bool ranges_hold(const struct gpu *g, const struct device_region *part)
{
	for (const struct device_region *range = g->ranges; range; range = range->next_range)
		if (part->base - range->base < range->bytes && has_part(g, range, part) &&
		    (range->busy || ranges_hold(g, range)))
			return true;
	return false;
}

struct device_region *ranges_outermost(const struct gpu *g, struct device_region *part)
{
	for (struct device_region *range = g->ranges; range; range = range->next_range)
		if (part->base - range->base < range->bytes && has_part(g, range, part))
			return ranges_outermost(g, range);
	return part;
}

static void drop_shares(ncclsvc_session *s, const struct device_region *r)
{
	if (r->shares)
		s->gpu->shares_drop(s, r);
}

/* Releases a region that no pending task uses. */
static void let_go(ncclsvc_session *s, struct device_region *r)
{
	drop_shares(s, r);
	if (r->id)
		call_forget(s, SVC_REGION_DEL, &(struct svc_region_del){.region = r->id});
	free(r->parts);
	*r = (struct device_region){0};
}

/* Drops the ranges that contain the mapping. */
static void ranges_drop(ncclsvc_session *s, struct gpu *g, const struct device_region *part)
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

void device_region_drop(ncclsvc_session *s, struct gpu *g, struct device_region *r)
{
	ranges_drop(s, g, r);
	if (r->parts)
		range_unlink(g, r);
	else
		unsort(g, r);
	r->gone = true;
	if (!r->pins)
		let_go(s, r);
}

bool device_region_alive(const struct gpu *g, const struct device_region *r, uint64_t p)
{
	uint64_t id = 0;
	return r->restores == g->restores &&
	       !g->cuda->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) &&
	       id == r->buffer;
}

void device_regions_sweep(ncclsvc_session *s, struct gpu *g)
{
	for (unsigned i = g->nsorted; i-- > 0;) {
		struct device_region *r = &g->regions[g->sorted[i]];
		if (!r->busy && !device_region_alive(g, r, r->base) && !ranges_hold(g, r))
			device_region_drop(s, g, r);
	}
}

/* A free entry of the table, made free if necessary. NULL: all are in use. */
static struct device_region *free_entry(ncclsvc_session *s, struct gpu *g, uint64_t since)
{
	struct device_region *oldest = NULL;
	for (unsigned i = 0; i < DEVICE_REGIONS; i++) {
		struct device_region *r = &g->regions[i];
		if (!r->bytes)
			return r;
		if (!r->busy && !r->gone && !r->pins && !r->shares && r->clock < since &&
		    (!oldest || r->clock < oldest->clock) && !ranges_hold(g, r))
			oldest = r;
	}
	if (oldest)
		device_region_drop(s, g, oldest);
	return oldest;
}

static void sort_in(struct gpu *g, const struct device_region *r)
{
	unsigned at = upper_bound(g, r->base);
	memmove(&g->sorted[at + 1], &g->sorted[at], (g->nsorted - at) * sizeof(g->sorted[0]));
	g->sorted[at] = (uint16_t)(r - g->regions);
	g->nsorted++;
}

struct device_region *device_region_insert(ncclsvc_session *s, struct gpu *g, uint64_t since,
					   const struct device_region *new)
{
	struct device_region *r = free_entry(s, g, since);
	if (!r) {
		error_set(NCCLSVC_LIMIT,
			  "all %d regions of the session's device memory are in use: wait for "
			  "tasks, or use fewer allocations at once",
			  DEVICE_REGIONS);
		return NULL;
	}
	*r = *new;
	if (r->parts) {
		r->next_range = g->ranges;
		g->ranges = r;
	} else {
		sort_in(g, r);
	}
	return r;
}

void device_entry_pin(ncclsvc_session *s, uint16_t entry)
{
	s->gpu->regions[entry - 1].pins++;
}

void device_entry_unpin(ncclsvc_session *s, uint16_t entry)
{
	struct device_region *r = &s->gpu->regions[entry - 1];
	if (!--r->pins && r->gone)
		let_go(s, r);
}

void device_pin(ncclsvc_session *s, const struct op *op, uint64_t task)
{
	struct gpu *g = s->gpu;
	uint16_t *pins = g->pins[task & (s->tasks.entries - 1)];
	for (int i = 0; i < 2; i++) {
		pins[i] = op->regions.entries[i];
		if (pins[i])
			device_entry_pin(s, pins[i]);
	}
}

void device_unpin(ncclsvc_session *s, uint64_t task)
{
	struct gpu *g = s->gpu;
	const uint16_t *pins = g->pins[task & (s->tasks.entries - 1)];
	for (int i = 0; i < 2; i++) {
		if (pins[i])
			device_entry_unpin(s, pins[i]);
	}
}

void device_regions_forget(ncclsvc_session *s, struct gpu *g)
{
	for (unsigned i = 0; i < DEVICE_REGIONS; i++) {
		drop_shares(s, &g->regions[i]);
		free(g->regions[i].parts);
	}
	memset(g->regions, 0, DEVICE_REGIONS * sizeof(*g->regions));
	memset(g->pins, 0, s->tasks.entries * sizeof(*g->pins));
	g->nsorted = 0;
	g->ranges = NULL;
}
