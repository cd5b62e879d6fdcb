/* SPDX-License-Identifier: Apache-2.0
 * The functions that end communicators. */
#include "nccl_operation.h"
#include "start.h"

/* Waits for all submitted operations. */
static void finalize(ncclComm_t comm)
{
	handle_flush(comm);
	handle_exit(comm);
	pthread_mutex_lock(&comm->lock);
	comm->pending--;
	pthread_mutex_unlock(&comm->lock);
	handle_unref(comm);
}

static void *finalize_in_background(void *comm)
{
	pthread_detach(pthread_self());
	finalize(comm);
	return NULL;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	pthread_t thread;
	ncclResult_t r = handle_check(comm, "ncclCommFinalize");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	comm->suspended = false; /* it will not be resumed */
	pthread_mutex_unlock(&comm->lock);
	r = handle_enter(comm, "ncclCommFinalize");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	comm->finalized = true;
	comm->pending++;
	pthread_mutex_unlock(&comm->lock);
	handle_ref(comm);
	if (!comm->blocking && thread_run(finalize_in_background, comm, &thread))
		return ncclInProgress;
	finalize(comm);
	pthread_mutex_lock(&comm->lock);
	r = comm->async;
	pthread_mutex_unlock(&comm->lock);
	return r;
}
NCCL_ALIAS(ncclCommFinalize);

/* pending: its submitted operations may still run, and are aborted. */
static ncclResult_t end(ncclComm_t comm, bool pending)
{
	pthread_mutex_lock(&comm->lock);
	bool before = atomic_exchange(&comm->aborted, true);
	pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->lock);
	if (before)
		return ncclSuccess;
	inform("communicator %p: aborted", (void *)comm);
	/* If the communicator is still being created, the creating thread does the rest. */
	handle_cancel_join(comm);
	if (pending)
		handle_break_off(comm);
	ncclResult_t r = handle_leave(comm);
	handle_unref(comm);
	return r;
}

/* May be called from any thread, whatever others do with the communicator: their calls return. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	if (!comm || (comm->magic == COMM_MAGIC && comm->aborted))
		return ncclSuccess;
	ncclResult_t r = handle_check(comm, "ncclCommAbort");
	return r ? r : end(comm, true);
}
NCCL_ALIAS(ncclCommAbort);

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	if (!comm || (comm->magic == COMM_MAGIC && comm->aborted))
		return ncclSuccess;
	ncclResult_t r = handle_check(comm, "ncclCommDestroy");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	bool flush = comm->service && !comm->aborted && !comm->revoked && !comm->async;
	if (flush)
		comm->users++;
	pthread_mutex_unlock(&comm->lock);
	if (flush) {
		handle_flush(comm);
		handle_exit(comm);
	}
	return end(comm, !flush);
}
NCCL_ALIAS(ncclCommDestroy);

/* Cancels this rank's pending operations, and fails those of the other ranks. The handle remains.
 */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
	if (flags != NCCL_REVOKE_DEFAULT)
		return fail(ncclInvalidArgument, "ncclCommRevoke: unknown flags %#x", flags);
	ncclResult_t r = handle_check(comm, "ncclCommRevoke");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	bool ready = comm->state == COMM_READY && !comm->aborted && !comm->finalized;
	bool before = comm->revoked;
	if (ready) {
		comm->revoked = true;
		comm->async = ncclSuccess;
	}
	pthread_mutex_unlock(&comm->lock);
	if (before)
		return ncclSuccess;
	if (!ready)
		return fail(ncclInvalidUsage, "ncclCommRevoke: the communicator is not ready, or "
					      "has been finalized or aborted");
	handle_break_off(comm);
	return handle_leave(comm);
}
NCCL_ALIAS(ncclCommRevoke);
