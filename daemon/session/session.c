/* SPDX-License-Identifier: Apache-2.0
 * One connection. The supervisor owns its fd until both libuv and the scheduler have released it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "proto/fdio.h"
#include "proto/names.h"
#include "session.h"
#include "sessions.h"
#include "waiting_messages.h"

#define MESSAGES_PER_TURN 32 /* read from one session before others get their turn */
#define CLOSED		  "its process has closed the connection"

static void on_poll(uv_poll_t *poll, int status, int events);
static void on_leaving(uv_idle_t *idle);

/* No further requests are read from a session that does not read its replies. */
static void watch(struct session *c)
{
	int events = c->parked ? 0 : UV_DISCONNECT;
	const bool replies = c->out || c->events;
	/* A session whose request waits is woken by the event it waits for. */
	if (events && !c->waiting.length && !replies)
		events |= UV_READABLE;
	if (events && !c->waiting.length && replies && !c->retry.place)
		events |= UV_WRITABLE;
	if (events == c->polled)
		return; /* otherwise libuv would make a system call anyway */
	c->polled = events;
	uv_poll_start(&c->poll, events, on_poll);
}

/* ---- One user's time in a turn of the loop ---- */

static bool has_time(const struct session *c)
{
	const struct account *a = c->account;
	return a->turn != c->sessions->turn || a->turn_ns < USER_TURN_NS;
}

static void spend_time(struct session *c, uint64_t since_ns)
{
	struct account *a = c->account;
	if (a->turn != c->sessions->turn) {
		a->turn = c->sessions->turn;
		a->turn_ns = 0;
	}
	a->turn_ns += clock_now() - since_ns;
}

static void on_turn_again(uv_idle_t *idle)
{
	(void)idle;
}

static void park(struct session *c)
{
	struct sessions *s = c->sessions;
	c->parked = true;
	DL_APPEND2(s->parked, c, prev_parked, next_parked);
	s->nparked++;
	watch(c);
	uv_idle_start(&s->turn_again, on_turn_again);
}

static void unpark(struct session *c)
{
	struct sessions *s = c->sessions;
	c->parked = false;
	DL_DELETE2(s->parked, c, prev_parked, next_parked);
	s->nparked--;
	if (!s->parked)
		uv_idle_stop(&s->turn_again);
}

/* ---- Sending ---- */

static void drop_outgoing(struct session *c, struct outgoing *o)
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
static void say_bye(struct session *c, int reason, const char *text)
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

/* A process that exits closes its socket, perhaps with unread replies. */
static const char *end_text(int error)
{
	return !error || error == EPIPE || error == ECONNRESET ? CLOSED : strerror(error);
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
	watch(c);
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

/* Returns 0, -EAGAIN (the message must be sent later), or another -errno. */
static int try_send(struct session *c, const void *message, size_t length, const int *fds,
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

static void send_message(struct session *c, unsigned opcode, uint32_t serial, int result,
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
		.serial = serial,
		.result = result,
	};
	if (size)
		memcpy(m.body, body, size);
	int error = c->out ? -EAGAIN : try_send(c, &m, m.header.length, fds, nfds);
	if (error == -EAGAIN)
		queue_message(c, &m, m.header.length, fds, nfds);
	else if (error)
		lose(c, 0, end_text(-error));
}

static int try_event(struct session *c, const struct svc_event_comm *event)
{
	struct {
		struct svc_header header;
		struct svc_event_comm event;
	} m = {.header = {.opcode = SVC_EVENT_COMM}, .event = *event};
	const struct svc_shape *shape = svc_event_of(c->version, SVC_EVENT_COMM);
	m.header.length = (uint32_t)(sizeof(m.header) + svc_shape_cut(shape, sizeof(m.event)));
	return try_send(c, &m, m.header.length, NULL, 0);
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
		lose(c, 0, end_text(-error));
		return;
	}
	c->memberships[event->comm].event = *event;
	c->events = true;
	watch(c);
}

/* Returns like try_send. */
static int send_events(struct session *c)
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

void session_reply(struct session *c, unsigned opcode, uint32_t serial, const void *body,
		   size_t size, const int *fds, unsigned nfds)
{
	size = svc_shape_cut(svc_shape_of(c->version, opcode), size);
	send_message(c, opcode | SVC_REPLY, serial, NCCLSVC_OK, body, size, fds, nfds);
}

void session_error(struct session *c, unsigned opcode, uint32_t serial, int result,
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
	send_message(c, opcode | SVC_REPLY, serial, result, &error, sizeof(error), NULL, 0);
}

