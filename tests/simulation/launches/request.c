/* SPDX-License-Identifier: Apache-2.0
 * A node's requests, withdrawals and launches: models daemon/sched/internode/sequence.c, launch.c
 * and node_match.c. */
#include "request.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"

/* ---- Messages ---- */

uint32_t sequencer_of(const struct node *n)
{
	uint32_t node = 0;
	while (node < nnodes - 1 && n->lost[node])
		node++;
	return node;
}

struct message *to_sequencer(uint32_t node, enum message_kind kind, uint32_t nentries)
{
	return message_make(node, sequencer_of(&nodes[node]), kind, nentries);
}

static void withdraw(const struct match *m, uint64_t number, const struct failed_note *note)
{
	const struct comm_plan *p = m->at->plan;
	struct message *w = to_sequencer(m->at->node, WITHDRAW, 0);
	w->internode_id = p->id;
	w->key = m->key;
	w->number = number;
	w->note = *note;
	if (m->key.a < 0) {
		w->n = p->nnodes;
		memcpy(w->nodes, p->nodes, sizeof(w->nodes));
	} else {
		w->n = 2;
		w->nodes[0] = p->nodes[p->place_of[m->key.a]];
		w->nodes[1] = p->nodes[p->place_of[m->key.b]];
	}
	trace(m->at->node, "withdraws %d-%d %d of communicator %d, number %d, with %d",
	      (int)m->key.a, (int)m->key.b, (int)m->key.seq, (int)p->id, (int)w->number,
	      note->status.result);
	channel_send(w);
}

void send_withdraw(const struct match *m, const struct launch_request *r,
		   const struct failed_note *note)
{
	withdraw(m, r ? r->number : 0, note);
}

void send_wait_no_more(const struct match *m)
{
	withdraw(m, WAITS_NO_MORE, &(struct failed_note){.status = without_missing(&m->status)});
}

/* ---- Matches ---- */

struct match *match_find(const struct local_comm *s, const struct operation_key *key)
{
	struct match *m;
	DL_FOREACH (s->matches, m)
		if (same_key(&m->key, key))
			return m;
	return NULL;
}

struct match *match_get(struct local_comm *s, const struct operation_key *key)
{
	struct match *m = match_find(s, key);
	if (m)
		return m;
	m = make(sizeof(*m));
	m->at = s;
	m->key = *key;
	DL_APPEND(s->matches, m);
	return m;
}

void match_forget(struct match *m)
{
	DL_DELETE(m->at->matches, m);
	free(m);
}

void match_ready(struct match *m)
{
	m->vote = VOTE_READY;
	m->matched = true;
	node_of(m)->matched_new = true;
}

/* Names the local ranks that have not posted the operation. */
void match_name_missing(const struct match *m, ncclsvc_status *st)
{
	const struct local_comm *s = m->at;
	if (st->result != NCCLSVC_TIMEOUT || st->done_ns)
		return;
	st->missing_count = 0;
	for (uint32_t k = 0; k < s->plan->nranks; k++) {
		const bool takes_part =
			m->key.a < 0 || (int32_t)k == m->key.a || (int32_t)k == m->key.b;
		const bool posted = m->key.a < 0 && m->key.seq == s->collectives &&
				    s->collective[k] && !plant_now(PLANT_MISSING);
		if (s->plan->place_of[k] == s->me && takes_part && !posted &&
		    st->missing_count < NCCLSVC_MISSING_SHOWN)
			st->missing[st->missing_count++] = (int32_t)k;
	}
}

ncclsvc_status without_missing(const ncclsvc_status *why)
{
	ncclsvc_status st = *why;
	if (st.result == NCCLSVC_TIMEOUT && !st.done_ns)
		st.missing_count = 0;
	return st;
}

static void collect_records(const struct match *m, struct mismatch *posted)
{
	const struct local_comm *s = m->at;
	for (uint32_t i = 0; i < m->ntasks; i++)
		mismatch_add(posted, &m->tasks[i]->record, (int32_t)m->tasks[i]->rank, 1);
	for (uint32_t k = 0; k < s->plan->nranks && m->key.seq == s->collectives; k++)
		if (s->collective[k])
			mismatch_add(posted, &s->collective[k]->record, (int32_t)k, 1);
}

void match_fail(struct match *m, const ncclsvc_status *st)
{
	const struct local_comm *s = m->at;
	struct failed_note note = {.status = *st};
	if (s->over)
		return;
	if (m->key.a < 0 && mismatch_is_cause(st))
		collect_records(m, &note.posted);
	m->status = *st;
	m->vote = VOTE_FAILED;
	check_votes_failed(m, st->done_ns);
	m->note = note;
	send_withdraw(m, NULL, &note);
}

/* ---- Requests ---- */

void request_forget(struct node *n, struct launch_request *r)
{
	DL_DELETE(n->requests, r);
	free(r);
}

