/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/fdio.h"
#include "proto/process/cgroup.h"
#include "text.h"

#define SLOTS	   1024 /* a false daemon may name any number of pids: later ones are not looked at */
#define MEASURE_NS UINT64_C(20000000)
#define BUSY	   10 /* percent of a CPU from which a process with a sleeping main thread runs */
#define PATH_BYTES 512

static const struct process unseen = {.state = PROCESS_UNSEEN, .cpu = -1};

/* UINT64_MAX: there is no such clock. */
static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;
	return clock_gettime(id, &t) ? UINT64_MAX
				     : (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t cpu_ns(int32_t pid)
{
	clockid_t id;
	return clock_getcpuclockid(pid, &id) ? UINT64_MAX : clock_ns(id);
}

/* A file of /proc/PID as text; false, and errno set, if it cannot be read. */
static bool read_text(const struct processes *all, int32_t pid, const char *name, char *text,
		      size_t size)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/%d/%s", all->proc ? all->proc : "/proc", pid, name);
	ssize_t n = svc_read_file(path, text, size - 1);
	text[n > 0 ? n : 0] = '\0';
	if (n < 0)
		errno = (int)-n;
	return n > 0;
}

/* The state stands behind the name, which may contain anything but ends with the last ')'. */
static char read_letter(const struct processes *all, int32_t pid, const char *name)
{
	char stat[512];
	if (!read_text(all, pid, name, stat, sizeof(stat)))
		return '\0';
	const char *end = strrchr(stat, ')');
	return end && end[1] == ' ' ? end[2] : '\0';
}

static bool has_ended(char letter)
{
	return letter == 'Z' || letter == 'X' || !letter;
}

/* ---- A zombie whose other threads live ---- */

static void count_threads(const struct processes *all, struct process *p)
{
	char path[PATH_BYTES], name[64];
	snprintf(path, sizeof(path), "%s/%d/task", all->proc ? all->proc : "/proc", p->pid);
	DIR *tasks = opendir(path);
	for (struct dirent *e; tasks && (e = readdir(tasks));) {
		const int32_t id = atoi(e->d_name);
		snprintf(name, sizeof(name), "task/%d/stat", id);
		if (id <= 0 || id == p->pid || has_ended(read_letter(all, p->pid, name)))
			continue;
		if (!p->threads++)
			p->thread = id;
	}
	if (tasks)
		closedir(tasks);
}

/* ---- Frozen cgroups ---- */

static bool file_has(const char *directory, const char *file, const char *line)
{
	char path[PATH_BYTES], text[256];
	snprintf(path, sizeof(path), "%s/%s", directory, file);
	if (!svc_read_text(path, text, sizeof(text)))
		return false;
	const char *at = strstr(text, line);
	return at && (at == text || at[-1] == '\n') && at[strlen(line)] == '\n';
}

/* The cgroup itself was frozen, or one above it: that one is to be thawed. */
static bool find_frozen(const char *mount, const char *group, char *found, size_t size)
{
	snprintf(found, size, "%s%s", mount, group);
	if (!file_has(found, "cgroup.events", "frozen 1"))
		return false;
	while (!file_has(found, "cgroup.freeze", "1")) {
		char *slash = strrchr(found, '/');
		if (!slash || slash <= found + strlen(mount)) {
			snprintf(found, size, "%s%s", mount, group);
			break;
		}
		*slash = '\0';
	}
	return true;
}

static bool is_frozen(const struct processes *all, struct process *p)
{
	static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char text[4096];
	if (!read_text(all, p->pid, "cgroup", text, sizeof(text)))
		return false;
	int length;
	const char *path = svc_cgroup_path(text, "", &length);
	if (!path)
		return false;
	char *group = text + (path - text);
	group[length] = '\0';
	for (int i = 0; i < 2; i++) {
		const char *mount = all->cgroups[0] ? all->cgroups[i] : mounts[i];
		if (mount && find_frozen(mount, group, p->cgroup, sizeof(p->cgroup)))
			return true;
	}
	p->cgroup[0] = '\0';
	return false;
}

/* ---- A process ---- */

/* The state of a process that has not ended. */
static enum process_state state_of(char letter)
{
	switch (letter) {
	case 'T':
		return PROCESS_STOPPED;
	case 't':
		return PROCESS_TRACED;
	case 'D':
		return PROCESS_BLOCKED;
	case NCCLSVC_FROZEN:
		return PROCESS_FROZEN;
	case 'R':
		return PROCESS_RUNNING;
	default:
		return PROCESS_SLEEPING;
	}
}

static enum process_state read_state(const struct processes *all, struct process *p)
{
	const char letter = read_letter(all, p->pid, "stat");
	if (!letter) /* /proc may hide it (hidepid) */
		return kill(p->pid, 0) && errno == ESRCH ? PROCESS_GONE : PROCESS_UNSEEN;
	if (has_ended(letter)) {
		count_threads(all, p);
		return p->threads ? PROCESS_LEADERLESS : PROCESS_GONE;
	}
	if (is_frozen(all, p))
		return PROCESS_FROZEN;
	return state_of(letter);
}

