/* SPDX-License-Identifier: Apache-2.0
 * Spans: regions of a GPU's memory that the worker maps one behind the other, as the trainer has
 * them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "memory.h"

#define PARTS_IN_MESSAGE (sizeof(((struct worker_message *)0)->span.parts) / sizeof(uint64_t))

/* A part is what was registered then: its number may be another's later. */
struct span {
	uint32_t n;
	uint32_t mapped; /* that the worker makes of it: spans' parts are mapped each */
	struct {
		uint32_t region;
		uint64_t since_ns;
	} parts[];
};

void gpu_span_free(struct span *span)
{
	free(span);
}

/* What it is mapped from, if that is there. */
static const struct mapping *part_of(const struct client *c, const struct span *span, uint32_t i)
{
	const struct mapping *m = &c->mappings[span->parts[i].region];
	bool same = m->used && !m->pending && m->address && m->since_ns == span->parts[i].since_ns;
	return same ? m : NULL;
}

bool gpu_span_map(struct memory *s, struct gpu *g, struct client *c, const struct mapping *m,
		  gpu_done *done, void *arg)
{
	const struct span *span = m->span;
	for (uint32_t i = 0; i < span->n; i++)
		if (!part_of(c, span, i))
			return false;
	for (uint32_t i = 0; i < span->n;) {
		struct worker_message w = {.kind = WORKER_SPAN_PARTS};
		for (; i < span->n && w.span.count < PARTS_IN_MESSAGE; i++)
			w.span.parts[w.span.count++] = part_of(c, span, i)->address;
		gpu_tell(g, &w);
	}
	gpu_ask(g, &(struct worker_message){.kind = WORKER_SPAN, .region.bytes = m->bytes}, -1,
		done, arg, gpu_patience_ns(s->gpus));
	return true;
}

/* Names what is wrong with the request; NULL if nothing is. */
static const char *check(const struct client *c, const struct svc_region_span *r)
{
	uint64_t bytes = 0;
	uint32_t mapped = 0;
	if (r->count < 2 || r->count > SVC_SPAN_PARTS)
		return "a span has 2 to 112 parts";
	for (uint32_t i = r->count; i < SVC_SPAN_PARTS; i++)
		if (r->parts[i])
			return "what is behind the parts is not zero";
	for (uint32_t i = 0; i < r->count; i++) {
		const struct mapping *m = r->parts[i] && r->parts[i] < c->nmappings
						  ? &c->mappings[r->parts[i]]
						  : NULL;
		if (!m || !m->used || m->leaving)
			return "a part is no region of this session";
		if (m->device != r->device ||
		    (m->kind != SVC_REGION_VMM && m->kind != SVC_REGION_SPANNED))
			return "a part is no memory of cuMemCreate on that device";
		if (m->pending || !m->address)
			return "a part is being imported";
		bytes += m->bytes; /* each has 2^46 at most */
		mapped += m->span ? m->span->mapped : 1;
	}
	if (mapped > SVC_SPAN_MAPPED)
		return "a span is of at most 65536 mappings, with those of the spans in it";
	return bytes != r->bytes || bytes > SVC_REGION_MAX ? "bytes is not the sum of the parts'"
							   : NULL;
}

static struct span *make(const struct client *c, const struct svc_region_span *r)
{
	struct span *span = calloc(1, sizeof(*span) + r->count * sizeof(span->parts[0]));
	if (!span)
		return NULL;
	span->n = r->count;
	for (uint32_t i = 0; i < span->n; i++) {
		span->parts[i].region = r->parts[i];
		const struct mapping *m = &c->mappings[r->parts[i]];
		span->parts[i].since_ns = m->since_ns;
		span->mapped += m->span ? m->span->mapped : 1;
	}
	return span;
}

void gpu_span_add(struct memory *s, struct client *c, uint32_t serial,
		  const struct svc_region_span *r)
{
	struct gpu *g = gpu_usable(s, c, SVC_REGION_SPAN, serial, r->device);
	const char *wrong = g ? check(c, r) : NULL;
	if (wrong)
		client_error(c, SVC_REGION_SPAN, serial, NCCLSVC_INVALID_ARGUMENT, "%s", wrong);
	if (!g || wrong)
		return;
	uint32_t i = memory_free_region(c);
	struct span *span = i ? make(c, r) : NULL;
	struct region_call *call = span ? gpu_region_call(s, c, SVC_REGION_SPAN, serial, i) : NULL;
	if (!call) {
		free(span);
		client_error(c, SVC_REGION_SPAN, serial, NCCLSVC_LIMIT,
			     "a session has at most %d regions", SVC_SESSION_REGIONS - 1);
		return;
	}
	if (!memory_take(c, SVC_REGION_SPAN, serial, SVC_REGION_SPANNED, r->bytes)) {
		free(call);
		free(span);
		return;
	}
	c->mappings[i] = (struct mapping){.used = true,
					  .pending = true,
					  .import = call->import,
					  .kind = SVC_REGION_SPANNED,
					  .device = r->device,
					  .bytes = r->bytes,
					  .since_ns = clock_now(),
					  .fd = -1,
					  .span = span};
	gpu_span_map(s, g, c, &c->mappings[i], gpu_region_imported, call);
}

void gpu_spans_restore(struct memory *s, struct gpu *g, struct client *c)
{
	for (uint32_t i = 1; i < c->nmappings; i++) {
		struct mapping *m = &c->mappings[i];
		if (!m->used || !m->span || m->pending || m->address || m->device != g->index)
			continue;
		struct region_call *call = gpu_region_call(s, c, SVC_REGION_SPAN, 0, i);
		if (!call)
			continue;
		call->again = m->pending = true;
		m->import = call->import;
		if (!gpu_span_map(s, g, c, m, gpu_region_imported, call)) {
			m->pending = false;
			free(call);
		}
	}
}
