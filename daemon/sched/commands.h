/* SPDX-License-Identifier: Apache-2.0
 * Running what the supervisor asks (command.h), and letting sessions go. */
#ifndef SCHED_COMMANDS_H
#define SCHED_COMMANDS_H

#include "state.h"

/* Some of those that wait. */
void engine_run_commands(struct engine *e);
static inline bool engine_commands_wait(const struct engine *e)
{
	return atomic_load_explicit(&e->commands_queued, memory_order_acquire) != e->commands_run;
}
/* Lets regions go that commands have asked for and whose tasks have been taken in, unless they are
 * in use. */
void engine_regions_depart(struct engine *e, struct session *s);
void engine_session_poll(struct engine *e, struct session *s);
void engine_session_idle(struct engine *e, struct session *s);
/* Lets a session go that leaves. False: something of it is in use. */
bool engine_let_session_go(struct engine *e, struct session *s);
void engine_free_session(struct session *s);

/* There is, or soon will be, something in its ring. */
static inline void engine_session_active(struct engine *e, struct session *s)
{
	s->active_ns = e->now;
	if (!s->active)
		engine_session_poll(e, s);
}

#endif
