/* SPDX-License-Identifier: Apache-2.0
 * What is launched on GPUs of several nodes: this node's wishes, and, on the lowest node that
 * lives, the sequencer that has everybody's. span.h tells how. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "device.h"

#define CROSSINGS_SENT ((SPAN_EAGER_BYTES - 256) / sizeof(struct crossing)) /* in one message */
#define CROSSINGS_MAX  65536						    /* of one wish */

/* What hangs together here. */
struct wish {
	struct wish *prev, *next;
	struct wish *prev_order, *next_order;
	uint64_t number;
	struct meeting *any; /* NULL: it is void, which the sequencer does not know yet */
	bool ordered;
	uint32_t n;
	struct crossing at[];
};

uint32_t sequencer_of(const struct engine *e)
{
	uint32_t node = 0;
	while (node < e->config.nodes - 1 && e->lost[node])
		node++;
	return node;
}

/* ---- The sequencer ---- */

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

static void be_told(struct engine *e, enum span_kind kind, uint64_t span, uint64_t number);

/* To a node, this one too. */
static void tell(struct engine *e, uint32_t node, enum span_kind kind, uint64_t span,
		 uint64_t number)
{
	const struct span_header h = {.kind = (uint16_t)kind, .span = span, .key = {.seq = number}};
	if (node == e->config.node)
		be_told(e, kind, span, number);
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
		abort();
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
			abort();
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
		abort();
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
						abort();
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

static void on_wish(struct engine *e, uint32_t node, uint64_t number, bool more,
		    const struct crossing *at, uint32_t n)
{
	struct told_wish *w = told_find(e, node, number);
	for (uint32_t i = 0; i < n; i++)
		if (!at[i].nparts || at[i].nparts > e->config.nodes)
			return;
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			abort();
		w->node = node;
		w->number = number;
		DL_APPEND(e->sequencer->wishes, w);
	}
	if (w->whole || n > CROSSINGS_MAX - w->n)
		return;
	w->at = realloc(w->at, (w->n + n) * sizeof(*at));
	if (!w->at)
		abort();
	memcpy(w->at + w->n, at, n * sizeof(*at));
	w->n += n;
	if (more)
		return;
	w->whole = true;
	for (uint32_t i = 0; i < w->n; i++) {
		span_open(e, w->at[i].span);
		hook(e, w, &w->at[i]);
	}
	try_launch(e, w);
}

static void on_unwish(struct engine *e, uint32_t node, uint64_t number)
{
	struct told_wish *w = told_find(e, node, number);
	if (w)
		told_forget(e, w);
	tell(e, node, SPAN_UNWISHED, 0, number);
}

