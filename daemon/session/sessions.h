/* SPDX-License-Identifier: Apache-2.0
 * All sessions, and what the layers above do for them. */
#ifndef SESSION_SESSIONS_H
#define SESSION_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/deadlines.h"

struct client;
struct loop;
struct svc_header;

/* owner is that of struct sessions. */
struct session_callbacks {
	/* A request whose frame is sound: its body has the exact length, and the number of fds is
	 * right. The caller closes the fds that are still in the array on return. */
	void (*request)(void *owner, struct client *c, const struct svc_header *h, const void *body,
			int *fds);
	/* Frees the ranks that the session holds, until then at the most. True: all of them. */
	bool (*vacate)(void *owner, struct client *c, uint64_t until_ns);
	/* The session ends: client_executor_gone follows when its tasks are over. */
	void (*end_tasks)(void *owner, struct client *c);
	/* Frees the session's registered memory, until then at the most. True: all of it. */
	bool (*free_memory)(void *owner, struct client *c, uint64_t until_ns);
};

struct sessions {
	struct loop *loop;
	const struct session_callbacks *callbacks;
	void *owner; /* the callbacks' argument */
	struct client *clients;
	struct client **by_slot; /* [SVC_SESSIONS_MAX] */
	struct client *by_id;	 /* hash */
	uint32_t nclients, nopen;
	struct client *silent;	  /* those that have not said HELLO, the oldest first */
	struct deadlines retries; /* of messages that sockets did not take; room for all clients */
	uint32_t nregions;	  /* that they have registered */
	uint32_t waiting;	  /* clients whose request waits */
	struct client *leaving;	  /* that still hold memberships or memory */
	/* Those that the loop does not poll, since their user has no time left in this turn.
	 * Polled, they would be ready again and again: libuv polls up to 48 times in a turn as long
	 * as 1,024 descriptors are. */
	struct client *parked;
	uint32_t nparked;
	uv_idle_t leave;
	uv_idle_t turn_again; /* while some are parked, the loop does not sleep */
	uv_prepare_t count_turn;
	uint64_t turn; /* of the loop; its time may be set several times in one */
	uint32_t last_session;
};

/* Returns 0 or -ENOMEM; sessions_close and sessions_free are due then, too. */
int sessions_open(struct sessions *s, struct loop *loop, const struct session_callbacks *callbacks,
		  void *owner);
/* The last session is gone. */
void sessions_close(struct sessions *s);
void sessions_free(struct sessions *s);
/* NULL: there is no session of that id. */
struct client *sessions_find(struct sessions *s, uint32_t id);

#endif
