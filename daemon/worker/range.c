/* SPDX-License-Identifier: Apache-2.0
 * Mapping ranges: several imported mappings, mapped once more without gaps. */
#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "worker.h"

static void add(struct import *range, struct import *part)
{
	struct import **grown = realloc(range->parts, (range->nparts + 1) * sizeof(*grown));
	if (!grown) {
		range->bytes = 0; /* then it will not be what was asked for */
		return;
	}
	range->parts = grown;
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

static void let_parts_go(struct worker *w, struct import *range)
{
	for (uint32_t i = 0; i < range->nparts; i++)
		import_close(w, range->parts[i]->address);
	free(range->parts);
}

static CUresult unmap(const struct import *range, uint32_t n)
{
	CUresult error = CUDA_SUCCESS;
	CUdeviceptr at = range->address;
	for (uint32_t i = 0; i < n; at += range->parts[i++]->bytes) {
		CUresult e = cu.cuMemUnmap(at, range->parts[i]->bytes);
		error = error ? error : e;
	}
	cu.cuMemAddressFree(range->address, range->bytes);
	return error;
}

static CUresult map(const struct worker *w, struct import *range)
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device},
					.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	uint32_t n = 0;
	CUresult error = cu.cuMemAddressReserve(&range->address, range->bytes, 0, 0, 0);
	if (error)
		return error;
	for (CUdeviceptr at = range->address; !error && n < range->nparts; n += !error) {
		error = cu.cuMemMap(at, range->parts[n]->bytes, 0, range->parts[n]->handle, 0);
		at += range->parts[n]->bytes;
	}
	if (!error)
		error = cu.cuMemSetAccess(range->address, range->bytes, &access, 1);
	if (error)
		unmap(range, n);
	return error;
}

void range_open(struct worker *w, struct worker_message *m)
{
	struct import *range = w->range;
	w->range = NULL;
	CUresult error = CUDA_SUCCESS;
	if (!range || range->bytes != m->region.bytes) {
		m->result = NCCLSVC_INVALID_ARGUMENT;
		snprintf(m->text, sizeof(m->text), "the parts of the range are not all there");
	} else {
		error = map(w, range);
	}
	if (worker_bad(w, error, "several mappings of a trainer cannot be mapped as one")) {
		m->result = error == CUDA_ERROR_OUT_OF_MEMORY ? NCCLSVC_NO_MEMORY : NCCLSVC_SYSTEM;
		snprintf(m->text, sizeof(m->text), "the range cannot be mapped: %s",
			 gpu_api_cuda_error(error));
	}
	if (m->result) {
		if (range)
			let_parts_go(w, range);
		free(range);
		return;
	}
	range->kind = SVC_REGION_MAPPINGS;
	range->users = 1;
	m->region.address = range->address;
	DL_APPEND(w->imports, range);
}

CUresult range_close(struct worker *w, struct import *range)
{
	CUresult error = unmap(range, range->nparts);
	let_parts_go(w, range);
	return error;
}
