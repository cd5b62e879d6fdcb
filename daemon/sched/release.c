/* SPDX-License-Identifier: Apache-2.0
 * Which tasks end after an event: release.h. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "complete.h"
#include "internode/node_match.h"
#include "names.h"
#include "plan.h"
#include "set.h"
#include "streams/timeline.h"
#include "streams/trigger.h"
#include "task.h"

/* Cleanup that simple tasks do not need. */
static void leave_all(struct engine *e, struct task *t)
{
	struct member *m = member_of(t);
	if (t->next_in_group)
		set_leave(e, t);
	if (t->waits_input)
		order_stop_input_wait(e, t);
	if (m->collective == t)
		m->collective = NULL;
	if (t->record.plan)
		plan_task_ended(t);
}

/* The task has ended and its client knows; frees it. */
static void retire(struct engine *e, struct task *t)
{
	struct member *m = member_of(t);
	struct comm *c = t->comm;
	if (!t->tombstone || t->in_flight)
		order_pin(t, -1);
	if (!t->simple)
		leave_all(e, t);
	decision_forget(e, t);
	order_withdraw(t);
	if (t->place == POSTED)
		m->posted--;
	if (t->place == RUNNING) {
		m->running--;
		c->running--;
	}
	if (t->place == AT_HEAD)
		order_skip_unposted(t);
	if (t->place >= AT_HEAD && !t->in_flight)
		m->head_tasks--;
	deadlines_remove(&e->deadlines, &t->deadline);
	if (t->in_flight)
		DL_DELETE(m->in_flight, t);
	else if (t->place != IN_PLAN)
		DL_DELETE(m->queue, t);
	c->pending--;
	atomic_store_explicit(&m->progress->completed, ++m->completed, memory_order_relaxed);
	order_update_blocked(m);
	/* An empty head makes room for the next; a group's next collective may now be posted; and
	 * perhaps no member can continue. */
	if (!m->queue)
		atomic_store_explicit(&m->progress->head_ns, 0, memory_order_relaxed);
	else if (!c->ended &&
		 (!m->head_tasks || !svc_op_is_p2p(t->record.op) || c->blocked == c->nranks))
		order_make_ready(e, m);
	task_free(e, t);
}

void release_early(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	if (t->tombstone)
		return;
	const ncclsvc_status *decided = decision_of(e, t);
	t->tombstone = true;
	t->end = decided ? *decided : *st;
	decision_keep(e, t);
	t->end.done_ns = e->now;
	complete_task(e, t, &t->end);
	if (!t->in_flight)
		order_pin(t, -1);
	if (t->next_in_group)
		set_leave(e, t);
	if (t->waits_input) {
		order_stop_input_wait(e, t);
		order_make_ready(e, member_of(t));
	}
	deadlines_remove(&e->deadlines, &t->deadline);
	order_show_state(e, t);
}

void release_end(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	if (!t->tombstone)
		complete_task(e, t, st);
	retire(e, t);
}

void release_collective(struct engine *e, struct comm *c, const ncclsvc_status *st)
{
	const ncclsvc_status *decided = decision_current(e, c);
	c->poison = decided ? *decided : *st;
	c->poisoned = true;
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->collective[k])
			release_early(e, c->collective[k], &c->poison);
}

void release_fail(struct engine *e, struct task *t, const ncclsvc_status *why)
{
	struct comm *c = t->comm;
	const ncclsvc_status *decided = decision_of(e, t), *st = decided ? decided : why;
	if (t->node_match)
		node_match_ask(e, t, st);
	if (set_may_fail(e, t)) {
		set_fail(e, t, st);
		return;
	}
	if (t->place == RUNNING || t->tombstone)
		return;
	if (c->collective[t->rank] == t) {
		if (c->poisoned || !node_match_fail_collective(e, c, st))
			release_collective(e, c, st);
		return;
	}
	release_early(e, t, st);
}

/* Fills in the ranks that the task waits for. */
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
		/* The records of other nodes' ranks are not known here. */
		if (c->collective[k] || !internode_comm_is_here(c, (int32_t)k))
			continue;
		if (st->missing_count < NCCLSVC_MISSING_SHOWN)
			st->missing[st->missing_count] = (int32_t)k;
		st->missing_count++;
	}
}

/* The deadline of a task launched ahead starts when its stream has reached it. */
static uint64_t deadline_of(const struct engine *e, const struct task *t)
{
	const uint64_t since =
		timeline_input_there(t) ? t->session->lines[t->record.timeline].arrived_ns : e->now;
	return since + t->record.timeout_ns;
}

static bool is_early(const struct engine *e, const struct task *t)
{
	return t->record.flags & SVC_TASK_TRIGGER && deadline_of(e, t) > e->now;
}

void release_overdue(struct engine *e)
{
	struct deadline *d;
	const uint64_t enough = e->steps + STEP_SLICE;
	while ((d = deadlines_first(&e->deadlines)) && d->at_ns <= e->now && e->steps < enough) {
		struct task *t = (struct task *)((char *)d - offsetof(struct task, deadline));
		deadlines_remove(&e->deadlines, d);
		if (is_early(e, t)) {
			deadlines_add(&e->deadlines, d, deadline_of(e, t));
			continue;
		}
		ncclsvc_status st = status_of(NCCLSVC_TIMEOUT);
		order_name_ranks(t->comm, &st, t->rank, -1);
		name_missing(t, &st);
		e->steps += STEP_END + t->comm->nranks;
		release_fail(e, t, &st);
	}
}

