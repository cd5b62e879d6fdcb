/* SPDX-License-Identifier: Apache-2.0
 * The end of tasks with a deadline, a member or an epoch: release.h. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "captured_groups.h"
#include "complete.h"
#include "match.h"
#include "plan_slots.h"
#include "planned_tasks.h"
#include "proto/names.h"
#include "proto/task.h"
#include "release.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/nodes.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "sched/base/timeline.h"

/* Fills in the ranks that the task waits for. */
static void name_missing(const struct task *t, ncclsvc_status *st)
{
	const struct comm *c = t->comm;
	const struct member *m = member_of(t);
	if (t->stage == IN_PLAN) { /* for others of its own rank */
		st->missing[st->missing_count++] = t->rank;
		return;
	}
	const struct task *head = t->stage < AT_HEAD ? m->queue : t;
	if (head->waits_input || head->stage == RUNNING)
		return;
	if (svc_op_is_p2p(head->record.op)) {
		st->missing[st->missing_count++] = head->record.peer;
		return;
	}
	for (uint32_t k = 0; k < c->nranks; k++) {
		/* The records of other nodes' ranks are not known here. */
		if (c->collective[k] || c->members[k].elsewhere)
			continue;
		if (st->missing_count < NCCLSVC_MISSING_SHOWN)
			st->missing[st->missing_count] = (int32_t)k;
		st->missing_count++;
	}
}

/* The deadline of a task launched ahead starts when its stream has reached it. */
static uint64_t deadline_of(const struct scheduler *sched, const struct task *t)
{
	const uint64_t since = timeline_input_there(t)
				       ? t->session->lines[t->record.timeline].arrived_ns
				       : sched->now;
	return since + t->record.timeout_ns;
}

static bool is_early(const struct scheduler *sched, const struct task *t)
{
	return t->record.flags & SVC_TASK_CAPTURED_GROUP && deadline_of(sched, t) > sched->now;
}

void release_overdue(struct scheduler *sched)
{
	struct deadline *d;
	const uint64_t enough = sched->steps + STEP_SLICE;
	while ((d = deadlines_first(&sched->deadlines)) && d->at_ns <= sched->now &&
	       sched->steps < enough) {
		struct task *t = (struct task *)((char *)d - offsetof(struct task, deadline));
		deadlines_remove(&sched->deadlines, d);
		if (is_early(sched, t)) {
			deadlines_add(&sched->deadlines, d, deadline_of(sched, t));
			continue;
		}
		ncclsvc_status st = status_of(NCCLSVC_TIMEOUT);
		status_name_ranks(t->comm, &st, t->rank, -1);
		name_missing(t, &st);
		sched->steps += STEP_END + t->comm->nranks;
		release_fail(sched, t, &st);
	}
}

/* Ends all tasks of a member that do not run, for up to this many steps; those that have matched,
 * together with the tasks they have matched, as `matched` does it. False: there are more. */
static bool clear_member(struct scheduler *sched, struct member *m, const ncclsvc_status *st,
			 const ncclsvc_status *matched, uint64_t enough)
{
	struct task *t, *next;
	struct comm *c = m->comm;
	for (t = m->queue; t; t = next) {
		next = t->next;
		sched->steps++;
		if (t->stage == RUNNING) {
			if (!t->match || !release_set(sched, t, matched))
				continue;
			if (next && !next->uid) /* it ended with this one */
				next = m->queue;
			if (sched->steps >= enough)
				return false;
			continue;
		}
		if (c->collective[t->rank] == t) {
			c->collective[t->rank] = NULL;
			c->collective_here--;
		}
		sched->steps += STEP_END;
		release_end(sched, t, st);
		if (sched->steps >= enough)
			return false;
	}
	return plan_clear(sched, c, (int32_t)(m - c->members), st, enough);
}

/* Refuses the session's open group if it has tasks of the communicator. rank: whose; -1: any. */
static void spoil_group(struct sched_session *s, const struct comm *c, int32_t rank,
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
static void close_epoch(struct scheduler *sched, struct comm *c, const ncclsvc_status *end)
{
	sched->ends++;
	c->ended = true;
	c->end = *end;
	c->moved_ns = sched->now;
	c->pending++; /* keeps it alive beyond its end */
	c->poisoned = false;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		if (m->gone || !m->session)
			continue;
		struct sched_session *s = m->session;
		struct handle *h = &s->handles[m->handle];
		h->comm = NULL;
		h->ended = c->epoch;
		h->end = end_of(&c->later, k);
		h->suspended = end->result == EPOCH_SUSPENDED;
		h->too_late_reported = false;
		s->members--;
		captured_groups_end(sched, s, m, &h->end);
		if (s->group && s->spoiled != sched->ends)
			spoil_group(s, c, -1, h->suspended ? end : &h->end);
		s->spoiled = sched->ends;
	}
	if (c->transport->epoch_end)
		c->transport->epoch_end(sched, c);
}

bool release_epoch(struct scheduler *sched, struct comm *c, const ncclsvc_status *end)
{
	const uint64_t enough = sched->steps + STEP_SLICE;
	if (!c->ended)
		close_epoch(sched, c, end);
	for (; c->cleared < c->nranks; c->cleared++) {
		struct member *m = &c->members[c->cleared];
		const ncclsvc_status st = end_of(&c->end, c->cleared);
		if (!clear_member(sched, m, &st, &c->end, enough))
			return false;
	}
	plan_end(sched, c);
	nodes_end_epoch(sched, c);
	if (!--c->pending && !c->launched)
		comm_gone(sched, c);
	return true;
}

/* Ends the Sends and Recvs that wait for the rank, for up to this many steps. False: there may be
 * more.
 */
static bool end_posted_for(struct scheduler *sched, struct comm *c, int32_t rank,
			   const ncclsvc_status *st, uint64_t enough)
{
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t, *next;
		for (t = c->members[k].queue; t && t->stage >= AT_HEAD; t = next) {
			next = t->next;
			sched->steps++;
			if (t->stage != POSTED || !svc_op_is_p2p(t->record.op) ||
			    t->record.peer != rank)
				continue;
			sched->steps += STEP_END;
			release_end(sched, t, st);
			if (sched->steps >= enough)
				return false;
		}
	}
	return true;
}

/* The rank is gone; from here on no task waits for it. */
static void be_gone(struct scheduler *sched, struct comm *c, int32_t rank, const ncclsvc_status *st)
{
	struct member *m = &c->members[rank];
	m->session = NULL;
	m->gone = true;
	c->gone++;
	c->gone_rank = rank;
	nodes_member_left(sched, c, rank, st);
	if (c->collective_here)
		match_end_collective(sched, c, st);
}

bool release_member(struct scheduler *sched, struct comm *c, int32_t rank)
{
	struct member *m = &c->members[rank];
	ncclsvc_status own = status_of(NCCLSVC_CANCELLED);
	ncclsvc_status st = status_gone(c, rank);
	const uint64_t enough = sched->steps + STEP_SLICE;
	if (!m->gone && m->session) {
		struct sched_session *s = m->session;
		struct handle *h = &s->handles[m->handle];
		s->members -= h->comm != NULL;
		complete_drop_held(sched, s, m->handle);
		*h = (struct handle){0};
		captured_groups_end(sched, s, m, &own);
		spoil_group(s, c, rank, &own);
		if (!clear_member(sched, m, &own, &st, enough))
			return false;
	}
	if (!m->gone)
		be_gone(sched, c, rank, &st);
	if (!end_posted_for(sched, c, rank, &st, enough))
		return false;
	plan_member_left(sched, c, rank, &st);
	return true;
}
