/* SPDX-License-Identifier: Apache-2.0
 * What the daemon's process uses, as the kernel counts it. */
#ifndef PERF_USAGE_H
#define PERF_USAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct usage {
	int64_t rss, anon, shmem; /* bytes resident */
	int64_t pss;		  /* -1: not for this user to know */
	int64_t fds;		  /* -1: not for this user to know */
	int64_t cpu_ns;		  /* utime + stime, in clock ticks */
	int64_t run_ns;		  /* of all its threads, from schedstat; -1: not kept */
	int64_t switches;	  /* context switches of all its threads */
	unsigned threads;
};

/* CPU time of all threads that the process has now, in ns; -1: not kept, or not there. */
int64_t usage_run_ns(pid_t pid);
/* Complains and returns false if the process is gone. */
bool usage_read(pid_t pid, struct usage *usage);

#endif
