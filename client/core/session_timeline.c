/* SPDX-License-Identifier: Apache-2.0
 * Timelines that the user creates. */
#include <stdlib.h>

#include "base/error.h"
#include "base/session_memory.h"
#include "session_handle.h"
#include "session_timeline.h"
#include "thread.h"

static struct svc_timeline *counters(const ncclsvc_timeline *t)
{
	return &svc_timelines(t->session->connection->ring)[t->index];
}

ncclsvc_result ncclsvc_timeline_create(ncclsvc_session *s, ncclsvc_timeline **timeline)
{
	if (!s || !timeline)
		return error_argument("ncclsvc_timeline_create: the session or timeline is NULL");
	ncclsvc_timeline *t = calloc(1, sizeof(*t));
	if (!t)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	session_lock(s);
	ncclsvc_result r = session_check(s);
	uint32_t i = 1;
	while (i < SVC_TIMELINES && s->timelines[i])
		i++;
	if (!r && !s->connection->ring)
		r = error_set(NCCLSVC_UNSUPPORTED, "timelines need a session that has a ring");
	else if (!r && i == SVC_TIMELINES)
		r = error_set(NCCLSVC_LIMIT, "the session already has %d timelines", i - 1);
	if (!r) {
		*t = (ncclsvc_timeline){.session = s, .index = i};
		s->timelines[i] = t;
		atomic_store(&counters(t)->ready, 0);
		atomic_store(&counters(t)->done, 0);
		*timeline = t;
	}
	session_unlock(s);
	if (r)
		free(t);
	return r;
}

ncclsvc_result ncclsvc_timeline_destroy(ncclsvc_timeline *t)
{
	if (!t)
		return NCCLSVC_OK;
	ncclsvc_session *s = t->session;
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	tasks_look(s);
	if (t->pending) {
		r = error_set(NCCLSVC_BUSY,
			      "%u pending tasks use the timeline: wait for them first", t->pending);
	} else {
		s->timelines[t->index] = NULL;
		for (struct thread_state *th = s->threads; th; th = th->next)
			if (atomic_load_explicit(&th->timeline, memory_order_relaxed) == t)
				atomic_store_explicit(&th->timeline, NULL, memory_order_relaxed);
	}
	session_unlock(s);
	if (!r)
		free(t);
	return r;
}

ncclsvc_result ncclsvc_timeline_set(ncclsvc_session *s, ncclsvc_timeline *timeline, uint64_t value)
{
	if (!s)
		return error_argument("ncclsvc_timeline_set: the session is NULL");
	if (timeline && timeline->session != s)
		return error_argument("the timeline belongs to a different session");
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	struct thread_state *t = timeline ? thread_make(s) : thread_find(s);
	if (t) {
		atomic_store_explicit(&t->timeline, timeline, memory_order_relaxed);
		t->timeline_value = value;
		thread_tidy(s, t);
	} else if (timeline) {
		r = error_set(NCCLSVC_NO_MEMORY, "out of memory");
	}
	session_unlock(s);
	return r;
}

ncclsvc_result ncclsvc_timeline_signal(ncclsvc_timeline *t, uint64_t value)
{
	if (!t)
		return error_argument("ncclsvc_timeline_signal: the timeline is NULL");
	session_lock(t->session);
	ncclsvc_result r = session_check(t->session);
	timeline_raise(&counters(t)->ready, value);
	if (!r)
		ring_doorbell(t->session->connection); /* tasks may wait for it */
	session_unlock(t->session);
	return r;
}

uint64_t ncclsvc_timeline_done(const ncclsvc_timeline *t)
{
	if (!t)
		return 0;
	session_lock(t->session);
	uint64_t done = atomic_load(&counters(t)->done);
	session_unlock(t->session);
	return done;
}
