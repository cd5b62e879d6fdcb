/* SPDX-License-Identifier: Apache-2.0
 * The private daemon, and what can be observed from outside. */
#ifndef ATTACK_TARGET_H
#define ATTACK_TARGET_H

#include "attack.h"

#define BEAT_MS 250 /* interval of the watchdog's heartbeats while all is well */

struct target {
	pid_t pid;
	char dir[64], socket[108], log[96], notify[96], files[96], gpus[96];
	int beats;			 /* NOTIFY_SOCKET */
	uint64_t last_beat, longest_gap; /* ns */
	unsigned long rss_kib, shared_kib,
		shared_before_kib; /* peaks; shared: all memfds of this machine */
	unsigned fds;		   /* peak */
	int status;		   /* once it has ended */
	uint64_t ending_ns;	   /* how long it took to end after SIGTERM */
};

/* Starts the daemon with the attack's settings, and waits until it serves; otherwise prints an
 * error. */
bool target_start(struct target *t, const char *program, const struct attack *attack);
/* Limits the growth of the daemon's address space, if the attack requires it. Call this when the
 * daemon has done some work, because each of its threads reserves address space when it first
 * allocates. */
bool target_limit(struct target *t, const struct attack *attack);
/* Records heartbeats and usage, starting anew if `first`. False: the daemon has ended. */
bool target_watch(struct target *t, bool first);
/* The daemon's CPU time in ns. */
uint64_t target_cpu_ns(const struct target *t);
/* Ends the daemon, with SIGTERM first. */
void target_stop(struct target *t);
/* Prints the log's last lines to stderr. */
void target_show_log(const struct target *t);

#endif
