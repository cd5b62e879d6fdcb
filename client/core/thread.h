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
	struct ncclsvc_tensors *lists; /* those that have lists in the group */
	ncclsvc_result refused;	       /* the group's first refusal, and why */
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
/* The same, but a group may be open. */
ncclsvc_result thread_untimed(ncclsvc_session *s);

/* Callbacks of the lists module, for the end of a thread's task group. Called unlocked. */
struct list_hooks {
	/* The group has other operations, too: adds those of the lists. */
	ncclsvc_result (*join)(struct thread_state *t);
	/* The group is over. joined: the lists' operations were in it, and result says whether
	 * these are tasks now. withdrawn: nothing of it has happened, and nobody is told. Keeps the
	 * last error. */
	void (*ended)(struct ncclsvc_tensors *lists, bool joined, bool withdrawn,
		      ncclsvc_result result);
};

#endif
