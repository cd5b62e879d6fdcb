/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_SESSION_TIMELINE_H
#define CLIENT_CORE_SESSION_TIMELINE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/api.h"

/* Never lowers the counter. */
static inline void timeline_raise(_Atomic uint64_t *counter, uint64_t value)
{
	uint64_t now = atomic_load(counter);
	while (now < value && !atomic_compare_exchange_weak(counter, &now, value))
		;
}

struct ncclsvc_timeline {
	ncclsvc_session *session;
	uint32_t index;				  /* 1..SVC_TIMELINES-1 */
	uint32_t pending;			  /* number of pending tasks */
	const struct stream_callbacks *of_stream; /* NULL: the user created it */
	uint64_t last; /* on a stream's timeline: value of the newest task */
};

/* Callbacks into the CUDA layer for tasks on a stream's timeline. Locked. */
struct stream_callbacks {
	/* The daemon reports success of a detached task; tasks_spoil may still fail it. */
	void (*arrived)(ncclsvc_session *s);
	void (*ended)(ncclsvc_session *s, uint64_t task);
};

/* loss.c: releases every stream, by raising its timelines' `done`. Locked. */
void timelines_release(const ncclsvc_session *s);

#endif