/* Drops a request; its matches may be requested again. */
void request_void(struct node *n, struct launch_request *r)
{
	for (uint32_t i = 0; i < ncomms; i++) {
		struct match *m;
		DL_FOREACH (n->comms[i].matches, m)
			if (m->request == r) {
				m->request = NULL;
				m->matched &= !plant_now(PLANT_NO_NEW_REQUEST);
			}
	}
	n->matched_new = true;
	trace((uint32_t)(n - nodes), "request %d is void", (int)r->number);
	request_forget(n, r);
}

void comm_give_up(struct local_comm *s)
{
	if (s->failed || s->ended)
		return;
	s->failed = true;
	program_end_comm(s->index);
}

bool request_names(const struct launch_request *r, uint64_t internode_id)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->entries[i].internode_id == internode_id)
			return true;
	return false;
}

/* Gives up a request that the sequencer may still launch: its communicators end. */
void request_give_up(struct node *n, struct launch_request *r)
{
	for (uint32_t i = 0; i < ncomms; i++)
		if (request_names(r, n->comms[i].plan->id)) {
			n->comms[i].unled = true;
			comm_give_up(&n->comms[i]);
		}
	request_void(n, r);
}

void match_call_off(struct match *m)
{
	if (m->request)
		request_void(node_of(m), m->request);
	m->matched = false;
}

void match_withdraw(struct match *m)
{
	const ncclsvc_status st = without_missing(&m->status);
	m->asked = true;
	if (m->vote == VOTE_FAILED) {
		send_wait_no_more(m);
		return;
	}
	match_call_off(m);
	match_fail(m, &st);
}

static void on_overdue(void *arg)
{
	const struct waiting *w = arg;
	struct local_comm *s = &nodes[w->node].comms[w->comm];
	const struct match *m = s->begun && !s->ended ? match_find(s, &w->key) : NULL;
	if (!m || m->resolved || s->over)
		return;
	if (!comm_is_lost(w->comm))
		fail("node %u waits for the sequencer's answer on communicator %u", w->node,
		     w->comm);
	comm_give_up(s);
}

static void await_answers(const struct match *m)
{
	struct waiting *w = make(sizeof(*w));
	*w = (struct waiting){m->at->node, m->at->index, m->key};
	at(now_ns + 2 * NODE_ANSWER_NS, (int)w->node, on_overdue, w);
}

void order_fail_collective(struct local_comm *s, const ncclsvc_status *st)
{
	const struct operation_key key = {-1, -1, s->collectives, 0};
	if (s->over)
		return;
	struct match *m = match_get(s, &key);
	if (m->vote)
		return;
	ncclsvc_status own = *st;
	match_name_missing(m, &own);
	await_answers(m);
	match_fail(m, &own);
}

void match_ask(struct match *m, const ncclsvc_status *st)
{
	if (m->asked || m->at->over)
		return;
	m->asked = true;
	m->status = *st;
	await_answers(m);
	if (!m->request || plant_now(PLANT_LATE_WITHDRAW)) {
		match_withdraw(m);
		return;
	}
	send_withdraw(m, m->request, &(struct failed_note){.status = without_missing(st)});
}

static void on_unlike(void *arg)
{
	const struct waiting *w = arg;
	const struct local_comm *s = &nodes[w->node].comms[w->comm];
	struct match *m = s->begun && !s->ended ? match_find(s, &w->key) : NULL;
	if (!m || !m->ntasks || m->asked)
		return;
	const ncclsvc_status st = m->status;
	match_ask(m, &st);
}

void match_differs(struct match *m, const ncclsvc_status *st)
{
	struct waiting *w = make(sizeof(*w));
	*w = (struct waiting){m->at->node, m->at->index, m->key};
	at(now_ns + 2 * NODE_ANSWER_NS, (int)w->node, on_unlike, w);
	match_fail(m, st);
}

/* ---- Operations launched together ---- */

struct together {
	uint32_t n;
	struct match *matches[TASKS_MAX];
};

static bool push(struct node *n, struct together *all, struct match *m)
{
	if (!m || !m->matched)
		return false;
	if (m->visit == n->visit)
		return true;
	m->visit = n->visit;
	all->matches[all->n++] = m;
	return true;
}

static bool collect(struct node *n, struct together *all, struct match *first)
{
	n->visit++;
	all->n = 0;
	bool good = push(n, all, first);
	for (uint32_t i = 0; good && i < all->n; i++)
		for (uint32_t k = 0; good && k < all->matches[i]->ntasks; k++) {
			const struct task *t = all->matches[i]->tasks[k];
			if (t->next_in_group && !plant_now(PLANT_NO_GROUP))
				good = push(n, all, t->next_in_group->match);
		}
	return good;
}

