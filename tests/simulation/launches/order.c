/* SPDX-License-Identifier: Apache-2.0
 * Members' queues, and matching within a node: models daemon/sched/queue/order.c, match.c,
 * release.c and node_match_pair.c. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "launches.h"

static struct local_comm *comm_of(const struct task *t)
{
	return &nodes[t->node].comms[t->comm];
}

/* ---- The end of a task ---- */

static void leave_group(struct task *t)
{
	struct task *before = t->next_in_group;
	if (!before)
		return;
	while (before->next_in_group != t)
		before = before->next_in_group;
	before->next_in_group = t->next_in_group == before ? NULL : t->next_in_group;
	t->next_in_group = NULL;
	nodes[t->node].matched_new = true;
}

static void leave_queue(struct task *t, enum place place)
{
	struct member *m = &comm_of(t)->members[t->rank];
	if (t->place >= AT_HEAD)
		m->head--;
	if (m->collective == t)
		m->collective = NULL;
	DL_DELETE(m->queue, t);
	t->place = place;
	t->match = NULL;
	nodes[t->node].matched_new = true;
}

static void end_early(struct task *t, const ncclsvc_status *st, bool told)
{
	if (t->tombstone)
		return;
	t->tombstone = true;
	t->told = told;
	t->status = *st;
	leave_group(t);
}

void order_end(struct task *t, const ncclsvc_status *st, bool told)
{
	struct local_comm *s = comm_of(t);
	end_early(t, st, told);
	if (s->collective[t->rank] == t) {
		s->collective[t->rank] = NULL;
		s->collective_here--;
	}
	leave_queue(t, ENDED);
}

void order_launched(struct task *t)
{
	t->next_in_group = NULL;
	leave_queue(t, LAUNCHED);
}

/* ---- Collectives ---- */

/* Ends the current collective for all that have posted it. */
static void end_collective(struct local_comm *s, const ncclsvc_status *st)
{
	s->poisoned = false;
	for (uint32_t k = 0; k < s->plan->nranks; k++)
		if (s->collective[k])
			order_end(s->collective[k], st, true);
	s->collectives++;
}

void order_conclude_failed(struct match *m)
{
	struct local_comm *s = m->at;
	if (m->key.a < 0 && m->key.seq < s->collectives) {
		match_forget(m);
		return;
	}
	if (m->key.a >= 0 || m->key.seq > s->collectives) {
		m->resolved = true;
		return;
	}
	s->poison = m->status;
	s->poisoned = true;
	match_forget(m);
	for (uint32_t k = 0; k < s->plan->nranks; k++)
		if (s->collective[k])
			end_early(s->collective[k], &s->poison, true);
	if (s->collective_here == s->here)
		end_collective(s, &s->poison);
}

static void commit(struct match *m, struct task *t)
{
	m->tasks[m->ntasks++] = t;
	t->match = m;
	t->place = RUNNING;
}

/* Matches the collective that all members here have posted. differ: NULL if their records agree. */
static void match_collective(struct local_comm *s, const ncclsvc_status *differ)
{
	const struct operation_key key = {-1, -1, s->collectives, 0};
	if (s->over)
		return;
	struct match *m = match_get(s, &key);
	for (uint32_t k = 0; k < s->plan->nranks; k++) {
		if (!s->collective[k])
			continue;
		commit(m, s->collective[k]);
		s->collective[k] = NULL;
		s->members[k].collective = NULL;
	}
	s->collective_here = 0;
	s->collectives++;
	if (differ)
		match_differs(m, differ);
	else
		match_ready(m);
}

static bool find_mismatch(const struct local_comm *s, ncclsvc_status *st)
{
	struct mismatch m = {0};
	for (uint32_t k = 0; k < s->plan->nranks; k++)
		if (s->collective[k])
			mismatch_add(&m, &s->collective[k]->record, (int32_t)k, 1);
	return mismatch_status(&m, s->plan->nranks, st);
}

