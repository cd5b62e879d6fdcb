/* SPDX-License-Identifier: Apache-2.0
 * One connection. The supervisor owns its fd until both libuv and the scheduler have released it.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/loop.h"
#include "base/timings.h"
#include "proto/fdio.h"
#include "session_io.h"
#include "waiting_messages.h"

static void on_poll(uv_poll_t *poll, int status, int events);

#define MESSAGES_PER_TURN 32 /* read from one session before others get their turn */

bool session_allows(const struct session *c, const struct tenant *owner)
{
	return c->admin || tenant_may(&c->account->tenant, owner);
}

bool session_allows_user(const struct session *c, uint32_t uid)
{
	return session_allows(c, &(struct tenant){.uid = uid});
}

/* ---- Reading ---- */

bool session_wait(struct session *c)
{
	c->waiting.asked = account_closing(c->account);
	return c->waiting.asked;
}

/* The request waits, with its descriptors and their share. */
static void keep_waiting(struct session *c, const char *message, size_t length, const int *fds,
			 unsigned nfds)
{
	memmove(c->waiting.message, message, SVC_MESSAGE_MAX); /* it may have waited before */
	memmove(c->waiting.fds, fds, nfds * sizeof(*fds));
	c->waiting.length = length;
	c->waiting.nfds = nfds;
	c->sessions->waiting++;
	session_poll(c);
}

/* The request fills the message's buffer, with zeros at its end. */
static void handle_request(struct session *c, const struct svc_header *h, const char *message,
			   int *fds, unsigned nfds)
{
	c->waiting.asked = false;
	c->sessions->callbacks->request(c->sessions->owner, c, h, message + sizeof(*h), fds);
	if (c->waiting.asked && c->state != SESSION_CLOSING)
		keep_waiting(c, message, h->length, fds, nfds);
}

static void judge(struct session *c, const char *message, size_t length, int *fds, unsigned nfds)
{
	struct svc_header h;
	char text[SVC_TEXT_BYTES];
	switch (svc_check_request(c->version, message, length, nfds, &h, text)) {
	case SVC_MALFORMED:
		session_end(c, NCCLSVC_PROTOCOL, text);
		break;
	case SVC_BAD:
		session_error(c, h.opcode & ~SVC_REPLY, h.request_id, NCCLSVC_PROTOCOL, "%s", text);
		break;
	case SVC_GOOD:
		handle_request(c, &h, message, fds, nfds);
		break;
	}
}

/* Handles one message, or the end of the connection. */
static void take_message(struct session *c, const char *message, ssize_t n, int *fds, unsigned nfds)
{
	if (n == -EMSGSIZE)
		session_end(c, NCCLSVC_PROTOCOL, "a message, or its control data, is too long");
	else if (n <= 0) /* an empty message looks like the end, except for fds that it may bring */
		session_end(c, 0, session_end_text((int)-n));
	else
		judge(c, message, (size_t)n, fds, nfds);
}

/* Received descriptors are charged to the user, even while they wait to be closed. */
static void take_with_fds(struct session *c, const char *message, ssize_t n, int *fds,
			  unsigned nfds)
{
	account_add(c->account, SHARE_FDS, nfds); /* connection_may_read has found room */
	take_message(c, message, n, fds, nfds);
	if (!c->waiting.length)
		session_drop_fds(c, fds, nfds);
}

/* Handles the waiting request once more. */
static void wake(struct session *c)
{
	const uint64_t begin = clock_now();
	char *message = c->waiting.message;
	const size_t length = c->waiting.length;
	int *fds = c->waiting.fds;
	const unsigned nfds = c->waiting.nfds;
	session_stop_waiting(c);
	judge(c, message, length, fds, nfds);
	if (!c->waiting.length)
		session_drop_fds(c, fds, nfds);
	if (c->state != SESSION_CLOSING)
		session_poll(c);
	session_spend_time(c, begin);
}

bool session_wake(struct sessions *s)
{
	bool all = true;
	struct session *c, *next;
	if (!s->waiting)
		return true;
	DL_FOREACH_SAFE (s->all, c, next) {
		if (c->waiting.length && session_has_time(c))
			wake(c);
		else
			all &= !c->waiting.length;
	}
	return all;
}

