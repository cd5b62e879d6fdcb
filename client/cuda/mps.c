/* SPDX-License-Identifier: Apache-2.0
 * MPS: a process must use the same MPS server as the daemon's worker on the GPU, or else its
 * compute and its communication take turns there. */
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/connection.h"
#include "base/deadline_clock.h"
#include "cuda.h"
#include "proto/abi/cuda_connections.h"
#include "proto/cuda/mps.h"
#include "session_gpu.h"

#define STARTED_NS UINT64_C(1000000000)
#define LOOK_MS	   2

static bool is_on_its_way(const char *directory)
{
	struct mps m;
	mps_look_at(&m, directory);
	return (m.state == MPS_ABSENT || m.state == MPS_STALE) && !access(directory, F_OK);
}

/* A control daemon that has ended is restarted within milliseconds, but CUDA would not wait for it.
 */
static void await(const char *directory)
{
	const uint64_t deadline = now_ns() + STARTED_NS;
	while (is_on_its_way(directory) && now_ns() < deadline)
		poll(NULL, 0, LOOK_MS);
}

/* CUDA reads both variables when it initializes. */
void mps_join(const struct connection *c)
{
	if (mps_chosen() || cuda_is_initialized())
		return;
	if (c->mps != SVC_MPS_JOIN) {
		mps_leave();
		return;
	}
	mps_lead(c->mps_directory);
	await(c->mps_directory);
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
