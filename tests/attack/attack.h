/* SPDX-License-Identifier: Apache-2.0
 * One user against the rest: the parts of this program.
 *
 * An attack is a function that an unprivileged user's process runs against a private daemon; it
 * does not return, but is killed when its time is over. Meanwhile another user's processes, the
 * bystanders, measure what they get. See main.c for the rule and how to add an attack.
 */
#ifndef ATTACK_ATTACK_H
#define ATTACK_ATTACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DAEMON_UID    65532 /* of a daemon that is not root's */
#define DAEMON_NAME   "65532"
#define BYSTANDER_UID 65533
#define ATTACKER_UID  65534

/* Written by the attackers, in memory that all processes of the program share. */
struct attacker {
	const char *socket;
	int fuse;				/* the server's descriptor, of slow_fds.h */
	_Atomic bool ready;			/* the attack is under way */
	_Atomic uint64_t asked, refused, ended; /* requests sent and refused, sessions ended */
	char note[96];				/* what the attacker holds, for people */
	char harm[160]; /* the rule's break that the attacker itself saw; "": none */
};

struct attack {
	const char *name;
	const char *what; /* one sentence, for --list */
	void (*run)(struct attacker *a);
	bool unprivileged;    /* the daemon is not root's */
	bool gpus;	      /* the daemon has two stand-ins for GPUs, and so have bystanders */
	bool fuse;	      /* it has a file of FUSE: slow_fds.h */
	unsigned files;	      /* its RLIMIT_NOFILE; 0: as it is */
	unsigned address_mib; /* what its RLIMIT_AS leaves it, once the bystanders work; 0: none */
	unsigned pinned_mib;  /* memory that the attack may cost; 0: not judged */
	unsigned ranks;	      /* --ranks of the daemon; 0: its default */
	/* Percent of a core that the daemon may use in addition once the attack is ready, in which
	 * the attack itself should do little. 0: it is not judged by that. */
	unsigned cpu_percent;
};

/* Sorted by what they are about; the last has no name. */
extern const struct attack task_attacks[], memory_attacks[], listing_attacks[], comm_attacks[],
	session_attacks[], descriptor_attacks[], plan_attacks[], share_attacks[], region_attacks[],
	gpu_attacks[];

uint64_t clock_ns(void); /* CLOCK_MONOTONIC */
void pause_ms(unsigned ms);

/* The preparation is over. */
__attribute__((format(printf, 2, 3))) void attack_ready(struct attacker *a, const char *format,
							...);
/* The attack has broken the rule in a way that the bystanders need not see. */
__attribute__((format(printf, 2, 3))) void attack_harms(struct attacker *a, const char *format,
							...);
/* One more attacker. Returns true in the new process, which dies with this one. */
bool attack_fork(void);
/* Until the process is killed. */
__attribute__((noreturn)) void attack_hold(void);

#endif
