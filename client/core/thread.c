/* SPDX-License-Identifier: Apache-2.0
 * State that a session keeps per thread: an open group, a timeline. Most threads have neither. */
#include <stdlib.h>

#include "base/error.h"
#include "session_handle.h"
#include "thread.h"

#define THREADS_KEPT 64

/* Never reused, unlike a system thread id: a new thread must not inherit an old one's group. */
static uint64_t this_thread(void)
{
	static _Atomic uint64_t last;
	static _Thread_local uint64_t mine;
	if (!mine)
		mine = ++last;
	return mine;
}

/* The state that this thread used last. Only this thread frees its state, except when the session
 * ends, and session ids are never reused; so a matching entry is valid. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
	uint64_t session;
	struct thread_state *state;
} latest;

struct thread_state *thread_own(const ncclsvc_session *s)
{
	return latest.session == s->id ? latest.state : NULL;
}

struct thread_state *thread_find(ncclsvc_session *s)
{
	if (!s->threads)
		return NULL;
	struct thread_state *t = thread_own(s);
	if (t)
		return t;
	uint64_t me = this_thread();
	for (t = s->threads; t && t->thread != me;)
		t = t->next;
	latest.session = s->id;
	latest.state = t;
	return t;
}

struct thread_state *thread_make(ncclsvc_session *s)
{
	struct thread_state *t = thread_find(s);
	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->thread = this_thread();
	t->next = s->threads;
	s->threads = t;
	s->nthreads++;
	latest.session = s->id;
	latest.state = t;
	return t;
}

ncclsvc_result thread_untimed(ncclsvc_session *s)
{
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	const struct thread_state *t = thread_find(s);
	if (t && atomic_load_explicit(&t->timeline, memory_order_relaxed))
		r = error_set(NCCLSVC_UNSUPPORTED,
			      "a timeline is set on this thread: set it to NULL first");
	session_unlock(s);
	return r;
}

ncclsvc_result thread_plain(ncclsvc_session *s)
{
	session_lock(s);
	const struct thread_state *t = thread_find(s);
	const bool grouping = t && t->grouping;
	session_unlock(s);
	return grouping ? error_argument("this thread has begun a task group: end it first")
			: thread_untimed(s);
}

static void thread_free(struct thread_state *t)
{
	free(t->ops);
	free(t);
}

void thread_tidy(ncclsvc_session *s, struct thread_state *gone)
{
	struct thread_state **at = &s->threads;
	/* A thread that makes one group makes more, so some states of ended threads are kept, but
	 * not all: a program may start and end any number of threads. */
	if (s->nthreads <= THREADS_KEPT || gone->grouping ||
	    atomic_load_explicit(&gone->timeline, memory_order_relaxed) || gone->stream ||
	    gone->stream_flags)
		return;
	while (*at != gone)
		at = &(*at)->next;
	*at = gone->next;
	s->nthreads--;
	latest.state = NULL;
	thread_free(gone);
}

void threads_free(ncclsvc_session *s)
{
	while (s->threads) {
		struct thread_state *t = s->threads;
		s->threads = t->next;
		thread_free(t);
	}
}
