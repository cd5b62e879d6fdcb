/* SPDX-License-Identifier: Apache-2.0
 * Mapping ranges: regions of GPU memory that the worker maps contiguously, as the trainer does. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "memory.h"

#define PARTS_IN_MESSAGE (sizeof(((struct worker_message *)0)->range.parts) / sizeof(uint64_t))

/* A part is the region registered at that time; its number may be reused later. */
struct range {
	uint32_t n;
	uint32_t mapped; /* number of mappings that the worker makes of it; nested ranges count each
			    part */
	struct {
		uint32_t region;
		uint64_t since_ns;
	} parts[];
};

void gpu_range_free(struct range *range)
{
	free(range);
}

/* Returns the region from which part i of the range is mapped. NULL: it is gone. */
static const struct mapping *part_of(const struct session *c, const struct range *range, uint32_t i)
{
	const struct mapping *m = &c->mappings[range->parts[i].region];
	return m->used && m->since_ns == range->parts[i].since_ns ? m : NULL;
}

uint32_t gpu_region_parts(const struct mapping *m)
{
	if (m->kind == SVC_REGION_IPC)
		return 0;
	return m->range ? m->range->mapped : 1;
}

/* Returns the part of the range in which its nth mapping is, and that mapping's number there. */
static const struct mapping *part_with(const struct session *c, const struct range *range,
				       uint32_t *n)
{
	for (uint32_t i = 0; i < range->n; i++) {
		const struct mapping *part = part_of(c, range, i);
		const uint32_t parts = part ? gpu_region_parts(part) : 0;
		if (*n < parts)
			return part;
		if (!part)
			return NULL;
		*n -= parts;
	}
	return NULL;
}

const struct mapping *gpu_region_part(const struct session *c, const struct mapping *m, uint32_t n)
{
	while (m && m->range)
		m = part_with(c, m->range, &n);
	return m && m->fd >= 0 && !n ? m : NULL;
}

static enum turn look_for_parts(const struct session *c, const struct range *range)
{
	enum turn turn = TURN_ASKED;
	for (uint32_t i = 0; i < range->n; i++) {
		const struct mapping *part = part_of(c, range, i);
		if (!part || (!part->pending && !part->address))
			return TURN_GONE;
		if (part->pending)
			turn = TURN_PARTS;
	}
	return turn;
}

enum turn gpu_range_map(struct memory *s, struct gpu *g, struct session *c, const struct mapping *m,
			struct region_call *call)
{
	const struct range *range = m->range;
	const enum turn turn = look_for_parts(c, range);
	if (turn != TURN_ASKED)
		return turn;
	for (uint32_t i = 0; i < range->n;) {
		struct worker_message w = {.kind = WORKER_RANGE_PARTS};
		for (; i < range->n && w.range.count < PARTS_IN_MESSAGE; i++)
			w.range.parts[w.range.count++] = part_of(c, range, i)->address;
		gpu_tell(g, &w);
	}
	gpu_ask(g, &(struct worker_message){.kind = WORKER_RANGE, .region.bytes = m->bytes}, -1,
		turns_answered, call, gpu_patience_ns(s->gpus));
	return TURN_ASKED;
}

/* Describes what is wrong with the request; NULL if nothing is. */
static const char *check(const struct session *c, const struct svc_region_range *r)
{
	uint64_t bytes = 0;
	uint32_t mapped = 0;
	if (r->count < 2 || r->count > SVC_RANGE_PARTS)
		return "a range has 2 to 112 parts";
	for (uint32_t i = r->count; i < SVC_RANGE_PARTS; i++)
		if (r->parts[i])
			return "the unused parts are not zero";
	for (uint32_t i = 0; i < r->count; i++) {
		const struct mapping *m = r->parts[i] && r->parts[i] < c->nmappings
						  ? &c->mappings[r->parts[i]]
						  : NULL;
		if (!m || !m->used || m->leaving)
			return "a part is not a region of this session";
		if (m->device != r->device ||
		    (m->kind != SVC_REGION_VMM && m->kind != SVC_REGION_MAPPINGS))
			return "a part is not memory of cuMemCreate on that device";
		if ((m->pending || !m->address) && !m->absent)
			return "a part is being imported";
		bytes += m->bytes; /* each has at most 2^46 */
		mapped += m->range ? m->range->mapped : 1;
	}
	if (mapped > SVC_RANGE_MAPPED)
		return "a range has at most 65536 mappings, including those of nested ranges";
	return bytes != r->bytes || bytes > SVC_REGION_MAX
		       ? "bytes is not the sum of the parts' sizes"
		       : NULL;
}

static struct range *make(const struct session *c, const struct svc_region_range *r)
{
	struct range *range = calloc(1, sizeof(*range) + r->count * sizeof(range->parts[0]));
	if (!range)
		return NULL;
	range->n = r->count;
	for (uint32_t i = 0; i < range->n; i++) {
		range->parts[i].region = r->parts[i];
		const struct mapping *m = &c->mappings[r->parts[i]];
		range->parts[i].since_ns = m->since_ns;
		range->mapped += m->range ? m->range->mapped : 1;
	}
	return range;
}

void gpu_range_add(struct memory *s, struct session *c, uint32_t request_id,
		   const struct svc_region_range *r)
{
	struct gpu *g = gpu_usable(s, c, SVC_REGION_RANGE, request_id, r->device);
	const char *wrong = g ? check(c, r) : NULL;
	if (wrong)
		session_error(c, SVC_REGION_RANGE, request_id, NCCLSVC_INVALID_ARGUMENT, "%s",
			      wrong);
	if (!g || wrong)
		return;
	uint32_t i = memory_next_region(c);
	struct range *range = i ? make(c, r) : NULL;
	struct region_call *call =
		range ? gpu_region_call(s, c, SVC_REGION_RANGE, request_id, i) : NULL;
	if (!call) {
		free(range);
		session_error(c, SVC_REGION_RANGE, request_id, NCCLSVC_LIMIT,
			      "a session has at most %d regions", SVC_SESSION_REGIONS - 1);
		return;
	}
	if (!memory_take(c, SVC_REGION_RANGE, request_id, SVC_REGION_MAPPINGS, r->bytes)) {
		free(call);
		free(range);
		return;
	}
	memory_set(c, i,
		   &(struct mapping){.used = true,
				     .pending = true,
				     .import = call->import,
				     .kind = SVC_REGION_MAPPINGS,
				     .device = r->device,
				     .bytes = r->bytes,
				     .since_ns = clock_now(),
				     .fd = -1,
				     .range = range});
	if (gpu_serves(g)) {
		turns_add(g, c, call);
		return;
	}
	free(call);
	gpu_region_absent(s, c, request_id, i, SVC_REGION_RANGE);
}
