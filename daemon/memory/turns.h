/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues of users' requests to GPUs' workers. A worker handles requests in order, so each user may
 * have TURN_CALLS requests at a worker; the user's other requests wait here for their turn. A
 * waiting request owns no data: it names a region or the session, from which the message is built
 * when its turn comes. So the user's regions and sessions bound the queue, and a worker's deadline
 * begins only when the request is sent.
 */
#ifndef MEMORY_TURNS_H
#define MEMORY_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct session;
struct gpu;
struct memory;
struct turns;
struct worker_message;

#define TURN_CALLS 4

/* A request about a region or the session, on its way through a worker. The session may end
 * meanwhile. */
struct region_call {
	struct memory *memory;
	uint32_t session_id, request_id;
	uint32_t region; /* 0: the session */
	uint64_t import; /* as in the mapping; if they differ, the mapping has changed */
	bool again;	 /* for a new worker, so no client waits for it */
	unsigned opcode;
	struct turns *turns;
	/* While it waits: */
	struct session *session;
	struct region_call *prev, *next;	 /* the user's at this worker */
	struct region_call *prev_own, *next_own; /* the session's at all workers */
};

enum turn {
	TURN_ASKED, /* turns_answered follows, or was called already */
	TURN_LATER, /* the worker's socket takes no file descriptor now */
	TURN_PARTS, /* another request that waits, or is at the worker, must be answered first */
	TURN_GONE,  /* the region or session of the request is gone */
};

/* Takes ownership of the call. */
void turns_add(struct gpu *g, struct session *c, struct region_call *call);
/* The worker's answer to a call; a gpu_done. */
void turns_answered(struct gpu *g, void *arg, const struct worker_message *m);
/* Drops the session's waiting requests. */
void turns_forget(struct session *c);
/* Retries postponed requests; returns when to call again, 0: after the next failure. */
uint64_t turns_retry(struct memory *s, uint64_t now);

#endif
