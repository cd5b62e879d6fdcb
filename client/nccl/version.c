/* SPDX-License-Identifier: Apache-2.0
 * The version of the daemon's NCCL. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "session.h"

#define WAIT_MS 10000 /* for a daemon whose workers are just starting */

bool process_is_daemon(void)
{
	return !strncmp(program_invocation_short_name, "ncclsvcd", 8);
}

static bool in_the_daemon(void)
{
	if (!process_is_daemon())
		return false;
	fail(ncclSystemError,
	     "the daemon was started with the drop-in libnccl.so.2 in LD_PRELOAD or "
	     "LD_LIBRARY_PATH, but needs NCCL's own: restart it without the drop-in");
	return true;
}

/* 0: no worker is ready. *starting: one will be. */
static ncclsvc_result ask_version(ncclsvc_session *service, int *version, bool *starting)
{
	ncclsvc_device_info *list;
	size_t n;
	ncclsvc_result r = ncclsvc_list_devices(service, &list, &n);
	*version = 0;
	*starting = false;
	for (size_t i = 0; !r && i < n; i++) {
		*starting = *starting || list[i].state == NCCLSVC_DEVICE_STARTING;
		int has = list[i].nccl_version;
		/* Without NCCL, the daemon behaves like the version that this interface belongs to.
		 */
		if (!has && list[i].state == NCCLSVC_DEVICE_READY &&
		    list[i].transport == NCCLSVC_TRANSPORT_MPI)
			has = NCCL_VERSION_NEEDED;
		if (has > *version)
			*version = has;
	}
	if (!r)
		ncclsvc_list_free(list);
	return r;
}

/* The version of the daemon's workers; 0: there is no daemon, or no usable GPU in it. */
static int version_of_daemon(void)
{
	const ncclsvc_options options = {.size = sizeof(options), .no_ring = true};
	ncclsvc_session *service;
	bool starting = true;
	int found = 0;
	ncclsvc_result r = ncclsvc_open(&options, &service);
	if (r)
		return 0;
	for (int ms = 0; !r && !found && starting && ms < WAIT_MS; ms += 20) {
		r = ask_version(service, &found, &starting);
		if (!r && !found && starting)
			nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	}
	ncclsvc_close(service);
	return found;
}

ncclResult_t session_nccl_version(int *version)
{
	static atomic_int known;
	if (in_the_daemon())
		return ncclSystemError;
	if (!known)
		known = version_of_daemon();
	*version = known ? known : NCCL_VERSION_NEEDED;
	return ncclSuccess;
}