bool session_allows(const struct session *c, const struct tenant *owner)
{
	return c->admin || tenant_may(&c->account->tenant, owner);
}

bool session_allows_user(const struct session *c, uint32_t uid)
{
	return session_allows(c, &(struct tenant){.uid = uid});
}

/* ---- Ending ---- */

/* True: the session holds no communicator any more, and the scheduler was told. */
static bool vacate(struct session *c, uint64_t until_ns)
{
	const struct sessions *s = c->sessions;
	if (!s->callbacks->vacate(s->owner, c, until_ns))
		return false;
	c->vacated = true;
	if (c->known)
		s->callbacks->end_tasks(s->owner, c);
	else
		c->scheduler_gone = true;
	return true;
}

static bool free_memory(struct session *c, uint64_t until_ns)
{
	c->memory_gone = c->sessions->callbacks->free_memory(c->sessions->owner, c, until_ns);
	return c->memory_gone;
}

/* Does the next step for at most SESSION_END_TURN_NS. True: the step is done. */
static bool take_turn(struct session *c)
{
	const uint64_t begin = clock_now(), until = begin + SESSION_END_TURN_NS;
	const bool done = c->vacated ? free_memory(c, until) : vacate(c, until);
	spend_time(c, begin);
	return done;
}

/* True: it is done at once. Otherwise try_free is called when it is done. */
static bool take_turns(struct session *c)
{
	struct sessions *s = c->sessions;
	if (has_time(c) && take_turn(c))
		return true;
	DL_APPEND2(s->leaving, c, prev_waiting, next_waiting);
	uv_idle_start(&s->leave, on_leaving);
	return false;
}

void session_watch_process(struct session *c)
{
	char text[SVC_TEXT_BYTES];
	c->process = ending_watch(c->fd, c->pid);
	if (c->process.fd < 0 || account_take(c->account, SHARE_FDS, 1, text))
		return;
	close(c->process.fd);
	c->process.fd = -1;
}

static void forget_process(struct session *c)
{
	if (c->process.fd < 0)
		return;
	close(c->process.fd);
	account_give(c->account, SHARE_FDS, 1);
}

static void forget_bell(struct session *c)
{
	if (c->bell < 0)
		return;
	close(c->bell);
	account_give(c->account, SHARE_FDS, 1);
}

static void try_free(struct session *c)
{
	struct sessions *s = c->sessions;
	if (!c->poll_closed || !c->scheduler_gone || (!c->memory_gone && !take_turns(c)))
		return;
	connection_close(c->account, c->fd);
	account_give(c->account, SHARE_FDS, 1);
	forget_process(c);
	forget_bell(c);
	s->by_slot[c->slot] = NULL;
	account_give(c->account, SHARE_SESSIONS, 1);
	account_put(c->account);
	DL_DELETE(s->all, c);
	HASH_DEL(s->by_id, c);
	s->nsessions--;
	free(c->memberships);
	free(c);
}

static void on_leaving(uv_idle_t *idle)
{
	struct sessions *s = idle->data;
	struct session *c, *next;
	DL_FOREACH_SAFE2 (s->leaving, c, next, next_waiting) {
		if (!has_time(c) || !take_turn(c))
			continue;
		DL_DELETE2(s->leaving, c, prev_waiting, next_waiting);
		try_free(c);
	}
	if (!s->leaving)
		uv_idle_stop(idle);
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct session *c = handle->data;
	c->sessions->loop->handles--;
	c->poll_closed = true;
	try_free(c);
}

void session_scheduler_gone(struct session *c)
{
	c->scheduler_gone = true;
	try_free(c);
}

