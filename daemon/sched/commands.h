/* SPDX-License-Identifier: Apache-2.0
 * Runs the supervisor's commands (command.h). */
#ifndef SCHED_COMMANDS_H
#define SCHED_COMMANDS_H

#include "sched/base/state.h"

/* Runs some of the waiting commands. */
void commands_run_some(struct scheduler *sched);
#endif
