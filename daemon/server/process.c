/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The value of the key; the name, in the first line, has its newlines escaped. */
static const char *value_of(const char *status, const char *key)
{
	const char *at = strstr(status, key);
	return at ? at + strlen(key) : NULL;
}

/* The file's beginning. False: it can't be read. */
static bool read_text(const char *path, char *text, size_t size)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	const ssize_t n = read(fd, text, size - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

/* Is its cgroup, of version 2, or one above it frozen? */
static bool is_frozen(int32_t pid)
{
	static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char path[PATH_MAX], groups[2048], events[256];
	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	if (!read_text(path, groups, sizeof(groups)))
		return false;
	const char *own = strncmp(groups, "0::", 3) ? value_of(groups, "\n0::") : groups + 3;
	for (size_t i = 0; own && i < sizeof(mounts) / sizeof(mounts[0]); i++) {
		const int n = snprintf(path, sizeof(path), "%s%.*s/cgroup.events", mounts[i],
				       (int)strcspn(own, "\n"), own);
		if (n > 0 && (size_t)n < sizeof(path) && read_text(path, events, sizeof(events)))
			return strstr(events, "frozen 1");
	}
	return false;
}

void process_look(int32_t pid, ncclsvc_session_info *i)
{
	char path[32], status[1024]; /* both keys are among the first lines */
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (!read_text(path, status, sizeof(status)))
		return;
	const char *state = value_of(status, "\nState:\t"),
		   *tracer = value_of(status, "\nTracerPid:\t");
	if (state)
		i->process_state = is_frozen(pid) ? NCCLSVC_FROZEN : (unsigned char)*state;
	if (tracer)
		i->tracer_pid = atoi(tracer);
}
