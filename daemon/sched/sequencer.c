/* SPDX-License-Identifier: Apache-2.0
 * The sequencer, on the lowest node that lives: it has every node's wishes to launch something on
 * GPUs, and says when. span.h tells how. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/no_memory.h"
#include "span.h"

uint32_t sequencer_of(const struct engine *e)
{
	uint32_t node = 0;
	while (node < e->config.nodes - 1 && e->lost[node])
		node++;
	return node;
}

struct told_wish {
	uint32_t node;
	uint64_t number;
	struct told_wish *prev, *next;
	bool whole; /* all messages have come */
	uint64_t visit;
	uint32_t n;
	struct crossing *at;
};

struct point_key {
	uint64_t span;
	struct junction_key key;
};

/* A junction that some have wished to launch. */
struct point {
	struct point_key key;
	UT_hash_handle hh;
	uint32_t nparts, n;
	struct told_wish *wishes[]; /* [nparts] */
};

/* A span that some have left. */
struct closing {
	struct closing *prev, *next;
	uint64_t span;
	uint32_t n;
	struct {
		uint32_t node;
		bool left;
	} nodes[];
};

/* A span that somebody will wish for again. */
struct open_span {
	uint64_t id;
	UT_hash_handle hh;
};

struct sequencer {
	struct open_span *spans;
	struct told_wish *wishes;
	struct point *points;
	struct closing *closings;
	uint64_t visit;
};

/* Somebody wants something of it. */
static void wake(struct engine *e)
{
	e->sequenced_ns = e->now;
	if (!e->sequencer && !(e->sequencer = calloc(1, sizeof(*e->sequencer))))
		no_memory("the order of launches on all nodes");
}

/* To a node, this one too. */
static void tell(struct engine *e, uint32_t node, enum span_kind kind, uint64_t span,
		 uint64_t number)
{
	const struct span_header h = {.kind = (uint16_t)kind, .span = span, .key = {.seq = number}};
	if (node == e->config.node)
		sequence_be_told(e, kind, span, number);
	else if (!e->lost[node])
		span_send_node(e, node, &h, NULL);
}

static struct point *point_of(struct engine *e, const struct crossing *at)
{
	const struct point_key key = {at->span, at->key};
	struct point *p;
	HASH_FIND(hh, e->sequencer->points, &key, sizeof(key), p);
	return p;
}

static void span_open(struct engine *e, uint64_t id)
{
	struct open_span *s;
	HASH_FIND(hh, e->sequencer->spans, &id, sizeof(id), s);
	if (s)
		return;
	s = malloc(sizeof(*s));
	if (!s)
		no_memory("the order of launches on all nodes");
	s->id = id;
	HASH_ADD(hh, e->sequencer->spans, id, sizeof(s->id), s);
}

static void span_shut(struct engine *e, uint64_t id)
{
	struct open_span *s;
	HASH_FIND(hh, e->sequencer->spans, &id, sizeof(id), s);
	if (!s)
		return;
	HASH_DEL(e->sequencer->spans, s);
	free(s);
}

static void unhook(struct engine *e, const struct told_wish *w, const struct crossing *at)
{
	struct point *p = point_of(e, at);
	for (uint32_t i = 0; p && i < p->n; i++)
		if (p->wishes[i] == w) {
			p->wishes[i] = p->wishes[--p->n];
			break;
		}
	if (!p || p->n)
		return;
	HASH_DEL(e->sequencer->points, p);
	free(p);
}

static void told_forget(struct engine *e, struct told_wish *w)
{
	for (uint32_t i = 0; i < w->n && w->whole; i++)
		unhook(e, w, &w->at[i]);
	DL_DELETE(e->sequencer->wishes, w);
	free(w->at);
	free(w);
}

/* Two nodes say something else of one junction, which none of ours does: it is never launched, and
 * its epoch's end, or the tasks' deadlines, are its end. */
static void hook(struct engine *e, struct told_wish *w, const struct crossing *at)
{
	struct point *p = point_of(e, at);
	if (!p) {
		p = calloc(1, sizeof(*p) + at->nparts * sizeof(p->wishes[0]));
		if (!p)
			no_memory("the order of launches on all nodes");
		p->key = (struct point_key){at->span, at->key};
		p->nparts = at->nparts;
		HASH_ADD(hh, e->sequencer->points, key, sizeof(p->key), p);
	}
	if (p->n < p->nparts)
		p->wishes[p->n++] = w;
}

/* All that hangs together with w. False: some of it is not here yet. */
static bool gather(struct engine *e, struct told_wish *w, struct told_wish ***all, uint32_t *n)
{
	uint32_t room = 16;
	struct told_wish **list = malloc(room * sizeof(*list));
	bool whole = true;
	if (!list)
		no_memory("the order of launches on all nodes");
	w->visit = ++e->sequencer->visit;
	list[0] = w;
	*n = 1;
	for (uint32_t i = 0; whole && i < *n; i++)
		for (uint32_t k = 0; whole && k < list[i]->n; k++) {
			const struct point *p = point_of(e, &list[i]->at[k]);
			whole = p && p->n == p->nparts;
			for (uint32_t j = 0; whole && j < p->n; j++) {
				if (p->wishes[j]->visit == w->visit)
					continue;
				p->wishes[j]->visit = w->visit;
				if (*n == room) {
					room *= 2;
					list = realloc(list, room * sizeof(*list));
					if (!list)
						no_memory("the order of launches on all nodes");
				}
				list[(*n)++] = p->wishes[j];
			}
		}
	*all = list;
	return whole;
}

