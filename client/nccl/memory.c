/* SPDX-License-Identifier: Apache-2.0
 * ncclMemAlloc borrows memory from the daemon. Registration promises that memory will be used
 * again; the service assumes this of all memory, and imports whatever an operation uses only once.
 * So a window is a registration too, but must be memory from ncclMemAlloc. */
#include <stdlib.h>
#include <time.h>

#include "driver.h"
#include "handle.h"

#define FREE_WAIT_NS UINT64_C(10000000000) /* time for tasks that still use it */

struct lent {
	void *base;
	size_t bytes;
	struct gpu_session *session;
	unsigned generation; /* generation of the process: a forked child has neither the memory nor
				the session */
	struct lent *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lent *all;
FREE_IN_CHILDREN(lock)

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
	int device;
	struct gpu_session *session;
	if (!p || !bytes)
		return fail(ncclInvalidArgument, "ncclMemAlloc: ptr is %p, size is %zu", (void *)p,
			    bytes);
	struct lent *lent = calloc(1, sizeof(*lent));
	if (!lent)
		return fail(ncclSystemError, "out of memory");
	ncclResult_t r = device_current(&device);
	if (!r)
		r = session_get(device, &session);
	if (!r) {
		ncclsvc_result e =
			ncclsvc_mem_alloc_device(session->service, device, bytes, &lent->base);
		if (e == NCCLSVC_DAEMON_LOST)
			session->lost = true;
		if (e)
			r = fail_service(e);
	}
	if (r) {
		free(lent);
		return r;
	}
	*p = lent->base;
	lent->bytes = bytes;
	lent->session = session;
	lent->generation = process_generation();
	pthread_mutex_lock(&lock);
	lent->next = all;
	all = lent;
	pthread_mutex_unlock(&lock);
	inform("ncclMemAlloc: %zu bytes of GPU %d at %p, lent by the daemon", bytes, device,
	       lent->base);
	return ncclSuccess;
}
NCCL_ALIAS(ncclMemAlloc);

/* Removes and returns it; NULL: not found. An entry of the parent process stays in the list; the
 * newest entries are found first. */
static struct lent *take(const void *p, bool *of_parent)
{
	pthread_mutex_lock(&lock);
	struct lent **at = &all;
	while (*at && (*at)->base != p)
		at = &(*at)->next;
	struct lent *found = *at;
	*of_parent = found && found->generation != process_generation();
	if (*of_parent)
		found = NULL;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&lock);
	return found;
}

ncclResult_t ncclMemFree(void *p)
{
	if (!p)
		return ncclSuccess;
	bool of_parent;
	struct lent *lent = take(p, &of_parent);
	if (of_parent)
		return fail(ncclInvalidUsage,
			    "ncclMemFree: %p belongs to the process that forked this one, and can "
			    "only be freed there",
			    p);
	if (!lent)
		return fail(ncclInvalidArgument,
			    "ncclMemFree: %p was not allocated by ncclMemAlloc", p);
	ncclsvc_result e = ncclsvc_mem_free(lent->session->service, p);
	for (uint64_t ns = 0; e == NCCLSVC_BUSY && ns < FREE_WAIT_NS; ns += 1000000) {
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		e = ncclsvc_mem_free(lent->session->service, p);
	}
	if (e == NCCLSVC_BUSY) { /* it stays allocated */
		pthread_mutex_lock(&lock);
		lent->next = all;
		all = lent;
		pthread_mutex_unlock(&lock);
		return fail_service(e);
	}
	free(lent);
	return e ? fail_service(e) : ncclSuccess;
}
NCCL_ALIAS(ncclMemFree);

static bool is_lent(const void *p, size_t bytes)
{
	pthread_mutex_lock(&lock);
	const struct lent *l = all;
	while (l &&
	       (l->generation != process_generation() || (const char *)p < (const char *)l->base ||
		(const char *)p >= (const char *)l->base + l->bytes))
		l = l->next;
	bool is = l && bytes <= l->bytes - (size_t)((const char *)p - (const char *)l->base);
	pthread_mutex_unlock(&lock);
	return is;
}

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
	if (!is_lent(p, bytes))
		return fail(ncclInvalidUsage,
			    "ncclCommWindowRegister: %p (%zu bytes) was not allocated by "
			    "ncclMemAlloc: only memory that the daemon owns can be a window",
			    p, bytes);
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
