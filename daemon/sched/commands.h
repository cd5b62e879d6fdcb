/* SPDX-License-Identifier: Apache-2.0
 * Runs the supervisor's commands (command.h). */
#ifndef SCHED_COMMANDS_H
#define SCHED_COMMANDS_H

#include "sched/base/state.h"

/* False: out of memory; commands_finish frees. */
bool commands_init(struct scheduler *sched);
void commands_finish(struct scheduler *sched);
/* Runs some of the waiting commands. */
void commands_run_some(struct scheduler *sched);
#endif
