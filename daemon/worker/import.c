/* SPDX-License-Identifier: Apache-2.0
 * Imports of trainers' allocations, and the release of memory that trainers returned. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "worker.h"

#define RESTORED                                                                                   \
	"the driver does not share cudaMalloc memory that it has restored from a checkpoint: use " \
	"memory of cuMemCreate (PyTorch: expandable_segments)"

void import_refuse(struct worker_message *m, int result, const char *what, CUresult error)
{
	m->result = result;
	snprintf(m->text, sizeof(m->text), "%s: %s", what, gpu_api_cuda_error(error));
}

struct import *import_find(const struct worker *w, uint64_t address)
{
	struct import *i;
	HASH_FIND(hh, w->imports, &address, sizeof(address), i);
	return i;
}

void import_add(struct worker *w, struct import *i)
{
	HASH_ADD(hh, w->imports, address, sizeof(i->address), i);
	if (i->kind == SVC_REGION_IPC)
		HASH_ADD(hh_name, w->named, name, sizeof(i->name), i);
}

CUresult import_map(const struct worker *w, struct import *i)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult error = cu.cuMemAddressReserve(&i->address, i->bytes, 0, 0, 0);
	if (error)
		return error;
	error = cu.cuMemMap(i->address, i->bytes, 0, i->handle, 0);
	if (!error) {
		error = cu.cuMemSetAccess(i->address, i->bytes, &access, 1);
		if (error)
			cu.cuMemUnmap(i->address, i->bytes);
	}
	if (error)
		cu.cuMemAddressFree(i->address, i->bytes);
	return error;
}

/* Two sessions of one process may name one allocation, which can be opened only once. The address
 * does not identify it, since a later allocation may get the same address. The buffer id does not,
 * either: a process restored from a checkpoint has other memory with the same id, and another
 * handle. */
static struct import *open_already(const struct worker *w, const struct import_name *name)
{
	struct import *i;
	HASH_FIND(hh_name, w->named, name, sizeof(*name), i);
	return i;
}

static CUresult open_ipc(struct import *i)
{
	CUipcMemHandle handle;
	memcpy(&handle, i->name.ipc_handle, sizeof(handle));
	return cu.cuIpcOpenMemHandle(&i->address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult open_fd(const struct worker *w, struct import *i, int fd)
{
	CUresult error = cu.cuMemImportFromShareableHandle(
		&i->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (error)
		return error;
	error = import_map(w, i);
	if (error)
		cu.cuMemRelease(i->handle);
	return error;
}

/* Claims about an allocation are not trusted: the driver reports its length. */
static bool long_enough(const struct import *i)
{
	CUdeviceptr base = 0;
	size_t bytes = 0;
	return !cu.cuMemGetAddressRange(&base, &bytes, i->address) && base == i->address &&
	       bytes >= i->bytes;
}

static void refuse_import(struct worker_message *m, CUresult error)
{
	const bool ipc = m->region.kind == SVC_REGION_IPC;
	if (ipc && error == CUDA_ERROR_NOT_PERMITTED)
		import_refuse(m, NCCLSVC_UNSUPPORTED, RESTORED, error);
	else
		import_refuse(
			m, error == CUDA_ERROR_OUT_OF_MEMORY ? NCCLSVC_NO_MEMORY : NCCLSVC_SYSTEM,
			ipc ? "the CUDA IPC handle cannot be opened"
			    : "the file descriptor cannot be imported as GPU memory",
			error);
}

/* A new import; NULL: m says why not. */
static struct import *open_new(struct worker *w, struct worker_message *m,
			       const struct import_name *name, int fd)
{
	struct import *i = calloc(1, sizeof(*i));
	if (!i) {
		m->result = NCCLSVC_NO_MEMORY;
		return NULL;
	}
	i->kind = m->region.kind;
	i->bytes = m->region.bytes;
	i->name = *name;
	i->opens = 1;
	CUresult error = i->kind == SVC_REGION_IPC ? open_ipc(i) : open_fd(w, i, fd);
	if (worker_bad(w, error, "a trainer's memory cannot be imported")) {
		refuse_import(m, error);
		free(i);
		return NULL;
	}
	struct import *known = import_find(w, i->address);
	if (!known) {
		import_add(w, i);
		return i;
	}
	known->opens++; /* the driver knows the handle, and counts openings */
	free(i);
	return known;
}

void import_open(struct worker *w, struct worker_message *m, int fd)
{
	struct import_name name = {.buffer_id = m->region.buffer_id, .pid = m->region.pid};
	memcpy(name.ipc_handle, m->region.handle, sizeof(name.ipc_handle));
	struct import *i = m->region.kind == SVC_REGION_IPC ? open_already(w, &name) : NULL;
	if (!i)
		i = open_new(w, m, &name, fd);
	if (!i)
		return;
	i->users++;
	m->region.address = i->address;
	if (!long_enough(i) || m->region.bytes > i->bytes) {
		m->result = NCCLSVC_INVALID_ARGUMENT;
		snprintf(m->text, sizeof(m->text), "the allocation is shorter than %llu bytes",
			 (unsigned long long)m->region.bytes);
		import_put(w, i);
	}
}

/* ---- Release ---- */

void imports_close_later(struct worker *w)
{
	if (!w->close_by_ns)
		w->close_by_ns = clock_now() + IMPORT_CLOSE_NS;
}

void import_drop(struct worker *w, struct import *i)
{
	i->leaves = true;
	w->ranges_leaving += i->kind == SVC_REGION_MAPPINGS;
	DL_APPEND(w->leaving, i);
	imports_close_later(w);
}

/* An import can be found until it is released: an IPC handle cannot be opened twice, and a
 * request that closes memory may ask to be told of the release. */
void import_put(struct worker *w, struct import *i)
{
	if (i->users && !--i->users && !i->leaves)
		import_drop(w, i);
}
