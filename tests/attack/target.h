/* SPDX-License-Identifier: Apache-2.0
 * The private daemon, and what can be seen of it from outside. */
#ifndef ATTACK_TARGET_H
#define ATTACK_TARGET_H

#include "attack.h"

#define BEAT_MS 250 /* between two of the watchdog's beats, as long as all is well */

struct target {
	pid_t pid;
	char dir[64], socket[108], log[96], notify[96], files[96], gpus[96];
	int beats;			 /* NOTIFY_SOCKET */
	uint64_t last_beat, longest_gap; /* ns */
	unsigned long rss_kib, shared_kib,
		shared_before_kib; /* peaks; shared: all memfds of this machine */
	unsigned fds;		   /* peak */
	int status;		   /* once it has ended */
	uint64_t ending_ns;	   /* how long it took to end when it was told to */
};

/* Starts the daemon as this attack wants it, and waits until it serves; else complains. */
bool target_start(struct target *t, const char *program, const struct attack *attack);
/* Limits the growth of the daemon's address space, if the attack says so. Call it when the daemon
 * has done some work: each of its threads reserves address space when it first allocates. */
bool target_limit(struct target *t, const struct attack *attack);
/* Notes beats and use; from now on if `first`. False: it has ended. */
bool target_watch(struct target *t, bool first);
/* The CPU time that it has used, in ns. */
uint64_t target_cpu_ns(const struct target *t);
/* Ends it, by SIGTERM first. */
void target_stop(struct target *t);
/* The log's last lines, to stderr. */
void target_show_log(const struct target *t);

#endif
