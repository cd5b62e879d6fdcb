/* SPDX-License-Identifier: Apache-2.0 */
#include "sessions.h"

#include <errno.h>
#include <stdlib.h>

#include "base/loop.h"
#include "session.h"

static void on_turn(uv_prepare_t *prepare)
{
	struct sessions *s = prepare->data;
	s->turn++;
	session_turn(s);
}

int sessions_open(struct sessions *s, struct loop *loop, const struct session_callbacks *callbacks,
		  void *owner)
{
	s->loop = loop;
	s->callbacks = callbacks;
	s->owner = owner;
	s->leave.data = s->turn_again.data = s->count_turn.data = s;
	uv_idle_init(loop->uv, &s->leave);
	uv_idle_init(loop->uv, &s->turn_again);
	uv_prepare_init(loop->uv, &s->count_turn);
	loop->handles += 3;
	uv_prepare_start(&s->count_turn, on_turn);
	s->by_slot = calloc(SVC_SESSIONS_MAX, sizeof(*s->by_slot));
	return s->by_slot ? deadlines_reserve(&s->retries, SVC_SESSIONS_MAX) : -ENOMEM;
}

static void on_closed(uv_handle_t *handle)
{
	struct sessions *s = handle->data;
	s->loop->handles--;
}

void sessions_close(struct sessions *s)
{
	uv_close((uv_handle_t *)&s->leave, on_closed);
	uv_close((uv_handle_t *)&s->turn_again, on_closed);
	uv_close((uv_handle_t *)&s->count_turn, on_closed);
}

void sessions_free(struct sessions *s)
{
	free(s->by_slot);
	deadlines_fini(&s->retries);
}

struct session *sessions_find(struct sessions *s, uint32_t id)
{
	struct session *c;
	HASH_FIND(hh, s->by_id, &id, sizeof(id), c);
	return c;
}