static void read_messages(struct session *c)
{
	_Alignas(8) char message[SVC_MESSAGE_MAX];
	int fds[SVC_FDS_KERNEL];
	char text[SVC_TEXT_BYTES];
	unsigned nfds;
	for (int i = 0; i < MESSAGES_PER_TURN; i++) {
		if (c->state == SESSION_CLOSING || c->lost[0] || c->out || c->events ||
		    c->waiting.length || !session_has_time(c))
			return;
		const uint64_t begin = clock_now();
		const int may = connection_may_read(c->account, c->fd, text);
		if (may == -EMFILE)
			session_end(c, NCCLSVC_LIMIT, text);
		if (may)
			return;
		ssize_t n = svc_recv_all(c->fd, message, sizeof(message), fds, &nfds, MSG_DONTWAIT);
		if (n == -EAGAIN)
			return;
		if (n > 0) /* fields that the session's version lacks are zero */
			memset(message + n, 0, sizeof(message) - (size_t)n);
		if (nfds)
			take_with_fds(c, message, n, fds, nfds);
		else
			take_message(c, message, n, fds, 0);
		session_spend_time(c, begin);
	}
}

static void write_messages(struct session *c)
{
	int error = 0;
	while (c->out && !error) {
		struct outgoing *o = c->out;
		error = session_try_send(c, o->message, o->length, o->fds, o->nfds);
		if (!error)
			session_drop_outgoing(c, o);
	}
	if (!error && c->events)
		error = session_send_events(c);
	if (error && error != -EAGAIN)
		session_end(c, 0, session_end_text(-error));
	else
		session_poll(c);
}

uint64_t session_retry(struct sessions *s, uint64_t now)
{
	const uint64_t until = clock_now() + EXPIRE_TURN_NS;
	struct deadline *d;
	while ((d = deadlines_first(&s->retries)) && d->at_ns <= now) {
		if (clock_now() > until)
			return clock_now() + NAP_NS;
		deadlines_remove(&s->retries, d);
		write_messages((struct session *)((char *)d - offsetof(struct session, retry)));
	}
	return d ? d->at_ns : 0;
}

static void serve(struct session *c, int status, int events)
{
	if (c->lost[0]) {
		session_end(c, c->lost_reason, c->lost);
		return;
	}
	if (status < 0) { /* POLLERR: the peer closed with unread replies */
		session_end(c, 0, SESSION_HUNG_UP);
		return;
	}
	if (events & UV_WRITABLE)
		write_messages(c);
	if (c->state != SESSION_CLOSING && (events & UV_READABLE))
		read_messages(c);
	/* The client has closed its end while replies waited: drop them. */
	if (c->state != SESSION_CLOSING && (events & UV_DISCONNECT) &&
	    (c->out || c->events || c->waiting.length))
		session_end(c, 0, SESSION_HUNG_UP);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct session *c = poll->data;
	if (c->parked) /* the kernel had reported it before */
		return;
	if (session_has_time(c))
		serve(c, status, events);
	if (c->state != SESSION_CLOSING && !session_has_time(c))
		session_park(c);
}

/* In order; sessions whose users have used up their time again come last. */
void session_turn(struct sessions *s)
{
	for (uint32_t n = s->nparked; n && s->parked; n--) {
		struct session *c = s->parked;
		session_unpark(c);
		if (session_has_time(c))
			serve(c, 0, UV_READABLE);
		if (c->state == SESSION_CLOSING)
			continue;
		if (session_has_time(c))
			session_poll(c);
		else
			session_park(c);
	}
}

/* ---- Start ---- */

void session_opened(struct session *c)
{
	c->state = SESSION_OPEN;
	c->sessions->nopen++;
	DL_DELETE2(c->sessions->silent, c, prev_waiting, next_waiting);
}

struct session *session_create(struct sessions *s, int fd, struct account *account,
			       const struct ucred *cred, bool admin)
{
	uint32_t slot = 0;
	while (slot < SVC_SESSIONS_MAX && s->by_slot[slot])
		slot++;
	struct session *c = slot < SVC_SESSIONS_MAX ? calloc(1, sizeof(*c)) : NULL;
	if (!c)
		return NULL;
	c->sessions = s;
	c->slot = slot;
	c->id = ++s->last_session;
	c->fd = fd;
	c->pid = cred->pid;
	c->uid = cred->uid;
	c->admin = admin;
	c->process.fd = -1;
	c->version = SVC_PROTOCOL_MIN;
	c->account = account;
	c->mps = NCCLSVC_MPS_UNKNOWN;
	c->mps_device = SVC_DEVICE_HOST;
	c->doorbell = c->completion = c->ring_fd = c->bell = c->next_controls = -1;
	c->since_ns = clock_now();
	c->leaving_at = 1;
	c->poll.data = c;
	c->on_poll = on_poll;
	int error = uv_poll_init(s->loop->uv, &c->poll, fd);
	if (error) {
		free(c);
		return NULL;
	}
	s->loop->handles++;
	s->by_slot[slot] = c;
	s->nsessions++;
	DL_APPEND(s->all, c);
	DL_APPEND2(s->silent, c, prev_waiting, next_waiting);
	HASH_ADD(hh, s->by_id, id, sizeof(c->id), c);
	session_poll(c);
	return c;
}
