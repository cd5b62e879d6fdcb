/* SPDX-License-Identifier: Apache-2.0
 * Queries of communicators and of the library. */
#include <stdio.h>
#include <string.h>

#include "handle.h"

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
	const int found = version_of_daemon();
	if (!found)
		return fail(
			ncclSystemError,
			"the daemon was started with the drop-in libnccl.so.2 in LD_PRELOAD or "
			"LD_LIBRARY_PATH, but needs NCCL's own: restart it without the drop-in");
	*version = found;
	return ncclSuccess;
}
NCCL_ALIAS(ncclGetVersion);

static ncclResult_t tell(ncclComm_t comm, const char *function, int *to, const int *from)
{
	if (!to)
		return fail(ncclInvalidArgument, "%s: the result is NULL", function);
	ncclResult_t r = handle_check(comm, function);
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	bool starting = comm->state == COMM_STARTING || comm->state == COMM_FAILED;
	*to = *from;
	pthread_mutex_unlock(&comm->lock);
	if (starting)
		return fail(ncclInvalidArgument,
			    "%s: the communicator is not created yet, or its creation failed",
			    function);
	return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return tell(comm, "ncclCommCount", count, comm ? &comm->nranks : NULL);
}
NCCL_ALIAS(ncclCommCount);

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return tell(comm, "ncclCommUserRank", rank, comm ? &comm->rank : NULL);
}
NCCL_ALIAS(ncclCommUserRank);

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return tell(comm, "ncclCommCuDevice", device, comm ? &comm->device : NULL);
}
NCCL_ALIAS(ncclCommCuDevice);

/* The same on all ranks, and not secret. */
static uint64_t hash_of(const ncclUniqueId *id)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
	for (size_t i = 0; i < sizeof(id->internal); i++)
		h = (h ^ (unsigned char)id->internal[i]) * UINT64_C(0x100000001b3);
	return h;
}

/* Writes as much as the caller's struct holds. Features of the device API and of one-sided
 * operations are all zero, because there are none. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties)
{
	ncclCommProperties_t is = {.nvmlDev = -1};
	const size_t from = offsetof(ncclCommProperties_t, rank);
	ncclResult_t r = handle_check(comm, "ncclCommQueryProperties");
	if (!r && (!properties || properties->magic != NCCL_MAGIC || properties->size < from))
		r = fail(ncclInvalidArgument, "ncclCommQueryProperties: the properties were not "
					      "initialized with NCCL_COMM_PROPERTIES_INITIALIZER");
	if (!r)
		r = tell(comm, "ncclCommQueryProperties", &is.rank, &comm->rank);
	if (r)
		return r;
	is.nRanks = comm->nranks;
	is.cudaDev = comm->device;
	is.commHash = hash_of(&comm->id);
	const size_t size = properties->size < sizeof(is) ? properties->size : sizeof(is);
	memcpy((char *)properties + from, (const char *)&is + from, size - from);
	return ncclSuccess;
}
NCCL_ALIAS(ncclCommQueryProperties);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	if (!error)
		return fail(ncclInvalidArgument, "ncclCommGetAsyncError: the result is NULL");
	ncclResult_t r = handle_check(comm, "ncclCommGetAsyncError");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	bool look = comm->service && !comm->async && !comm->aborted;
	if (look)
		comm->users++;
	pthread_mutex_unlock(&comm->lock);
	if (look) {
		handle_look(comm);
		handle_exit(comm);
	}
	pthread_mutex_lock(&comm->lock);
	*error = comm->async;
	if (!*error && (comm->state == COMM_STARTING || comm->pending))
		*error = ncclInProgress;
	pthread_mutex_unlock(&comm->lock);
	return ncclSuccess;
}
NCCL_ALIAS(ncclCommGetAsyncError);

const char *ncclGetLastError(ncclComm_t comm)
{
	struct thread_errors *e = thread_errors();
	if (!comm || comm->magic != COMM_MAGIC)
		return last_sentence();
	pthread_mutex_lock(&comm->lock);
	bool failed = comm->async != ncclSuccess;
	if (failed)
		snprintf(e->text, sizeof(e->text), "%s", comm->text);
	pthread_mutex_unlock(&comm->lock);
	return failed ? e->text : last_sentence();
}
NCCL_ALIAS(ncclGetLastError);