static bool names(const struct told_wish *w, uint64_t span)
{
	for (uint32_t i = 0; i < w->n; i++)
		if (w->at[i].span == span)
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

static void on_leave(struct engine *e, uint32_t node, uint64_t span, const uint32_t *nodes,
		     uint32_t n)
{
	struct closing *c;
	for (uint32_t i = 0; i < n; i++)
		if (nodes[i] >= e->config.nodes)
			return;
	DL_SEARCH_SCALAR(e->sequencer->closings, c, span, span);
	if (!c) {
		c = calloc(1, sizeof(*c) + n * sizeof(c->nodes[0]));
		if (!c)
			abort();
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

/* Somebody wants something of it. */
static void wake_sequencer(struct engine *e)
{
	e->sequenced_ns = e->now;
	if (!e->sequencer && !(e->sequencer = calloc(1, sizeof(*e->sequencer))))
		abort();
}

/* ---- This node's wishes ---- */

static void wish_forget(struct engine *e, struct wish *w)
{
	if (w->ordered)
		DL_DELETE2(e->orders, w, prev_order, next_order);
	else
		e->committed--;
	DL_DELETE(e->wishes, w);
	free(w);
}

static void send_wish(struct engine *e, const struct wish *w)
{
	const uint32_t to = sequencer_of(e);
	if (to == e->config.node) {
		wake_sequencer(e);
		on_wish(e, to, w->number, false, w->at, w->n);
		return;
	}
	for (uint32_t i = 0; i < w->n; i += CROSSINGS_SENT) {
		uint32_t n = w->n - i < CROSSINGS_SENT ? w->n - i : CROSSINGS_SENT;
		const struct span_header h = {.kind = SPAN_WISH,
					      .key = {.a = i + n < w->n, .seq = w->number},
					      .bytes = n * sizeof(w->at[0])};
		span_send_node(e, to, &h, w->at + i);
	}
}

/* Each meeting once. */
static bool speaks(const struct task *t)
{
	return t->meeting->at.span && t->meeting->tasks[0] == t;
}

/* Of its end, no more is wished for. */
static bool all_open(const struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++) {
		const struct span *s = e->visited[i]->comm->span;
		if (s && (s->left || s->unled))
			return false;
	}
	return true;
}

void sequence_wish(struct engine *e)
{
	uint32_t n = 0;
	if (!all_open(e))
		return;
	for (uint32_t i = 0; i < e->nvisited; i++)
		n += speaks(e->visited[i]);
	if (n > CROSSINGS_MAX) {
		for (uint32_t i = 0; i < e->nvisited; i++)
			if (e->visited[i]->comm->span)
				span_give_up(e, e->visited[i]->comm, NCCLSVC_LIMIT, UINT32_MAX);
		return;
	}
	struct wish *w = calloc(1, sizeof(*w) + n * sizeof(w->at[0]));
	if (!w)
		abort(); /* the other nodes wait for it */
	w->number = ++e->nwishes;
	w->any = e->visited[0]->meeting;
	for (uint32_t i = 0; i < e->nvisited; i++) {
		struct task *t = e->visited[i];
		t->meeting->wish = w;
		if (!speaks(t))
			continue;
		w->at[w->n++] = t->meeting->at;
		t->comm->span->wished = true;
	}
	e->committed++;
	DL_APPEND(e->wishes, w);
	send_wish(e, w);
}

/* Other nodes have launched what this one has not: NCCL waits there, and must be broken off. */
static void give_up_on(struct engine *e, const struct wish *w)
{
	for (uint32_t i = 0; i < w->n; i++) {
		struct span *s;
		HASH_FIND(hh, e->spans, &w->at[i].span, sizeof(s->id), s);
		if (!s)
			continue;
		s->unled = true;
		span_give_up(e, s->comm, NCCLSVC_TIMEOUT, UINT32_MAX);
	}
}

void sequence_void(struct engine *e, struct wish *w)
{
	struct meeting *m;
	DL_FOREACH (e->met, m)
		if (m->wish == w)
			m->wish = NULL;
	e->met_new = true; /* the rest of it may be launched without */
	w->any = NULL;
	if (w->ordered) {
		give_up_on(e, w);
		wish_forget(e, w);
		return;
	}
	const uint32_t to = sequencer_of(e);
	const struct span_header h = {.kind = SPAN_UNWISH, .key = {.seq = w->number}};
	if (to == e->config.node)
		on_unwish(e, to, w->number);
	else
		span_send_node(e, to, &h, NULL);
}

static struct wish *find(struct engine *e, uint64_t number)
{
	struct wish *w;
	DL_SEARCH_SCALAR(e->wishes, w, number, number);
	return w;
}

static void be_told(struct engine *e, enum span_kind kind, uint64_t span, uint64_t number)
{
	struct span *s;
	struct wish *w = kind == SPAN_CLOSED ? NULL : find(e, number);
	if (kind == SPAN_CLOSED) {
		HASH_FIND(hh, e->spans, &span, sizeof(span), s);
		if (s)
			s->closed = true;
	} else if (w && kind == SPAN_LAUNCH && w->any) {
		e->committed--;
		w->ordered = true;
		DL_APPEND2(e->orders, w, prev_order, next_order);
		e->met_new = true;
	} else if (w && !w->any) {
		if (kind == SPAN_LAUNCH)
			give_up_on(e, w);
		wish_forget(e, w);
	}
}

struct meeting *sequence_next(const struct engine *e)
{
	return e->orders ? e->orders->any : NULL;
}

void sequence_launched(struct engine *e)
{
	wish_forget(e, e->orders);
}

void sequence_leave(struct engine *e, struct span *s)
{
	const uint32_t to = sequencer_of(e);
	const struct span_header h = {
		.kind = SPAN_LEAVE, .span = s->id, .bytes = s->nnodes * sizeof(s->nodes[0])};
	if (to == e->config.node) {
		wake_sequencer(e);
		on_leave(e, to, s->id, s->nodes, s->nnodes);
	} else {
		span_send_node(e, to, &h, s->nodes);
	}
}

bool sequence_closed(const struct engine *e, const struct span *s)
{
	const struct wish *w;
	DL_FOREACH2(e->orders, w, next_order)
	for (uint32_t i = 0; i < w->n; i++)
		if (w->at[i].span == s->id)
			return false; /* others launch it, and so will this node */
	return s->closed;
}

/* ---- Hearing ---- */

void sequence_hear(struct engine *e, const struct span_header *h, const char *body, int node)
{
	const uint32_t from = (uint32_t)node;
	_Alignas(8) char copy[SPAN_BODY_MAX];
	if (h->bytes > sizeof(copy))
		return;
	memcpy(copy, body, h->bytes);
	switch (h->kind) {
	case SPAN_WISH:
		wake_sequencer(e);
		if (h->bytes && h->bytes % sizeof(struct crossing) == 0)
			on_wish(e, from, h->key.seq, h->key.a, (struct crossing *)(void *)copy,
				(uint32_t)(h->bytes / sizeof(struct crossing)));
		break;
	case SPAN_UNWISH:
		wake_sequencer(e);
		on_unwish(e, from, h->key.seq);
		break;
	case SPAN_LEAVE:
		wake_sequencer(e);
		if (h->bytes && h->bytes % sizeof(uint32_t) == 0)
			on_leave(e, from, h->span, (uint32_t *)(void *)copy,
				 (uint32_t)(h->bytes / sizeof(uint32_t)));
		break;
	default:
		be_told(e, h->kind, h->span, h->key.seq);
	}
}

/* ---- A node is gone ---- */

/* What was said last, nobody knows: all begins anew. */
static void sequencer_lost(struct engine *e, uint32_t node)
{
	struct meeting *m;
	struct span *s, *next;
	DL_FOREACH (e->met, m)
		m->wish = NULL;
	while (e->wishes)
		wish_forget(e, e->wishes);
	HASH_ITER (hh, e->spans, s, next) {
		if (!s->comm->cuda)
			continue;
		s->unled = true;
		if (s->comm->ended || s->comm->span_failed)
			continue;
		s->comm->span_failed = true;
		engine_event(e, &(struct event){.kind = EVENT_SPAN_FAILED,
						.span = {s->comm->slot, s->comm->epoch,
							 NCCLSVC_PEER_GONE, (int32_t)node}});
	}
}

void sequence_node_lost(struct engine *e, uint32_t node, bool led)
{
	struct told_wish *w, *next;
	struct closing *c, *after;
	if (led)
		sequencer_lost(e, node);
	if (!e->sequencer)
		return;
	DL_FOREACH_SAFE (e->sequencer->wishes, w, next)
		if (w->node == node)
			told_forget(e, w);
	DL_FOREACH_SAFE (e->sequencer->closings, c, after)
		try_close(e, c);
}

bool sequence_awaited(const struct engine *e)
{
	return e->sequencer && e->sequencer->spans;
}

void sequence_finish(struct engine *e)
{
	while (e->wishes)
		wish_forget(e, e->wishes);
	while (e->sequencer && e->sequencer->wishes)
		told_forget(e, e->sequencer->wishes);
	while (e->sequencer && e->sequencer->closings) {
		struct closing *c = e->sequencer->closings;
		DL_DELETE(e->sequencer->closings, c);
		free(c);
	}
	while (e->sequencer && e->sequencer->spans)
		span_shut(e, e->sequencer->spans->id);
	free(e->sequencer);
}
