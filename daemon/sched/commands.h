/* SPDX-License-Identifier: Apache-2.0
 * Runs the supervisor's commands (command.h), and frees sessions. */
#ifndef SCHED_COMMANDS_H
#define SCHED_COMMANDS_H

#include "state.h"

/* Runs some of the waiting commands. */
void engine_run_commands(struct engine *e);
static inline bool engine_commands_wait(const struct engine *e)
{
	return atomic_load_explicit(&e->commands_queued, memory_order_acquire) != e->commands_run;
}
/* Frees the regions that commands have deleted, once earlier tasks were taken in, unless they are
 * in use. */
void engine_regions_depart(struct engine *e, struct session *s);
void engine_session_poll(struct engine *e, struct session *s);
void engine_session_idle(struct engine *e, struct session *s);
/* Frees a session that leaves. False: part of it is in use. */
bool engine_let_session_go(struct engine *e, struct session *s);
void engine_free_session(struct session *s);

/* Its ring has, or soon will have, a record. */
static inline void engine_session_active(struct engine *e, struct session *s)
{
	s->active_ns = e->now;
	if (!s->active)
		engine_session_poll(e, s);
}

#endif
