/* SPDX-License-Identifier: Apache-2.0
 * Tasks that cannot be repeated once a transport has begun to write: their result replaces their
 * input. */
#ifndef SCHED_IN_PLACE_H
#define SCHED_IN_PLACE_H

#include <stdint.h>

struct task;

/* Marks them in their status slots (SVC_STATUS_UNDER_WAY), if their sessions may survive this
 * daemon. Entries may be NULL: ranks of other nodes. */
void tasks_mark_in_place(struct task *const *tasks, uint32_t n);

#endif
