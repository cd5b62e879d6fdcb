/* SPDX-License-Identifier: Apache-2.0
 * The queues to and from the supervisor. */
#ifndef SCHED_SUPERVISOR_H
#define SCHED_SUPERVISOR_H

#include "state.h"

/* ---- For the supervisor's thread: executor.h ---- */

void engine_command(struct executor *x, const struct command *c);
bool engine_next_event(struct executor *x, struct event *event);

/* ---- For the scheduler's ---- */

/* Wakes the thread if it sleeps; any thread may call it. arg: the engine. */
void engine_wake(void *arg);
/* Returns the next command; false: none waits. It stays valid until engine_command_done. */
bool engine_next_command(struct engine *e, struct command *c);
/* engine.c */
void engine_command_done(struct engine *e);
void engine_event(struct engine *e, const struct event *event);
static inline bool engine_commands_wait(const struct engine *e)
{
	return atomic_load_explicit(&e->commands_queued, memory_order_acquire) != e->commands_run;
}
void engine_free_queues(struct engine *e);

#endif