static void try_launch(struct engine *e, struct told_wish *w)
{
	struct told_wish **all;
	uint32_t n;
	if (gather(e, w, &all, &n))
		for (uint32_t i = 0; i < n; i++) {
			const uint32_t node = all[i]->node;
			const uint64_t number = all[i]->number;
			told_forget(e, all[i]);
			tell(e, node, SPAN_LAUNCH, 0, number);
		}
	free(all);
}

static struct told_wish *told_find(struct engine *e, uint32_t node, uint64_t number)
{
	struct told_wish *w;
	DL_FOREACH (e->sequencer->wishes, w)
		if (w->node == node && w->number == number)
			return w;
	return NULL;
}

void sequencer_wish(struct engine *e, uint32_t node, uint64_t number, bool more,
		    const struct crossing *at, uint32_t n)
{
	struct told_wish *w;
	wake(e);
	w = told_find(e, node, number);
	for (uint32_t i = 0; i < n; i++)
		if (!at[i].nparts || at[i].nparts > e->config.nodes)
			return;
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			no_memory("the order of launches on all nodes");
		w->node = node;
		w->number = number;
		DL_APPEND(e->sequencer->wishes, w);
	}
	if (w->whole || n > CROSSINGS_MAX - w->n)
		return;
	w->at = realloc(w->at, (w->n + n) * sizeof(*at));
	if (!w->at)
		no_memory("the order of launches on all nodes");
	memcpy(w->at + w->n, at, n * sizeof(*at));
	w->n += n;
	if (more)
		return;
	w->whole = true;
	for (uint32_t i = 0; i < w->n; i++) {
		if (!crossing_makes(&w->at[i]))
			span_open(e, w->at[i].span);
		hook(e, w, &w->at[i]);
	}
	try_launch(e, w);
}

void sequencer_unwish(struct engine *e, uint32_t node, uint64_t number)
{
	wake(e);
	struct told_wish *w = told_find(e, node, number);
	if (w)
		told_forget(e, w);
	tell(e, node, SPAN_UNWISHED, 0, number);
}

static bool names(const struct told_wish *w, uint64_t span)
{
	for (uint32_t i = 0; i < w->n; i++)
		if (w->at[i].span == span && !crossing_makes(&w->at[i]))
			return true;
	return false;
}

/* Have all that live left it? */
static void try_close(struct engine *e, struct closing *c)
{
	struct told_wish *w, *next;
	for (uint32_t i = 0; i < c->n; i++)
		if (!c->nodes[i].left && !e->lost[c->nodes[i].node])
			return;
	DL_FOREACH_SAFE (e->sequencer->wishes, w, next)
		if (names(w, c->span))
			told_forget(e, w);
	DL_DELETE(e->sequencer->closings, c);
	span_shut(e, c->span);
	for (uint32_t i = 0; i < c->n; i++)
		tell(e, c->nodes[i].node, SPAN_CLOSED, c->span, 0);
	free(c);
}

void sequencer_leave(struct engine *e, uint32_t node, uint64_t span, const uint32_t *nodes,
		     uint32_t n)
{
	struct closing *c;
	wake(e);
	for (uint32_t i = 0; i < n; i++)
		if (nodes[i] >= e->config.nodes)
			return;
	DL_SEARCH_SCALAR(e->sequencer->closings, c, span, span);
	if (!c) {
		c = calloc(1, sizeof(*c) + n * sizeof(c->nodes[0]));
		if (!c)
			no_memory("the order of launches on all nodes");
		c->span = span;
		c->n = n;
		for (uint32_t i = 0; i < n; i++)
			c->nodes[i].node = nodes[i];
		DL_APPEND(e->sequencer->closings, c);
	}
	for (uint32_t i = 0; i < c->n; i++)
		if (c->nodes[i].node == node)
			c->nodes[i].left = true;
	try_close(e, c);
}

/* ---- The end ---- */

void sequencer_node_lost(struct engine *e, uint32_t node)
{
	struct told_wish *w, *next;
	struct closing *c, *after;
	if (!e->sequencer)
		return;
	DL_FOREACH_SAFE (e->sequencer->wishes, w, next)
		if (w->node == node)
			told_forget(e, w);
	DL_FOREACH_SAFE (e->sequencer->closings, c, after)
		try_close(e, c);
}

bool sequencer_awaited(const struct engine *e)
{
	return e->sequencer && e->sequencer->spans;
}

void sequencer_finish(struct engine *e)
{
	struct sequencer *q = e->sequencer;
	while (q && q->wishes)
		told_forget(e, q->wishes);
	while (q && q->spans)
		span_shut(e, q->spans->id);
	while (q && q->closings) {
		struct closing *c = q->closings;
		DL_DELETE(q->closings, c);
		free(c);
	}
	free(q);
}
