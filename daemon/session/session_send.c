/* SPDX-License-Identifier: Apache-2.0
 * Sending: at once, or when the socket has room. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "proto/fdio.h"
#include "proto/names.h"
#include "session_io.h"

void session_drop_outgoing(struct session *c, struct outgoing *o)
{
	svc_close_fds(o->fds, o->nfds);
	account_give(c->account, SHARE_FDS, o->nfds);
	account_give(c->account, SHARE_QUEUE_BYTES, o->length);
	c->queued -= (uint32_t)o->length;
	DL_DELETE(c->out, o);
	free(o);
}

/* The last message of a session that may not have read earlier ones. The socket's buffer is
 * enlarged only now, to make room for it. */
void session_say_bye(struct session *c, int reason, const char *text)
{
	struct {
		struct svc_header header;
		struct svc_event_bye bye;
	} m = {.header = {.length = sizeof(m), .opcode = SVC_EVENT_BYE}, .bye.reason = reason};
	int bytes = 0;
	socklen_t size = sizeof(bytes);
	if (!getsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size))
		setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &bytes, size); /* the kernel doubles it */
	snprintf(m.bye.text, sizeof(m.bye.text), "%s", text);
	svc_send(c->fd, &m, sizeof(m), NULL, 0, MSG_DONTWAIT);
}

const char *session_end_text(int error)
{
	return !error || error == EPIPE || error == ECONNRESET ? SESSION_HUNG_UP : strerror(error);
}

/* The session cannot be sent to. The caller may be iterating over a list with the session, so the
 * loop closes it later; the shutdown wakes the loop. */
static void lose(struct session *c, int reason, const char *text)
{
	if (c->lost[0])
		return;
	snprintf(c->lost, sizeof(c->lost), "%s", text);
	c->lost_reason = reason;
	shutdown(c->fd, SHUT_RD);
}

static bool count_outgoing(struct session *c, size_t length, unsigned nfds)
{
	char text[SVC_TEXT_BYTES];
	if (length > SVC_SESSION_QUEUE_BYTES - c->queued ||
	    !account_take(c->account, SHARE_QUEUE_BYTES, length, text))
		return false;
	if (account_take(c->account, SHARE_FDS, nfds, text))
		return true;
	account_give(c->account, SHARE_QUEUE_BYTES, length);
	return false;
}

static void queue_message(struct session *c, const void *message, size_t length, const int *fds,
			  unsigned nfds)
{
	if (!count_outgoing(c, length, nfds)) {
		lose(c, NCCLSVC_LIMIT, "it does not read its socket");
		return;
	}
	struct outgoing *o = account_memory_left(c->account, sizeof(*o) + length)
				     ? calloc(1, sizeof(*o) + length)
				     : NULL;
	if (!o) {
		account_give(c->account, SHARE_QUEUE_BYTES, length);
		account_give(c->account, SHARE_FDS, nfds);
		lose(c, NCCLSVC_NO_MEMORY, "the daemon has no memory for a reply");
		return;
	}
	memcpy(o->message, message, length);
	o->length = length;
	o->nfds = nfds;
	c->queued += (uint32_t)length;
	DL_APPEND(c->out, o);
	for (unsigned i = 0; i < nfds; i++) {
		o->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
		if (o->fds[i] < 0)
			lose(c, NCCLSVC_LIMIT, "the daemon has run out of file descriptors");
	}
	session_poll(c);
}

/* A reply with file descriptors, or a long one, waits until the session has read the earlier
 * replies, so a session that does not read holds little, however much it requests. */
static bool must_wait(const struct session *c, size_t length, unsigned nfds)
{
	int unread = 0;
	return (nfds || length > SVC_MESSAGE_MAX) && !ioctl(c->fd, SIOCOUTQ, &unread) && unread > 0;
}

/* A process that does not read is retried less and less often. */
static void try_again_later(struct session *c)
{
	struct sessions *s = c->sessions;
	c->retry_after_ns = c->retry_after_ns ? c->retry_after_ns * 2 : SEND_AGAIN_NS;
	if (c->retry_after_ns > SEND_AGAIN_MAX_NS)
		c->retry_after_ns = SEND_AGAIN_MAX_NS;
	const uint64_t at = clock_now() + c->retry_after_ns;
	deadlines_remove(&s->retries, &c->retry);
	deadlines_add(&s->retries, &c->retry, at); /* there is room */
	loop_deadline(s->loop, at);
}

