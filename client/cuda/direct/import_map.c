/* SPDX-License-Identifier: Apache-2.0
 * Maps a region that another rank shares, and unmaps it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "core/call.h"
#include "imports.h"

/* The context must be current. */
static void mappings_unmap(const struct cuda *cuda, struct import *i)
{
	CUdeviceptr at = i->at;
	for (uint32_t k = 0; k < i->nmappings; at += i->mappings[k++])
		cuda->cuMemUnmap(at, i->mappings[k]);
	cuda->cuMemAddressFree(i->at, i->bytes);
}

void import_free(const struct cuda *cuda, struct import *i)
{
	if (!i)
		return;
	if (!cuda_push(cuda, i->context)) {
		if (i->kind == IMPORT_HANDLE)
			cuda->cuIpcCloseMemHandle(i->at);
		else if (i->kind == IMPORT_MAPPINGS)
			mappings_unmap(cuda, i);
		cuda_pop(cuda, i->context);
	}
	free(i->mappings);
	free(i);
}

static CUresult fd_map(const struct cuda *cuda, int fd, CUdeviceptr at, size_t bytes)
{
	CUmemGenericAllocationHandle handle;
	CUresult e = cuda->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
							  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (e)
		return e;
	e = cuda->cuMemMap(at, bytes, 0, handle, 0);
	cuda->cuMemRelease(handle);
	return e;
}

/* The fd of one of the region's mappings; -1: there is none. */
static int mapping_fetch(struct importer *m, const struct job *job, uint32_t index, uint64_t *bytes)
{
	struct call call = {.fd = -1, .bound = true, .connections = job->connections};
	struct svc_shared_part_reply reply;
	const struct svc_shared_part request = {
		.comm = job->handle, .part = index, .position = job->position};
	ncclsvc_session *s = session_use(m);
	if (!s)
		return -1;
	if (call_run(s, &call, SVC_SHARED_PART, &request, -1, deadline_in(ANSWER_MS)))
		call.fd = -1;
	session_unuse(m);
	memcpy(&reply, call.body, sizeof(reply));
	*bytes = reply.bytes;
	return call.fd;
}

static bool mappings_map(struct importer *m, const struct job *job, struct import *i)
{
	uint64_t done = 0, bytes = 0;
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = job->peer->capture->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	for (uint32_t k = 0; k < job->shared.parts; k++, done += bytes) {
		const int fd = mapping_fetch(m, job, k, &bytes);
		const bool fits = fd >= 0 && bytes && bytes <= i->bytes - done;
		const CUresult e =
			fits ? fd_map(m->cuda, fd, i->at + done, bytes) : CUDA_ERROR_INVALID_VALUE;
		if (fd >= 0)
			close(fd);
		if (e)
			return false;
		i->mappings[i->nmappings++] = bytes;
	}
	return done == i->bytes && !m->cuda->cuMemSetAccess(i->at, done, &access, 1);
}

/* Memory of another member in this process, whose handle cannot be opened here. */
static bool here_reach(const struct importer *m, const struct job *job)
{
	CUcontext owner = NULL;
	if (m->cuda->cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, job->shared.base))
		return false;
	if (owner == job->peer->capture->context)
		return true;
	const CUresult e = m->cuda->cuCtxEnablePeerAccess(owner, 0);
	return !e || e == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

static bool is_here(const struct job *job)
{
	const struct peer *p = job->peer;
	return peer_control_of(p->controls, (uint32_t)job->shared.rank)->pid == p->control->pid;
}

static bool region_map(struct importer *m, const struct job *job, struct import *i)
{
	const struct svc_shared_reply *shared = &job->shared;
	CUipcMemHandle handle;
	memcpy(&handle, shared->handle, sizeof(handle));
	i->kind = shared->kind == SVC_REGION_IPC ? IMPORT_HANDLE : IMPORT_MAPPINGS;
	if (i->kind == IMPORT_HANDLE && is_here(job)) {
		i->kind = IMPORT_HERE;
		i->at = shared->base;
		return here_reach(m, job);
	}
	if (i->kind == IMPORT_HANDLE)
		return !m->cuda->cuIpcOpenMemHandle(&i->at, handle,
						    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	i->mappings = calloc(shared->parts, sizeof(*i->mappings));
	if (!i->mappings || m->cuda->cuMemAddressReserve(&i->at, shared->bytes, 0, 0, 0))
		return false;
	if (mappings_map(m, job, i))
		return true;
	mappings_unmap(m->cuda, i);
	return false;
}

void import_map(struct importer *m, struct job *job)
{
	struct import *i = calloc(1, sizeof(*i));
	if (!i)
		return;
	*i = (struct import){.context = job->peer->capture->context,
			     .bytes = job->shared.bytes,
			     .rank = (uint32_t)job->shared.rank,
			     .slot = job->shared.slot,
			     .number = job->shared.number};
	job->import = i;
	if (cuda_push(m->cuda, i->context))
		return;
	if (!region_map(m, job, i))
		i->kind = IMPORT_NONE;
	cuda_pop(m->cuda, i->context);
}
