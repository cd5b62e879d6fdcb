/* SPDX-License-Identifier: Apache-2.0
 * What is launched on GPUs of several nodes: this node's wishes, and what the sequencer says to
 * them. span.h tells how. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/no_memory.h"
#include "set.h"

#define CROSSINGS_SENT ((SPAN_EAGER_BYTES - 256) / sizeof(struct crossing)) /* in one message */

/* What hangs together here. */
struct wish {
	struct wish *prev, *next;
	struct wish *prev_order, *next_order;
	uint64_t number;
	struct meeting *any;   /* or */
	struct making *making; /* else it is void, which the sequencer does not know yet */
	making_launch *launch; /* of a making */
	bool ordered;
	uint32_t n;
	struct crossing at[];
};

/* ---- This node's wishes ---- */

static void wish_forget(struct engine *e, struct wish *w)
{
	if (w->ordered)
		DL_DELETE2(e->orders, w, prev_order, next_order);
	else
		e->committed--;
	DL_DELETE(e->wishes, w);
	free(w->making);
	free(w);
}

static void send_wish(struct engine *e, const struct wish *w)
{
	const uint32_t to = sequencer_of(e);
	if (to == e->config.node) {
		sequencer_wish(e, to, w->number, false, w->at, w->n);
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

void sequence_wish(struct engine *e, bool fits)
{
	uint32_t n = 0;
	if (!all_open(e))
		return;
	for (uint32_t i = 0; i < e->nvisited; i++)
		n += speaks(e->visited[i]);
	if (!fits || n > CROSSINGS_MAX) {
		for (uint32_t i = 0; i < e->nvisited; i++)
			if (e->visited[i]->comm->span)
				span_give_up(e, e->visited[i]->comm, NCCLSVC_LIMIT, UINT32_MAX);
		return;
	}
	struct wish *w = calloc(1, sizeof(*w) + n * sizeof(w->at[0]));
	if (!w)
		no_memory("a place in the order of launches"); /* the other nodes wait for it */
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

void sequence_wish_making(struct engine *e, struct making *k, making_launch *launch)
{
	struct wish *w = calloc(1, sizeof(*w) + sizeof(w->at[0]));
	if (!w)
		no_memory("a place in the order of launches");
	w->number = ++e->nwishes;
	w->making = k;
	w->launch = launch;
	w->n = 1;
	w->at[0] = (struct crossing){
		.span = k->serial, .key = {.part = CROSSING_MAKE}, .nparts = k->nnodes};
	e->committed++;
	DL_APPEND(e->wishes, w);
	send_wish(e, w);
}

/* Other nodes have launched what this one has not: NCCL waits there, and must be broken off. */
static void give_up_on(struct engine *e, const struct wish *w)
{
	for (uint32_t i = 0; i < w->n; i++) {
		struct span *s = NULL;
		if (!crossing_makes(&w->at[i]))
			HASH_FIND(hh, e->spans, &w->at[i].span, sizeof(s->id), s);
		if (!s)
			continue;
		s->unled = true;
		span_give_up(e, s->comm, NCCLSVC_TIMEOUT, UINT32_MAX);
	}
}

/* It is void: the sequencer is to forget it, unless it is too late. */
static void take_back(struct engine *e, struct wish *w)
{
	if (w->ordered) {
		give_up_on(e, w);
		wish_forget(e, w);
		return;
	}
	const uint32_t to = sequencer_of(e);
	const struct span_header h = {.kind = SPAN_UNWISH, .key = {.seq = w->number}};
	if (to == e->config.node)
		sequencer_unwish(e, to, w->number);
	else
		span_send_node(e, to, &h, NULL);
}

void sequence_void(struct engine *e, struct wish *w)
{
	struct meeting *m;
	DL_FOREACH (e->met, m)
		if (m->wish == w)
			m->wish = NULL;
	e->met_new = true; /* the rest of it may be launched without */
	w->any = NULL;
	take_back(e, w);
}

void sequence_cancel_making(struct engine *e, uint64_t number)
{
	struct wish *w;
	DL_FOREACH (e->wishes, w)
		if (w->making && w->making->number == number)
			break;
	if (!w)
		return;
	free(w->making);
	w->making = NULL;
	take_back(e, w);
}

static struct wish *find(struct engine *e, uint64_t number)
{
	struct wish *w;
	DL_SEARCH_SCALAR(e->wishes, w, number, number);
	return w;
}

void sequence_be_told(struct engine *e, enum span_kind kind, uint64_t span, uint64_t number)
{
	struct span *s;
	struct wish *w = kind == SPAN_CLOSED ? NULL : find(e, number);
	if (kind == SPAN_CLOSED) {
		HASH_FIND(hh, e->spans, &span, sizeof(span), s);
		if (s)
			s->closed = true;
	} else if (w && kind == SPAN_LAUNCH && (w->any || w->making)) {
		e->committed--;
		w->ordered = true;
		DL_APPEND2(e->orders, w, prev_order, next_order);
		e->met_new = true;
	} else if (w && !w->any && !w->making) {
		if (kind == SPAN_LAUNCH)
			give_up_on(e, w);
		wish_forget(e, w);
	}
}

bool sequence_next(const struct engine *e, struct meeting **m)
{
	*m = e->orders ? e->orders->any : NULL;
	return e->orders;
}

bool sequence_launch_making(struct engine *e)
{
	return e->orders->launch(e, e->orders->making);
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
		sequencer_leave(e, to, s->id, s->nodes, s->nnodes);
	} else {
		span_send_node(e, to, &h, s->nodes);
	}
}

bool sequence_closed(const struct engine *e, const struct span *s)
{
	const struct wish *w;
	DL_FOREACH2 (e->orders, w, next_order)
		for (uint32_t i = 0; i < w->n; i++)
			if (w->at[i].span == s->id && !crossing_makes(&w->at[i]))
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
		if (h->bytes && h->bytes % sizeof(struct crossing) == 0)
			sequencer_wish(e, from, h->key.seq, h->key.a,
				       (struct crossing *)(void *)copy,
				       (uint32_t)(h->bytes / sizeof(struct crossing)));
		break;
	case SPAN_UNWISH:
		sequencer_unwish(e, from, h->key.seq);
		break;
	case SPAN_LEAVE:
		if (h->bytes && h->bytes % sizeof(uint32_t) == 0)
			sequencer_leave(e, from, h->span, (uint32_t *)(void *)copy,
					(uint32_t)(h->bytes / sizeof(uint32_t)));
		break;
	default:
		sequence_be_told(e, h->kind, h->span, h->key.seq);
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
		if (!(s->comm->transport->flags & TRANSPORT_GROUPS))
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
	if (led)
		sequencer_lost(e, node);
	sequencer_node_lost(e, node);
}

void sequence_finish(struct engine *e)
{
	while (e->wishes)
		wish_forget(e, e->wishes);
	sequencer_finish(e);
}
