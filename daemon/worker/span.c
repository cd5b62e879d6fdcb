/* SPDX-License-Identifier: Apache-2.0
 * Spans: what was imported piece by piece, mapped once more without gaps. */
#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "worker.h"

static void add(struct import *span, struct import *part)
{
	struct import **grown = realloc(span->parts, (span->nparts + 1) * sizeof(*grown));
	if (!grown) {
		span->bytes = 0; /* then it will not be what was asked for */
		return;
	}
	span->parts = grown;
	span->parts[span->nparts++] = part;
	span->bytes += part->bytes;
	part->users++;
}

void span_parts(struct worker *w, const struct worker_message *m)
{
	const uint32_t most = sizeof(m->span.parts) / sizeof(m->span.parts[0]);
	if (!w->span)
		w->span = calloc(1, sizeof(*w->span));
	for (uint32_t i = 0; w->span && i < m->span.count && i < most; i++) {
		struct import *part = import_find(w, m->span.parts[i]);
		if (part && part->kind == SVC_REGION_VMM)
			add(w->span, part);
		else if (part && part->kind == SVC_REGION_SPANNED)
			for (uint32_t k = 0; k < part->nparts; k++)
				add(w->span, part->parts[k]);
	}
}

static void let_parts_go(struct worker *w, struct import *span)
{
	for (uint32_t i = 0; i < span->nparts; i++)
		import_close(w, span->parts[i]->address);
	free(span->parts);
}

static CUresult unmap(const struct import *span, uint32_t n)
{
	CUresult error = CUDA_SUCCESS;
	CUdeviceptr at = span->address;
	for (uint32_t i = 0; i < n; at += span->parts[i++]->bytes) {
		CUresult e = cu.cuMemUnmap(at, span->parts[i]->bytes);
		error = error ? error : e;
	}
	cu.cuMemAddressFree(span->address, span->bytes);
	return error;
}

static CUresult map(const struct worker *w, struct import *span)
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device},
					.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	uint32_t n = 0;
	CUresult error = cu.cuMemAddressReserve(&span->address, span->bytes, 0, 0, 0);
	if (error)
		return error;
	for (CUdeviceptr at = span->address; !error && n < span->nparts; n += !error) {
		error = cu.cuMemMap(at, span->parts[n]->bytes, 0, span->parts[n]->handle, 0);
		at += span->parts[n]->bytes;
	}
	if (!error)
		error = cu.cuMemSetAccess(span->address, span->bytes, &access, 1);
	if (error)
		unmap(span, n);
	return error;
}

void span_open(struct worker *w, struct worker_message *m)
{
	struct import *span = w->span;
	w->span = NULL;
	CUresult error = CUDA_SUCCESS;
	if (!span || span->bytes != m->region.bytes) {
		m->result = NCCLSVC_INVALID_ARGUMENT;
		snprintf(m->text, sizeof(m->text), "the parts of the span are not all there");
	} else {
		error = map(w, span);
	}
	if (worker_bad(w, error, "several mappings of a trainer cannot be mapped as one")) {
		m->result = error == CUDA_ERROR_OUT_OF_MEMORY ? NCCLSVC_NO_MEMORY : NCCLSVC_SYSTEM;
		snprintf(m->text, sizeof(m->text), "the span cannot be mapped: %s",
			 gpu_api_cuda_error(error));
	}
	if (m->result) {
		if (span)
			let_parts_go(w, span);
		free(span);
		return;
	}
	span->kind = SVC_REGION_SPANNED;
	span->users = 1;
	m->region.address = span->address;
	DL_APPEND(w->imports, span);
}

CUresult span_close(struct worker *w, struct import *span)
{
	CUresult error = unmap(span, span->nparts);
	let_parts_go(w, span);
	return error;
}
