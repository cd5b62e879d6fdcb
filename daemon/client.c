/* SPDX-License-Identifier: Apache-2.0
 * One connection. The supervisor owns its fd until both libuv and the executor have let it go. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "fdio.h"
#include "log.h"
#include "names.h"
#include "server_state.h"

#define MESSAGES_PER_TURN 32 /* read from one client before the others get their turn */
#define OUTGOING_MAX	  64 /* events that wait for a client to read */

static void on_poll(uv_poll_t *poll, int status, int events);

static void watch(struct client *c)
{
	/* A client that does not read its answers is not asked for more questions. */
	uv_poll_start(&c->poll, c->out ? UV_WRITABLE | UV_DISCONNECT : UV_READABLE | UV_DISCONNECT,
		      on_poll);
}

static void drop_outgoing(struct client *c, struct outgoing *o)
{
	svc_close_fds(o->fds, o->nfds);
	DL_DELETE(c->out, o);
	free(o);
	c->nout--;
}

/* It cannot be sent to. Who sends may be in the middle of something that it is part of: it is
 * closed from the loop, which the shutdown wakes. */
static void lose(struct client *c, const char *text)
{
	if (c->lost[0])
		return;
	snprintf(c->lost, sizeof(c->lost), "%s", text);
	shutdown(c->fd, SHUT_RDWR);
}

static void queue_message(struct client *c, const void *message, size_t length, const int *fds,
			  unsigned nfds)
{
	if (c->nout >= OUTGOING_MAX) {
		lose(c, "does not read its socket");
		return;
	}
	struct outgoing *o = calloc(1, sizeof(*o));
	if (!o) {
		lose(c, "out of memory");
		return;
	}
	memcpy(o->message, message, length);
	o->length = length;
	DL_APPEND(c->out, o);
	c->nout++;
	for (; o->nfds < nfds; o->nfds++) {
		o->fds[o->nfds] = fcntl(fds[o->nfds], F_DUPFD_CLOEXEC, 0);
		if (o->fds[o->nfds] < 0) {
			lose(c, "out of file descriptors");
			return;
		}
	}
	watch(c);
}

static void send_message(struct client *c, unsigned opcode, uint32_t serial, int result,
			 const void *body, size_t size, const int *fds, unsigned nfds)
{
	struct {
		struct svc_header header;
		char body[SVC_MESSAGE_MAX - sizeof(struct svc_header)];
	} m;
	if (c->state == CLIENT_CLOSING || c->lost[0])
		return;
	m.header = (struct svc_header){
		.length = (uint32_t)(sizeof(m.header) + size),
		.opcode = (uint16_t)opcode,
		.serial = serial,
		.result = result,
	};
	if (size)
		memcpy(m.body, body, size);
	int error =
		c->out ? -EAGAIN : svc_send(c->fd, &m, m.header.length, fds, nfds, MSG_DONTWAIT);
	if (error == -EAGAIN || error == -ENOBUFS)
		queue_message(c, &m, m.header.length, fds, nfds);
	else if (error)
		lose(c, strerror(-error));
}

void client_reply(struct client *c, unsigned opcode, uint32_t serial, const void *body, size_t size,
		  const int *fds, unsigned nfds)
{
	send_message(c, opcode | SVC_REPLY, serial, NCCLSVC_OK, body, size, fds, nfds);
}

void client_error(struct client *c, unsigned opcode, uint32_t serial, int result,
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
	log_debug("session %u (pid %d): %s: %s: %s", c->id, c->pid,
		  svc_shape_of(opcode) ? svc_shape_of(opcode)->name : "?", svc_result_name(result),
		  error.text);
	send_message(c, opcode | SVC_REPLY, serial, result, &error, sizeof(error), NULL, 0);
}

void client_event(struct client *c, unsigned opcode, const void *body, size_t size)
{
	send_message(c, opcode, 0, 0, body, size, NULL, 0);
}

/* ---- Ending ---- */

static void try_free(struct client *c)
{
	struct server *s = c->server;
	if (!c->poll_closed || !c->executor_gone)
		return;
	memory_free_all(c);
	close(c->fd);
	s->by_slot[c->slot] = NULL;
	if (c->account) {
		c->account->sessions--;
		memory_account_drop(s, c->account);
	}
	DL_DELETE(s->clients, c);
	s->nclients--;
	free(c->memberships);
	free(c);
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct client *c = handle->data;
	c->server->handles--;
	c->poll_closed = true;
	try_free(c);
}

void client_executor_gone(struct client *c)
{
	c->executor_gone = true;
	try_free(c);
}

