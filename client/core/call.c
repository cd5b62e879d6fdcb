/* SPDX-License-Identifier: Apache-2.0
 * Requests that are given up, or whose reply is dropped. */
#include "call.h"

#include <stdio.h>

#include "base/frame.h"
#include "session_handle.h"

bool call_forget(ncclsvc_session *s, unsigned opcode, const void *body)
{
	/* If the socket's buffer is full, what the request would free lives until the session ends.
	 */
	const bool sent = !s->lost && s->away != AWAY_GONE &&
			  !frame_send(s->connection, opcode, REQUEST_ID_FORGET, body, -1);
	s->forgotten += sent;
	return sent;
}

/* Ends a call at once. What its late answer brings is given back when it arrives. */
static void give_up(struct call **at, const char *text)
{
	struct call *c = *at;
	*at = c->next;
	c->done = true;
	c->result = NCCLSVC_CANCELLED;
	snprintf(c->text, sizeof(c->text), "%s", text);
}

static bool cancel_join(ncclsvc_session *s, const struct call *c)
{
	return c->opcode == SVC_JOIN &&
	       call_forget(s, SVC_JOIN_CANCEL,
			   &(struct svc_join_cancel){.request_id = c->request_id});
}

/* The abandoned call's thread may be the reader, asleep in poll; this request's answer wakes it. */
static void wake_reader(ncclsvc_session *s)
{
	pthread_cond_broadcast(&s->changed);
	if (s->reading)
		call_forget(s, SVC_DAEMON_INFO, &(struct svc_daemon_info_request){0});
}

void call_cancel(ncclsvc_session *s, struct call *call, const char *text)
{
	struct call **at = &s->calls;
	while (*at && *at != call)
		at = &(*at)->next;
	if (!*at || cancel_join(s, call))
		return;
	give_up(at, text);
	wake_reader(s);
}

void calls_cancel_beside(ncclsvc_session *s, uint32_t comm_key)
{
	struct call *next;
	for (struct call *c = s->calls; c; c = next) {
		next = c->next;
		if (c->beside == comm_key)
			call_cancel(s, c, "the epoch of the world is over");
	}
}

void calls_give_up(ncclsvc_session *s, uint32_t comm_key)
{
	for (struct call **at = &s->calls; *at;) {
		if ((*at)->comm_key != comm_key) {
			at = &(*at)->next;
			continue;
		}
		cancel_join(s, *at);
		give_up(at, "the communicator was left before all had joined");
	}
	wake_reader(s);
}
