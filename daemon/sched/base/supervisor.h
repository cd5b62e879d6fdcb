/* SPDX-License-Identifier: Apache-2.0
 * The queues to and from the supervisor. */
#ifndef SCHED_SUPERVISOR_H
#define SCHED_SUPERVISOR_H

#include "state.h"

/* Wakes the thread if it sleeps; any thread may call it. arg: the scheduler. */
void scheduler_wake(void *arg);
/* Copies the first command that waits; false: none does. supervisor_command_done removes it. */
bool supervisor_next_command(struct scheduler *sched, struct command *c);
void supervisor_command_done(struct scheduler *sched);
/* Reports a copy of the event. */
void supervisor_event(struct scheduler *sched, const struct event *event);
static inline bool supervisor_commands_wait(const struct scheduler *sched)
{
	return atomic_load_explicit(&sched->commands_queued, memory_order_acquire) !=
	       sched->commands_run;
}
void supervisor_free_queues(struct scheduler *sched);

#endif
