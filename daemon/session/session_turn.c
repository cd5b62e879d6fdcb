/* SPDX-License-Identifier: Apache-2.0
 * When the loop polls a session, and one user's time in a turn of the loop. */
#include <utlist.h>

#include "base/clock.h"
#include "base/loop.h"
#include "base/timings.h"
#include "session_io.h"

/* No further requests are read from a session that does not read its replies. */
void session_poll(struct session *c)
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
	uv_poll_start(&c->poll, events, c->on_poll);
}

bool session_has_time(const struct session *c)
{
	const struct account *a = c->account;
	return a->turn != c->sessions->turn || a->turn_ns < USER_TURN_NS;
}

void session_spend_time(struct session *c, uint64_t since_ns)
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

void session_park(struct session *c)
{
	struct sessions *s = c->sessions;
	c->parked = true;
	DL_APPEND2(s->parked, c, prev_parked, next_parked);
	s->nparked++;
	session_poll(c);
	uv_idle_start(&s->turn_again, on_turn_again);
}

void session_unpark(struct session *c)
{
	struct sessions *s = c->sessions;
	c->parked = false;
	DL_DELETE2(s->parked, c, prev_parked, next_parked);
	s->nparked--;
	if (!s->parked)
		uv_idle_stop(&s->turn_again);
}
