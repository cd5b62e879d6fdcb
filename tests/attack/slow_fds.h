/* SPDX-License-Identifier: Apache-2.0
 * Descriptors whose last close takes as long as a user likes. All return -1 if there is none. */
#ifndef ATTACK_SLOW_FDS_H
#define ATTACK_SLOW_FDS_H

#include "attack.h"

/* A TCP connection with unsent data: its last close waits for two seconds. */
int slow_socket(void);
/* 1 GiB, which its last close frees. */
int slow_memfd(void);

/* ---- A file whose server answers this process group, and nobody else: every close of it, and
 * every call that asks the server, waits for as long as the server lives ---- */

/* Does this machine let root mount one? */
bool slow_file_possible(void);
/* As root, before the process becomes the attacker: mounts it on the directory, for this process
 * and its children alone, as fusermount would. */
bool slow_file_mount(struct attacker *a, const char *directory);
/* Starts the server, a process. */
void slow_file_serve(struct attacker *a);
int slow_file(void);

#endif
