/* SPDX-License-Identifier: Apache-2.0
 * MPS: a process uses a GPU through the server that the daemon's worker uses, or else its compute
 * and its communication take turns there. */
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cuda_connections.h"
#include "proto/mps.h"

#include "cuda.h"

#define STARTED_NS UINT64_C(1000000000)
#define LOOK_MS	   2

ncclsvc_result mps_take_advice(struct link *l, const struct svc_hello_reply *reply)
{
	const size_t n = strnlen(reply->mps_directory, sizeof(reply->mps_directory));
	if (reply->mps == SVC_MPS_JOIN &&
	    (reply->mps_directory[0] != '/' || n > NCCLSVC_MPS_DIRECTORY_MAX))
		return error_set(NCCLSVC_PROTOCOL, "the daemon gave a directory of MPS that is %s",
				 n > NCCLSVC_MPS_DIRECTORY_MAX ? "too long" : "no absolute path");
	l->mps = (enum svc_mps_advice)reply->mps;
	if (reply->mps == SVC_MPS_JOIN)
		memcpy(l->mps_directory, reply->mps_directory, n + 1);
	return NCCLSVC_OK;
}

static bool is_on_its_way(const char *directory)
{
	struct mps m;
	mps_look_at(&m, directory);
	return (m.state == MPS_ABSENT || m.state == MPS_STALE) && !access(directory, F_OK);
}

/* A control daemon that has ended is started again within some milliseconds, and CUDA would not
 * wait for it. */
static void await(const char *directory)
{
	const uint64_t deadline = now_ns() + STARTED_NS;
	while (is_on_its_way(directory) && now_ns() < deadline)
		poll(NULL, 0, LOOK_MS);
}

/* CUDA reads both variables when it is initialized. */
void mps_join(const struct link *l)
{
	if (mps_chosen() || cuda_is_initialized())
		return;
	if (l->mps != SVC_MPS_JOIN) {
		mps_leave();
		return;
	}
	mps_lead(l->mps_directory);
	await(l->mps_directory);
	setenv(CUDA_CONNECTIONS_VARIABLE, CUDA_CONNECTIONS_TEXT(CUDA_CONNECTIONS_MAX), 0);
}

ncclsvc_mps mps_of_device(int device, uint64_t *server)
{
	const struct cuda *cuda = cuda_open();
	CUdevice cu;
	int enabled = 0;
	*server = 0;
	if (!cuda || cuda_device(cuda, device, &cu))
		return NCCLSVC_MPS_UNKNOWN;
	CUresult e = cuda->cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, cu);
	return mps_in_use(e, enabled, server);
}
