/* SPDX-License-Identifier: Apache-2.0
 * What a node requests, withdraws and launches: as daemon/sched/internode/sequence.c, set.c,
 * node_match.c, node_match_messages.c and internode_comm.c do. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "launches.h"

struct node nodes[NODES_MAX];
bool sequencer_died;

bool comm_is_lost(uint32_t comm)
{
	for (uint32_t p = 0; p < comms[comm].nnodes; p++)
		if (sequencer_died && !nodes[comms[comm].nodes[p]].alive)
			return true;
	return false;
}

static struct node *node_of(const struct match *m)
{
	return &nodes[m->at->node];
}

/* ---- Messages ---- */

uint32_t sequencer_of(const struct node *n)
{
	uint32_t node = 0;
	while (node < nnodes - 1 && n->lost[node])
		node++;
	return node;
}

static struct message *to_sequencer(uint32_t node, enum message_kind kind, uint32_t nentries)
{
	return message_make(node, sequencer_of(&nodes[node]), kind, nentries);
}

static void withdraw(const struct match *m, const struct launch_request *r,
		     const struct failed_note *note)
{
	const struct comm_plan *p = m->at->plan;
	struct message *w = to_sequencer(m->at->node, WITHDRAW, 0);
	w->internode_id = p->id;
	w->key = m->key;
	w->number = r ? r->number : 0;
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

/* The local ranks that have not posted it. */
static void name_missing(const struct match *m, ncclsvc_status *st)
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

static ncclsvc_status without_missing(const ncclsvc_status *why)
{
	ncclsvc_status st = *why;
	if (st.result == NCCLSVC_TIMEOUT && !st.done_ns)
		st.missing_count = 0;
	return st;
}

void match_fail(struct match *m, const ncclsvc_status *st)
{
	const struct local_comm *s = m->at;
	struct failed_note note = {.status = *st};
	if (s->over)
		return;
	if (st->result == NCCLSVC_MISMATCH && m->key.a < 0 && m->key.seq == s->collectives)
		for (uint32_t k = 0; k < s->plan->nranks; k++)
			if (s->collective[k])
				mismatch_add(&note.posted, &s->collective[k]->record, (int32_t)k,
					     1);
	m->status = *st;
	m->vote = VOTE_FAILED;
	check_votes_failed(m, st->done_ns);
	m->note = note;
	withdraw(m, NULL, &note);
}

/* ---- Requests ---- */

static void request_forget(struct node *n, struct launch_request *r)
{
	DL_DELETE(n->requests, r);
	free(r);
}

/* Its matches may be requested again. */
static void request_void(struct node *n, struct launch_request *r)
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

static void give_up(struct local_comm *s)
{
	if (s->failed || s->ended)
		return;
	s->failed = true;
	program_end_comm(s->index);
}

static bool names(const struct launch_request *r, uint64_t internode_id)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->entries[i].internode_id == internode_id)
			return true;
	return false;
}

/* The sequencer may yet launch it. */
static void request_give_up(struct node *n, struct launch_request *r)
{
	for (uint32_t i = 0; i < ncomms; i++)
		if (names(r, n->comms[i].plan->id)) {
			n->comms[i].unled = true;
			give_up(&n->comms[i]);
		}
	request_void(n, r);
}

static void call_off(struct match *m)
{
	if (m->request)
		request_void(node_of(m), m->request);
	m->matched = false;
}

static void match_withdraw(struct match *m)
{
	const ncclsvc_status st = without_missing(&m->status);
	m->asked = true;
	call_off(m);
	match_fail(m, &st);
}

/* When it still waits then, its answer is overdue. */
struct waiting {
	uint32_t node, comm;
	struct operation_key key;
};

bool node_lives(int node)
{
	return nodes[node].alive;
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
	give_up(s);
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
	name_missing(m, &own);
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
	withdraw(m, m->request, &(struct failed_note){.status = without_missing(st)});
}

/* ---- What is launched together ---- */

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

static void send_request(uint32_t node, const struct launch_request *r)
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
		.nparts = pair ? 2 : s->plan->nnodes,
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
			fail("node %d: request %d is not whole when it is launched",
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

static void launch_ordered(struct node *n)
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

/* What was to fail in a request that is void. */
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
	launch_ordered(n);
	node_launch(n);
}

