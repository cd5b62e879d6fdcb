/* SPDX-License-Identifier: Apache-2.0
 * Sends and Recvs whose turn it is on arrival. */
#ifndef SCHED_FAST_PATH_H
#define SCHED_FAST_PATH_H

#include "sched/base/state.h"

/* Appends these tasks, one group, to their members' queues, or posts them at once. */
void fast_path_group(struct scheduler *sched, struct task *first, uint32_t n);

#endif
