/* SPDX-License-Identifier: Apache-2.0
 * Matching of members' tasks: collectives of all members, Sends and Recvs of two. Tasks that match
 * and agree are run; those that disagree end with the same status on every side. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "account/lateness.h"
#include "complete.h"
#include "match.h"
#include "plan_slots.h"
#include "proto/names.h"
#include "proto/task.h"
#include "release.h"
#include "sched/base/nodes.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"

/* ---- Collectives ---- */

/* Ends the current collective on every member that has posted it. */
void match_end_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *how)
{
	const ncclsvc_status *decided = how->result ? decision_current(sched, c) : NULL;
	const ncclsvc_status st = decided ? *decided : *how;
	c->poisoned = false;
	c->misnumbered |= c->collective_here < c->here;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t = c->collective[k];
		c->collective[k] = NULL;
		if (t)
			release_end(sched, t, &st);
	}
	c->collective_here = 0;
	c->collectives++;
}

void match_collect_records(const struct comm *c, struct task *const *tasks, struct mismatch *m)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (tasks[k])
			mismatch_add(m, &tasks[k]->record, (int32_t)k, 1);
}

bool match_mismatch_status(const struct comm *c, const struct mismatch *m, ncclsvc_status *st)
{
	if (!mismatch_status(m, c->nranks, st))
		return false;
	status_name_ranks(c, st, st->rank_a, st->rank_b);
	return true;
}

/* Compares the records of all local members. */
static bool find_mismatch(const struct comm *c, ncclsvc_status *st)
{
	struct mismatch m;
	m.nkinds = 0; /* its kinds are set before they are read */
	match_collect_records(c, c->collective, &m);
	return match_mismatch_status(c, &m, st);
}

/* A posted task runs; its transport owns it. */
static void set_running(struct task *t)
{
	struct member *m = member_of(t);
	task_withdraw(t);
	m->posted--;
	m->running++;
	t->comm->running++;
	t->stage = RUNNING;
	member_update_blocked(m);
}

static enum begun begin(struct scheduler *sched, struct comm *c, struct task *const *tasks,
			uint32_t n)
{
	return c->transport->start(sched, &(struct match){.comm = c, .tasks = tasks, .ntasks = n});
}

static void match_collective(struct scheduler *sched, struct comm *c)
{
	ncclsvc_status st;
	if (c->poisoned) {
		st = c->poison;
		match_end_collective(sched, c, &st);
		return;
	}
	if (nodes_voted(sched, c))
		return; /* others have yet to say how it ends */
	const bool differ = find_mismatch(c, &st);
	if (nodes_post_collective(sched, c, differ ? &st : NULL))
		return;
	if (differ) {
		match_end_collective(sched, c, &st);
		return;
	}
	switch (begin(sched, c, c->collective, c->nranks)) {
	case BEGUN_DONE:
		match_end_collective(sched, c, complete_ran(c->collective, c->nranks, &st));
		break;
	case BEGUN_NO_MEMORY:
		st = status_of(NCCLSVC_NO_MEMORY);
		match_end_collective(sched, c, &st);
		break;
	case BEGUN_RUNNING:
		for (uint32_t k = 0; k < c->nranks; k++) {
			set_running(c->collective[k]);
			/* The set's next collective is launched together with it. */
			if (c->collective[k]->next_in_group)
				member_make_ready(sched, &c->members[k]);
			c->collective[k] = NULL;
			c->members[k].collective = NULL;
		}
		c->collective_here = 0;
		c->collectives++;
		break;
	}
}

/* With other nodes, tells them first; then all nodes learn of it. */
static void fail_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *st)
{
	if (!nodes_fail_collective(sched, c, st))
		release_collective(sched, c, st);
}

static void note_late(struct scheduler *sched, struct comm *c, const struct task *t)
{
	const struct late_arrival a = {
		.late_ns = sched->now - c->first_ns,
		.collectives = c->collectives,
		.rank = (uint32_t)t->rank,
		.op = t->record.op,
		.last = c->collective_here == c->here && sched->now > c->latest_ns &&
			(!c->internode || sched->nodes->awaited(c)),
	};
	c->latest_ns = sched->now;
	if (c->lateness)
		lateness_add(c->lateness, sched->now, &a);
}

