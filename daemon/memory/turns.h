/* SPDX-License-Identifier: Apache-2.0
 *
 * Users' requests to GPUs' workers. A worker handles what it is sent in order, so a user may have
 * TURN_CALLS requests at a worker; his others wait here for their turn. A request that waits holds
 * nothing of its own: it names a region, or the session, and what is sent is made of these when its
 * turn comes. So what waits is bounded by the user's regions and sessions, and a worker's deadline
 * begins when the worker is asked.
 */
#ifndef MEMORY_TURNS_H
#define MEMORY_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct client;
struct gpu;
struct memory;
struct turns;
struct worker_message;

#define TURN_CALLS 4

/* A request about a region, or about the session, on its way through a worker. The session may end
 * meanwhile. */
struct region_call {
	struct memory *memory;
	uint32_t session, serial;
	uint32_t region; /* 0: the session */
	uint64_t import; /* as the mapping has it, if it still is that */
	bool again;	 /* for a new worker: no client waits for it */
	unsigned opcode;
	struct turns *turns;
	/* While it waits: */
	struct client *client;
	struct region_call *prev, *next;	 /* of the user's at this worker */
	struct region_call *prev_own, *next_own; /* of the session's at all workers */
};

enum turn {
	TURN_ASKED, /* turns_answered follows, or was called already */
	TURN_LATER, /* the worker's socket takes no file descriptor now */
	TURN_PARTS, /* another request that waits, or is at the worker, is to be answered first */
	TURN_GONE,  /* what the request is made of is not there any more */
};

/* Takes the call. */
void turns_add(struct gpu *g, struct client *c, struct region_call *call);
/* The worker's answer to one, which is a gpu_done. */
void turns_answered(struct gpu *g, void *arg, const struct worker_message *m, int fd);
/* The session's own that wait are given up. */
void turns_forget(struct client *c);
/* Tries again what was put off; returns when to call next, 0: when something else fails. */
uint64_t turns_retry(struct memory *s, uint64_t now);

#endif
