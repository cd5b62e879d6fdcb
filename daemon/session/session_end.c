/* SPDX-License-Identifier: Apache-2.0
 * The end of a session, in steps that fit into its user's time in a turn of the loop. */
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "session_io.h"
#include "waiting_messages.h"

static void on_leaving(uv_idle_t *idle);

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
	session_spend_time(c, begin);
	return done;
}

/* True: it is done at once. Otherwise try_free is called when it is done. */
static bool take_turns(struct session *c)
{
	struct sessions *s = c->sessions;
	if (session_has_time(c) && take_turn(c))
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

static void forget_controls(struct session *c)
{
	if (c->next_controls < 0)
		return;
	account_close(c->account, &c->next_controls, 1);
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
	forget_controls(c);
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
		if (!session_has_time(c) || !take_turn(c))
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
	if (strcmp(text, SESSION_HUNG_UP) != 0)
		log_info("session %u (%s, pid %d) ended: %s", c->id, c->name, c->pid, text);
	else if (c->ring || c->nmemberships)
		log_info("session %u (%s, pid %d) has ended", c->id, c->name, c->pid);
	else
		log_debug("session %u (%s, pid %d) has ended", c->id, c->name, c->pid);
}

void session_drop_fds(struct session *c, const int *fds, unsigned nfds)
{
	account_close(c->account, fds, nfds);
	account_give(c->account, SHARE_FDS, nfds);
}

void session_stop_waiting(struct session *c)
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
		session_unpark(c);
	deadlines_remove(&s->retries, &c->retry);
	while (c->out)
		session_drop_outgoing(c, c->out);
	if (c->waiting.length)
		session_drop_fds(c, c->waiting.fds, c->waiting.nfds);
	session_stop_waiting(c);
	if (reason)
		session_say_bye(c, reason, text ? text : "");
	end_ring(c, reason);
	shutdown(c->fd, SHUT_RDWR);
	uv_poll_stop(&c->poll);
	uv_close((uv_handle_t *)&c->poll, on_poll_closed);
	take_turns(c);
}
