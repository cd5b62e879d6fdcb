/* SPDX-License-Identifier: Apache-2.0
 * Messages that overtake START, or a plan's RESULT, from another node. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "base/nofail.h"
#include "comm.h"
#include "comms.h"
#include "remote.h"

struct unexpected_message {
	struct unexpected_message *prev, *next;
	uint32_t from;
	enum control_kind kind;
	bool started; /* START had come */
	_Alignas(8) char body[];
};

/* The common beginning of all messages about an epoch that has started. */
struct of_epoch {
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t epoch;
};

static uint32_t epoch_of(const void *body)
{
	struct of_epoch of;
	memcpy(&of, body, sizeof(of));
	return of.epoch;
}

/* It leaves a plan that is not known to be in force here. */
static bool is_before_plan(const struct communicator *m, enum control_kind kind, const void *body)
{
	const struct control_left *l = body;
	return kind == CONTROL_LEFT && l->epoch == m->epoch && l->plan > m->plan_seq;
}

/* The communicator, if the message is about an epoch or plan that has not begun here. */
static struct communicator *not_begun(const struct comms *s, enum control_kind kind,
				      const void *body)
{
	struct communicator *m;
	switch (kind) {
	case CONTROL_BREAK:
	case CONTROL_LEFT:
	case CONTROL_RESULT:
		m = comm_find(s, body);
		if (m && (epoch_of(body) > m->epoch || is_before_plan(m, kind, body)))
			return m;
		return NULL;
	default:
		return NULL;
	}
}

static void forget_unexpected(struct communicator *m, uint32_t before)
{
	struct unexpected_message *e, *next;
	DL_FOREACH_SAFE (m->unexpected, e, next)
		if (epoch_of(e->body) < before) {
			DL_DELETE(m->unexpected, e);
			free(e);
		}
}

uint32_t remote_last_epoch(const struct communicator *m)
{
	const struct unexpected_message *e;
	uint32_t last = m->start && m->start->epoch > m->epoch ? m->start->epoch : m->epoch;
	DL_FOREACH (m->unexpected, e)
		if (epoch_of(e->body) > last)
			last = epoch_of(e->body);
	return last;
}

void remote_forget_unexpected(struct communicator *m)
{
	forget_unexpected(m, UINT32_MAX);
}

static void keep_unexpected(struct communicator *m, uint32_t from, enum control_kind kind,
			    const void *body, size_t size, bool started)
{
	struct unexpected_message *e =
		nofail_malloc(sizeof(*e) + size, "a message about an epoch that has not begun");
	e->from = from;
	e->kind = kind;
	e->started = started;
	memcpy(e->body, body, size);
	forget_unexpected(m, epoch_of(body)); /* the START of these will not come any more */
	DL_APPEND(m->unexpected, e);
}

/* False: it must be kept. BREAK ends an epoch that is about to begin; other messages wait until it
 * has begun. */
static bool handle_unexpected(struct communicator *m, struct unexpected_message *e)
{
	struct comms *s = m->comms;
	const uint32_t epoch = epoch_of(e->body);
	const bool begun = epoch <= m->epoch, starts = m->start && m->start->epoch == epoch;
	if (!begun && !starts)
		return false;
	if (!e->started)
		coord_handle_started(&s->coord, e->kind, e->body);
	e->started = true;
	if ((!begun && e->kind != CONTROL_BREAK) || is_before_plan(m, e->kind, e->body))
		return false;
	s->callbacks->begun(s, e->from, e->kind, e->body);
	return true;
}

void remote_handle_unexpected(struct communicator *m)
{
	struct unexpected_message *list = m->unexpected, *e, *next;
	m->unexpected = NULL;
	DL_FOREACH_SAFE (list, e, next) {
		DL_DELETE(list, e);
		if (handle_unexpected(m, e))
			free(e);
		else
			DL_APPEND(m->unexpected, e);
	}
}

/* False: it is not unexpected. */
bool remote_take_unexpected(struct comms *s, uint32_t from, enum control_kind kind,
			    const void *body, size_t size)
{
	struct communicator *m = not_begun(s, kind, body);
	const bool starts = m && m->start && m->start->epoch == epoch_of(body);
	if (!m || (starts && kind == CONTROL_BREAK))
		return false;
	const bool started = starts || coord_has_started(&s->coord, m->id, epoch_of(body));
	coord_handle_early(&s->coord, from, kind, body);
	if (started)
		coord_handle_started(&s->coord, kind, body);
	keep_unexpected(m, from, kind, body, size, started);
	return true;
}
