/* SPDX-License-Identifier: Apache-2.0
 * Trainers: which rings are polled, and what is freed when a region or a session goes. */
#ifndef SCHED_SESSIONS_H
#define SCHED_SESSIONS_H

#include "state.h"

/* Made at the first call. */
struct user *engine_user(struct engine *e, uint32_t uid);
/* The command deletes a region, which tasks may use that were submitted before it. */
void engine_remove_region_later(struct engine *e, struct session *s, const struct command *c);
void engine_drop_departures(struct session *s);
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

/* Returns the pool whose threads must move these tasks' bytes; NULL: any thread may. Entries of
 * tasks may be NULL.
 *
 * While a hole is punched into a shared memory file, a thread that touches one of its pages sleeps
 * uninterruptibly in the kernel until the whole hole is punched, which takes 0.2 s or more per
 * gigabyte. So if several users have sessions, neither the engine's thread nor the shared helper
 * threads touch memory of a user with large registered files. */
struct pool *engine_own_pool(struct engine *e, struct task *const *tasks, uint32_t n);

#endif
