/* SPDX-License-Identifier: Apache-2.0
 * What a session knows of single threads. */
#ifndef CLIENT_CORE_THREAD_H
#define CLIENT_CORE_THREAD_H

#include <stdbool.h>

#include "base/error.h"

struct op;

/* Its thread's own, and needs no lock; but destroying a timeline looks at all threads'. */
struct thread_state {
	struct thread_state *next;
	uint64_t thread;
	ncclsvc_timeline *timeline;
	uint64_t timeline_value;
	struct CUstream_st *stream;
	unsigned stream_flags;
	bool grouping;
	struct op *ops;
	unsigned nops, room;
	ncclsvc_result refused; /* the group's first refusal, and why */
	struct error refusal;
};

struct thread_state *thread_find(ncclsvc_session *s); /* NULL: nothing known; locked */
/* The same without the lock; NULL also if this thread used another session in between. */
struct thread_state *thread_own(const ncclsvc_session *s);
struct thread_state *thread_make(ncclsvc_session *s); /* NULL: no memory; locked */
/* Forgets this thread if nothing is known of it any more, and there are many. Locked. */
void thread_tidy(ncclsvc_session *s, struct thread_state *gone);
void threads_free(ncclsvc_session *s);
/* OK, or a refusal: the thread has a group open or a timeline set, and what follows submits tasks
 * that it waits for itself. Not locked. */
ncclsvc_result thread_plain(ncclsvc_session *s);

#endif
