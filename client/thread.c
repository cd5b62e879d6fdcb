/* SPDX-License-Identifier: Apache-2.0
 * What a session knows of single threads: an open group, a timeline. Most threads have neither. */
#include <stdlib.h>

#include "internal.h"

/* Never reused, unlike a thread's id: a new thread must not inherit an old one's group. */
static uint64_t this_thread(void)
{
	static _Atomic uint64_t last;
	static _Thread_local uint64_t mine;
	if (!mine)
		mine = ++last;
	return mine;
}

struct thread_state *thread_find(ncclsvc_session *s)
{
	if (!s->threads)
		return NULL;
	struct thread_state *t = s->threads;
	uint64_t me = this_thread();
	while (t && t->thread != me)
		t = t->next;
	return t;
}

struct thread_state *thread_make(ncclsvc_session *s)
{
	struct thread_state *t = thread_find(s);
	if (t)
		return t;
	t = s->spare_thread ? s->spare_thread : calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	s->spare_thread = NULL;
	t->thread = this_thread();
	t->next = s->threads;
	s->threads = t;
	return t;
}

ncclsvc_result thread_plain(ncclsvc_session *s)
{
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	const struct thread_state *t = thread_find(s);
	if (t && t->grouping)
		r = error_argument("this thread has begun a task group: end it first");
	else if (t && t->timeline)
		r = error_set(NCCLSVC_UNSUPPORTED,
			      "a timeline is set on this thread: set it to NULL first");
	session_unlock(s);
	return r;
}

static void thread_free(struct thread_state *t)
{
	if (!t)
		return;
	free(t->ops);
	free(t);
}

void thread_tidy(ncclsvc_session *s, struct thread_state *gone)
{
	struct thread_state **at = &s->threads;
	if (gone->grouping || gone->timeline || gone->stream || gone->stream_flags)
		return;
	while (*at != gone)
		at = &(*at)->next;
	*at = gone->next;
	/* Who makes groups makes many: one is kept, with its room for operations. */
	if (s->spare_thread)
		thread_free(gone);
	else
		s->spare_thread = gone;
}

void threads_free(ncclsvc_session *s)
{
	while (s->threads) {
		struct thread_state *t = s->threads;
		s->threads = t->next;
		thread_free(t);
	}
	thread_free(s->spare_thread);
}
