/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_TIMELINE_H
#define CLIENT_CORE_TIMELINE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/api.h"

/* Never lowers the counter. */
void timeline_raise(_Atomic uint64_t *counter, uint64_t value);

struct ncclsvc_timeline {
	ncclsvc_session *session;
	uint32_t index;			      /* 1..SVC_TIMELINES-1 */
	uint32_t pending;		      /* tasks */
	const struct stream_hooks *of_stream; /* NULL: it is the user's */
	uint64_t last;			      /* of a stream: value of the newest task */
};

/* Calls that tell the CUDA layer of the tasks on a stream's timeline. Locked. */
struct stream_hooks {
	/* The daemon says that a detached task went well: tasks_spoil may still disagree. */
	void (*arrived)(ncclsvc_session *s);
	void (*ended)(ncclsvc_session *s, uint64_t task);
};

/* The daemon is lost. Its workers outlive it for as long as their kernels write in the tasks'
 * memory, and let the streams go then; not waited for longer than they could take. Locked. */
void timelines_await_workers(const ncclsvc_session *s);
/* Lets every stream go on: raises its timelines' `done`. Locked. */
void timelines_release(const ncclsvc_session *s);

#endif
