/* SPDX-License-Identifier: Apache-2.0
 * How a process ended, as far as another process can see: proc(5). */
#ifndef BASE_ENDING_H
#define BASE_ENDING_H

#include <stdbool.h>
#include <stdint.h>

struct ending {
	uint32_t how; /* ncclsvc_ending */
	int32_t code; /* ncclsvc_status.ending_code */
	bool follows; /* the process had been told of a failure shortly before */
};

#define OOM_FILE_BYTES 320

/* Facts about a running process from which its ending can be determined later. */
struct process {
	bool watched; /* ending_watch has filled it in */
	int32_t pid;
	int fd;			       /* pidfd_open(2)'s; -1: there is none */
	uint64_t start;		       /* tells it from a later process with its pid; 0: unknown */
	bool readable;		       /* its exit status will be */
	uint64_t oom_kills;	       /* in its cgroup, so far */
	char oom_file[OOM_FILE_BYTES]; /* which says so now; empty: unknown */
};

/* A descriptor of the process at the other end of the connection fd, or else, before Linux 6.5, of
 * the process that has its pid now. -1: there is none. The caller closes it. */
int process_pidfd(int fd, int32_t pid);
/* fd: of the connection with it. The caller closes the result's. */
struct process ending_watch(int fd, int32_t pid);
/* To be called when the process's connection has ended. A process that exits closes its files just
 * before its parent can reap it; from Linux 6.15 on, its pidfd says how it ended even afterwards.
 */
struct ending ending_of(const struct process *p);
/* The ending of a process that is gone for good; pidfd: as in struct process. UNKNOWN: not gone
 * yet, or on an older Linux. */
struct ending ending_by_pidfd(int pidfd);
/* Would a later look at its pidfd tell more? */
bool ending_is_vague(const struct ending *e);

#endif
