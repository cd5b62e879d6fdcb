/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_left.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The file's text; empty if it cannot be read. */
static const char *read_text(const char *path, char *text, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, bytes - 1) : 0;
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return text;
}

static bool address_space_left(uint64_t bytes)
{
	struct rlimit limit;
	char text[128];
	uint64_t pages = 0;
	if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return true;
	sscanf(read_text("/proc/self/statm", text, sizeof(text)), "%" SCNu64, &pages);
	const uint64_t held = pages * (uint64_t)sysconf(_SC_PAGESIZE);
	return held <= limit.rlim_cur && bytes <= limit.rlim_cur - held;
}

/* In bytes; 0 if there is no such row. */
static uint64_t meminfo(const char *text, const char *row)
{
	uint64_t kib = 0;
	const char *p = strstr(text, row);
	if (p)
		sscanf(p + strlen(row), ": %" SCNu64, &kib);
	return kib << 10;
}

static bool commit_left(uint64_t bytes)
{
	char text[4096];
	if (*read_text("/proc/sys/vm/overcommit_memory", text, sizeof(text)) != '2')
		return true;
	read_text("/proc/meminfo", text, sizeof(text));
	const uint64_t limit = meminfo(text, "CommitLimit"), held = meminfo(text, "Committed_AS");
	return held <= limit && bytes <= limit - held;
}

bool memory_left(uint64_t bytes)
{
	return address_space_left(bytes) && commit_left(bytes);
}