void send_request(uint32_t node, const struct launch_request *r)
{
	uint32_t i = 0;
	while (i < r->n) {
		const uint32_t count = chance(70) ? r->n - i : 1 + below(r->n - i);
		struct message *m = to_sequencer(node, REQUEST, count);
		m->number = r->number;
		m->more = i + count < r->n;
		memcpy(m->entries, r->entries + i, count * sizeof(r->entries[0]));
		channel_send(m);
		i += count;
	}
}

static struct request_entry entry_of(const struct match *m)
{
	const struct local_comm *s = m->at;
	const bool pair = m->key.a >= 0;
	return (struct request_entry){
		.internode_id = s->plan->id,
		.key = m->key,
		.nvoters = pair ? 2 : s->plan->nnodes,
		.place = pair ? !m->tasks[0]->sends : s->me,
		.rank = (int32_t)m->tasks[0]->rank,
		.count = m->ntasks,
		.record = m->tasks[0]->record,
	};
}

static void request(struct node *n, const struct together *all)
{
	const uint32_t node = (uint32_t)(n - nodes);
	for (uint32_t i = 0; i < all->n; i++) {
		const struct local_comm *s = all->matches[i]->at;
		if (s->over || s->unled || s->failed)
			return;
	}
	struct launch_request *r = make(sizeof(*r) + all->n * sizeof(r->entries[0]));
	r->number = ++n->nrequests;
	r->n = all->n;
	for (uint32_t i = 0; i < all->n; i++) {
		r->entries[i] = entry_of(all->matches[i]);
		all->matches[i]->request = r;
		trace(node, "requests %d-%d %d of communicator %d in request %d",
		      (int)r->entries[i].key.a, (int)r->entries[i].key.b,
		      (int)r->entries[i].key.seq, (int)r->entries[i].internode_id, (int)r->number);
	}
	DL_APPEND(n->requests, r);
	send_request(node, r);
}

/* ---- Launching ---- */

static struct match *match_of(const struct node *n, const struct launch_request *r)
{
	for (uint32_t i = 0; i < ncomms; i++) {
		struct match *m;
		DL_FOREACH (n->comms[i].matches, m)
			if (m->request == r)
				return m;
	}
	return NULL;
}

static void launch_order(struct node *n, struct launch_request *r)
{
	static struct together all;
	struct match *m = match_of(n, r);
	if (!m || !collect(n, &all, m) || all.n != r->n) {
		if (!m || !comm_is_lost(m->at->index))
			fail("node %d: request %d is launched before it is complete",
			     (int)(n - nodes), (int)r->number);
		request_give_up(n, r);
		return;
	}
	check_launched((uint32_t)(n - nodes), r);
	for (uint32_t i = 0; i < all.n; i++) {
		m = all.matches[i];
		for (uint32_t k = 0; k < m->ntasks; k++)
			order_launched(m->tasks[k]);
		match_forget(m);
	}
	DL_DELETE(n->requests, r);
	DL_APPEND(n->granted, r);
}

void node_launch_ordered(struct node *n)
{
	while (n->first_order < n->norders)
		launch_order(n, n->orders[n->first_order++]);
	for (uint32_t i = 0; i < ncomms; i++)
		node_comm_look(&n->comms[i]);
}

static void request_matched(struct node *n, struct local_comm *s)
{
	static struct together all;
	struct match *m;
	DL_FOREACH (s->matches, m)
		if (m->matched && !m->request && collect(n, &all, m))
			request(n, &all);
}

/* Withdraws the operations of void requests that should have failed. */
static void withdraw_asked(struct local_comm *s)
{
	struct match *m;
	DL_FOREACH (s->matches, m)
		if (m->matched && !m->request && m->asked)
			match_withdraw(m);
}

void node_launch(struct node *n)
{
	do {
		n->matched_new = false;
		for (uint32_t i = 0; i < ncomms; i++)
			order_move(&n->comms[i]);
		for (uint32_t i = 0; i < ncomms; i++)
			withdraw_asked(&n->comms[i]);
		for (uint32_t i = 0; i < ncomms; i++)
			request_matched(n, &n->comms[i]);
	} while (n->matched_new);
}

static void on_launch(void *arg)
{
	struct node *n = &nodes[*(uint32_t *)arg];
	node_launch_ordered(n);
	node_launch(n);
}

/* The launch may come later, because the GPUs may have no room yet. */
void request_ordered(struct node *n, uint64_t number, uint64_t grant)
{
	struct launch_request *r;
	DL_SEARCH_SCALAR(n->requests, r, number, number);
	if (!r || r->ordered)
		return;
	r->ordered = true;
	r->grant = grant;
	n->orders[n->norders++] = r;
	uint32_t *arg = make(sizeof(*arg));
	*arg = (uint32_t)(n - nodes);
	at(now_ns + (chance(50) ? 0 : between(0, MS)), (int)*arg, on_launch, arg);
}
