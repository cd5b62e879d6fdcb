/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_left.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Returns the file's text; empty if it cannot be read. */
static const char *read_text(const char *path, char *text, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, bytes - 1) : 0;
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return text;
}

uint64_t memory_held(void)
{
	char text[128];
	uint64_t pages = 0;
	sscanf(read_text("/proc/self/statm", text, sizeof(text)), "%" SCNu64, &pages);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool address_space_left(uint64_t bytes)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return true;
	const uint64_t held = memory_held();
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

/* Kept open, since it is read at each JOIN. */
static bool commit_is_limited(void)
{
	static _Atomic int file = -1;
	char mode = 0;
	int fd = file, none = -1;
	if (fd < 0) {
		fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && !atomic_compare_exchange_strong(&file, &none, fd)) {
			close(fd);
			fd = none;
		}
	}
	return fd >= 0 && pread(fd, &mode, sizeof(mode), 0) == sizeof(mode) && mode == '2';
}

static bool commit_left(uint64_t bytes)
{
	char text[4096];
	if (!commit_is_limited())
		return true;
	read_text("/proc/meminfo", text, sizeof(text));
	const uint64_t limit = meminfo(text, "CommitLimit"), held = meminfo(text, "Committed_AS");
	return held <= limit && bytes <= limit - held;
}

bool memory_left(uint64_t bytes)
{
	return address_space_left(bytes) && commit_left(bytes);
}