static void end_ring(struct session *c, int reason)
{
	if (!c->ring)
		return;
	atomic_store(&c->ring->ended, reason ? reason : NCCLSVC_DAEMON_LOST);
	atomic_fetch_add(&c->ring->wake, 1);
	syscall(SYS_futex, &c->ring->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A session closed by its process has ended in good order, or comm_break_for logs more. One that
 * only made queries (ncclsvc-ctl) is not logged at info level. */
static void log_end(const struct session *c, const char *text)
{
	if (!text)
		return;
	if (strcmp(text, CLOSED) != 0)
		log_info("session %u (%s, pid %d) ended: %s", c->id, c->name, c->pid, text);
	else if (c->ring || c->nmemberships)
		log_info("session %u (%s, pid %d) has ended", c->id, c->name, c->pid);
	else
		log_debug("session %u (%s, pid %d) has ended", c->id, c->name, c->pid);
}

/* Closes a message's descriptors, which were charged to the account. */
static void drop_fds(struct session *c, const int *fds, unsigned nfds)
{
	account_close(c->account, fds, nfds);
	account_give(c->account, SHARE_FDS, nfds);
}

static void stop_waiting(struct session *c)
{
	c->sessions->waiting -= c->waiting.length != 0;
	c->waiting.length = 0;
}

void session_end(struct session *c, int reason, const char *text)
{
	struct sessions *s = c->sessions;
	if (c->state == SESSION_CLOSING)
		return;
	if (c->state == SESSION_OPEN)
		log_end(c, text);
	c->ending = reason ? (struct ending){.how = NCCLSVC_ENDED_DISCONNECTED}
			   : ending_of(&c->process);
	c->known = c->state == SESSION_OPEN;
	if (c->known)
		s->nopen--;
	else
		DL_DELETE2(s->silent, c, prev_waiting, next_waiting);
	c->state = SESSION_CLOSING;
	if (c->parked)
		unpark(c);
	deadlines_remove(&s->retries, &c->retry);
	while (c->out)
		drop_outgoing(c, c->out);
	if (c->waiting.length)
		drop_fds(c, c->waiting.fds, c->waiting.nfds);
	stop_waiting(c);
	if (reason)
		say_bye(c, reason, text ? text : "");
	end_ring(c, reason);
	shutdown(c->fd, SHUT_RDWR);
	uv_poll_stop(&c->poll);
	uv_close((uv_handle_t *)&c->poll, on_poll_closed);
	take_turns(c);
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
	watch(c);
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
		session_error(c, h.opcode & ~SVC_REPLY, h.serial, NCCLSVC_PROTOCOL, "%s", text);
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
		session_end(c, 0, end_text((int)-n));
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
		drop_fds(c, fds, nfds);
}

/* Handles the waiting request once more. */
static void wake(struct session *c)
{
	const uint64_t begin = clock_now();
	char *message = c->waiting.message;
	const size_t length = c->waiting.length;
	int *fds = c->waiting.fds;
	const unsigned nfds = c->waiting.nfds;
	stop_waiting(c);
	judge(c, message, length, fds, nfds);
	if (!c->waiting.length)
		drop_fds(c, fds, nfds);
	if (c->state != SESSION_CLOSING)
		watch(c);
	spend_time(c, begin);
}

bool session_wake(struct sessions *s)
{
	bool all = true;
	struct session *c, *next;
	if (!s->waiting)
		return true;
	DL_FOREACH_SAFE (s->all, c, next) {
		if (c->waiting.length && has_time(c))
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
		    c->waiting.length || !has_time(c))
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
		spend_time(c, begin);
	}
}

static void write_messages(struct session *c)
{
	int error = 0;
	while (c->out && !error) {
		struct outgoing *o = c->out;
		error = try_send(c, o->message, o->length, o->fds, o->nfds);
		if (!error)
			drop_outgoing(c, o);
	}
	if (!error && c->events)
		error = send_events(c);
	if (error && error != -EAGAIN)
		session_end(c, 0, end_text(-error));
	else
		watch(c);
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
		session_end(c, 0, CLOSED);
		return;
	}
	if (events & UV_WRITABLE)
		write_messages(c);
	if (c->state != SESSION_CLOSING && (events & UV_READABLE))
		read_messages(c);
	/* The client has closed its end while replies waited: drop them. */
	if (c->state != SESSION_CLOSING && (events & UV_DISCONNECT) &&
	    (c->out || c->events || c->waiting.length))
		session_end(c, 0, CLOSED);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct session *c = poll->data;
	if (c->parked) /* the kernel had reported it before */
		return;
	if (has_time(c))
		serve(c, status, events);
	if (c->state != SESSION_CLOSING && !has_time(c))
		park(c);
}

/* In order; sessions whose users have used up their time again come last. */
void session_turn(struct sessions *s)
{
	for (uint32_t n = s->nparked; n && s->parked; n--) {
		struct session *c = s->parked;
		unpark(c);
		if (has_time(c))
			serve(c, 0, UV_READABLE);
		if (c->state == SESSION_CLOSING)
			continue;
		if (has_time(c))
			watch(c);
		else
			park(c);
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
	c->doorbell = c->completion = c->ring_fd = c->bell = -1;
	c->since_ns = clock_now();
	c->leaving_at = 1;
	c->poll.data = c;
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
	watch(c);
	return c;
}