/* Ends all tasks of a member that do not run, for up to this many steps; those that have matched,
 * together with the tasks they have matched, as `matched` does it. False: there are more. */
static bool clear_member(struct engine *e, struct member *m, const ncclsvc_status *st,
			 const ncclsvc_status *matched, uint64_t enough)
{
	struct task *t, *next;
	struct comm *c = m->comm;
	for (t = m->queue; t; t = next) {
		next = t->next;
		e->steps++;
		if (t->place == RUNNING) {
			if (!t->match || !set_drop(e, t, matched))
				continue;
			if (next && !next->uid) /* it ended with this one */
				next = m->queue;
			if (e->steps >= enough)
				return false;
			continue;
		}
		if (c->collective[t->rank] == t) {
			c->collective[t->rank] = NULL;
			c->collective_here--;
		}
		e->steps += STEP_END;
		release_end(e, t, st);
		if (e->steps >= enough)
			return false;
	}
	return plan_clear(e, c, (int32_t)(m - c->members), st, enough);
}

/* Refuses the session's open group if it has tasks of the communicator. rank: whose; -1: any. */
static void spoil_group(struct session *s, const struct comm *c, int32_t rank,
			const ncclsvc_status *st)
{
	struct task *t;
	DL_FOREACH (s->group, t) {
		if (t->comm != c || (rank >= 0 && t->rank != rank))
			continue;
		t->comm = NULL;
		s->group_end = *st;
	}
}

/* A member is not told that it is gone itself, but it is told that its GPU's worker is. */
static ncclsvc_status end_of(const ncclsvc_status *end, uint32_t rank)
{
	const bool self = (int32_t)rank == end->rank_a && end->result == NCCLSVC_PEER_GONE &&
			  end->field != NCCLSVC_FIELD_NODE;
	return self ? status_of(NCCLSVC_CANCELLED) : *end;
}

/* From here on no task is accepted or gets its turn. */
static void close_epoch(struct engine *e, struct comm *c, const ncclsvc_status *end)
{
	e->ends++;
	c->ended = true;
	c->end = *end;
	c->moved_ns = e->now;
	c->pending++; /* keeps it alive beyond its end */
	c->poisoned = false;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		if (m->gone || !m->session)
			continue;
		struct session *s = m->session;
		struct handle *h = &s->handles[m->handle];
		h->comm = NULL;
		h->ended = c->epoch;
		h->end = end_of(&c->later, k);
		h->too_late_reported = false;
		s->members--;
		triggers_end(e, s, m, &h->end);
		if (s->group && s->spoiled != e->ends)
			spoil_group(s, c, -1, &h->end);
		s->spoiled = e->ends;
	}
	if (c->transport->epoch_end)
		c->transport->epoch_end(e, c);
}

bool release_epoch(struct engine *e, struct comm *c, const ncclsvc_status *end)
{
	const uint64_t enough = e->steps + STEP_SLICE;
	if (!c->ended)
		close_epoch(e, c, end);
	for (; c->cleared < c->nranks; c->cleared++) {
		struct member *m = &c->members[c->cleared];
		const ncclsvc_status st = end_of(&c->end, c->cleared);
		if (!clear_member(e, m, &st, &c->end, enough))
			return false;
	}
	plan_end(e, c);
	internode_comm_end_epoch(e, c);
	if (!--c->pending && !c->launched)
		order_free_comm(e, c);
	return true;
}

/* Ends the Sends and Recvs that wait for the rank, for up to this many steps. False: there may be
 * more.
 */
static bool end_posted_for(struct engine *e, struct comm *c, int32_t rank, const ncclsvc_status *st,
			   uint64_t enough)
{
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t, *next;
		for (t = c->members[k].queue; t && t->place >= AT_HEAD; t = next) {
			next = t->next;
			e->steps++;
			if (t->place != POSTED || !svc_op_is_p2p(t->record.op) ||
			    t->record.peer != rank)
				continue;
			e->steps += STEP_END;
			release_end(e, t, st);
			if (e->steps >= enough)
				return false;
		}
	}
	return true;
}

/* The rank is gone; from here on no task waits for it. */
static void be_gone(struct engine *e, struct comm *c, int32_t rank, const ncclsvc_status *st)
{
	struct member *m = &c->members[rank];
	m->session = NULL;
	m->gone = true;
	c->gone++;
	c->gone_rank = rank;
	node_match_member_left(e, c, rank, st);
	if (c->collective_here)
		order_end_collective(e, c, st);
}

bool release_member(struct engine *e, struct comm *c, int32_t rank)
{
	struct member *m = &c->members[rank];
	ncclsvc_status own = status_of(NCCLSVC_CANCELLED);
	ncclsvc_status st = order_gone_status(c, rank);
	const uint64_t enough = e->steps + STEP_SLICE;
	if (!m->gone && m->session) {
		struct session *s = m->session;
		struct handle *h = &s->handles[m->handle];
		s->members -= h->comm != NULL;
		*h = (struct handle){0};
		triggers_end(e, s, m, &own);
		spoil_group(s, c, rank, &own);
		if (!clear_member(e, m, &own, &st, enough))
			return false;
	}
	if (!m->gone)
		be_gone(e, c, rank, &st);
	if (!end_posted_for(e, c, rank, &st, enough))
		return false;
	plan_member_left(e, c, rank, &st);
	return true;
}
