/* SPDX-License-Identifier: Apache-2.0
 * Launches sets of tasks (set.h), on several nodes in the order of all nodes. */
#ifndef SCHED_LAUNCH_H
#define SCHED_LAUNCH_H

#include "sched/base/state.h"

/* Launches those matches to be checked that can be launched: new ones, complete ones that had no
 * room, and those that lost a connected match. Takes as many steps as there are tasks connected to
 * them, visiting each once. */
void launch_sets(struct scheduler *sched);
/* Advances the queues of members that are ready, and launches what has matched once none is. Some
 * may be left for the next round. */
void launch_run_ready(struct scheduler *sched);

#endif
