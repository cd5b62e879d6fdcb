/* SPDX-License-Identifier: Apache-2.0
 * Trainers' memory: timelines in session memory, imported allocations, and memory that is lent. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "base/log.h"
#include "base/timings.h"
#include "worker.h"

#define RESTORED                                                                                   \
	"the driver does not share cudaMalloc memory that it has restored from a checkpoint: use " \
	"memory of cuMemCreate (PyTorch: expandable_segments)"

static void refuse(struct worker_message *m, int result, const char *what, CUresult error)
{
	m->result = result;
	snprintf(m->text, sizeof(m->text), "%s: %s", what, gpu_api_cuda_error(error));
}

/* ---- Sessions ---- */

/* The thread that watches the supervisor uses the sessions, too. Never held in a call of the
 * driver. */
static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;

static void set_session(struct session_timelines *s, struct session_timelines to)
{
	pthread_mutex_lock(&sessions_lock);
	*s = to;
	pthread_mutex_unlock(&sessions_lock);
}

void session_open(struct worker *w, struct worker_message *m, int fd)
{
	uint32_t slot = m->session.slot;
	struct session_timelines *s = &w->sessions[slot];
	if (s->ring) /* known since an earlier communicator */
		return;
	void *p = mmap(NULL, m->session.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		m->result = NCCLSVC_NO_MEMORY;
		snprintf(m->text, sizeof(m->text), "session memory cannot be mapped: %s",
			 strerror(errno));
		return;
	}
	struct svc_timeline *t = svc_timelines(p);
	CUdeviceptr device = 0;
	CUresult error = cu.cuMemHostRegister(
		t, SVC_PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (!error)
		error = cu.cuMemHostGetDevicePointer(&device, t, 0);
	if (worker_bad(w, error, "a session's timelines cannot be mapped for the GPU")) {
		refuse(m, NCCLSVC_SYSTEM, "timelines cannot be registered", error);
		munmap(p, m->session.bytes);
		return;
	}
	set_session(s,
		    (struct session_timelines){p, m->session.bytes, m->session.entries, t, device});
}

/* Its slot may have a new session before its timelines could be let go. */
struct closed_session {
	struct session_timelines timelines;
	struct closed_session *next;
};

static void let_session_go(struct worker *w, const struct session_timelines *s)
{
	worker_bad(w, cu.cuMemHostUnregister(s->host),
		   "a session's timelines cannot be unmapped from the GPU");
	munmap(s->ring, s->bytes);
}

static void close_later(struct worker *w)
{
	if (!w->closing_ns)
		w->closing_ns = worker_clock();
}

void session_close(struct worker *w, uint32_t slot)
{
	const struct session_timelines was = w->sessions[slot];
	struct closed_session *c = was.ring ? malloc(sizeof(*c)) : NULL;
	set_session(&w->sessions[slot], (struct session_timelines){0});
	if (c) {
		*c = (struct closed_session){was, w->closed};
		w->closed = c;
		close_later(w);
	} else if (was.ring) {
		let_session_go(w, &was);
	}
}

static void raise(_Atomic uint64_t *counter, uint64_t value)
{
	uint64_t now = atomic_load(counter);
	while (now < value && !atomic_compare_exchange_weak(counter, &now, value))
		;
}

/* Clients that submit from now on learn that the daemon is lost; see ring.h. */
static void end_ring(struct svc_ring *ring)
{
	int32_t none = 0;
	atomic_compare_exchange_strong(&ring->ended, &none, NCCLSVC_DAEMON_LOST);
	atomic_fetch_add(&ring->wake, 1);
	syscall(SYS_futex, &ring->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sessions_end(struct worker *w)
{
	pthread_mutex_lock(&sessions_lock);
	for (uint32_t slot = 0; slot < SVC_SESSIONS_MAX; slot++)
		if (w->sessions[slot].ring)
			end_ring(w->sessions[slot].ring);
	pthread_mutex_unlock(&sessions_lock);
}

void sessions_release(struct worker *w)
{
	pthread_mutex_lock(&sessions_lock);
	for (uint32_t slot = 0; slot < SVC_SESSIONS_MAX; slot++) {
		struct session_timelines *s = &w->sessions[slot];
		for (uint32_t i = 0; s->ring && i < s->entries; i++) {
			const struct svc_record *r = svc_record_slot(s->ring, s->entries, i);
			if (r->flags & SVC_TASK_TIMELINE && r->timeline < SVC_TIMELINES)
				raise(&s->host[r->timeline].done, r->value);
		}
		for (uint32_t i = 0; s->ring && i < SVC_TIMELINES; i++)
			if (atomic_load(&s->host[i].triggers))
				raise(&s->host[i].done, SVC_TRIGGER_DEAD);
	}
	pthread_mutex_unlock(&sessions_lock);
}

/* ---- Imports ---- */

struct import *import_find(struct worker *w, uint64_t address)
{
	struct import *i;
	DL_FOREACH (w->imports, i)
		if (i->address == address)
			return i;
	return NULL;
}

/* Maps memory at an address of its own. */
static CUresult map(const struct worker *w, CUmemGenericAllocationHandle handle, uint64_t bytes,
		    CUdeviceptr *address)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, w->device},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult error = cu.cuMemAddressReserve(address, bytes, 0, 0, 0);
	if (error)
		return error;
	error = cu.cuMemMap(*address, bytes, 0, handle, 0);
	if (!error) {
		error = cu.cuMemSetAccess(*address, bytes, &access, 1);
		if (error)
			cu.cuMemUnmap(*address, bytes);
	}
	if (error)
		cu.cuMemAddressFree(*address, bytes);
	return error;
}

/* Two sessions of one process may name one allocation, which can be opened only once. The address
 * alone does not tell: what is freed and allocated again may get the same. Nor does the buffer id:
 * a process that was restored from a checkpoint has other memory under it, and another handle. */
static bool open_already(const struct worker *w, struct import *i)
{
	struct import *other;
	DL_FOREACH (w->imports, other)
		if (other->kind == SVC_REGION_IPC && other->pid == i->pid &&
		    other->buffer_id == i->buffer_id &&
		    !memcmp(other->ipc_handle, i->ipc_handle, sizeof(i->ipc_handle))) {
			i->address = other->address;
			other->users++;
			return true;
		}
	return false;
}

static CUresult open_ipc(struct import *i)
{
	CUipcMemHandle handle;
	memcpy(&handle, i->ipc_handle, sizeof(handle));
	return cu.cuIpcOpenMemHandle(&i->address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult open_fd(const struct worker *w, struct import *i, int fd)
{
	CUresult error = cu.cuMemImportFromShareableHandle(
		&i->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (error)
		return error;
	error = map(w, i->handle, i->bytes, &i->address);
	if (error)
		cu.cuMemRelease(i->handle);
	return error;
}

/* Nothing that was said of an allocation is trusted: the driver tells how long it is. */
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
		refuse(m, NCCLSVC_UNSUPPORTED, RESTORED, error);
	else
		refuse(m, error == CUDA_ERROR_OUT_OF_MEMORY ? NCCLSVC_NO_MEMORY : NCCLSVC_SYSTEM,
		       ipc ? "the CUDA IPC handle cannot be opened"
			   : "the file descriptor cannot be imported as GPU memory",
		       error);
}

void import_open(struct worker *w, struct worker_message *m, int fd)
{
	struct import *i = calloc(1, sizeof(*i));
	if (!i) {
		m->result = NCCLSVC_NO_MEMORY;
		return;
	}
	i->kind = m->region.kind;
	i->bytes = m->region.bytes;
	i->buffer_id = m->region.buffer_id;
	i->pid = m->region.pid;
	memcpy(i->ipc_handle, m->region.handle, sizeof(i->ipc_handle));
	i->users = i->opens = 1;
	const bool shared = i->kind == SVC_REGION_IPC && open_already(w, i);
	CUresult error = CUDA_SUCCESS;
	if (!shared)
		error = i->kind == SVC_REGION_IPC ? open_ipc(i) : open_fd(w, i, fd);
	if (worker_bad(w, error, "a trainer's memory cannot be imported")) {
		refuse_import(m, error);
		free(i);
		return;
	}
	m->region.address = i->address;
	struct import *known = import_find(w, i->address);
	if (known) {
		if (!shared) { /* the driver knows the handle; it counts */
			known->users++;
			known->opens++;
		}
		free(i);
		i = known;
	} else {
		DL_APPEND(w->imports, i);
	}
	if (!long_enough(i) || m->region.bytes > i->bytes) {
		m->result = NCCLSVC_INVALID_ARGUMENT;
		snprintf(m->text, sizeof(m->text), "the allocation is shorter than %llu bytes",
			 (unsigned long long)m->region.bytes);
		import_close(w, i->address);
	}
}

/* Memory of this GPU that can be shared, with networks, too, where they reach it. */
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
	error = map(w, i->handle, i->bytes, &i->address);
	if (error)
		cu.cuMemRelease(i->handle);
	return error;
}

static void unmap_handle(struct import *i)
{
	cu.cuMemAddressFree(i->address, i->bytes);
	cu.cuMemRelease(i->handle);
}

int import_lend(struct worker *w, struct worker_message *m)
{
	int fd = -1;
	struct import *i = calloc(1, sizeof(*i));
	if (!i) {
		m->result = NCCLSVC_NO_MEMORY;
		return -1;
	}
	CUresult error = make_lent(w, i, m->region.bytes);
	if (error) {
		m->result = NCCLSVC_NO_MEMORY;
		snprintf(m->text, sizeof(m->text), "the GPU has no %llu bytes to lend: %s",
			 (unsigned long long)m->region.bytes, gpu_api_cuda_error(error));
		free(i);
		return -1;
	}
	error = cu.cuMemExportToShareableHandle(&fd, i->handle,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (worker_bad(w, error, "no memory can be lent to a trainer")) {
		refuse(m, NCCLSVC_UNSUPPORTED, "memory of this GPU cannot be lent", error);
		cu.cuMemUnmap(i->address, i->bytes);
		unmap_handle(i);
		free(i);
		return -1;
	}
	i->kind = SVC_REGION_LENT;
	i->users = 1;
	DL_APPEND(w->imports, i);
	m->region.address = i->address;
	m->region.bytes = i->bytes;
	return fd;
}

void import_close(struct worker *w, uint64_t address)
{
	struct import *i = import_find(w, address);
	if (i && i->users && !--i->users)
		close_later(w);
}

static void let_import_go(struct worker *w, struct import *i)
{
	CUresult error = CUDA_SUCCESS;
	switch (i->kind) {
	case SVC_REGION_IPC:
		while (!error && i->opens--)
			error = cu.cuIpcCloseMemHandle(i->address);
		break;
	case SVC_REGION_VMM:
	case SVC_REGION_LENT:
		error = cu.cuMemUnmap(i->address, i->bytes);
		unmap_handle(i);
		break;
	case SVC_REGION_MAPPINGS:
		error = range_close(w, i);
		break;
	}
	worker_bad(w, error, "imported memory cannot be closed");
	DL_DELETE(w->imports, i);
	free(i);
}

void imports_sweep(struct worker *w, uint64_t now)
{
	struct import *i, *tmp;
	/* The driver waits for all launches in flight, and one of these may wait for a trainer that
	 * waits for this worker's next launch: so not while any is in flight, unless none is stuck
	 * and the memory has waited for long. */
	if (!w->closing_ns || (w->in_flight && (w->stuck || now < w->closing_ns + IMPORT_CLOSE_NS)))
		return;
	w->closing_ns = 0;
	DL_FOREACH_SAFE (w->imports, i, tmp)
		if (!i->users)
			let_import_go(w, i);
	while (w->closed) {
		struct closed_session *c = w->closed;
		w->closed = c->next;
		let_session_go(w, &c->timelines);
		free(c);
	}
}
