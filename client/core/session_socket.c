/* SPDX-License-Identifier: Apache-2.0
 * Requests, replies, and the session's socket, on which several threads wait for different things.
 * One thread at a time reads: it sleeps in poll without the lock, takes in one message under the
 * lock, and wakes the others. One of those still waiting then takes over. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "base/frame.h"
#include "call.h"
#include "comm_handle.h"
#include "proto/fdio.h"
#include "proto/names.h"
#include "session_handle.h"
#include "session_socket.h"
#include "session_timeline.h"

#define PUMP_MAX 1024

ncclsvc_result session_over(ncclsvc_session *s)
{
	const struct svc_ring *ring = s->connection->ring;
	if (session_is_foreign(s))
		return error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text);
	if (!s->lost && !s->away && ring &&
	    atomic_load_explicit(&ring->ended, memory_order_relaxed)) {
		socket_pump(s); /* reads its last messages, if there are any */
		int why = atomic_load(&s->connection->ring->ended);
		if (why == NCCLSVC_DAEMON_LOST)
			session_lose_daemon(s, "the daemon ended the session: %s",
					    svc_result_meaning(why));
		else if (why)
			session_lose(s, "the daemon ended the session: %s: %s",
				     svc_result_name(why), svc_result_meaning(why));
	}
	if (!s->lost)
		return NCCLSVC_OK;
	timelines_release(s); /* once more: a worker's last write may have set a counter back */
	return error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text);
}

/* An answer whose caller has given up: releases what it created. */
static void give_back(ncclsvc_session *s, const struct svc_header *h, const void *body)
{
	struct svc_join_reply joined;
	struct svc_region_reply added;
	struct svc_plan_reply plan;
	if (h->result || h->request_id == REQUEST_ID_FORGET)
		return;
	switch (h->opcode & ~SVC_REPLY) {
	case SVC_JOIN:
	case SVC_SPLIT:
		memcpy(&joined, body, sizeof(joined));
		comm_give_back(s, &joined);
		break;
	case SVC_PLAN_COMMIT:
		memcpy(&plan, body, sizeof(plan));
		call_forget(s, SVC_PLAN_DROP, &(struct svc_plan_drop){plan.comm, plan.plan});
		break;
	case SVC_REGION_ADD:
	case SVC_REGION_CUDA:
	case SVC_REGION_CUDA_FD:
	case SVC_REGION_RANGE:
		memcpy(&added, body, sizeof(added));
		call_forget(s, SVC_REGION_DEL, &(struct svc_region_del){.region = added.region});
		break;
	}
}

/* Takes ownership of fds. */
static void take_reply(ncclsvc_session *s, const struct svc_header *h, const void *body,
		       size_t length, int *fds, unsigned nfds)
{
	struct call **at = &s->calls;
	while (*at && (*at)->request_id != h->request_id)
		at = &(*at)->next;
	struct call *c = *at;
	if (!c) {
		s->forgotten -= h->request_id == REQUEST_ID_FORGET && s->forgotten;
		svc_close_fds(fds, nfds);
		give_back(s, h, body);
		return;
	}
	if (h->opcode != (c->opcode | SVC_REPLY)) {
		svc_close_fds(fds, nfds);
		session_lose(s, "the daemon broke the protocol: a reply of the wrong kind arrived");
		return;
	}
	*at = c->next;
	c->done = true;
	c->result = h->result;
	memcpy(c->chunk ? (void *)c->chunk : c->body, body, length);
	if (nfds)
		c->fd = fds[0];
	if (h->result)
		frame_error_text(body, h->result, c->text);
	else if (c->on_reply)
		c->on_reply(s, c);
}

static void take_event(ncclsvc_session *s, const struct svc_header *h, const void *body)
{
	if (h->opcode == SVC_EVENT_COMM) {
		struct svc_event_comm event;
		memcpy(&event, body, sizeof(event));
		comm_event(s, &event);
	} else if (h->opcode == SVC_EVENT_BYE) {
		char text[SVC_TEXT_BYTES];
		if (frame_bye(body, text) == NCCLSVC_DAEMON_LOST)
			session_lose_daemon(s, "the daemon ended the session: %s", text);
		else
			session_lose(s, "the daemon ended the session: %s", text);
	}
}

/* Reads one message. False: none is ready. */
static bool receive(ncclsvc_session *s)
{
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	char text[SVC_TEXT_BYTES];
	struct svc_header h;
	ssize_t n = frame_receive(s->connection, s->message, sizeof(s->message), fds, &nfds);
	if (n == -EAGAIN)
		return false;
	if (n == -EMSGSIZE) {
		session_lose(s, "the daemon broke the protocol: a message is too long");
		return true;
	}
	if (n <= 0) {
		session_lose_daemon(s, "the daemon closed the connection to %s",
				    s->options.address.sun_path);
		return true;
	}
	unsigned mine = nfds < SVC_FDS_MAX ? nfds : SVC_FDS_MAX;
	if (!frame_check(s->connection, s->message, (size_t)n, nfds, &h, text)) {
		svc_close_fds(fds, mine);
		session_lose(s, "the daemon broke the protocol: %s", text);
		return true;
	}
	const void *body = s->message + sizeof(h);
	size_t length = (size_t)n - sizeof(h);
	if (!(h.opcode & SVC_REPLY))
		take_event(s, &h, body);
	else if (h.request_id <= REQUEST_ID_MAX)
		take_reply(s, &h, body, length, fds, mine);
	else if (!task_answer(s, h.request_id, body, length, h.result))
		session_lose(s, "the daemon broke the protocol: it answered an unknown task");
	return true;
}

