/* SPDX-License-Identifier: Apache-2.0
 * One-sided operations: writes to another rank's window, and signals. Every task of the service
 * needs all its members, so these operations are refused. */
#include "handle.h"

static ncclResult_t refuse(ncclComm_t comm, const char *function)
{
	ncclResult_t r = handle_check(comm, function);
	if (r)
		return r;
	return fail(ncclInvalidUsage,
		    "%s: the service has no one-sided operations: use ncclSend and ncclRecv, or "
		    "NCCL's own library",
		    function);
}

ncclResult_t ncclPutSignal(const void *src, size_t count, ncclDataType_t type, int peer,
			   ncclWindow_t window, size_t offset, int signal, int context,
			   unsigned flags, ncclComm_t comm, CUstream stream)
{
	(void)src;
	(void)count;
	(void)type;
	(void)peer;
	(void)window;
	(void)offset;
	(void)signal;
	(void)context;
	(void)flags;
	(void)stream;
	return refuse(comm, "ncclPutSignal");
}
NCCL_ALIAS(ncclPutSignal);

ncclResult_t ncclSignal(int peer, int signal, int context, unsigned flags, ncclComm_t comm,
			CUstream stream)
{
	(void)peer;
	(void)signal;
	(void)context;
	(void)flags;
	(void)stream;
	return refuse(comm, "ncclSignal");
}
NCCL_ALIAS(ncclSignal);

ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, CUstream stream)
{
	(void)n;
	(void)signals;
	(void)stream;
	return refuse(comm, "ncclWaitSignal");
}
NCCL_ALIAS(ncclWaitSignal);
