/* SPDX-License-Identifier: Apache-2.0
 * ncclMemAlloc makes memory that other processes can map. Registration promises that memory will be
 * used again; the service assumes this of all memory, and maps each allocation once, when an
 * operation first uses it. So windows are registrations, too, and neither has requirements on the
 * memory. */
#include <stdlib.h>

#include "driver.h"
#include "handle.h"
#include "proto/cuda/allocation.h"

struct memory {
	struct memory *next;
	struct allocation allocation;
	unsigned generation; /* generation of the process: a forked child does not have the memory
			      */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
FREE_IN_CHILDREN(lock)

static ncclResult_t cuda_fail(const struct cuda *cuda, CUresult e, const char *function,
			      const void *p, size_t bytes)
{
	const char *name = NULL;
	if (cuda->cuGetErrorName(e, &name) || !name)
		name = "an unknown error";
	return fail(ncclUnhandledCudaError, "%s: %zu bytes at %p: %s", function, bytes, p, name);
}

static CUresult allocate(const struct cuda *cuda, int ordinal, size_t bytes, struct allocation *a)
{
	CUdevice device;
	const int mode = relaxed_begin(cuda);
	CUresult e = cuda->cuDeviceGet(&device, ordinal);
	if (!e)
		e = allocation_make(cuda, device, bytes, a);
	relaxed_end(cuda, mode);
	return e;
}

static void keep(struct memory *m)
{
	pthread_mutex_lock(&lock);
	m->next = memories;
	memories = m;
	pthread_mutex_unlock(&lock);
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
	int device;
	const struct cuda *cuda;
	if (!p || !bytes)
		return fail(ncclInvalidArgument, "ncclMemAlloc: ptr is %p, size is %zu", (void *)p,
			    bytes);
	ncclResult_t r = driver_open(&cuda);
	if (!r)
		r = device_current(&device);
	if (r)
		return r;
	struct memory *m = calloc(1, sizeof(*m));
	if (!m)
		return fail(ncclSystemError, "out of memory");
	const CUresult e = allocate(cuda, device, bytes, &m->allocation);
	if (e) {
		free(m);
		return cuda_fail(cuda, e, "ncclMemAlloc", NULL, bytes);
	}
	*p = (void *)m->allocation.base;
	m->generation = process_generation();
	keep(m);
	return ncclSuccess;
}
NCCL_ALIAS(ncclMemAlloc);

/* Removes and returns it; NULL: not found. The parent process's stay in the list; the newest are
 * found first. */
static struct memory *take(const void *p, bool *of_parent)
{
	pthread_mutex_lock(&lock);
	struct memory **at = &memories;
	while (*at && (*at)->allocation.base != (CUdeviceptr)p)
		at = &(*at)->next;
	struct memory *found = *at;
	*of_parent = found && found->generation != process_generation();
	if (*of_parent)
		found = NULL;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&lock);
	return found;
}

/* As with cudaFree, work on the GPU that uses the memory ends first. */
static CUresult release(const struct cuda *cuda, const struct allocation *a)
{
	CUcontext context;
	CUresult e = cuda->cuDevicePrimaryCtxRetain(&context, a->device);
	if (e)
		return e;
	e = cuda->cuCtxPushCurrent(context);
	if (!e) {
		e = cuda->cuCtxSynchronize();
		cuda->cuCtxPopCurrent(&context);
	}
	cuda->cuDevicePrimaryCtxRelease(a->device);
	if (e)
		return e;
	sessions_forget((const void *)a->base);
	return allocation_unmap(cuda, a->base, a->bytes);
}

