/* SPDX-License-Identifier: Apache-2.0
 * State that a session keeps per thread. */
#ifndef CLIENT_CORE_THREAD_H
#define CLIENT_CORE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"

struct op;

/* Used by its thread without the lock, except that destroying a timeline looks at all threads'
 * states. */
struct thread_state {
	struct thread_state *next;
	uint64_t thread;
	_Atomic(ncclsvc_timeline *) timeline;
	uint64_t timeline_value;
	struct CUstream_st *stream;
	unsigned stream_flags;
	bool grouping;
	struct op *ops;
	unsigned nops, room;
	struct ncclsvc_tensors *lists; /* lists that are in the group */
	ncclsvc_result refused;	       /* the group's first refusal, and its reason */
	struct error refusal;
};

struct thread_state *thread_find(ncclsvc_session *s); /* NULL: this thread has no state; locked */
/* The same without the lock; also NULL if this thread used another session in between. */
struct thread_state *thread_own(const ncclsvc_session *s);
struct thread_state *thread_make(ncclsvc_session *s); /* NULL: out of memory; locked */
/* Frees this thread's state if it holds nothing and there are many states. Locked. */
void thread_tidy(ncclsvc_session *s, struct thread_state *gone);
void threads_free(ncclsvc_session *s);
/* Refuses if the thread has an open group or a timeline set, because the caller submits tasks and
 * waits for them itself. Not locked. */
ncclsvc_result thread_plain(ncclsvc_session *s);
/* The same, but allows an open group. */
ncclsvc_result thread_untimed(ncclsvc_session *s);

/* Callbacks into the lists module at the end of a thread's task group. Called unlocked. */
struct list_callbacks {
	/* The group has other operations too: adds those of the lists. */
	ncclsvc_result (*join)(struct thread_state *t);
	/* The group is over. joined: it contained the lists' operations, and `result` says whether
	 * they are tasks now. withdrawn: nothing happened, and nobody is notified. Keeps the last
	 * error. */
	void (*ended)(struct ncclsvc_tensors *lists, bool joined, bool withdrawn,
		      ncclsvc_result result);
};

#endif