unsigned socket_pump(ncclsvc_session *s)
{
	unsigned n = 0;
	if (s->reading)
		return 0;
	while (n < PUMP_MAX && !s->lost && s->away != AWAY_GONE && receive(s))
		n++;
	if (n)
		pthread_cond_broadcast(&s->changed);
	return n;
}

bool socket_step(ncclsvc_session *s, uint64_t deadline)
{
	/* Without a connection no message can come, but another thread may be finishing. */
	if (s->reading || s->lost || s->away == AWAY_GONE)
		return session_wait(s, deadline);
	struct connection *c = connection_ref(s->connection);
	struct pollfd p = {.fd = c->sock, .events = POLLIN};
	s->reading = true;
	session_unlock(s);
	int ready = poll(&p, 1, deadline_left_ms(deadline));
	session_lock(s);
	s->reading = false;
	if (ready > 0 && c == s->connection && !s->lost && s->away != AWAY_GONE)
		receive(s);
	connection_unref(c);
	pthread_cond_broadcast(&s->changed);
	return ready != 0;
}

static bool is_of_another_daemon(const ncclsvc_session *s, const struct call *call)
{
	return call->bound &&
	       ((s->away && !session_is_watcher(s)) || call->connections != session_connections(s));
}

static ncclsvc_result lost_daemon(const ncclsvc_session *s)
{
	return error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text);
}

ncclsvc_result call_begin(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			  int fd, uint64_t deadline)
{
	call->opcode = (uint16_t)opcode;
	call->request_id = s->request_id = s->request_id % (REQUEST_ID_FORGET - 1) + 1;
	call->done = false;
	call->result = 0;
	call->fd = -1;
	call->request_fd = fd;
	for (;;) {
		ncclsvc_result r = is_of_another_daemon(s, call) ? lost_daemon(s) : session_back(s);
		if (!r)
			r = session_check(s);
		if (r)
			return r;
		int sent = frame_send(s->connection, opcode, call->request_id, body, fd);
		if (!sent)
			break;
		if (sent == -EPIPE || sent == -ECONNRESET) {
			socket_pump(s);
			session_lose_daemon(s, "the daemon closed the connection to %s",
					    s->options.address.sun_path);
			continue;
		}
		if (sent == -EOPNOTSUPP)
			return error_set(NCCLSVC_UNSUPPORTED,
					 "the daemon speaks protocol version %u, which has no "
					 "request %u: install a newer ncclsvcd",
					 s->connection->version, opcode);
		if (sent != -EAGAIN) {
			errno = -sent;
			return error_set(NCCLSVC_SYSTEM, "cannot send to the daemon: %m");
		}
		if (now_ns() >= deadline)
			return error_set(NCCLSVC_TIMEOUT, "the daemon does not read its socket");
		struct connection *c = connection_ref(s->connection);
		struct pollfd p = {.fd = c->sock, .events = POLLOUT};
		int left = deadline_left_ms(deadline);
		socket_pump(s);
		session_unlock(s);
		poll(&p, 1, left < 0 || left > 100 ? 100 : left);
		session_lock(s);
		connection_unref(c);
	}
	memcpy(call->request, body, svc_shape_of(s->connection->version, opcode)->request);
	call->next = s->calls;
	s->calls = call;
	return NCCLSVC_OK;
}

ncclsvc_result call_finish(ncclsvc_session *s, struct call *call, uint64_t deadline)
{
	while (!call->done) {
		const bool gone = is_of_another_daemon(s, call) ||
				  (s->away == AWAY_GONE && session_is_watcher(s));
		if (s->away && !gone &&
		    !session_is_watcher(s)) { /* it is sent again when the session is back */
			session_back(s);
			if (deadline < deadline_in(REQUEST_MS))
				deadline = deadline_in(REQUEST_MS);
			continue;
		}
		if (!gone && (socket_step(s, deadline) || call->done || s->away == AWAY_GONE))
			continue;
		struct call **at = &s->calls;
		while (*at != call)
			at = &(*at)->next;
		*at = call->next;
		if (gone)
			return lost_daemon(s);
		return error_set(NCCLSVC_TIMEOUT, "the daemon did not answer %s in time",
				 svc_shape_of(s->connection->version, call->opcode)->name);
	}
	if (call->result)
		return error_set((ncclsvc_result)call->result, "%s", call->text);
	return NCCLSVC_OK;
}

ncclsvc_result call_run(ncclsvc_session *s, struct call *call, unsigned opcode, const void *body,
			int fd, uint64_t deadline)
{
	ncclsvc_result r = call_begin(s, call, opcode, body, fd, deadline);
	return r ? r : call_finish(s, call, deadline);
}