static void check_collective(struct local_comm *s)
{
	const struct operation_key key = {-1, -1, s->collectives, 0};
	const struct match *m = match_find(s, &key);
	ncclsvc_status st;
	if (s->poisoned) {
		st = s->poison;
		end_collective(s, &st);
	} else if (m && m->vote) {
		return; /* the other nodes have yet to decide how it ends */
	} else {
		match_collective(s, find_mismatch(s, &st) ? &st : NULL);
	}
}

static void post_collective(struct local_comm *s, struct task *t)
{
	const struct operation_key key = {-1, -1, s->collectives, 0};
	struct match *m = s->poisoned ? NULL : match_find(s, &key);
	t->place = POSTED;
	t->has_key = true;
	t->key = key;
	if (!t->tombstone)
		check_posted(t);
	s->members[t->rank].collective = t;
	s->collective[t->rank] = t;
	s->collective_here++;
	if (m && m->resolved) {
		s->poisoned = true;
		s->poison = m->status;
		match_forget(m);
	}
	if (s->poisoned)
		end_early(t, &s->poison, true);
	else if (t->tombstone)
		order_fail_collective(s, &t->status);
	if (s->collective_here == s->here)
		check_collective(s);
}

/* ---- Pairs ---- */

static void post_pair(struct local_comm *s, struct task *t)
{
	const uint32_t a = t->sends ? t->rank : t->peer, b = t->sends ? t->peer : t->rank;
	if (s->over) {
		t->place = POSTED;
		return;
	}
	uint64_t *next = t->sends ? &s->sent[a][b] : &s->received[a][b];
	struct match *m = match_get(
		s, &(struct operation_key){.a = (int32_t)a, .b = (int32_t)b, .seq = (*next)++});
	t->place = POSTED;
	t->has_key = true;
	t->key = m->key;
	if (m->vote == VOTE_FAILED) {
		const ncclsvc_status st = m->status;
		match_forget(m);
		order_end(t, &st, true);
	} else if (t->tombstone) {
		match_fail(m, &t->status);
		m->resolved = true;
		order_end(t, &t->status, false);
	} else {
		check_posted(t);
		commit(m, t);
		match_ready(m);
	}
}

/* ---- Queues ---- */

static void next_head(struct member *m)
{
	struct task *t = m->queue;
	const uint32_t group = t->group;
	do {
		t->place = AT_HEAD;
		m->head++;
		t = t->next;
	} while (t && group && t->group == group);
}

static struct task *postable(const struct member *m)
{
	struct task *t;
	DL_FOREACH (m->queue, t)
		if (t->place == AT_HEAD && (t->pair || !m->collective))
			return t;
	return NULL;
}

static bool move_member(struct local_comm *s, struct member *m)
{
	if (!m->head && m->queue)
		next_head(m);
	struct task *t = postable(m);
	if (!t)
		return false;
	t->pair ? post_pair(s, t) : post_collective(s, t);
	return true;
}

void order_move(struct local_comm *s)
{
	bool any = s->begun && !s->ended;
	while (any) {
		any = false;
		for (uint32_t k = 0; k < s->plan->nranks; k++)
			any |= move_member(s, &s->members[k]);
	}
}

void order_post(struct task *t)
{
	struct local_comm *s = comm_of(t);
	if (s->ended) {
		t->place = ENDED;
		t->tombstone = true;
		t->status.result = NCCLSVC_PEER_GONE;
		return;
	}
	t->place = IN_QUEUE;
	DL_APPEND(s->members[t->rank].queue, t);
	nodes[t->node].matched_new = true;
}

void order_fail(struct task *t, const ncclsvc_status *why)
{
	struct local_comm *s = comm_of(t);
	if (t->place == UNSENT || t->place >= LAUNCHED || t->tombstone)
		return;
	if (t->match)
		match_ask(t->match, why);
	if (t->place == RUNNING)
		return;
	if (s->collective[t->rank] == t) {
		if (!s->poisoned)
			order_fail_collective(s, why);
		return;
	}
	ncclsvc_status st = *why;
	st.done_ns = now_ns;
	end_early(t, &st, false);
}
