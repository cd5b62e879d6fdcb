/* SPDX-License-Identifier: Apache-2.0
 * One user against the rest: the parts of this program.
 *
 * An attack is a function that an unprivileged user's process runs against a private daemon; it
 * does not return, but is killed when its time is over. Meanwhile another user's processes, the
 * bystanders, measure their own latency. See main.c for the rule and how to add an attack.
 */
#ifndef ATTACK_ATTACK_H
#define ATTACK_ATTACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DAEMON_UID    65532 /* uid of a daemon that does not run as root */
#define DAEMON_NAME   "65532"
#define BYSTANDER_UID 65533
#define ATTACKER_UID  65534

/* Written by the attackers, in memory that all processes of the program share. */
struct attacker {
	const char *socket;
	int fuse;	    /* the FUSE server's descriptor (slow_fds.h) */
	_Atomic bool ready; /* the attack is running */
	_Atomic uint64_t asked, refused,
		ended;	/* requests sent, requests refused, sessions ended */
	char note[96];	/* what the attacker holds, for display */
	char harm[160]; /* a violation of the rule that the attacker itself saw; "": none */
};

struct attack {
	const char *name;
	const char *what; /* one sentence for --list */
	void (*run)(struct attacker *a);
	bool unprivileged;    /* the daemon does not run as root */
	bool gpus;	      /* the daemon and the bystanders have two stand-in GPUs */
	bool fuse;	      /* the daemon has a FUSE file (slow_fds.h) */
	unsigned files;	      /* its RLIMIT_NOFILE; 0: unchanged */
	unsigned address_mib; /* address space left to it (RLIMIT_AS) once the bystanders work; 0:
				 no limit */
	unsigned pinned_mib;  /* memory that the attack may cost; 0: not checked */
	unsigned ranks;	      /* the daemon's --ranks; 0: its default */
	/* Percentage of a core that the daemon may use in addition once the attack is ready; for
	 * attacks that then cost little. 0: not checked. */
	unsigned cpu_percent;
};

/* Sorted by subject; the last one has no name. */
extern const struct attack task_attacks[], memory_attacks[], listing_attacks[], comm_attacks[],
	session_attacks[], descriptor_attacks[], plan_attacks[], share_attacks[], region_attacks[],
	gpu_attacks[];

uint64_t clock_ns(void); /* CLOCK_MONOTONIC */
void pause_ms(unsigned ms);

/* Reports the end of the preparation. */
__attribute__((format(printf, 2, 3))) void attack_ready(struct attacker *a, const char *format,
							...);
/* Reports a violation of the rule that the bystanders may not see. */
__attribute__((format(printf, 2, 3))) void attack_harms(struct attacker *a, const char *format,
							...);
/* Starts one more attacker. Returns true in the new process, which dies with this one. */
bool attack_fork(void);
/* Waits until the process is killed. */
__attribute__((noreturn)) void attack_hold(void);

#endif