/* Its GPUs may have no room at once. */
static void be_ordered(struct node *n, uint64_t number, uint64_t grant)
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

/* ---- What the sequencer says ---- */

static void be_closed(struct node *n, uint64_t internode_id)
{
	struct launch_request *r, *next;
	for (uint32_t i = 0; i < ncomms; i++)
		if (n->comms[i].plan->id == internode_id)
			n->comms[i].closed = true;
	DL_FOREACH_SAFE (n->requests, r, next)
		if (!r->ordered && names(r, internode_id))
			request_void(n, r);
}

static void be_failed(struct match *m, const struct failed_note *note)
{
	ncclsvc_status st = note->status;
	check_failed(m->at->node, m, note);
	if (m->known_failed)
		return;
	if (st.result == NCCLSVC_MISMATCH && m->key.a < 0)
		mismatch_status(&note->posted, m->at->plan->nranks, &st);
	m->status = st;
	m->known_failed = true;
	if (node_of(m)->nfailed < TASKS_MAX)
		node_of(m)->failed[node_of(m)->nfailed++] =
			(struct failed_operation){m->at->plan->id, m->key, *note};
	if (m->ntasks) {
		call_off(m);
		for (uint32_t k = 0; k < m->ntasks; k++)
			order_end(m->tasks[k], &st, true);
		match_forget(m);
	} else if (m->key.a >= 0 && m->resolved) {
		match_forget(m);
	} else {
		order_conclude_failed(m);
	}
}

static void be_asked(struct match *m, const ncclsvc_status *why)
{
	ncclsvc_status st = *why;
	if (!m->vote) {
		name_missing(m, &st);
		match_fail(m, &st);
	} else if (m->vote == VOTE_READY && !m->asked) {
		m->status = *why;
		if (!m->request)
			match_withdraw(m);
	}
}

static void comm_receive(struct local_comm *s, const struct message *h)
{
	if (s->ended)
		return;
	if (h->kind == OVER) {
		for (uint32_t p = 0; p < s->plan->nnodes; p++)
			s->overs[p] |= s->plan->nodes[p] == h->from;
		node_comm_look(s);
		return;
	}
	trace(s->node, "is told %s for %d-%d %d of communicator %d: %d",
	      h->kind == ASK ? "ASK" : "FAILED", h->key.a, h->key.b, (int)h->key.seq,
	      (int)h->internode_id, h->note.status.result);
	if (h->note.ends_epoch) {
		if (!comm_is_lost(s->index))
			fail("the sequencer ends communicator %d on node %u", (int)h->internode_id,
			     s->node);
		give_up(s);
		return;
	}
	struct match *m = match_find(s, &h->key);
	const bool past = h->key.a < 0 && h->key.seq < s->collectives;
	if (!m && h->kind == ASK && !past)
		m = match_get(s, &h->key);
	if (!m)
		return;
	if (h->kind == FAILED)
		be_failed(m, &h->note);
	else
		be_asked(m, &h->note.status);
}

static void keep_unexpected(struct local_comm *s, const struct message *h)
{
	if (s->nunexpected == sizeof(s->unexpected) / sizeof(s->unexpected[0]))
		abort();
	s->unexpected[s->nunexpected] = make(sizeof(*h));
	*s->unexpected[s->nunexpected++] = *h;
}

void node_receive(const struct message *h)
{
	struct node *n = &nodes[h->to];
	if (h->kind == REQUEST || h->kind == WITHDRAW || h->kind == LEAVE || h->kind == GRANTED) {
		sequencers_receive(h->to, h);
		return;
	}
	if (h->kind == LAUNCH) {
		be_ordered(n, h->number, h->grant);
	} else if (h->kind == GOES_ON) {
		n->succession = false;
	} else if (h->kind == CLOSED) {
		be_closed(n, h->internode_id);
		launch_ordered(n);
	} else {
		for (uint32_t i = 0; i < ncomms; i++)
			if (n->comms[i].plan->id == h->internode_id)
				n->comms[i].begun ? comm_receive(&n->comms[i], h)
						  : keep_unexpected(&n->comms[i], h);
	}
	node_launch(n);
}

