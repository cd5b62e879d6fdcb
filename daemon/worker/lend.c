/* SPDX-License-Identifier: Apache-2.0
 * Memory of this GPU that is lent to trainers. It is cleared first, since memory that this process
 * allocates again may have been another user's. A GPU that is full of kernels clears it late, so
 * nothing here waits for that. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "worker.h"

/* Memory being cleared. */
struct lending {
	struct lending *prev, *next;
	struct import *import; /* the memory */
	struct worker_message answer;
	int fd;
	CUstream stream;
	uint64_t begun_ns, until_ns; /* until_ns 0: it was refused, and must be released */
};

/* Memory of this GPU that can be shared, also with network devices if they can access it. */
static CUresult make_lent(const struct worker *w, struct import *i, uint64_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes =
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device}};
	size_t page = 0;
	int rdma = 0;
	CUresult error = cu.cuDeviceGetAttribute(
		&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, w->device);
	prop.allocFlags.gpuDirectRDMACapable = rdma != 0;
	if (!error)
		error = cu.cuMemGetAllocationGranularity(&page, &prop,
							 CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (error)
		return error;
	i->bytes = (bytes + page - 1) / page * page;
	error = cu.cuMemCreate(&i->handle, i->bytes, &prop, 0);
	if (error)
		return error;
	error = import_map(w, i);
	if (error)
		cu.cuMemRelease(i->handle);
	return error;
}

static CUresult begin_to_clear(struct lending *l)
{
	CUresult error = cu.cuStreamCreate(&l->stream, CU_STREAM_NON_BLOCKING);
	if (error)
		return error;
	error = cu.cuMemsetD8Async(l->import->address, 0, l->import->bytes, l->stream);
	if (error)
		cu.cuStreamDestroy(l->stream);
	return error;
}

/* Exports the memory and starts clearing it. False: m says why not. */
static bool prepare(struct worker *w, struct worker_message *m, struct lending *l)
{
	CUresult error = cu.cuMemExportToShareableHandle(
		&l->fd, l->import->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (worker_bad(w, error, "no memory can be lent to a trainer")) {
		l->fd = -1;
		import_refuse(m, NCCLSVC_UNSUPPORTED, "memory of this GPU cannot be lent", error);
		return false;
	}
	error = begin_to_clear(l);
	if (worker_bad(w, error, "memory to be lent cannot be cleared"))
		import_refuse(m, NCCLSVC_SYSTEM, "the memory cannot be cleared", error);
	return !error;
}

bool lend(struct worker *w, struct worker_message *m)
{
	struct lending *l = calloc(1, sizeof(*l));
	struct import *i = l ? calloc(1, sizeof(*i)) : NULL;
	if (!i) {
		m->result = NCCLSVC_NO_MEMORY;
		free(l);
		return false;
	}
	i->kind = SVC_REGION_LENT;
	CUresult error = make_lent(w, i, m->region.bytes);
	if (error) {
		m->result = NCCLSVC_NO_MEMORY;
		snprintf(m->text, sizeof(m->text), "the GPU cannot lend %llu bytes: %s",
			 (unsigned long long)m->region.bytes, gpu_api_cuda_error(error));
		free(i);
		free(l);
		return false;
	}
	const uint64_t now = clock_now();
	*l = (struct lending){
		.import = i, .fd = -1, .begun_ns = now, .until_ns = now + m->region.within_ns};
	if (!prepare(w, m, l)) {
		if (l->fd >= 0)
			close(l->fd);
		import_drop(w, i);
		free(l);
		return false;
	}
	m->region.address = i->address;
	m->region.bytes = i->bytes;
	l->answer = *m;
	DL_APPEND(w->lendings, l);
	return true;
}

static void answer(struct worker *w, struct lending *l)
{
	worker_send(w, &l->answer, l->answer.result ? -1 : l->fd);
	close(l->fd); /* this GPU's own memory, which its handle keeps alive */
	l->until_ns = 0;
}

static void finish(struct worker *w, struct lending *l, CUresult error)
{
	const bool wanted = l->until_ns;
	DL_DELETE(w->lendings, l);
	cu.cuStreamDestroy(l->stream);
	if (worker_bad(w, error, "memory to be lent cannot be cleared"))
		import_refuse(&l->answer, NCCLSVC_SYSTEM, "the memory cannot be cleared", error);
	if (wanted && !error) {
		l->import->users = 1;
		import_add(w, l->import);
	} else {
		import_drop(w, l->import);
	}
	if (wanted)
		answer(w, l);
	free(l);
}

void lendings_watch(struct worker *w, uint64_t now)
{
	struct lending *l, *next;
	if (!w->lendings || now - w->lendings_ns < LEND_LOOK_NS)
		return;
	w->lendings_ns = now;
	DL_FOREACH_SAFE (w->lendings, l, next) {
		CUresult error = cu.cuStreamQuery(l->stream);
		if (error != CUDA_ERROR_NOT_READY) {
			finish(w, l, error);
		} else if (l->until_ns && now > l->until_ns) {
			l->answer.result = NCCLSVC_BUSY;
			snprintf(l->answer.text, sizeof(l->answer.text),
				 "the GPU is full of kernels, and did not clear the memory to be "
				 "lent in time: try again");
			answer(w, l);
		}
	}
}

bool lendings_stuck(const struct worker *w, uint64_t now)
{
	return w->lendings && now - w->lendings->begun_ns > SLOT_STUCK_NS;
}
