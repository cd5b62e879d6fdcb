/* SPDX-License-Identifier: Apache-2.0
 * Tasks that end before they run: by deadline, by cancellation, and with their member or epoch. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "names.h"
#include "order.h"
#include "span.h"
#include "staged.h"
#include "task.h"

void order_fail(struct engine *e, struct task *t, ncclsvc_status *st)
{
	struct comm *c = t->comm;
	if (t->junction)
		junction_ask(e, t, st);
	if (device_may_fail(e, t)) {
		device_fail(e, t, st);
		return;
	}
	if (t->place == RUNNING || t->ghost)
		return;
	if (c->collective[t->rank] == t) {
		if (c->span && !c->haunted) {
			junction_fail_collective(e, c, st);
			return;
		}
		order_haunt_collective(e, c, st);
		return;
	}
	order_make_ghost(e, t, st);
}

/* Fills in whom the task waits for. */
static void name_missing(const struct task *t, ncclsvc_status *st)
{
	const struct comm *c = t->comm;
	const struct member *m = member_of(t);
	if (t->place == IN_PLAN) { /* for others of its own rank */
		st->missing[st->missing_count++] = t->rank;
		return;
	}
	const struct task *head = t->place < AT_HEAD ? m->queue : t;
	if (head->waits_input || head->place == RUNNING)
		return;
	if (svc_op_is_p2p(head->record.op)) {
		st->missing[st->missing_count++] = head->record.peer;
		return;
	}
	for (uint32_t k = 0; k < c->nranks; k++) {
		/* What those of other nodes have submitted is not known here. */
		if (c->collective[k] || (c->span && c->span->node_of[k] != c->span->me))
			continue;
		if (st->missing_count < NCCLSVC_MISSING_SHOWN)
			st->missing[st->missing_count] = (int32_t)k;
		st->missing_count++;
	}
}

void order_expire(struct engine *e)
{
	struct deadline *d;
	while ((d = deadlines_first(&e->deadlines)) && d->at_ns <= e->now) {
		struct task *t = (struct task *)((char *)d - offsetof(struct task, deadline));
		deadlines_remove(&e->deadlines, d);
		ncclsvc_status st = status_of(NCCLSVC_TIMEOUT);
		order_name_ranks(t->comm, &st, t->rank, -1);
		name_missing(t, &st);
		order_fail(e, t, &st);
	}
}

/* Ends all tasks of a member that do not run. */
static void clear_member(struct engine *e, struct member *m, const ncclsvc_status *st)
{
	struct task *t, *next;
	struct comm *c = m->comm;
	DL_FOREACH (m->session->group, t) {
		if (t->comm != c || t->rank != m - c->members)
			continue;
		t->comm = NULL;
		m->session->group_end = *st;
	}
	DL_FOREACH_SAFE (m->queue, t, next) {
		if (t->place == RUNNING)
			continue;
		if (c->collective[t->rank] == t) {
			c->collective[t->rank] = NULL;
			c->collective_here--;
		}
		order_end_task(e, t, st);
	}
	plan_clear(e, c, (int32_t)(m - c->members), st);
}

ncclsvc_status order_end_status(const struct epoch_end *end)
{
	ncclsvc_status st = status_of(end->result);
	st.rank_a = end->rank;
	st.pid_a = end->pid;
	if (end->node >= 0) {
		st.field = NCCLSVC_FIELD_NODE;
		st.value_a = (uint64_t)end->node;
	}
	return st;
}

void order_end_epoch(struct engine *e, struct comm *c, const struct epoch_end *end)
{
	ncclsvc_status st = order_end_status(end), own = status_of(NCCLSVC_CANCELLED);
	c->ended = true;
	c->end = st;
	struct work *w;
	DL_FOREACH (e->running, w) {
		if (w->comm == c)
			atomic_store_explicit(&w->aborted, true, memory_order_relaxed);
	}
	c->haunted = false;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		if (m->gone || !m->session)
			continue;
		/* Nobody is told that he himself has gone; that his GPU's worker has, he is. */
		bool self = (int32_t)k == end->rank && end->result == NCCLSVC_PEER_GONE &&
			    end->node < 0;
		clear_member(e, m, self ? &own : &st);
		struct handle *h = &m->session->handles[m->handle];
		h->comm = NULL;
		h->ended = c->epoch;
		h->end = self ? own : st;
	}
	plan_end(e, c);
	if (c->cuda)
		device_end_epoch(e, c);
	if (c->staged)
		staged_end_epoch(e, c);
	c->pending++; /* so that it outlives this */
	if (c->span)
		span_end_epoch(e, c);
	if (!--c->pending && !c->windows)
		order_free_comm(e, c);
}

void order_member_left(struct engine *e, struct comm *c, int32_t rank)
{
	struct member *m = &c->members[rank];
	ncclsvc_status own = status_of(NCCLSVC_CANCELLED);
	ncclsvc_status st = order_gone_status(c, rank);
	if (m->gone)
		return;
	if (c->cuda)
		device_drop_met(e, c, rank, &st);
	window_leave(e, c);
	if (m->session) {
		clear_member(e, m, &own);
		m->session->handles[m->handle] = (struct handle){0};
		m->session = NULL;
	}
	m->gone = true;
	c->gone++;
	if (c->span) {
		junction_member_left(e, c, rank, &st);
		if (c->collective_here && !c->haunted)
			junction_fail_collective(e, c, &st);
	}
	if (c->collective_here)
		order_end_collective(e, c, &st);
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t, *next;
		DL_FOREACH_SAFE (c->members[k].queue, t, next) {
			if (t->place == POSTED && svc_op_is_p2p(t->record.op) &&
			    t->record.peer == rank)
				order_end_task(e, t, &st);
		}
	}
	plan_member_left(e, c, rank, &st);
}

void order_free_comm(struct engine *e, struct comm *c)
{
	engine_event(e, &(struct event){.kind = EVENT_EPOCH_GONE, .epoch = {c->slot}});
	e->comms[c->slot] = NULL;
	span_free(e, c);
	free(c->members);
	free(c->collective);
	free(c);
}
