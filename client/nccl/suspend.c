/* SPDX-License-Identifier: Apache-2.0
 * Suspended communicators, and their GPU memory. A communicator has none in this process: NCCL's
 * memory belongs to the daemon, which shares it among all who use the same GPUs. All that can be
 * given back here is memory that the program has freed and the daemon still imports. */
#include "handle.h"

/* Checks that it can be suspended, or already is. */
static ncclResult_t check_ready(ncclComm_t comm, const char *function)
{
	ncclResult_t r = handle_check(comm, function);
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	const bool suspended = comm->suspended;
	pthread_mutex_unlock(&comm->lock);
	return suspended ? ncclSuccess : handle_usable(comm, function);
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
	if (flags & ~NCCL_SUSPEND_MEM)
		return fail(ncclInvalidArgument, "ncclCommSuspend: unknown flags %#x", flags);
	ncclResult_t r = check_ready(comm, "ncclCommSuspend");
	if (r || !flags)
		return r;
	ncclsvc_mem_sweep(comm->session->service);
	pthread_mutex_lock(&comm->lock);
	comm->suspended = true;
	pthread_mutex_unlock(&comm->lock);
	return ncclSuccess;
}
NCCL_ALIAS(ncclCommSuspend);

ncclResult_t ncclCommResume(ncclComm_t comm)
{
	ncclResult_t r = check_ready(comm, "ncclCommResume");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	comm->suspended = false;
	pthread_mutex_unlock(&comm->lock);
	return ncclSuccess;
}
NCCL_ALIAS(ncclCommResume);

ncclResult_t ncclCommMemStats(ncclComm_t comm, int stat, uint64_t *value)
{
	ncclResult_t r = check_ready(comm, "ncclCommMemStats");
	if (!r && !value)
		r = fail(ncclInvalidArgument, "ncclCommMemStats: the result is NULL");
	if (!r && (stat < ncclStatGpuMemSuspend || stat > ncclStatGpuMemTotal))
		r = fail(ncclInvalidArgument, "ncclCommMemStats: %d is not a statistic", stat);
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	*value = stat == ncclStatGpuMemSuspended && comm->suspended;
	pthread_mutex_unlock(&comm->lock);
	return ncclSuccess;
}
NCCL_ALIAS(ncclCommMemStats);