int session_try_send(struct session *c, const void *message, size_t length, const int *fds,
		     unsigned nfds)
{
	int error = must_wait(c, length, nfds)
			    ? -ETOOMANYREFS
			    : svc_send(c->fd, message, length, fds, nfds, MSG_DONTWAIT);
	if (!error)
		c->retry_after_ns = 0;
	if (error == -ENOBUFS)
		return -EAGAIN;
	/* A socket can hold as many of this daemon's descriptors as it may open (ETOOMANYREFS). */
	if (error != -ETOOMANYREFS && error != -ENOMEM)
		return error;
	try_again_later(c);
	return -EAGAIN;
}

static void send_message(struct session *c, unsigned opcode, uint32_t request_id, int result,
			 const void *body, size_t size, const int *fds, unsigned nfds)
{
	struct {
		struct svc_header header;
		char body[SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header)];
	} m;
	if (c->state == SESSION_CLOSING || c->lost[0])
		return;
	m.header = (struct svc_header){
		.length = (uint32_t)(sizeof(m.header) + size),
		.opcode = (uint16_t)opcode,
		.request_id = request_id,
		.result = result,
	};
	if (size)
		memcpy(m.body, body, size);
	int error = c->out ? -EAGAIN : session_try_send(c, &m, m.header.length, fds, nfds);
	if (error == -EAGAIN)
		queue_message(c, &m, m.header.length, fds, nfds);
	else if (error)
		lose(c, 0, session_end_text(-error));
}

static int try_event(struct session *c, const struct svc_event_comm *event)
{
	struct {
		struct svc_header header;
		struct svc_event_comm event;
	} m = {.header = {.opcode = SVC_EVENT_COMM}, .event = *event};
	const struct svc_shape *shape = svc_event_of(c->version, SVC_EVENT_COMM);
	m.header.length = (uint32_t)(sizeof(m.header) + svc_shape_cut(shape, sizeof(m.event)));
	return session_try_send(c, &m, m.header.length, NULL, 0);
}

/* Events wait in the memberships, not in the queue: there is at most one per membership. */
void session_comm_event(struct session *c, const struct svc_event_comm *event)
{
	if (c->state == SESSION_CLOSING || c->lost[0])
		return;
	int error = c->out || c->events ? -EAGAIN : try_event(c, event);
	if (!error)
		return;
	if (error != -EAGAIN) {
		lose(c, 0, session_end_text(-error));
		return;
	}
	c->memberships[event->comm].event = *event;
	c->events = true;
	session_poll(c);
}

int session_send_events(struct session *c)
{
	for (uint32_t i = 1; i < c->nmemberships; i++) {
		struct svc_event_comm *event = &c->memberships[i].event;
		const int error = event->comm ? try_event(c, event) : 0;
		if (error)
			return error;
		event->comm = 0;
	}
	c->events = false;
	return 0;
}

void session_reply(struct session *c, unsigned opcode, uint32_t request_id, const void *body,
		   size_t size, const int *fds, unsigned nfds)
{
	size = svc_shape_cut(svc_shape_of(c->version, opcode), size);
	send_message(c, opcode | SVC_REPLY, request_id, NCCLSVC_OK, body, size, fds, nfds);
}

void session_error(struct session *c, unsigned opcode, uint32_t request_id, int result,
		   const char *format, ...)
{
	struct svc_error error = {.version_min = SVC_PROTOCOL_MIN,
				  .version_max = SVC_PROTOCOL_MAX,
				  .client_version_min = c->version_min,
				  .client_version_max = c->version_max};
	va_list args;
	va_start(args, format);
	vsnprintf(error.text, sizeof(error.text), format, args);
	va_end(args);
	const struct svc_shape *shape = svc_shape_of(c->version, opcode);
	log_debug("session %u (pid %d): %s: %s: %s", c->id, c->pid, shape ? shape->name : "?",
		  svc_result_name(result), error.text);
	send_message(c, opcode | SVC_REPLY, request_id, result, &error, sizeof(error), NULL, 0);
}