ncclResult_t ncclMemFree(void *p)
{
	const struct cuda *cuda;
	bool of_parent;
	if (!p)
		return ncclSuccess;
	struct memory *m = take(p, &of_parent);
	if (of_parent)
		return fail(ncclInvalidUsage,
			    "ncclMemFree: %p belongs to the process that forked this one, and can "
			    "only be freed there",
			    p);
	if (!m)
		return fail(ncclInvalidArgument,
			    "ncclMemFree: %p was not allocated by ncclMemAlloc", p);
	const ncclResult_t r = driver_open(&cuda);
	CUresult e = CUDA_SUCCESS;
	if (!r) {
		const int mode = relaxed_begin(cuda);
		e = release(cuda, &m->allocation);
		relaxed_end(cuda, mode);
	}
	if (r || e) {
		keep(m);
		return r ? r : cuda_fail(cuda, e, "ncclMemFree", p, m->allocation.bytes);
	}
	free(m);
	return ncclSuccess;
}
NCCL_ALIAS(ncclMemFree);

/* ---- Registration ---- */

static ncclResult_t register_with(const char *function, bool window, ncclComm_t comm, const void *p,
				  size_t bytes, void **handle)
{
	int type = 0;
	ncclResult_t r = handle_enter(comm, function);
	if (r)
		return r;
	handle_exit(comm);
	const struct cuda *cuda;
	r = driver_open(&cuda);
	if (r)
		return r;
	if (!handle || !bytes ||
	    cuda->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)p) ||
	    type != CU_MEMORYTYPE_DEVICE)
		return fail(ncclInvalidArgument,
			    "%s: %p is not device memory of %zu bytes, or the handle is NULL",
			    function, p, bytes);
	struct registration *made = malloc(sizeof(*made));
	if (!made)
		return fail(ncclSystemError, "out of memory");
	pthread_mutex_lock(&comm->lock);
	*made = (struct registration){comm->registrations, window, p, bytes};
	comm->registrations = made;
	pthread_mutex_unlock(&comm->lock);
	*handle = made;
	return ncclSuccess;
}

static ncclResult_t deregister(const char *function, bool window, ncclComm_t comm, void *handle)
{
	ncclResult_t r = handle_check(comm, function);
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	struct registration **at = &comm->registrations;
	while (*at && (*at != handle || (*at)->window != window))
		at = &(*at)->next;
	struct registration *found = *at;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&comm->lock);
	if (!found)
		return fail(ncclInvalidArgument, "%s: %p is not registered with the communicator",
			    function, handle);
	free(found);
	return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t bytes, void **handle)
{
	return register_with("ncclCommRegister", false, comm, p, bytes, handle);
}
NCCL_ALIAS(ncclCommRegister);

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	return deregister("ncclCommDeregister", false, comm, handle);
}
NCCL_ALIAS(ncclCommDeregister);

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window,
				    int flags)
{
	void *handle = NULL;
	if (flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING))
		return fail(ncclInvalidArgument, "ncclCommWindowRegister: unknown flags %#x",
			    flags);
	if (!window)
		return fail(ncclInvalidArgument, "ncclCommWindowRegister: window is NULL");
	ncclResult_t r = register_with("ncclCommWindowRegister", true, comm, p, bytes, &handle);
	if (!r)
		*window = handle;
	return r;
}
NCCL_ALIAS(ncclCommWindowRegister);

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
	return deregister("ncclCommWindowDeregister", true, comm, window);
}
NCCL_ALIAS(ncclCommWindowDeregister);

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **p)
{
	if (!p)
		return fail(ncclInvalidArgument, "ncclWinGetUserPtr: the result is NULL");
	*p = NULL;
	ncclResult_t r = handle_check(comm, "ncclWinGetUserPtr");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	const struct registration *found = comm->registrations;
	while (found && ((const void *)found != (const void *)window || !found->window))
		found = found->next;
	if (found)
		*p = (void *)(uintptr_t)found->base;
	pthread_mutex_unlock(&comm->lock);
	if (!found)
		return fail(ncclInvalidArgument,
			    "ncclWinGetUserPtr: %p is not a window of the communicator",
			    (void *)window);
	return ncclSuccess;
}
NCCL_ALIAS(ncclWinGetUserPtr);