/* ---- Begin and end ---- */

void node_comm_begin(uint32_t node, uint32_t comm)
{
	struct local_comm *s = &nodes[node].comms[comm];
	if (s->begun || !nodes[node].alive)
		return;
	s->begun = true;
	for (uint32_t p = 0; p < s->plan->nnodes; p++)
		s->me = s->plan->nodes[p] == node ? p : s->me;
	for (uint32_t k = 0; k < s->plan->nranks; k++)
		s->here += s->plan->place_of[k] == s->me;
	for (uint32_t i = 0; i < s->nunexpected; i++) {
		comm_receive(s, s->unexpected[i]);
		free(s->unexpected[i]);
	}
	s->nunexpected = 0;
}

static bool is_closed(const struct node *n, const struct local_comm *s)
{
	for (uint32_t i = n->first_order; i < n->norders; i++)
		if (names(n->orders[i], s->plan->id))
			return false;
	return s->closed;
}

static void drop_matches(struct node *n, struct local_comm *s)
{
	struct match *m, *next;
	DL_FOREACH (s->matches, m) {
		if (m->matched && m->request && s->closed)
			request_void(n, m->request);
		else if (m->matched && m->request)
			request_give_up(n, m->request);
		m->matched = false;
	}
	DL_FOREACH_SAFE (s->matches, m, next)
		match_forget(m);
}

static void comm_end(struct node *n, struct local_comm *s)
{
	const ncclsvc_status st = {.result = NCCLSVC_PEER_GONE};
	s->ended = true;
	s->ended_ns = now_ns;
	drop_matches(n, s);
	for (uint32_t k = 0; k < s->plan->nranks; k++)
		while (s->members[k].queue)
			order_end(s->members[k].queue, &st, false);
	n->matched_new = true;
}

void node_comm_look(struct local_comm *s)
{
	struct node *n = &nodes[s->node];
	if (!s->over || s->ended)
		return;
	const bool in_order = !s->unled && is_closed(n, s);
	if (!in_order && !(s->unled && is_closed(n, s)) && now_ns < s->due_ns)
		return;
	if (!in_order && !comm_is_lost(s->index))
		fail("node %u ends communicator %u without the sequencer's word", s->node,
		     s->index);
	trace(s->node, "ends communicator %d", (int)s->plan->id);
	comm_end(n, s);
}

static void leave(const struct local_comm *s)
{
	struct message *m = to_sequencer(s->node, LEAVE, 0);
	trace(s->node, "leaves communicator %d", (int)s->plan->id);
	m->internode_id = s->plan->id;
	m->n = s->plan->nnodes;
	memcpy(m->nodes, s->plan->nodes, sizeof(m->nodes));
	channel_send(m);
}

void node_comm_end(uint32_t node, uint32_t comm)
{
	struct node *n = &nodes[node];
	struct local_comm *s = &n->comms[comm];
	if (!n->alive || s->over)
		return;
	node_comm_begin(node, comm);
	for (uint32_t p = 0; p < s->plan->nnodes; p++) {
		if (p == s->me)
			continue;
		struct message *m = message_make(node, s->plan->nodes[p], OVER, 0);
		m->internode_id = s->plan->id;
		channel_send(m);
	}
	node_launch(n);
	leave(s);
	s->over = s->overs[s->me] = true;
	s->due_ns = now_ns + EPOCH_CLOSE_NS;
	node_comm_look(s);
	node_launch(n);
}

static bool takes_part(const struct local_comm *s)
{
	for (uint32_t p = 0; p < s->plan->nnodes; p++)
		if (s->plan->nodes[p] == s->node)
			return true;
	return false;
}

static void end_those_on(struct node *n, uint32_t lost, bool all)
{
	for (uint32_t i = 0; i < ncomms; i++) {
		struct local_comm *s = &n->comms[i];
		bool concerned = all;
		for (uint32_t p = 0; p < s->plan->nnodes; p++)
			concerned |= s->plan->nodes[p] == lost;
		if (!s->begun || s->ended || !takes_part(s) || !concerned)
			continue;
		s->unled = true;
		give_up(s);
	}
}

