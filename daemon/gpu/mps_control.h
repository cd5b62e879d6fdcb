/* SPDX-License-Identifier: Apache-2.0
 * NVIDIA's MPS control daemon as a child process: the directory of its sockets, its start and its
 * end. It must survive the kill of its parent, since all its clients lose their CUDA contexts when
 * it exits; the next daemon on the same socket takes it over. Its behaviour as described here was
 * observed with driver 580. Uses neither libuv nor CUDA. Not thread-safe.
 */
#ifndef DAEMON_MPS_CONTROL_H
#define DAEMON_MPS_CONTROL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proto/ncclsvc_types.h"

struct mps_control {
	char directory[NCCLSVC_MPS_DIRECTORY_BYTES];
	char program[PATH_MAX];
	int lock_fd; /* on a file in the directory; the holder of this lock owns the control daemon
			there; -1: not open */
	int pid_fd;  /* readable when the process has ended; -1: none runs */
	pid_t pid;   /* 0: none runs */
};

/* Finds the program, creates its directory beside the daemon's socket, for this user only, and
 * locks it. Returns 0, or -1 with a sentence in why; then there is nothing to close. */
int mps_control_open(struct mps_control *c, const char *socket, char *why, size_t size);
/* Takes over a control daemon that a former daemon left there. False: none runs. */
bool mps_control_adopt(struct mps_control *c);
/* Starts one; mps_control_ready tells when it can be used. Returns 0 or -errno. */
int mps_control_start(struct mps_control *c);
/* Does it accept connections? */
bool mps_control_ready(const struct mps_control *c);
/* Is the process alive? */
bool mps_control_alive(const struct mps_control *c);
/* Kills it at once; its clients lose their contexts. */
void mps_control_kill(struct mps_control *c);
/* Reaps it after its end, and describes the end in how: "exited with code 1: An instance..." */
void mps_control_reap(struct mps_control *c, char *how, size_t size);
/* Ends the control daemon and removes its directory. If other processes use the GPUs through it, it
 * is left running for them: it accepts no new clients, its directory is renamed, and it exits with
 * the last of them. Then returns its pid, otherwise 0. Blocks for 3 s at most. */
pid_t mps_control_close(struct mps_control *c);

#endif