static void end_ring(struct client *c, int reason)
{
	if (!c->ring)
		return;
	atomic_store(&c->ring->ended, reason ? reason : NCCLSVC_DAEMON_LOST);
	atomic_fetch_add(&c->ring->wake, 1);
	syscall(SYS_futex, &c->ring->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void client_close(struct client *c, int reason, const char *text)
{
	struct server *s = c->server;
	if (c->state == CLIENT_CLOSING)
		return;
	if (text && c->state == CLIENT_OPEN)
		log_info("session %u (%s, pid %d) ended: %s", c->id, c->name, c->pid, text);
	if (reason) {
		struct svc_event_bye bye = {.reason = reason};
		snprintf(bye.text, sizeof(bye.text), "%s", text ? text : "");
		client_event(c, SVC_EVENT_BYE, &bye, sizeof(bye));
	}
	bool known = c->state == CLIENT_OPEN;
	c->state = CLIENT_CLOSING;
	end_ring(c, reason);
	shutdown(c->fd, SHUT_RDWR);
	while (c->out)
		drop_outgoing(c, c->out);
	uv_poll_stop(&c->poll);
	uv_close((uv_handle_t *)&c->poll, on_poll_closed);
	comm_client_gone(c);
	if (known)
		server_command(s,
			       &(struct command){.kind = COMMAND_SESSION_DEL, .session = c->slot});
	else
		c->executor_gone = true;
}

/* ---- Reading ---- */

static void judge(struct client *c, const char *message, size_t length, int *fds, unsigned nfds)
{
	struct svc_header h;
	char text[SVC_TEXT_BYTES];
	switch (svc_check_request(message, length, nfds, &h, text)) {
	case SVC_MALFORMED:
		client_close(c, NCCLSVC_PROTOCOL, text);
		break;
	case SVC_BAD:
		client_error(c, h.opcode & ~SVC_REPLY, h.serial, NCCLSVC_PROTOCOL, "%s", text);
		break;
	case SVC_GOOD:
		request_handle(c, &h, message + sizeof(h), fds);
		break;
	}
}

static void read_messages(struct client *c)
{
	_Alignas(8) char message[SVC_MESSAGE_MAX];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	for (int i = 0; i < MESSAGES_PER_TURN; i++) {
		if (c->state == CLIENT_CLOSING || c->lost[0] || c->out)
			return;
		ssize_t n = svc_recv(c->fd, message, sizeof(message), fds, &nfds, MSG_DONTWAIT);
		if (n == -EAGAIN)
			return;
		if (n == -EMSGSIZE) {
			client_close(c, NCCLSVC_PROTOCOL,
				     "a message, or its control data, is too long");
			return;
		}
		if (n <= 0) {
			/* An empty message looks like the end, but for the fds it may bring. */
			svc_close_fds(fds, nfds < SVC_FDS_MAX ? nfds : SVC_FDS_MAX);
			client_close(c, 0, n ? strerror((int)-n) : "disconnected");
			return;
		}
		judge(c, message, (size_t)n, fds, nfds);
		svc_close_fds(fds, nfds < SVC_FDS_MAX ? nfds : SVC_FDS_MAX);
	}
}

static void write_messages(struct client *c)
{
	while (c->out) {
		struct outgoing *o = c->out;
		int error = svc_send(c->fd, o->message, o->length, o->fds, o->nfds, MSG_DONTWAIT);
		if (error == -EAGAIN || error == -ENOBUFS)
			return;
		if (error) {
			client_close(c, 0, strerror(-error));
			return;
		}
		drop_outgoing(c, o);
	}
	watch(c);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct client *c = poll->data;
	if (c->lost[0]) {
		client_close(c, 0, c->lost);
		return;
	}
	if (status < 0) { /* POLLERR: the peer closed with answers unread */
		client_close(c, 0, "disconnected");
		return;
	}
	if (events & UV_WRITABLE)
		write_messages(c);
	if (c->state != CLIENT_CLOSING && (events & UV_READABLE))
		read_messages(c);
	/* Gone while its answers waited: nobody will read them. */
	if (c->state != CLIENT_CLOSING && (events & UV_DISCONNECT) && c->out)
		client_close(c, 0, "disconnected");
}

/* ---- Beginning ---- */

struct client *client_create(struct server *s, int fd)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);
	uint32_t slot = 0;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
		return NULL;
	while (slot < SVC_SESSIONS_MAX && s->by_slot[slot])
		slot++;
	struct client *c = slot < SVC_SESSIONS_MAX ? calloc(1, sizeof(*c)) : NULL;
	if (!c)
		return NULL;
	c->server = s;
	c->slot = slot;
	c->id = ++s->last_session;
	c->fd = fd;
	c->pid = cred.pid;
	c->uid = cred.uid;
	c->doorbell = c->completion = c->ring_fd = -1;
	c->since_ns = server_now();
	c->poll.data = c;
	int error = uv_poll_init(s->loop, &c->poll, fd);
	if (error) {
		free(c);
		return NULL;
	}
	s->handles++;
	s->by_slot[slot] = c;
	s->nclients++;
	DL_APPEND(s->clients, c);
	watch(c);
	return c;
}