static void report_one(uint32_t node, const struct launch_request *r)
{
	struct message *m = to_sequencer(node, GRANTED, r->n);
	m->more = true;
	memcpy(m->entries, r->entries, r->n * sizeof(r->entries[0]));
	for (uint32_t i = 0; i < r->n; i++)
		m->entries[i].record.number = r->grant;
	channel_send(m);
}

static void say_failed_before(const struct node *n)
{
	for (uint32_t i = 0; i < n->nfailed; i++) {
		struct message *w = to_sequencer((uint32_t)(n - nodes), WITHDRAW, 0);
		w->internode_id = n->failed[i].internode_id;
		w->key = n->failed[i].key;
		w->number = FAILED_BEFORE;
		w->note = n->failed[i].note;
		channel_send(w);
	}
}

/* To the next sequencer. */
static void say_again(struct node *n)
{
	const uint32_t node = (uint32_t)(n - nodes);
	const struct launch_request *r;
	say_failed_before(n);
	DL_FOREACH (n->granted, r)
		report_one(node, r);
	for (uint32_t i = n->first_order; i < n->norders; i++)
		report_one(node, n->orders[i]);
	DL_FOREACH (n->requests, r)
		if (!r->ordered)
			send_request(node, r);
	for (uint32_t i = 0; i < ncomms; i++) {
		const struct local_comm *s = &n->comms[i];
		const struct match *m;
		DL_FOREACH (s->matches, m) {
			const struct failed_note note = {.status = without_missing(&m->status)};
			if (m->vote == VOTE_FAILED && !m->known_failed)
				withdraw(m, NULL, &m->note);
			else if (m->asked && m->request)
				withdraw(m, m->request, &note);
		}
		if (s->over && (!s->ended || now_ns - s->ended_ns < EPOCH_CLOSE_NS))
			leave(s);
	}
	channel_send(to_sequencer(node, GRANTED, 0));
}

static void on_succession_overdue(void *arg)
{
	const struct waiting *w = arg;
	struct node *n = &nodes[w->node];
	if (!n->succession)
		return;
	fail("nobody succeeds the sequencer that node %u has lost", w->node);
	end_those_on(n, 0, true);
}

static void lose_sequencer(struct node *n, uint32_t lost)
{
	struct waiting *w = make(sizeof(*w));
	end_those_on(n, lost, false);
	say_again(n);
	n->succession = true;
	w->node = (uint32_t)(n - nodes);
	at(now_ns + NODE_ANSWER_NS, (int)w->node, on_succession_overdue, w);
}

void node_learn_loss(uint32_t node, uint32_t lost)
{
	struct node *n = &nodes[node];
	const bool led = sequencer_of(n) == lost;
	if (!n->alive)
		return;
	trace(node, "hears that node %u is lost", lost);
	n->lost[lost] = true;
	if (led)
		lose_sequencer(n, lost);
	sequencers_lose(node, lost, led && sequencer_of(n) == node);
	for (uint32_t i = 0; i < ncomms; i++) {
		struct local_comm *s = &n->comms[i];
		for (uint32_t p = 0; p < s->plan->nnodes; p++)
			if (s->plan->nodes[p] == lost && takes_part(s))
				program_end_comm(i);
		node_comm_look(s);
	}
	node_launch(n);
}

void nodes_begin(uint32_t count)
{
	sequencer_died = false;
	for (uint32_t k = 0; k < count; k++) {
		memset(&nodes[k], 0, sizeof(nodes[k]));
		nodes[k].alive = true;
	}
}

void nodes_end(void)
{
	for (uint32_t k = 0; k < nnodes; k++) {
		while (nodes[k].granted) {
			struct launch_request *r = nodes[k].granted;
			DL_DELETE(nodes[k].granted, r);
			free(r);
		}
		while (nodes[k].requests)
			request_forget(&nodes[k], nodes[k].requests);
		for (uint32_t i = 0; i < ncomms; i++) {
			struct local_comm *s = &nodes[k].comms[i];
			while (s->matches)
				match_forget(s->matches);
			while (s->nunexpected)
				free(s->unexpected[--s->nunexpected]);
		}
	}
}
