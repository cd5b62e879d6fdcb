/* SPDX-License-Identifier: Apache-2.0 */
#include "usage.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "process.h"

static FILE *open_proc(pid_t pid, const char *name)
{
	char path[320];
	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	return fopen(path, "re");
}

/* The number after "key:" in a file of such lines; -1: not there. unit: what it counts. */
static int64_t keyed(pid_t pid, const char *name, const char *key, int64_t unit)
{
	char line[256];
	int64_t value = -1;
	size_t n = strlen(key);
	FILE *f = open_proc(pid, name);
	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, key, n) == 0 && line[n] == ':' &&
		    sscanf(line + n + 1, "%" SCNd64, &value) == 1)
			break;
	}
	if (f)
		fclose(f);
	return value < 0 ? -1 : value * unit;
}

static int64_t count_fds(pid_t pid)
{
	char path[64];
	int64_t n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *d = opendir(path);
	if (!d)
		return -1;
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static int64_t read_cpu(pid_t pid)
{
	char line[1024];
	uint64_t user, system;
	int64_t ns = -1;
	FILE *f = open_proc(pid, "stat");
	/* The program's name, in parentheses, may hold anything. */
	char *after = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	if (after &&
	    sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
		   &user, &system) == 2)
		ns = (int64_t)((user + system) *
			       (UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK)));
	if (f)
		fclose(f);
	return ns;
}

static DIR *open_threads(pid_t pid)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	return opendir(path);
}

/* The next thread's id; NULL: that was the last. */
static const char *next_thread(DIR *d)
{
	struct dirent *e;
	while ((e = readdir(d)) && e->d_name[0] == '.')
		;
	return e ? e->d_name : NULL;
}

int64_t usage_run_ns(pid_t pid)
{
	DIR *d = open_threads(pid);
	int64_t sum = d ? 0 : -1;
	for (const char *id; d && (id = next_thread(d));) {
		char name[300];
		int64_t ns = -1;
		snprintf(name, sizeof(name), "task/%s/schedstat", id);
		FILE *f = open_proc(pid, name);
		sum = f && fscanf(f, "%" SCNd64, &ns) == 1 && sum >= 0 ? sum + ns : -1;
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return sum;
}

static void read_threads(pid_t pid, struct usage *u)
{
	DIR *d = open_threads(pid);
	u->run_ns = usage_run_ns(pid);
	u->switches = 0;
	u->threads = 0;
	for (const char *id; d && (id = next_thread(d));) {
		char name[300];
		u->threads++;
		snprintf(name, sizeof(name), "task/%s/status", id);
		u->switches += keyed(pid, name, "voluntary_ctxt_switches", 1) +
			       keyed(pid, name, "nonvoluntary_ctxt_switches", 1);
	}
	if (d)
		closedir(d);
}

bool usage_read(pid_t pid, struct usage *u)
{
	u->rss = keyed(pid, "status", "VmRSS", 1024);
	u->anon = keyed(pid, "status", "RssAnon", 1024);
	u->shmem = keyed(pid, "status", "RssShmem", 1024);
	u->pss = keyed(pid, "smaps_rollup", "Pss", 1024);
	u->fds = count_fds(pid);
	u->cpu_ns = read_cpu(pid);
	read_threads(pid, u);
	if (u->cpu_ns < 0 || u->rss < 0) {
		complain("can't read /proc/%d of the daemon: %s", (int)pid, strerror(errno));
		return false;
	}
	return true;
}
