/* SPDX-License-Identifier: Apache-2.0
 * The version of the daemon's NCCL. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "dropin.h"

#define WAIT_MS 10000 /* for a daemon whose workers are just starting */

bool process_is_daemon(void)
{
	return !strncmp(program_invocation_short_name, "ncclsvcd", 8);
}

/* 0: no worker is ready. *starting: one will be. */
static ncclsvc_result ask_workers(ncclsvc_session *service, int *version, bool *starting)
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

/* 0: there is no daemon, or no usable GPU in it. */
static int ask_daemon(void)
{
	const ncclsvc_options options = {.size = sizeof(options), .no_ring = true};
	ncclsvc_session *service;
	bool starting = true;
	int found = 0;
	ncclsvc_result r = ncclsvc_open(&options, &service);
	if (r)
		return 0;
	for (int ms = 0; !r && !found && starting && ms < WAIT_MS; ms += 20) {
		r = ask_workers(service, &found, &starting);
		if (!r && !found && starting)
			nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	}
	ncclsvc_close(service);
	return found;
}

int version_of_daemon(void)
{
	static atomic_int known;
	if (process_is_daemon())
		return 0;
	if (!known)
		known = ask_daemon();
	return known ? known : NCCL_VERSION_NEEDED;
}
