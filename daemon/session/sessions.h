/* SPDX-License-Identifier: Apache-2.0
 * All sessions, and their callbacks to the layers above. */
#ifndef SESSION_SESSIONS_H
#define SESSION_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/deadlines.h"

struct session;
struct loop;
struct svc_header;

/* owner is that of struct sessions. */
struct session_callbacks {
	/* A request with a valid frame: its body has the right length, and the number of fds is
	 * right. The caller closes the fds that are still in the array on return. */
	void (*request)(void *owner, struct session *c, const struct svc_header *h,
			const void *body, int *fds);
	/* Frees the session's ranks, until that time at the latest. True: all are free. */
	bool (*vacate)(void *owner, struct session *c, uint64_t until_ns);
	/* The session ends; session_scheduler_gone follows when its tasks have ended. */
	void (*end_tasks)(void *owner, struct session *c);
	/* Frees the session's registered memory, until that time at the latest. True: all is free.
	 */
	bool (*free_memory)(void *owner, struct session *c, uint64_t until_ns);
};

struct sessions {
	struct loop *loop;
	const struct session_callbacks *callbacks;
	void *owner; /* argument of the callbacks */
	struct session *all;
	struct session **by_slot; /* [SVC_SESSIONS_MAX] */
	struct session *by_id;	  /* hash */
	uint32_t nsessions, nopen;
	struct session *silent; /* those without a HELLO, the oldest first */
	struct deadlines
		retries;   /* of messages that sockets did not accept; room for all sessions */
	uint32_t nregions; /* registered by them */
	uint32_t waiting;  /* sessions whose request waits */
	struct session *leaving; /* that still hold memberships or memory */
	/* Sessions that the loop does not poll, since their user has no time left in this turn. If
	 * polled, they would be ready again and again, as libuv polls up to 48 times per turn while
	 * 1,024 descriptors are ready. */
	struct session *parked;
	uint32_t nparked;
	uv_idle_t leave;
	uv_idle_t turn_again; /* keeps the loop awake while some are parked */
	uv_prepare_t count_turn;
	uint64_t turn; /* number of the loop's turn, as its clock may be set several times in one */
	uint32_t last_session;
};

/* Returns 0 or -ENOMEM; even then, call sessions_close and sessions_free. */
int sessions_open(struct sessions *s, struct loop *loop, const struct session_callbacks *callbacks,
		  void *owner);
/* Has the last session ended? */
void sessions_close(struct sessions *s);
void sessions_free(struct sessions *s);
/* Returns the session with this id, or NULL. */
struct session *sessions_find(struct sessions *s, uint32_t id);

#endif
