/* SPDX-License-Identifier: Apache-2.0
 * A member's own staging memory. The member allocates it, so that the GPU needs no worker, and
 * clears it before the daemon hands it to other members. They may use it after the member's death.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "core/call.h"
#include "core/session_handle.h"
#include "peer_life.h"

/* How long to wait for room on the GPU. Without a limit, this could deadlock: kernels of this
 * process that fill the GPU may be waiting for work that follows the JOIN. */
#define CLEAR_NS UINT64_C(10000000000)

/* Returns CUDA_ERROR_NOT_READY if the GPU has no room for that in time. */
static CUresult clear(const struct peer *p)
{
	const struct cuda *cuda = p->capture->cuda;
	const struct timespec nap = {.tv_nsec = 50000};
	const uint64_t end = now_ns() + CLEAR_NS;
	CUresult e = cuda->cuMemsetD8Async(p->own.base, 0, p->own.bytes, p->asking);
	while (!e && (e = cuda->cuStreamQuery(p->asking)) == CUDA_ERROR_NOT_READY &&
	       now_ns() < end) {
		nanosleep(&nap, NULL);
		e = CUDA_SUCCESS;
	}
	return e;
}

static void unmap(struct peer *p)
{
	allocation_unmap(p->capture->cuda, p->own.base, p->own.bytes);
	p->own.base = 0;
}

/* The caller owns *fd. */
static CUresult make(struct peer *p, bool copy_engines, int *fd)
{
	CUresult e = allocation_make_exported(
		p->capture->cuda, p->capture->device,
		PEER_STAGING + (copy_engines ? 2 * PEER_COPY_SLOT : 0), &p->own, fd);
	if (e)
		return e;
	e = clear(p);
	if (e && e != CUDA_ERROR_NOT_READY) /* otherwise it stays, as the GPU may still write */
		unmap(p);
	return e;
}

/* At once: the session may be connected to another daemon when the caller looks. */
static void introduced(ncclsvc_session *s, struct call *call)
{
	struct svc_region_reply reply;
	struct peer *p = call->arg;
	memcpy(&reply, call->body, sizeof(reply));
	p->own_region = reply.region;
	p->own_connections = session_connections(s);
}

/* Locked; yields. */
static ncclsvc_result introduce(ncclsvc_session *s, struct peer *p, int32_t number, int fd)
{
	const struct svc_region_cuda request = {.bytes = p->own.bytes, .device = number};
	struct call call = {.on_reply = introduced, .arg = p};
	p->own_region = 0;
	p->own_connections = session_connections(s);
	return call_run(s, &call, SVC_REGION_CUDA_FD, &request, fd, deadline_in(REQUEST_MS));
}

ncclsvc_result peer_staging_again(ncclsvc_session *s, struct peer *p, int32_t number)
{
	int fd = -1;
	const uint32_t region = p->own_region, connections = p->own_connections;
	const int mode = relaxed_begin(p->capture->cuda);
	const CUresult e = mapping_export(p->capture->cuda, p->own.base, &fd);
	relaxed_end(p->capture->cuda, mode);
	if (e)
		return cuda_error(p->capture->cuda, e, "cannot export staging memory");
	if (p->own_region)
		call_forget(
			s, SVC_RESUME,
			&(struct svc_resume){.kind = SVC_RESUME_REGION, .number = p->own_region});
	const ncclsvc_result r = introduce(s, p, number, fd);
	close(fd);
	if (r && !p->own_region) { /* a JOIN under way still names it to the next daemon */
		p->own_region = region;
		p->own_connections = connections;
	}
	return r;
}

ncclsvc_result peer_staging_current(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	struct peer *p = comm->peer;
	ncclsvc_result r = session_back(s);
	while (!r && p && p->own_region && p->own_connections != session_connections(s)) {
		p->own_region = 0; /* the number may be another region's now */
		r = peer_staging_again(s, p, comm->daemon_device);
	}
	return r;
}

bool peer_staging_make(ncclsvc_session *s, struct peer *p, int32_t number, bool copy_engines)
{
	const struct cuda *cuda = p->capture->cuda;
	int fd = -1;
	if (cuda_push(cuda, p->capture->context))
		return false;
	const int mode = relaxed_begin(cuda);
	bool good = !make(p, copy_engines, &fd);
	session_lock(s);
	if (good && introduce(s, p, number, fd)) {
		unmap(p);
		good = false;
	}
	session_unlock(s);
	relaxed_end(cuda, mode);
	cuda_pop(cuda, p->capture->context);
	if (fd >= 0)
		close(fd);
	return good;
}