/* When the first member came, of any node; and how late another one is, if it is late. */
static void note_arrival(struct scheduler *sched, struct comm *c, const struct task *t)
{
	if (c->collective_here == 1) {
		const uint64_t elsewhere = c->internode ? sched->nodes->first_ns(c) : 0;
		c->first_ns = elsewhere ? elsewhere : sched->now;
	}
	if (sched->now - c->first_ns >= LATENESS_UNIT)
		note_late(sched, c, t);
}

void match_post_collective(struct scheduler *sched, struct task *t)
{
	struct comm *c = t->comm;
	struct member *m = member_of(t);
	if (c->gone) {
		ncclsvc_status st = status_gone(c, c->gone_rank);
		release_end(sched, t, &st);
		return;
	}
	t->stage = POSTED;
	m->posted++;
	m->collective = t;
	c->collective[t->rank] = t;
	c->collective_here++;
	note_arrival(sched, c, t);
	atomic_store_explicit(&m->progress->collectives, c->collectives + 1, memory_order_relaxed);
	nodes_look(sched, c);
	const ncclsvc_status *decided = decision_of(sched, t);
	if (c->poisoned) {
		release_early(sched, t, &c->poison);
	} else if (decided) {
		ncclsvc_status st = *decided;
		fail_collective(sched, c, &st);
	} else if (svc_record_refuses(&t->record)) {
		ncclsvc_status st = status_refused(t);
		fail_collective(sched, c, &st);
	}
	if (c->collective_here == c->here)
		match_collective(sched, c);
}

/* ---- Point-to-point ---- */

static void end_pair(struct scheduler *sched, struct task *a, struct task *b,
		     const ncclsvc_status *st)
{
	release_end(sched, a, st);
	release_end(sched, b, st);
}

/* Both are posted. */
static void match_pair(struct scheduler *sched, struct task *t, struct task *u)
{
	struct task *send = t->record.op == NCCLSVC_SEND ? t : u, *recv = send == t ? u : t;
	struct task *const pair[] = {send, recv};
	uint64_t a = send->record.plan != 0, b = recv->record.plan != 0;
	ncclsvc_status st;
	if (t->tombstone || u->tombstone) {
		st = t->tombstone ? t->end : u->end;
		end_pair(sched, send, recv, &st);
		return;
	}
	if (svc_record_refuses(&send->record) || svc_record_refuses(&recv->record)) {
		st = status_refused(svc_record_refuses(&send->record) ? send : recv);
		end_pair(sched, send, recv, &st);
		return;
	}
	unsigned field = a == b ? svc_record_differs(&send->record, &recv->record, &a, &b)
				: NCCLSVC_FIELD_PLAN;
	if (field) {
		st = status_of(NCCLSVC_MISMATCH);
		st.field = field;
		st.value_a = a;
		st.value_b = b;
		status_name_ranks(t->comm, &st, send->rank, recv->rank);
		end_pair(sched, send, recv, &st);
		return;
	}
	switch (begin(sched, t->comm, pair, 2)) {
	case BEGUN_DONE:
		end_pair(sched, send, recv, complete_ran(pair, 2, &st));
		break;
	case BEGUN_NO_MEMORY:
		st = status_of(NCCLSVC_NO_MEMORY);
		end_pair(sched, send, recv, &st);
		break;
	case BEGUN_RUNNING:
		set_running(send);
		set_running(recv);
		break;
	}
}

void match_post_p2p(struct scheduler *sched, struct task *t)
{
	struct comm *c = t->comm;
	if (c->members[t->record.peer].gone) {
		ncclsvc_status st = status_gone(c, t->record.peer);
		release_end(sched, t, &st);
		return;
	}
	if (t->record.plan && plan_peer_left(t)) {
		ncclsvc_status st = plan_left_status(c, t->record.peer);
		release_end(sched, t, &st);
		return;
	}
	if (c->members[t->record.peer].elsewhere) {
		sched->nodes->post_p2p(sched, t);
		return;
	}
	t->stage = POSTED;
	member_of(t)->posted++;
	task_offer(t);
	struct task *u = task_find_peer(sched, t);
	if (u)
		match_pair(sched, t, u);
}
