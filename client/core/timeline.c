/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/ring.h"
#include "session.h"
#include "thread.h"
#include "timeline.h"

#define WORKERS_END_NS                                                                             \
	UINT64_C(500000000) /* without a daemon: a little over SUPERVISOR_LOST_STILL_NS */

static struct svc_timeline *counters(const ncclsvc_timeline *t)
{
	return &svc_timelines(t->session->connection->ring)[t->index];
}

void timeline_raise(_Atomic uint64_t *counter, uint64_t value)
{
	uint64_t now = atomic_load(counter);
	while (now < value && !atomic_compare_exchange_weak(counter, &now, value))
		;
}

static bool streams_wait(const ncclsvc_session *s)
{
	for (uint32_t i = 1; i < SVC_TIMELINES; i++) {
		const ncclsvc_timeline *t = s->timelines[i];
		if (t && t->of_stream && atomic_load(&counters(t)->done) < t->last)
			return true;
	}
	return false;
}

void timelines_await_workers(const ncclsvc_session *s)
{
	const struct timespec nap = {.tv_nsec = 200000};
	const uint64_t end = now_ns() + WORKERS_END_NS;
	while (streams_wait(s) && now_ns() < end)
		nanosleep(&nap, NULL);
}

void timelines_release(const ncclsvc_session *s)
{
	for (uint32_t i = 1; i < SVC_TIMELINES; i++) {
		const ncclsvc_timeline *t = s->timelines[i];
		if (t && t->of_stream)
			timeline_raise(&counters(t)->done, t->last);
	}
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
			if (th->timeline == t)
				__atomic_store_n(&th->timeline, NULL, __ATOMIC_RELAXED);
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
		__atomic_store_n(&t->timeline, timeline, __ATOMIC_RELAXED);
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
