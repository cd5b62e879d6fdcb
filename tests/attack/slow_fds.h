/* SPDX-License-Identifier: Apache-2.0
 * Descriptors whose last close takes as long as a user likes. The int functions return -1 if there
 * is none. */
#ifndef ATTACK_SLOW_FDS_H
#define ATTACK_SLOW_FDS_H

#include "attack.h"

/* A TCP connection with unsent data: its last close waits for two seconds. */
int slow_socket(void);
/* 1 GiB of memory, which its last close frees. */
int slow_memfd(void);

/* ---- A file whose server only answers this process group: every close of it by others, and every
 * call that asks the server, waits as long as the server lives ---- */

/* Whether this machine lets root mount one. */
bool slow_file_possible(void);
/* As root, before the process becomes the attacker: mounts it on the directory, only for this
 * process and its children, as fusermount would. */
bool slow_file_mount(struct attacker *a, const char *directory);
/* Starts the server process. */
void slow_file_serve(struct attacker *a);
int slow_file(void);

#endif
