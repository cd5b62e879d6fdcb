/* SPDX-License-Identifier: Apache-2.0
 * Suspended communicators, and their GPU memory. In this process, that is the direct transport's.
 * NCCL's memory belongs to the daemon's workers. */
#include "handle.h"
#include "start.h"

static bool is_suspended(ncclComm_t comm)
{
	pthread_mutex_lock(&comm->lock);
	const bool suspended = comm->suspended;
	pthread_mutex_unlock(&comm->lock);
	return suspended;
}

/* Checks that it can be suspended, or already is. */
static ncclResult_t check_ready(ncclComm_t comm, const char *function)
{
	ncclResult_t r = handle_check(comm, function);
	if (r)
		return r;
	return is_suspended(comm) ? ncclSuccess : handle_usable(comm, function);
}

static void set_suspended(ncclComm_t comm, bool suspended)
{
	pthread_mutex_lock(&comm->lock);
	comm->suspended = suspended;
	pthread_mutex_unlock(&comm->lock);
}

/* Suspends or resumes. If the service fails, the communicator counts as suspended, so that the
 * caller can repeat the call. */
static ncclResult_t turn(ncclComm_t comm, const char *function, bool suspend)
{
	set_suspended(comm, false);
	const ncclResult_t r = handle_enter(comm, function);
	if (r)
		return r;
	if (suspend)
		ncclsvc_mem_sweep(comm->session->service);
	const ncclsvc_result result = (suspend ? ncclsvc_comm_suspend : ncclsvc_comm_resume)(
		comm->service, start_timeout_ms());
	set_suspended(comm, suspend || result);
	handle_exit(comm);
	return result ? fail_service(result) : ncclSuccess;
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
	if (flags & ~NCCL_SUSPEND_MEM)
		return fail(ncclInvalidArgument, "ncclCommSuspend: unknown flags %#x", flags);
	const ncclResult_t r = check_ready(comm, "ncclCommSuspend");
	return r || !flags ? r : turn(comm, "ncclCommSuspend", true);
}
NCCL_ALIAS(ncclCommSuspend);

ncclResult_t ncclCommResume(ncclComm_t comm)
{
	const ncclResult_t r = check_ready(comm, "ncclCommResume");
	return r || !is_suspended(comm) ? r : turn(comm, "ncclCommResume", false);
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
	*value = 0;
	if (stat == ncclStatGpuMemSuspended)
		*value = comm->suspended;
	else if (stat != ncclStatGpuMemPersist)
		*value = ncclsvc_comm_gpu_bytes(comm->service);
	pthread_mutex_unlock(&comm->lock);
	return ncclSuccess;
}
NCCL_ALIAS(ncclCommMemStats);
