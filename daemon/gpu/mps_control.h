/* SPDX-License-Identifier: Apache-2.0
 * NVIDIA's MPS control daemon as a process of this daemon's: the directory of its sockets, its
 * start and its end. It is meant to outlive a daemon that is killed, for with it all of its clients
 * lose their CUDA contexts: the next daemon on the same socket takes it over. What is said here of
 * its behaviour was seen with driver 580. No libuv, and no CUDA. Nothing here is thread-safe.
 */
#ifndef DAEMON_MPS_CONTROL_H
#define DAEMON_MPS_CONTROL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "ncclsvc_types.h"

struct mps_control {
	char directory[NCCLSVC_MPS_DIRECTORY_BYTES];
	char program[PATH_MAX];
	int lock_fd; /* on a file of the directory: who holds it owns what runs there; -1: not open
		      */
	int pid_fd;  /* readable when the process has ended; -1: none runs */
	pid_t pid;   /* 0: none runs */
};

/* Finds the program, makes the directory beside the daemon's socket, for this user only, and locks
 * it. Returns 0, or -1 with a sentence in why; then there is nothing to close. */
int mps_control_open(struct mps_control *c, const char *socket, char *why, size_t size);
/* Takes over one that a former daemon has left there. False: none runs. */
bool mps_control_adopt(struct mps_control *c);
/* Starts one: mps_control_ready says from when on it can be used. Returns 0 or -errno. */
int mps_control_start(struct mps_control *c);
/* Does it take connections? */
bool mps_control_ready(const struct mps_control *c);
/* Does the process live? */
bool mps_control_alive(const struct mps_control *c);
/* Kills it, at once: its clients lose their contexts. */
void mps_control_kill(struct mps_control *c);
/* After its end: reaps it, and says in how what was seen of it: "exited with code 1: An
 * instance..." */
void mps_control_reap(struct mps_control *c, char *how, size_t size);
/* Ends what runs, and removes the directory. If other processes use the GPUs through it, it is left
 * to them: it takes no new clients, has its directory under another name, and ends with the last of
 * them. Returns its pid then, else 0. Blocks for 3 s at most. */
pid_t mps_control_close(struct mps_control *c);

#endif
