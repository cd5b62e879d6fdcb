/* SPDX-License-Identifier: Apache-2.0
 * Event loops. The epoll fd that the user polls holds four fds: the socket, the daemon's completion
 * socket, `kick` (an eventfd for what non-dispatching threads notice), and `timer`, which ticks
 * while kernels run, because nothing signals their end. Dispatch drains the fds, arms them, then
 * looks; whatever ends later makes them readable again. */
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "base/session_memory.h"
#include "comm_handle.h"
#include "dispatch.h"
#include "failure.h"
#include "session_handle.h"
#include "session_socket.h"

#define TICK_NS 1000000

/* Locked. */
static void tick(ncclsvc_session *s, bool on)
{
	const struct timespec each = {.tv_nsec = on ? TICK_NS : 0};
	if (s->ticking == on)
		return;
	s->ticking = on;
	timerfd_settime(s->timer, 0, &(struct itimerspec){each, each}, NULL);
}

void dispatch_tick(ncclsvc_session *s)
{
	if (s->epoll >= 0)
		tick(s, true);
}

static bool watch(ncclsvc_session *s, int fd)
{
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	return fd >= 0 && epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) && errno != EEXIST;
}

ncclsvc_result dispatch_watch(ncclsvc_session *s)
{
	if (s->epoll < 0)
		return NCCLSVC_OK;
	if (watch(s, s->connection->sock) || watch(s, s->connection->completion))
		return error_set(NCCLSVC_SYSTEM, "epoll_ctl: %m");
	if (s->connection->ring)
		atomic_store(&s->connection->ring->armed, 1);
	session_kick(s); /* something may have ended before it was armed */
	return NCCLSVC_OK;
}

void dispatch_unwatch(ncclsvc_session *s)
{
	/* A sleeping thread may keep the old connection's fds open for a while. */
	if (s->epoll < 0)
		return;
	epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->connection->sock, NULL);
	if (s->connection->completion >= 0)
		epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->connection->completion, NULL);
}

/* Creates the fds. Locked. */
static ncclsvc_result prepare(ncclsvc_session *s)
{
	if (s->epoll >= 0)
		return NCCLSVC_OK;
	s->epoll = epoll_create1(EPOLL_CLOEXEC);
	s->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	s->ticking = false;
	ncclsvc_result r = NCCLSVC_OK;
	if (s->epoll < 0 || s->kick < 0 || s->timer < 0 || watch(s, s->kick) || watch(s, s->timer))
		r = error_set(NCCLSVC_SYSTEM,
			      "cannot create an epoll, an event and a timer fd: %m");
	if (!r)
		r = dispatch_watch(s);
	if (r)
		dispatch_close(s);
	return r;
}

void dispatch_close(ncclsvc_session *s)
{
	if (s->epoll >= 0)
		close(s->epoll);
	if (s->kick >= 0)
		close(s->kick);
	if (s->timer >= 0)
		close(s->timer);
	s->epoll = s->kick = s->timer = -1;
}

int ncclsvc_get_fd(ncclsvc_session *s)
{
	if (!s) {
		error_argument("ncclsvc_get_fd: the session is NULL");
		return -1;
	}
	session_lock(s);
	int fd = prepare(s) ? -1 : s->epoll;
	session_unlock(s);
	return fd;
}

void ncclsvc_set_callback(ncclsvc_session *s, ncclsvc_callback *callback, void *arg)
{
	if (!s)
		return;
	session_lock(s);
	s->callback = callback;
	s->callback_arg = arg;
	session_unlock(s);
}

static void drain(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char bytes[64];
	/* The daemon created the completion fd, so reading may block. Remaining bytes keep it
	 * readable. */
	if (fd >= 0 && poll(&p, 1, 0) == 1) {
		ssize_t n = read(fd, bytes, sizeof(bytes));
		(void)n;
	}
}

/* Locked; yields. */
static unsigned call_back(ncclsvc_session *s)
{
	struct tasks *t = &s->tasks;
	unsigned n = 0;
	uint64_t first = t->next > t->entries ? t->next - t->entries : 1;
	for (uint64_t task = first; task < t->next; task++) {
		struct slot *slot = &t->slots[task & (t->entries - 1)];
		if (slot->number != task || slot->state != SLOT_ENDED || slot->called_back)
			continue;
		slot->called_back = true;
		if (!s->callback)
			continue;
		ncclsvc_callback *callback = s->callback;
		void *arg = s->callback_arg;
		ncclsvc_result result = task_report(s, task);
		session_unlock(s);
		callback(task, result, arg);
		session_lock(s);
		n++;
	}
	return n;
}

/* Asks the GPUs for the kernels' progress. Locked. */
static void ask_kernels(ncclsvc_session *s)
{
	bool some = false;
	for (const ncclsvc_comm *c = s->comms; c && s->kernel_callbacks; c = c->next)
		if (c->peer && s->kernel_callbacks->ask(c->peer))
			some = true;
	if (s->epoll >= 0)
		tick(s, some);
}

/* Handles whatever is ready. Returns whether anything was. Locked; yields. */
static bool handle(ncclsvc_session *s)
{
	if (s->epoll >= 0) {
		drain(s->kick);
		drain(s->timer);
		drain(s->connection->completion);
		if (s->connection->ring)
			atomic_store(&s->connection->ring->armed, 1);
		atomic_thread_fence(memory_order_seq_cst);
	}
	unsigned found = socket_pump(s);
	uint64_t before = s->tasks.ended;
	ask_kernels(s);
	tasks_look(s);
	found += call_back(s);
	return found || s->tasks.ended != before;
}

ncclsvc_result ncclsvc_dispatch(ncclsvc_session *s, int timeout_ms)
{
	if (!s)
		return error_argument("ncclsvc_dispatch: the session is NULL");
	uint64_t deadline = deadline_in(timeout_ms);
	session_lock(s);
	ncclsvc_result r = timeout_ms ? prepare(s) : NCCLSVC_OK;
	while (!r && !handle(s)) {
		r = session_check(s);
		int left = deadline_left_ms(deadline);
		if (r || !left)
			break;
		struct pollfd p = {.fd = s->epoll, .events = POLLIN};
		session_unlock(s);
		poll(&p, 1, left);
		session_lock(s);
	}
	if (!r)
		r = session_check(s);
	session_unlock(s);
	return r;
}
