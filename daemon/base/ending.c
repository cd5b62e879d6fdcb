/* SPDX-License-Identifier: Apache-2.0 */
#include "ending.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/fdio.h"
#include "proto/ncclsvc_types.h"
#include "proto/process/cgroup.h"

/* Bits of a task's flags in proc_pid_stat(5). */
#define PF_EXITING  0x4
#define PF_SIGNALED 0x400

/* Fields of proc_pid_stat(5), which counts from 1; the third is the first behind the name. */
#define FIELD_FLAGS	9
#define FIELD_START	22
#define FIELD_CODE	26 /* 1: the caller may not read it, nor the exit status at the end */
#define FIELD_EXIT_CODE 52

/* SO_PEERPIDFD and struct pidfd_info, which the headers of an older kernel lack. */
#define PEERPIDFD	 77
#define PIDFD_INFO_BYTES 64 /* the first version of struct pidfd_info */
#define PIDFD_INFO	 _IOC(_IOC_READ | _IOC_WRITE, 0xFF, 11, PIDFD_INFO_BYTES)
#define PIDFD_HAS_EXIT	 (UINT64_C(1) << 3)

struct pidfd_facts {
	uint64_t mask, cgroup;
	uint32_t ids[11];
	int32_t exit_code;
};
_Static_assert(sizeof(struct pidfd_facts) == PIDFD_INFO_BYTES, "as the kernel has it");

struct stat_fields {
	uint64_t flags, start, code, exit_code;
};

static bool read_stat(int32_t pid, struct stat_fields *f)
{
	char path[32], text[1024];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	char *at = pid > 0 && svc_read_text(path, text, sizeof(text)) ? strrchr(text, ')') : NULL;
	if (!at)
		return false;
	*f = (struct stat_fields){0};
	char *rest = NULL, *field = strtok_r(at + 1, " ", &rest);
	for (int i = 3; field; i++, field = strtok_r(NULL, " ", &rest)) {
		if (i == FIELD_FLAGS)
			f->flags = strtoull(field, NULL, 10);
		else if (i == FIELD_START)
			f->start = strtoull(field, NULL, 10);
		else if (i == FIELD_CODE)
			f->code = strtoull(field, NULL, 10);
		else if (i == FIELD_EXIT_CODE)
			f->exit_code = strtoull(field, NULL, 10);
	}
	return f->start != 0;
}

/* The file with the OOM killer's counter of the process's cgroup; empty: unknown. In version 1, a
 * zombie is in no cgroup any more. */
static void find_oom_file(int32_t pid, char file[OOM_FILE_BYTES])
{
	char path[32], text[2048];
	int length;
	file[0] = '\0';
	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	if (!svc_read_text(path, text, sizeof(text)))
		return;
	const char *v1 = svc_cgroup_path(text, "memory", &length);
	const char *own = v1 ? v1 : svc_cgroup_path(text, "", &length);
	if (!own)
		return;
	const int n = snprintf(file, OOM_FILE_BYTES, "/sys/fs/cgroup%s%.*s/%s", v1 ? "/memory" : "",
			       length, own, v1 ? "memory.oom_control" : "memory.events");
	if (n < 0 || n >= OOM_FILE_BYTES)
		file[0] = '\0';
}

/* How many processes of the cgroup the OOM killer has killed; 0: unknown. */
static uint64_t oom_kills(const char *file)
{
	char text[512];
	if (!file[0] || !svc_read_text(file, text, sizeof(text)))
		return 0;
	const char *count = strstr(text, "oom_kill ");
	return count ? strtoull(count + strlen("oom_kill "), NULL, 10) : 0;
}

int process_pidfd(int fd, int32_t pid)
{
	int pidfd = -1;
	socklen_t size = sizeof(pidfd);
	if (!getsockopt(fd, SOL_SOCKET, PEERPIDFD, &pidfd, &size))
		return pidfd;
	if (errno != ENOPROTOOPT) /* it was reaped, and another process may have its pid */
		return -1;
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

struct process ending_watch(int fd, int32_t pid)
{
	struct stat_fields f;
	struct process p = {.watched = true, .pid = pid, .fd = process_pidfd(fd, pid)};
	if (!read_stat(pid, &f))
		return p;
	p.start = f.start;
	p.readable = f.code > 1;
	find_oom_file(pid, p.oom_file);
	p.oom_kills = oom_kills(p.oom_file);
	return p;
}

static struct ending ending_by_status(int status, bool no_memory)
{
	if (!WIFSIGNALED(status))
		return (struct ending){.how = NCCLSVC_ENDED_EXITED, .code = WEXITSTATUS(status)};
	if (WTERMSIG(status) == SIGKILL && no_memory)
		return (struct ending){.how = NCCLSVC_ENDED_NO_MEMORY, .code = SIGKILL};
	return (struct ending){.how = NCCLSVC_ENDED_KILLED, .code = WTERMSIG(status)};
}

/* Without the exit status: a thread that a group exit ends counts as killed, too. */
static struct ending ending_by_flags(const struct stat_fields *f, bool no_memory)
{
	if (!(f->flags & PF_SIGNALED))
		return (struct ending){.how = NCCLSVC_ENDED_EXITED, .code = -1};
	return no_memory ? (struct ending){.how = NCCLSVC_ENDED_NO_MEMORY, .code = SIGKILL}
			 : (struct ending){.how = NCCLSVC_ENDED_UNKNOWN};
}

/* The ending of a process that was reaped. */
struct ending ending_by_pidfd(int fd)
{
	struct pidfd_facts facts = {.mask = PIDFD_HAS_EXIT};
	if (fd < 0 || ioctl(fd, PIDFD_INFO, &facts) || !(facts.mask & PIDFD_HAS_EXIT))
		return (struct ending){.how = NCCLSVC_ENDED_UNKNOWN};
	return ending_by_status(facts.exit_code, false);
}

bool ending_is_vague(const struct ending *e)
{
	return e->how == NCCLSVC_ENDED_UNKNOWN || (e->how == NCCLSVC_ENDED_EXITED && e->code < 0);
}

struct ending ending_of(const struct process *p)
{
	struct stat_fields f;
	if (!p->start || !read_stat(p->pid, &f) || f.start != p->start)
		return ending_by_pidfd(p->fd);
	if (!(f.flags & PF_EXITING))
		return (struct ending){.how = NCCLSVC_ENDED_CLOSED};
	const bool no_memory = oom_kills(p->oom_file) > p->oom_kills;
	return p->readable ? ending_by_status((int)f.exit_code, no_memory)
			   : ending_by_flags(&f, no_memory);
}
