/* SPDX-License-Identifier: Apache-2.0
 * MPS as the daemon's workers use it. CUDA reads the environment when it is initialized, which is
 * before the first communicator, so the daemon is asked when this library is loaded. Not every
 * process that loads it is a trainer: it costs little, and nobody notices. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/open.h"
#include "core/comm.h"
#include "core/session.h"
#include "cuda/mps.h"
#include "dropin.h"
#include "proto/cuda_connections.h"
#include "proto/mps.h"

#define ASK_MS 1000

__attribute__((constructor)) static void join_workers(void)
{
	const int error = errno;
	if (!process_is_daemon())
		session_join_mps(ASK_MS);
	errno = error;
}

/* False: it is not known. */
static bool find_worker(ncclsvc_comm *comm, ncclsvc_device_info *worker)
{
	ncclsvc_device_info *list;
	size_t n;
	bool found = false;
	if (ncclsvc_list_devices(comm->session, &list, &n))
		return false;
	for (size_t i = 0; i < n && !found; i++) {
		found = list[i].device == comm->daemon_device;
		*worker = list[i];
	}
	ncclsvc_list_free(list);
	return found && worker->mps != NCCLSVC_MPS_UNKNOWN;
}

/* Why a process is without the MPS of the workers, and what to do. */
static void explain(const struct link *l, char *text, size_t size)
{
	const char *set = getenv(MPS_VARIABLE);
	if (l->mps == SVC_MPS_OTHER_USER)
		snprintf(text, size,
			 "it serves the daemon's user alone, and this process is another's: run "
			 "both as one user, or MPS for several (ncclsvcd(8), SYSTEMD)");
	else if (l->mps != SVC_MPS_JOIN)
		snprintf(text, size, "restart this process once ncclsvc-ctl status shows it again");
	else if (!set || !*set)
		snprintf(text, size,
			 "CUDA was initialized before this library was loaded: preload it, or "
			 "set " MPS_VARIABLE "=%s and " CUDA_CONNECTIONS_VARIABLE
			 "=" CUDA_CONNECTIONS_TEXT(CUDA_CONNECTIONS_MAX) " for the process",
			 l->mps_directory);
	else if (strcmp(set, l->mps_directory) != 0)
		snprintf(text, size, "unset " MPS_VARIABLE ", which is %s and not %s", set,
			 l->mps_directory);
	else
		snprintf(text, size,
			 MPS_VARIABLE " was set after CUDA was initialized, or MPS came "
				      "later: restart this process");
}

void mps_check(ncclsvc_comm *comm)
{
	static atomic_bool checked;
	ncclsvc_device_info worker;
	uint64_t server;
	char why[512];
	if (atomic_exchange(&checked, true) || !find_worker(comm, &worker))
		return;
	const bool there = worker.mps == NCCLSVC_MPS_ACTIVE;
	const bool here = mps_of_device(comm->device, &server) == NCCLSVC_MPS_ACTIVE;
	if (there == here && server == worker.mps_server) {
		inform("GPU %d: this process and the daemon's worker use %s", comm->device,
		       here ? "it through one MPS server" : "no MPS");
		return;
	}
	session_lock(comm->session);
	explain(comm->session->link, why, sizeof(why));
	session_unlock(comm->session);
	if (!there)
		snprintf(why, sizeof(why), "%s",
			 mps_chosen() ? "unset " MPS_VARIABLE
				      : "the worker was started while there was none; see "
					"ncclsvc-ctl status");
	warn("GPU %d: %s, so compute and communication take turns: %s", comm->device,
	     !there ? "this process uses MPS, and the daemon's worker does not"
	     : here ? "this process and the daemon's worker use different MPS servers"
		    : "the daemon's worker uses MPS, and this process does not",
	     why);
}
