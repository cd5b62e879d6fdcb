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
#include "peer.h"

/* How long to wait for room on the GPU. Without a limit, this could deadlock: kernels of this
 * process that fill the GPU may be waiting for work that follows the JOIN. */
#define CLEAR_NS UINT64_C(10000000000)

/* Returns CUDA_ERROR_NOT_READY if the GPU has no room for that in time. */
static CUresult clear(const struct peer *p)
{
	const struct cuda *cuda = p->capture->cuda;
	const struct timespec nap = {.tv_nsec = 50000};
	const uint64_t end = now_ns() + CLEAR_NS;
	CUresult e = cuda->cuMemsetD8Async(p->own.at, 0, p->own.bytes, p->asking);
	while (!e && (e = cuda->cuStreamQuery(p->asking)) == CUDA_ERROR_NOT_READY &&
	       now_ns() < end) {
		nanosleep(&nap, NULL);
		e = CUDA_SUCCESS;
	}
	return e;
}

static void unmap(struct peer *p)
{
	shared_unmap(p->capture->cuda, p->own.at, p->own.bytes);
	p->own.at = 0;
}

/* The caller owns *fd. */
static CUresult make(struct peer *p, bool copy_engines, int *fd)
{
	const struct cuda *cuda = p->capture->cuda;
	const CUdevice device = p->capture->device;
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .requestedHandleTypes =
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUmemGenericAllocationHandle handle;
	size_t page = 0;
	CUresult e = cuda->cuMemGetAllocationGranularity(&page, &prop,
							 CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (e)
		return e;
	p->own.bytes = PEER_STAGING + (copy_engines ? 2 * PEER_COPY_SLOT : 0);
	p->own.bytes = (p->own.bytes + page - 1) / page * page;
	e = cuda->cuMemCreate(&handle, p->own.bytes, &prop, 0);
	if (e)
		return e;
	e = cuda->cuMemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					       0);
	if (e) {
		*fd = -1;
		cuda->cuMemRelease(handle);
		return e;
	}
	e = allocation_map(cuda, handle, device, p->own.bytes, &p->own.at);
	if (e)
		return e;
	e = clear(p);
	if (e && e != CUDA_ERROR_NOT_READY) /* otherwise it stays, as the GPU may still write */
		unmap(p);
	return e;
}

/* Locked; yields. */
static ncclsvc_result introduce(ncclsvc_session *s, struct peer *p, int32_t number, int fd)
{
	const struct svc_region_cuda request = {.bytes = p->own.bytes, .device = number};
	struct svc_region_reply reply;
	struct call call = {0};
	const ncclsvc_result r =
		call_run(s, &call, SVC_REGION_CUDA_FD, &request, fd, deadline_in(REQUEST_MS));
	memcpy(&reply, call.body, sizeof(reply));
	p->own.region = r ? 0 : reply.region;
	p->own.generation = session_connections(s);
	return r;
}

ncclsvc_result peer_staging_again(ncclsvc_session *s, struct peer *p, int32_t number)
{
	int fd = -1;
	const int mode = relaxed_begin(p->capture->cuda);
	const CUresult e = mapping_export(p->capture->cuda, p->own.at, &fd);
	relaxed_end(p->capture->cuda, mode);
	if (e)
		return cuda_error(p->capture->cuda, e, "cannot export staging memory");
	if (p->own.region)
		call_forget(s, SVC_RESUME,
			    &(struct svc_resume){.kind = SVC_RESUME_REGION,
						 .number = p->own.region});
	const ncclsvc_result r = introduce(s, p, number, fd);
	close(fd);
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
