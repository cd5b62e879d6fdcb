/* SPDX-License-Identifier: Apache-2.0 */
#include "session_process.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fdio.h"
#include "proto/process/cgroup.h"

/* The value of the key; the name, in the first line, has its newlines escaped. */
static const char *value_of(const char *status, const char *key)
{
	const char *at = strstr(status, key);
	return at ? at + strlen(key) : NULL;
}

/* Is its cgroup, of version 2, or one above it frozen? */
static bool is_frozen(int32_t pid)
{
	static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char path[PATH_MAX], groups[2048], events[256];
	int length;
	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	if (!svc_read_text(path, groups, sizeof(groups)))
		return false;
	const char *own = svc_cgroup_path(groups, "", &length);
	for (size_t i = 0; own && i < sizeof(mounts) / sizeof(mounts[0]); i++) {
		const int n = snprintf(path, sizeof(path), "%s%.*s/cgroup.events", mounts[i],
				       length, own);
		if (n > 0 && (size_t)n < sizeof(path) &&
		    svc_read_text(path, events, sizeof(events)))
			return strstr(events, "frozen 1");
	}
	return false;
}

void process_look(int32_t pid, ncclsvc_session_info *i)
{
	char path[32], status[1024]; /* both keys are among the first lines */
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (!svc_read_text(path, status, sizeof(status)))
		return;
	const char *state = value_of(status, "\nState:\t"),
		   *tracer = value_of(status, "\nTracerPid:\t");
	if (state)
		i->process_state = is_frozen(pid) ? NCCLSVC_FROZEN : (unsigned char)*state;
	if (tracer)
		i->tracer_pid = atoi(tracer);
}
