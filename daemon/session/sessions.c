/* SPDX-License-Identifier: Apache-2.0 */
#include "sessions.h"

#include <errno.h>
#include <stdlib.h>
#include <utlist.h>

#include "base/loop.h"
#include "client.h"

int sessions_open(struct sessions *s, struct loop *loop, const struct session_callbacks *callbacks,
		  void *owner)
{
	s->loop = loop;
	s->callbacks = callbacks;
	s->owner = owner;
	s->leave.data = s;
	uv_idle_init(loop->uv, &s->leave);
	loop->handles++;
	s->by_slot = calloc(SVC_SESSIONS_MAX, sizeof(*s->by_slot));
	return s->by_slot ? 0 : -ENOMEM;
}

static void on_leave_closed(uv_handle_t *handle)
{
	struct sessions *s = handle->data;
	s->loop->handles--;
}

void sessions_close(struct sessions *s)
{
	uv_close((uv_handle_t *)&s->leave, on_leave_closed);
}

void sessions_free(struct sessions *s)
{
	free(s->by_slot);
}

struct client *sessions_find(struct sessions *s, uint32_t id)
{
	struct client *c;
	DL_FOREACH (s->clients, c) {
		if (c->id == id)
			return c;
	}
	return NULL;
}
