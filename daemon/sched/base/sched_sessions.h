/* SPDX-License-Identifier: Apache-2.0
 * Trainers: which rings are polled, and what is freed when a region or a session goes. */
#ifndef SCHED_SESSIONS_H
#define SCHED_SESSIONS_H

#include "state.h"

/* Made at the first call. */
struct user *user_get(struct scheduler *sched, uint32_t uid, uint32_t tenant);
/* The command deletes a region, which tasks may use that were submitted before it. */
void region_remove_later(struct scheduler *sched, struct sched_session *s, const struct command *c);
/* The session ends: its regions are freed with it. */
void regions_drop_departures(struct sched_session *s);
/* Frees the regions that commands have deleted, once earlier tasks were taken in, unless they are
 * in use. */
void regions_depart(struct scheduler *sched, struct sched_session *s);
/* Polls the session's ring from now on, or watches its doorbell instead. */
void sched_session_poll(struct scheduler *sched, struct sched_session *s);
void sched_session_idle(struct scheduler *sched, struct sched_session *s);
/* Frees a session that leaves. False: part of it is in use. */
bool sched_session_release(struct scheduler *sched, struct sched_session *s);
void sched_session_free(struct sched_session *s);

/* Its ring has, or soon will have, a record. */
static inline void sched_session_active(struct scheduler *sched, struct sched_session *s)
{
	s->active_ns = sched->now;
	if (!s->active)
		sched_session_poll(sched, s);
}

/* Returns the pool whose threads must move these tasks' bytes; NULL: any thread may. Entries of
 * tasks may be NULL.
 *
 * While a hole is punched into a shared memory file, a thread that touches one of its pages sleeps
 * uninterruptibly in the kernel until the whole hole is punched, which takes 0.2 s or more per
 * gigabyte. So if several users have sessions, neither the scheduler's thread nor the shared helper
 * threads touch memory of a user with large registered files. */
struct pool *user_own_pool(struct scheduler *sched, struct task *const *tasks, uint32_t n);

#endif
