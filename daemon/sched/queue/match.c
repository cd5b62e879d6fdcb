/* SPDX-License-Identifier: Apache-2.0
 * Matching of members' tasks: collectives of all members, Sends and Recvs of two. Tasks that match
 * and agree are run; those that disagree end with the same status on every side. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "account/lateness.h"
#include "complete.h"
#include "match.h"
#include "names.h"
#include "plan_slots.h"
#include "release.h"
#include "sched/base/nodes.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "task.h"

/* ---- Collectives ---- */

/* Ends the current collective on every member that has posted it. */
void order_end_collective(struct engine *e, struct comm *c, const ncclsvc_status *how)
{
	const ncclsvc_status *decided = how->result ? decision_current(e, c) : NULL;
	const ncclsvc_status st = decided ? *decided : *how;
	c->poisoned = false;
	c->misnumbered |= c->collective_here < c->here;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t = c->collective[k];
		c->collective[k] = NULL;
		if (t)
			release_end(e, t, &st);
	}
	c->collective_here = 0;
	c->collectives++;
}

void order_collect_records(const struct comm *c, struct task *const *tasks, struct mismatch *m)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (tasks[k])
			mismatch_add(m, &tasks[k]->record, (int32_t)k, 1);
}

bool order_mismatch_status(const struct comm *c, const struct mismatch *m, ncclsvc_status *st)
{
	if (!mismatch_status(m, c->nranks, st))
		return false;
	order_name_ranks(c, st, st->rank_a, st->rank_b);
	return true;
}

/* Compares the records of all local members. */
static bool find_mismatch(const struct comm *c, ncclsvc_status *st)
{
	struct mismatch m;
	m.nkinds = 0; /* its kinds are set before they are read */
	order_collect_records(c, c->collective, &m);
	return order_mismatch_status(c, &m, st);
}

void order_set_running(struct task *t)
{
	struct member *m = member_of(t);
	order_withdraw(t);
	m->posted--;
	m->running++;
	t->comm->running++;
	t->place = RUNNING;
	order_update_blocked(m);
}

static enum begun begin(struct engine *e, struct comm *c, struct task *const *tasks, uint32_t n)
{
	return c->transport->start(e, &(struct match){.comm = c, .tasks = tasks, .ntasks = n});
}

static void match_collective(struct engine *e, struct comm *c)
{
	ncclsvc_status st;
	if (c->poisoned) {
		st = c->poison;
		order_end_collective(e, c, &st);
		return;
	}
	if (nodes_voted(e, c))
		return; /* others have yet to say how it ends */
	const bool differ = find_mismatch(c, &st);
	if (nodes_post_collective(e, c, differ ? &st : NULL))
		return;
	if (differ) {
		order_end_collective(e, c, &st);
		return;
	}
	switch (begin(e, c, c->collective, c->nranks)) {
	case BEGUN_DONE:
		order_end_collective(e, c, complete_ran(c->collective, c->nranks, &st));
		break;
	case BEGUN_NO_MEMORY:
		st = status_of(NCCLSVC_NO_MEMORY);
		order_end_collective(e, c, &st);
		break;
	case BEGUN_RUNNING:
		for (uint32_t k = 0; k < c->nranks; k++) {
			order_set_running(c->collective[k]);
			/* The set's next collective is launched together with it. */
			if (c->collective[k]->next_in_group)
				order_make_ready(e, &c->members[k]);
			c->collective[k] = NULL;
			c->members[k].collective = NULL;
		}
		c->collective_here = 0;
		c->collectives++;
		break;
	}
}

/* With other nodes, tells them first; then all nodes learn of it. */
static void fail_collective(struct engine *e, struct comm *c, const ncclsvc_status *st)
{
	if (!nodes_fail_collective(e, c, st))
		release_collective(e, c, st);
}

static void note_late(struct engine *e, struct comm *c, const struct task *t)
{
	const struct late_arrival a = {
		.late_ns = e->now - c->first_ns,
		.collectives = c->collectives,
		.rank = (uint32_t)t->rank,
		.op = t->record.op,
		.last = c->collective_here == c->here && e->now > c->latest_ns &&
			(!c->internode || e->nodes->awaited(c)),
	};
	c->latest_ns = e->now;
	if (c->lateness)
		lateness_add(c->lateness, e->now, &a);
}

