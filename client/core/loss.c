/* SPDX-License-Identifier: Apache-2.0
 * The loss of a session: its calls fail, its epochs end, and its streams stop waiting. */
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

#include "base/deadline_clock.h"
#include "base/session_memory.h"
#include "call.h"
#include "comm_handle.h"
#include "session_handle.h"
#include "session_timeline.h"

#define WORKERS_END_NS                                                                             \
	UINT64_C(500000000) /* without a daemon: a little over SUPERVISOR_LOST_STILL_NS */

static _Atomic uint64_t *done_counter(const ncclsvc_session *s, uint32_t timeline)
{
	return &svc_timelines(s->connection->ring)[timeline].done;
}

static bool streams_wait(const ncclsvc_session *s)
{
	for (uint32_t i = 1; i < SVC_TIMELINES; i++) {
		const ncclsvc_timeline *t = s->timelines[i];
		if (t && t->of_stream && atomic_load(done_counter(s, i)) < t->last)
			return true;
	}
	return false;
}

/* Waits for the workers of a lost daemon. They outlive it while their kernels write to the tasks'
 * memory, and then release the streams. The wait is bounded by the longest time they can take. */
static void await_workers(const ncclsvc_session *s)
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
			timeline_raise(done_counter(s, i), t->last);
	}
}

/* Raises `done` of pending tasks' timelines, so that no stream waits for a lost daemon. */
static void release_timelines(ncclsvc_session *s)
{
	const struct tasks *t = &s->tasks;
	await_workers(s);
	for (uint64_t n = tasks_first_pending(t); s->connection->ring && n < t->next; n++) {
		const struct slot *slot = task_slot(t, n);
		if (slot->number == n && slot->state == SLOT_PENDING && slot->timeline)
			timeline_raise(done_counter(s, slot->timeline), slot->timeline_value);
	}
	timelines_release(s);
}

bool session_is_foreign(ncclsvc_session *s)
{
	if (!s->connection->foreign)
		return false;
	s->lost = true;
	snprintf(s->lost_text, sizeof(s->lost_text),
		 "the session belongs to the process that forked this one: open a new session");
	return true;
}

static void lose(ncclsvc_session *s)
{
	s->lost = true;
	for (struct call *c = s->calls; c; c = c->next) {
		c->done = true;
		c->result = NCCLSVC_DAEMON_LOST;
		snprintf(c->text, sizeof(c->text), "%s", s->lost_text);
	}
	s->calls = NULL;
	comms_break(s);
	release_timelines(s);
}

/* Wakes threads that poll the socket, and keeps it readable for event loops. */
static void wake_all(ncclsvc_session *s)
{
	shutdown(s->connection->sock, SHUT_RDWR);
	if (s->connection->ring)
		ring_wake(s->connection);
	session_kick(s);
	pthread_cond_broadcast(&s->changed);
}

void session_lose(ncclsvc_session *s, const char *format, ...)
{
	va_list args;
	if (s->lost || session_is_foreign(s))
		return;
	va_start(args, format);
	vsnprintf(s->lost_text, sizeof(s->lost_text), format, args);
	va_end(args);
	s->away = AWAY_NOT;
	lose(s);
	wake_all(s);
}

void session_lose_daemon(ncclsvc_session *s, const char *format, ...)
{
	va_list args;
	if (s->lost || s->away == AWAY_GONE || session_is_foreign(s))
		return;
	va_start(args, format);
	vsnprintf(s->lost_text, sizeof(s->lost_text), format, args);
	va_end(args);
	if (s->survives && s->watching && !s->closing && s->connection->ring) {
		s->away = AWAY_GONE;
		s->away_until = deadline_in(s->reattach_ms);
		s->forgotten = 0;
	} else {
		s->away = AWAY_NOT;
		lose(s);
	}
	wake_all(s);
}

bool session_is_watcher(const ncclsvc_session *s)
{
	return s->watching && pthread_equal(s->watcher, pthread_self());
}

ncclsvc_result session_back(ncclsvc_session *s)
{
	if (session_is_watcher(s))
		return s->away == AWAY_GONE ? error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text)
					    : NCCLSVC_OK;
	while (s->away && !s->connection->foreign)
		session_wait(s, NO_DEADLINE);
	return NCCLSVC_OK;
}
