/* SPDX-License-Identifier: Apache-2.0
 * What other nodes say of a communicator before this one has begun it. Some never begin here, and
 * there is not room for everything: what is let go is remembered, because whoever began it without
 * what he was told would wait for ever. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "early.h"

#define EARLY_MAX  (64 * 1024 * 1024) /* bytes */
#define EARLY_LOST (sizeof(((struct engine *)0)->lost_spans) / sizeof(struct lost_span))

struct early {
	struct early *prev, *next;
	int node;
	size_t bytes;
	uint64_t heard_ns;
	struct span_header header;
	char body[];
};

static bool is_lost(const struct engine *e, uint64_t id)
{
	for (uint32_t i = 0; i < EARLY_LOST; i++)
		if (e->lost_spans[i].id == id && e->lost_spans[i].ns)
			return true;
	return false;
}

/* Nobody waits for what it says; but a credit is always answered. */
static void refuse(struct engine *e, const struct span_header *h, const char *body, int node)
{
	struct credit_note note;
	if (h->kind != SPAN_CREDIT || e->lost[node])
		return;
	memcpy(&note, body, sizeof(note));
	span_refuse_credit(e, node, note.tag);
}

static void take(struct engine *e, struct early *m)
{
	DL_DELETE(e->early, m);
	e->early_bytes -= m->bytes;
}

/* Lets go of all that was said of it, which is not enough any more. */
static void lose(struct engine *e, uint64_t id)
{
	struct early *m, *next;
	struct lost_span *at = &e->lost_spans[e->nlost_spans++ % EARLY_LOST];
	if (at->ns &&
	    e->now - at->ns < EARLY_KEPT_NS) /* it may begin yet, and is not known any more */
		e->lost_all_ns = e->now + EARLY_KEPT_NS;
	*at = (struct lost_span){id, e->now};
	DL_FOREACH_SAFE (e->early, m, next) {
		if (m->header.span != id)
			continue;
		take(e, m);
		refuse(e, &m->header, m->body, m->node);
		free(m);
	}
}

void early_keep(struct engine *e, const struct span_header *h, const char *body, int node)
{
	size_t size = sizeof(struct early) + h->bytes;
	struct early *m = NULL;
	/* The oldest is the likeliest not to begin. */
	while (e->early && e->early_bytes + size > EARLY_MAX && !is_lost(e, h->span))
		lose(e, e->early->header.span);
	if (!is_lost(e, h->span) && !(m = malloc(size)))
		lose(e, h->span);
	if (!m) {
		refuse(e, h, body, node);
		return;
	}
	*m = (struct early){.node = node, .bytes = size, .heard_ns = e->now, .header = *h};
	memcpy(m->body, body, h->bytes);
	e->early_bytes += size;
	DL_APPEND(e->early, m);
}

void early_hear(struct engine *e, struct comm *c)
{
	struct early *m, *next;
	if (!c->span)
		return;
	const uint64_t id = c->span->id;
	if (is_lost(e, id) || e->now < e->lost_all_ns)
		span_give_up(e, c, NCCLSVC_LIMIT, UINT32_MAX);
	DL_FOREACH_SAFE (e->early, m, next) {
		if (m->header.span != id)
			continue;
		take(e, m);
		span_dispatch(e, &m->header, m->body, m->node);
		free(m);
	}
}

void early_expire(struct engine *e)
{
	while (e->early && e->now - e->early->heard_ns >= EARLY_KEPT_NS)
		lose(e, e->early->header.span);
}

void early_finish(struct engine *e)
{
	while (e->early) {
		struct early *m = e->early;
		take(e, m);
		free(m);
	}
}
