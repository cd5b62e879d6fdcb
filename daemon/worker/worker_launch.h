/* SPDX-License-Identifier: Apache-2.0
 * From the queue to the GPU: NCCL calls, or copies without NCCL. */
#ifndef WORKER_LAUNCH_H
#define WORKER_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct worker;

/* worker_launch.c: takes one task group from the queue. False: it is empty. */
bool launch_next(struct worker *w);
/* Watches communicators with running launches. */
void launch_watch(struct worker *w);

/* copy.c: the same, without NCCL. */
bool copy_start(struct worker *w, uint64_t pinned, char *text, size_t size);
bool copy_next(struct worker *w);
void copy_watch(struct worker *w);

#endif
