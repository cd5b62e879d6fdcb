/* SPDX-License-Identifier: Apache-2.0
 * Mapping ranges: several imported mappings, mapped once more without gaps. */
#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "worker.h"

/* Being mapped. */
struct range_opening {
	struct range_opening *prev, *next;
	struct import *range;
	struct worker_message answer;
};

static void add(struct import *range, struct import *part)
{
	const uint32_t n = range->nparts;
	if (!(n & (n - 1))) { /* full: its capacity is a power of two */
		const uint32_t room = n ? 2 * n : 1;
		struct import **grown = realloc(range->parts, room * sizeof(struct import *));
		if (!grown) {
			range->bytes = 0; /* marks it as incomplete */
			return;
		}
		range->parts = grown;
	}
	range->parts[range->nparts++] = part;
	range->bytes += part->bytes;
	part->users++;
}

void range_parts(struct worker *w, const struct worker_message *m)
{
	const uint32_t most = sizeof(m->range.parts) / sizeof(m->range.parts[0]);
	if (!w->range)
		w->range = calloc(1, sizeof(*w->range));
	for (uint32_t i = 0; w->range && i < m->range.count && i < most; i++) {
		struct import *part = import_find(w, m->range.parts[i]);
		if (part && part->kind == SVC_REGION_VMM)
			add(w->range, part);
		else if (part && part->kind == SVC_REGION_MAPPINGS)
			for (uint32_t k = 0; k < part->nparts; k++)
				add(w->range, part->parts[k]);
	}
}

static bool reserve(struct worker *w, struct worker_message *m, struct import *range)
{
	if (range->bytes != m->region.bytes) {
		m->result = NCCLSVC_INVALID_ARGUMENT;
		snprintf(m->text, sizeof(m->text), "some parts of the range do not exist");
		return false;
	}
	CUresult error = cu.cuMemAddressReserve(&range->address, range->bytes, 0, 0, 0);
	if (!worker_bad(w, error, "no address range is free for a trainer's mappings"))
		return true;
	range->address = 0;
	import_refuse(m, NCCLSVC_NO_MEMORY, "the range cannot be mapped", error);
	return false;
}

bool range_open(struct worker *w, struct worker_message *m)
{
	struct import *range = w->range;
	struct range_opening *o = range ? calloc(1, sizeof(*o)) : NULL;
	w->range = NULL;
	if (!range) {
		m->result = NCCLSVC_NO_MEMORY;
		return false;
	}
	range->kind = SVC_REGION_MAPPINGS;
	if (!o)
		m->result = NCCLSVC_NO_MEMORY;
	if (!o || !reserve(w, m, range)) {
		import_drop(w, range);
		free(o);
		return false;
	}
	*o = (struct range_opening){.range = range, .answer = *m};
	DL_APPEND(w->openings, o);
	return true;
}

static CUresult map_part(const struct worker *w, struct import *range)
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device},
					.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	const struct import *part = range->parts[range->mapped];
	const CUdeviceptr at = range->address + range->mapped_bytes;
	CUresult error = cu.cuMemMap(at, part->bytes, 0, part->handle, 0);
	if (error)
		return error;
	range->mapped++;
	range->mapped_bytes += part->bytes;
	return cu.cuMemSetAccess(at, part->bytes, &access, 1);
}

static void finish(struct worker *w, struct range_opening *o, CUresult error)
{
	struct import *range = o->range;
	struct worker_message *m = &o->answer;
	if (worker_bad(w, error, "several mappings of a trainer cannot be mapped as one")) {
		import_refuse(
			m, error == CUDA_ERROR_OUT_OF_MEMORY ? NCCLSVC_NO_MEMORY : NCCLSVC_SYSTEM,
			"the range cannot be mapped", error);
		import_drop(w, range);
	} else {
		range->users = 1;
		m->region.address = range->address;
		import_add(w, range);
	}
	worker_send(w, m);
	free(o);
}

bool ranges_work(struct worker *w)
{
	struct range_opening *o = w->openings;
	CUresult error = CUDA_SUCCESS;
	if (!o)
		return false;
	const uint64_t end = clock_now() + WORKER_TURN_NS;
	DL_DELETE(w->openings, o);
	while (!error && o->range->mapped < o->range->nparts && clock_now() < end)
		error = map_part(w, o->range);
	if (error || o->range->mapped == o->range->nparts)
		finish(w, o, error);
	else
		DL_APPEND(w->openings, o); /* the others take turns with it */
	return w->openings;
}

bool range_close_part(struct worker *w, struct import *range)
{
	if (!range->nparts)
		return false;
	struct import *part = range->parts[--range->nparts];
	if (range->nparts < range->mapped) {
		range->mapped_bytes -= part->bytes;
		worker_bad(w, cu.cuMemUnmap(range->address + range->mapped_bytes, part->bytes),
			   "a part of a range cannot be unmapped");
	}
	import_put(w, part);
	return true;
}
