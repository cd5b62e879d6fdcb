/* SPDX-License-Identifier: Apache-2.0
 * What the files of a session share. Bottom up: session_turn.c, session_send.c, session_end.c,
 * session.c, which reads. */
#ifndef SESSION_SESSION_IO_H
#define SESSION_SESSION_IO_H

#include "session.h"
#include "sessions.h"

#define SESSION_HUNG_UP "its process has closed the connection"

/* ---- session_turn.c ---- */

/* Has the loop poll the session for what it can go on with. */
void session_poll(struct session *c);
/* Whether the session's user has time left in this turn of the loop. */
bool session_has_time(const struct session *c);
void session_spend_time(struct session *c, uint64_t since_ns);
/* Has the loop leave it alone until its user has time. */
void session_park(struct session *c);
void session_unpark(struct session *c);

/* ---- session_send.c ---- */

void session_drop_outgoing(struct session *c, struct outgoing *o);
/* The last message of a session that may not have read earlier ones. */
void session_say_bye(struct session *c, int reason, const char *text);
/* A process that exits closes its socket, perhaps with unread replies. */
const char *session_end_text(int error);
/* Returns 0, -EAGAIN (the message must be sent later), or another -errno. */
int session_try_send(struct session *c, const void *message, size_t length, const int *fds,
		     unsigned nfds);
/* Sends the events that wait. Returns like session_try_send. */
int session_send_events(struct session *c);

/* ---- session_end.c ---- */

/* Closes a message's descriptors, which were charged to the account. */
void session_drop_fds(struct session *c, const int *fds, unsigned nfds);
/* The session's request no longer waits. */
void session_stop_waiting(struct session *c);

#endif