struct process process_reported(int32_t pid, char letter, int32_t tracer)
{
	const enum process_state state = !letter	     ? PROCESS_UNSEEN
					 : has_ended(letter) ? PROCESS_GONE
							     : state_of(letter);
	return (struct process){.pid = pid, .state = state, .tracer = tracer, .cpu = -1};
}

static struct process *find(struct processes *all, int32_t pid)
{
	if (!all->slots)
		all->slots = ctl_calloc(SLOTS, sizeof(*all->slots));
	unsigned i = (unsigned)pid % SLOTS;
	while (all->slots[i].pid && all->slots[i].pid != pid)
		i = (i + 1) % SLOTS;
	struct process *p = &all->slots[i];
	if (p->pid)
		return p;
	if (all->used == SLOTS / 2)
		return NULL;
	all->used++;
	*p = (struct process){.pid = pid, .cpu = -1};
	p->state = read_state(all, p);
	p->cpu_ns = cpu_ns(pid);
	p->read_ns = clock_ns(CLOCK_MONOTONIC);
	return p;
}

const struct process *process_look(struct processes *all, int32_t pid)
{
	const struct process *p = pid > 0 ? find(all, pid) : NULL;
	return p ? p : &unseen;
}

static void measure_cpu(struct process *p)
{
	uint64_t passed = clock_ns(CLOCK_MONOTONIC) - p->read_ns;
	if (p->cpu_ns == UINT64_MAX)
		return;
	if (passed < MEASURE_NS)
		nanosleep(&(struct timespec){.tv_nsec = (long)(MEASURE_NS - passed)}, NULL);
	passed = clock_ns(CLOCK_MONOTONIC) - p->read_ns;
	const uint64_t used = cpu_ns(p->pid);
	if (used == UINT64_MAX || used < p->cpu_ns)
		return;
	p->cpu = (int)((used - p->cpu_ns) * 100 / passed);
	if (p->state == PROCESS_SLEEPING && p->cpu >= BUSY)
		p->state = PROCESS_RUNNING;
}

static bool is_name_of_python(const char *path)
{
	const char *slash = strrchr(path, '/');
	return !strncmp(slash ? slash + 1 : path, "python", sizeof("python") - 1);
}

static bool runs_python(const struct processes *all, int32_t pid)
{
	char path[PATH_BYTES], text[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/%d/exe", all->proc ? all->proc : "/proc", pid);
	const ssize_t n = readlink(path, text, sizeof(text) - 1);
	if (n > 0) {
		text[n] = '\0';
		return is_name_of_python(text);
	}
	return read_text(all, pid, "cmdline", text, sizeof(text)) && is_name_of_python(text);
}

static void read_tracer(const struct processes *all, struct process *p)
{
	char text[4096];
	const char *at = read_text(all, p->pid, "status", text, sizeof(text))
				 ? strstr(text, "\nTracerPid:")
				 : NULL;
	p->tracer = at ? atoi(at + sizeof("\nTracerPid:") - 1) : 0;
	if (p->tracer <= 0 ||
	    !read_text(all, p->tracer, "comm", p->tracer_name, sizeof(p->tracer_name)))
		return;
	p->tracer_name[strcspn(p->tracer_name, "\n")] = '\0';
}

const struct process *process_examine(struct processes *all, int32_t pid)
{
	struct process *p = pid > 0 ? find(all, pid) : NULL;
	if (!p)
		return &unseen;
	if (p->state == PROCESS_UNSEEN || p->state == PROCESS_GONE || p->examined)
		return p;
	p->examined = true;
	measure_cpu(p);
	read_tracer(all, p);
	p->python = runs_python(all, pid);
	if (!read_text(all, pid, "wchan", p->wchan, sizeof(p->wchan)) || isdigit(p->wchan[0]))
		p->wchan[0] = '\0';
	return p;
}

void processes_free(struct processes *all)
{
	free(all->slots);
	*all = (struct processes){.proc = all->proc};
}

bool process_is_halted(const struct process *p)
{
	return p->state == PROCESS_STOPPED || p->state == PROCESS_TRACED ||
	       p->state == PROCESS_FROZEN;
}

const char *process_state_name(enum process_state state)
{
	static const char *const names[] = {
		[PROCESS_UNSEEN] = "unseen",	     [PROCESS_GONE] = "gone",
		[PROCESS_RUNNING] = "running",	     [PROCESS_SLEEPING] = "sleeping",
		[PROCESS_BLOCKED] = "blocked",	     [PROCESS_STOPPED] = "stopped",
		[PROCESS_TRACED] = "traced",	     [PROCESS_FROZEN] = "frozen",
		[PROCESS_LEADERLESS] = "leaderless",
	};
	return names[state];
}
