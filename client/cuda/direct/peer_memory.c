/* SPDX-License-Identifier: Apache-2.0
 * The memory that a member's kernels share with other ranks: all ranks' staging memory and control
 * blocks. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "peer.h"
#include "proto/fdio.h"
#include "shares.h"

#define WITHOUT                                                                                    \
	"; to run without such kernels, set NCCLSVC_PEER=0 for one rank, or peer_bytes = 0 in "    \
	"ncclsvcd.conf"

/* At once: the next daemon must get them from a member that has them. */
static void controls_came(ncclsvc_session *s, struct call *call)
{
	struct peer *p = call->arg;
	(void)s;
	p->controls_fd = call->fd; /* peer_free closes it */
}

ncclsvc_result peer_staging_fetch(ncclsvc_session *s, const ncclsvc_comm *comm, int32_t rank,
				  int *fd)
{
	struct call call = {
		.fd = -1, .on_reply = rank < 0 ? controls_came : NULL, .arg = comm->peer};
	const struct svc_staging request = {.comm = comm->handle, .rank = rank};
	ncclsvc_result r = call_run(s, &call, SVC_STAGING, &request, -1, deadline_in(REQUEST_MS));
	*fd = call.fd;
	return r;
}

/* The context must be current. */
static CUresult controls_map(struct peer *p, int fd, unsigned nranks)
{
	const struct capture *c = p->capture;
	char text[SVC_TEXT_BYTES];
	const size_t bytes = (size_t)nranks * PEER_CONTROL_BYTES;
	void *at = MAP_FAILED;
	if (svc_memfd_trusted(fd, bytes, text))
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult e = c->cuda->cuMemHostRegister(
		at, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	CUdeviceptr address = 0;
	if (!e) {
		e = c->cuda->cuMemHostGetDevicePointer(&address, at, 0);
		if (e)
			c->cuda->cuMemHostUnregister(at);
	}
	if (e) {
		munmap(at, bytes);
		return e;
	}
	p->controls = at;
	p->controls_bytes = bytes;
	p->control = peer_control_of(at, p->call.rank);
	p->call.control = address + (CUdeviceptr)p->call.rank * PEER_CONTROL_BYTES;
	return CUDA_SUCCESS;
}

/* Closes another rank's fd. */
static CUresult map(struct peer *p, const ncclsvc_comm *comm, int32_t rank, int fd)
{
	const struct capture *c = p->capture;
	CUdevice device;
	CUdeviceptr at = 0;
	CUresult e = cuda_push(c->cuda, c->context);
	if (e) {
		if (rank >= 0)
			close(fd);
		return e;
	}
	if (rank < 0) {
		e = controls_map(p, fd, (unsigned)comm->nranks);
	} else {
		e = c->cuda->cuCtxGetDevice(&device);
		if (!e)
			e = allocation_import(c->cuda, fd, device, p->staging_bytes[rank], &at);
		close(fd);
		p->call.staging[rank] = e ? 0 : at;
	}
	cuda_pop(c->cuda, c->context);
	return e;
}

static uint8_t ranks_per_gpu(const struct peer *p)
{
	unsigned most = 1;
	for (unsigned a = 0; a < p->call.nranks; a++) {
		unsigned n = 0;
		for (unsigned b = 0; b < p->call.nranks; b++)
			n += peer_control_of(p->controls, a)->device ==
			     peer_control_of(p->controls, b)->device;
		most = n > most ? n : most;
	}
	return (uint8_t)most;
}

static uint32_t at_least_one(uint32_t n)
{
	return n ? n : 1;
}

/* Reads what the daemon has written into the control blocks. Other members can write them, too:
 * false if a size is impossible. */
static bool controls_read(struct peer *p)
{
	const uint32_t blocks = p->control->blocks, nranks = p->call.nranks;
	uint64_t least = UINT64_MAX;
	for (unsigned r = 0; r < nranks; r++) {
		if (r != p->call.rank)
			p->staging_bytes[r] = peer_control_of(p->controls, r)->staging_bytes;
		least = p->staging_bytes[r] < least ? p->staging_bytes[r] : least;
	}
	p->ranks_per_gpu = ranks_per_gpu(p);
	p->blocks = (uint8_t)(blocks && blocks < PEER_BLOCKS ? blocks : PEER_BLOCKS);
	p->call.channels = (uint8_t)at_least_one(PEER_CHANNELS_OF(p->blocks, nranks));
	if (p->control->copy_engines && least >= PEER_STAGING + 2 * PEER_COPY_SLOT)
		p->copy_slot = PEER_COPY_SLOT;
	return least >= PEER_STAGING;
}

ncclsvc_result peer_map_all(ncclsvc_session *s, ncclsvc_comm *comm, struct peer *p)
{
	for (int32_t rank = -1; rank < comm->nranks; rank++) {
		int fd = -1;
		if (rank == comm->rank)
			continue;
		session_lock(s);
		ncclsvc_result r = peer_staging_fetch(s, comm, rank, &fd);
		session_unlock(s);
		if (r)
			return r;
		CUresult e = map(p, comm, rank, fd);
		if (!e && rank < 0 && !controls_read(p))
			e = CUDA_ERROR_INVALID_VALUE;
		if (e)
			return cuda_error(p->capture->cuda, e,
					  "cannot map the memory that a communicator's kernels "
					  "share" WITHOUT);
	}
	atomic_store_explicit(&p->control->open, 1, memory_order_release);
	return NCCLSVC_OK;
}

static void staging_unmap(const struct peer *p, unsigned rank)
{
	const struct cuda *cuda = p->capture->cuda;
	if (!(p->unmapped >> rank & 1))
		cuda->cuMemUnmap(p->call.staging[rank], p->staging_bytes[rank]);
	cuda->cuMemAddressFree(p->call.staging[rank], p->staging_bytes[rank]);
}

void peer_free(struct peer *p)
{
	if (!p)
		return;
	const struct capture *c = p->capture;
	imports_discard(p);
	if (!cuda_push(c->cuda, c->context)) {
		for (unsigned r = 0; r < PEER_RANKS; r++)
			if (p->call.staging[r])
				staging_unmap(p, r);
		if (p->controls)
			c->cuda->cuMemHostUnregister(p->controls);
		if (p->asking)
			c->cuda->cuStreamDestroy(p->asking);
		if (p->fork)
			c->cuda->cuEventDestroy(p->fork);
		cuda_pop(c->cuda, c->context);
	}
	if (p->controls)
		munmap(p->controls, p->controls_bytes);
	if (p->controls_fd >= 0)
		close(p->controls_fd);
	pthread_cond_destroy(&p->turned);
	free(p->saved_staging);
	free(p);
}
