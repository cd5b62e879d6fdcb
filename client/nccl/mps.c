/* SPDX-License-Identifier: Apache-2.0
 * Uses the MPS of the daemon's workers. CUDA reads the environment when it initializes, which is
 * before the first communicator, so the daemon is queried when this library is loaded. Not every
 * process that loads it is a trainer, so this must be cheap and print nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "handle.h"
#include "proto/abi/cuda_connections.h"
#include "proto/cuda/mps.h"

#define ASK_MS 1000

/* Opening a session sets the environment as its daemon advises, and the process keeps that. */
static void ask_daemon(void)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .no_ring = true, .timeout_ms = ASK_MS};
	ncclsvc_session *session;
	if (ncclsvc_open(&options, &session))
		mps_leave();
	else
		ncclsvc_close(session);
}

__attribute__((constructor)) static void join_workers(void)
{
	const int error = errno;
	if (!process_is_daemon() && !mps_chosen())
		ask_daemon();
	errno = error;
}

/* False: unknown. */
static bool find_worker(ncclsvc_session *session, const CUuuid *uuid, ncclsvc_device_info *worker)
{
	ncclsvc_device_info *list;
	size_t n;
	bool found = false;
	if (ncclsvc_list_devices(session, &list, &n))
		return false;
	for (size_t i = 0; i < n && !found; i++) {
		found = !memcmp(list[i].uuid, uuid->bytes, sizeof(list[i].uuid));
		*worker = list[i];
	}
	ncclsvc_list_free(list);
	return found && worker->mps != NCCLSVC_MPS_UNKNOWN;
}

/* Explains why a process does not use the workers' MPS, and what to do. */
static void explain(const ncclsvc_daemon_info *d, char *text, size_t size)
{
	const char *set = getenv(MPS_VARIABLE);
	if (d->mps == NCCLSVC_MPS_NOBODY)
		snprintf(text, size, "restart this process once ncclsvc-ctl status shows it again");
	else if (d->uid != geteuid())
		snprintf(text, size,
			 "it is for the daemon's tenant, and this process belongs to another user "
			 "(ncclsvcd(8), GPUS)");
	else if (!set || !*set)
		snprintf(text, size,
			 "this process belongs to another job or pod than the daemon, or CUDA was "
			 "initialized before this library was loaded: then preload it, or "
			 "set " MPS_VARIABLE "=%s and " CUDA_CONNECTIONS_VARIABLE
			 "=" CUDA_CONNECTIONS_TEXT(CUDA_CONNECTIONS_MAX) " for the process",
			 d->mps_text);
	else if (strcmp(set, d->mps_text) != 0)
		snprintf(text, size, "unset " MPS_VARIABLE ", which is %s and not %s", set,
			 d->mps_text);
	else
		snprintf(text, size,
			 MPS_VARIABLE " was set after CUDA was initialized, or MPS started later: "
				      "restart this process");
}

/* Finds how this process and the worker use the GPU. False: unknown. */
static bool look(ncclComm_t comm, bool *here, uint64_t *server, ncclsvc_device_info *worker)
{
	const struct cuda *cuda;
	CUuuid uuid;
	CUdevice device;
	int enabled = 0;
	if (driver_open(&cuda) || cuda->cuDeviceGet(&device, comm->device) ||
	    cuda->cuDeviceGetUuid(&uuid, device) ||
	    !find_worker(comm->session->service, &uuid, worker))
		return false;
	CUresult e = cuda->cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
	*here = mps_in_use(e, enabled, server) == NCCLSVC_MPS_ACTIVE;
	return true;
}

void mps_check(ncclComm_t comm)
{
	static atomic_bool checked;
	ncclsvc_device_info worker;
	ncclsvc_daemon_info daemon;
	uint64_t server;
	bool here;
	char why[512];
	if (atomic_exchange(&checked, true) || !look(comm, &here, &server, &worker))
		return;
	const bool there = worker.mps == NCCLSVC_MPS_ACTIVE;
	if (there == here && server == worker.mps_server) {
		inform("GPU %d: this process and the daemon's worker use %s", comm->device,
		       here ? "it through the same MPS server" : "no MPS");
		return;
	}
	if (ncclsvc_daemon(comm->session->service, &daemon))
		return;
	daemon.mps_text[sizeof(daemon.mps_text) - 1] = '\0';
	explain(&daemon, why, sizeof(why));
	if (!there)
		snprintf(why, sizeof(why), "%s",
			 mps_chosen() ? "unset " MPS_VARIABLE
				      : "the worker was started before MPS; see "
					"ncclsvc-ctl status");
	warn("GPU %d: %s, so compute and communication take turns: %s", comm->device,
	     !there ? "this process uses MPS, but the daemon's worker does not"
	     : here ? "this process and the daemon's worker use different MPS servers"
		    : "the daemon's worker uses MPS, but this process does not",
	     why);
}
