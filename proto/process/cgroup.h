/* SPDX-License-Identifier: Apache-2.0
 * The control group of a process: its path, and the name that people know it by. */
#ifndef PROTO_CGROUP_H
#define PROTO_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "ncclsvc_types.h"

/* Of the text of /proc/PID/cgroup: "pod UID" (Kubernetes), "job_12/step_0" (Slurm),
 * "docker-0123456789ab", or the last part of the path, such as a systemd unit. Printable ASCII,
 * zeros behind it; empty: the process is in the root group, or the text says nothing. Returns
 * name. */
char *svc_cgroup_name(const char *text, char name[NCCLSVC_JOB_BYTES]);
/* The same of a process, with one read that does not wait. Empty: it cannot be read. */
char *svc_cgroup_of(pid_t pid, char name[NCCLSVC_JOB_BYTES]);
/* In the text of /proc/PID/cgroup, the path of the group in the hierarchy of these controllers
 * ("memory"; "": version 2's), which is not terminated. NULL: there is none. */
const char *svc_cgroup_path(const char *text, const char *controllers, int *length);
/* The path in the hierarchy that says most about the process: version 2's, or else systemd's, or
 * else the longest. Not terminated; the length is 0 if there is none. */
const char *svc_cgroup_own(const char *text, int *length);

/* A path, or one name in it. Not terminated. */
struct svc_cgroup_part {
	const char *at;
	size_t n;
};

/* Takes the first name off the path. Its n is 0 at the path's end. */
struct svc_cgroup_part svc_cgroup_next(struct svc_cgroup_part *path);

#endif