/* When the first member came, of any node; and how late another one is, if it is late. */
static void note_arrival(struct engine *e, struct comm *c, const struct task *t)
{
	if (c->collective_here == 1) {
		const uint64_t elsewhere = c->internode ? e->nodes->first_ns(c) : 0;
		c->first_ns = elsewhere ? elsewhere : e->now;
	}
	if (e->now - c->first_ns >= LATENESS_UNIT)
		note_late(e, c, t);
}

void order_post_collective(struct engine *e, struct task *t)
{
	struct comm *c = t->comm;
	struct member *m = member_of(t);
	if (c->gone) {
		ncclsvc_status st = order_gone_status(c, c->gone_rank);
		release_end(e, t, &st);
		return;
	}
	t->place = POSTED;
	m->posted++;
	m->collective = t;
	c->collective[t->rank] = t;
	c->collective_here++;
	note_arrival(e, c, t);
	atomic_store_explicit(&m->progress->collectives, c->collectives + 1, memory_order_relaxed);
	nodes_look(e, c);
	const ncclsvc_status *decided = decision_of(e, t);
	if (c->poisoned) {
		release_early(e, t, &c->poison);
	} else if (decided) {
		ncclsvc_status st = *decided;
		fail_collective(e, c, &st);
	} else if (svc_record_refuses(&t->record)) {
		ncclsvc_status st = order_refused_status(t);
		fail_collective(e, c, &st);
	}
	if (c->collective_here == c->here)
		match_collective(e, c);
}

/* ---- Point-to-point ---- */

static void end_pair(struct engine *e, struct task *a, struct task *b, const ncclsvc_status *st)
{
	release_end(e, a, st);
	release_end(e, b, st);
}

void order_match_pair(struct engine *e, struct task *t, struct task *u)
{
	struct task *send = t->record.op == NCCLSVC_SEND ? t : u, *recv = send == t ? u : t;
	struct task *const pair[] = {send, recv};
	uint64_t a = send->record.plan != 0, b = recv->record.plan != 0;
	ncclsvc_status st;
	if (t->tombstone || u->tombstone) {
		st = t->tombstone ? t->end : u->end;
		end_pair(e, send, recv, &st);
		return;
	}
	if (svc_record_refuses(&send->record) || svc_record_refuses(&recv->record)) {
		st = order_refused_status(svc_record_refuses(&send->record) ? send : recv);
		end_pair(e, send, recv, &st);
		return;
	}
	unsigned field = a == b ? svc_record_differs(&send->record, &recv->record, &a, &b)
				: NCCLSVC_FIELD_PLAN;
	if (field) {
		st = status_of(NCCLSVC_MISMATCH);
		st.field = field;
		st.value_a = a;
		st.value_b = b;
		order_name_ranks(t->comm, &st, send->rank, recv->rank);
		end_pair(e, send, recv, &st);
		return;
	}
	switch (begin(e, t->comm, pair, 2)) {
	case BEGUN_DONE:
		end_pair(e, send, recv, complete_ran(pair, 2, &st));
		break;
	case BEGUN_NO_MEMORY:
		st = status_of(NCCLSVC_NO_MEMORY);
		end_pair(e, send, recv, &st);
		break;
	case BEGUN_RUNNING:
		order_set_running(send);
		order_set_running(recv);
		break;
	}
}

void order_post_p2p(struct engine *e, struct task *t)
{
	struct comm *c = t->comm;
	if (c->members[t->record.peer].gone) {
		ncclsvc_status st = order_gone_status(c, t->record.peer);
		release_end(e, t, &st);
		return;
	}
	if (t->record.plan && plan_peer_left(t)) {
		ncclsvc_status st = plan_left_status(c, t->record.peer);
		release_end(e, t, &st);
		return;
	}
	if (c->members[t->record.peer].elsewhere) {
		e->nodes->post_p2p(e, t);
		return;
	}
	t->place = POSTED;
	member_of(t)->posted++;
	order_offer(t);
	struct task *u = order_find_peer(e, t);
	if (u)
		order_match_pair(e, t, u);
}
