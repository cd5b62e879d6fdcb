/* SPDX-License-Identifier: Apache-2.0
 * A node's handling of the sequencer's messages, and the begin and end of its communicators: models
 * daemon/sched/internode/node_match_messages.c, sequence.c and internode_comm.c. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "request.h"

struct node nodes[NODES_MAX];
bool sequencer_died;

bool comm_is_lost(uint32_t comm)
{
	for (uint32_t p = 0; p < comms[comm].nnodes; p++)
		if (sequencer_died && !nodes[comms[comm].nodes[p]].alive)
			return true;
	return false;
}

bool node_lives(int node)
{
	return nodes[node].alive;
}

/* ---- Messages from the sequencer ---- */

static void be_closed(struct node *n, uint64_t internode_id)
{
	struct launch_request *r, *next;
	for (uint32_t i = 0; i < ncomms; i++)
		if (n->comms[i].plan->id == internode_id)
			n->comms[i].closed = true;
	DL_FOREACH_SAFE (n->requests, r, next)
		if (!r->ordered && request_names(r, internode_id))
			request_void(n, r);
}

static void be_failed(struct match *m, const struct failed_note *note)
{
	ncclsvc_status st = note->status;
	check_failed(m->at->node, m, note);
	if (m->known_failed)
		return;
	if (m->key.a < 0 && mismatch_is_cause(&st))
		mismatch_status(&note->posted, m->at->plan->nranks, &st);
	m->status = st;
	m->known_failed = true;
	if (node_of(m)->nfailed < TASKS_MAX)
		node_of(m)->failed[node_of(m)->nfailed++] =
			(struct failed_operation){m->at->plan->id, m->key, *note};
	if (m->ntasks) {
		match_call_off(m);
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
		match_name_missing(m, &st);
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
		comm_give_up(s);
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
		request_ordered(n, h->number, h->grant);
	} else if (h->kind == GOES_ON) {
		n->succession = false;
	} else if (h->kind == CLOSED) {
		be_closed(n, h->internode_id);
		node_launch_ordered(n);
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
		if (request_names(n->orders[i], s->plan->id))
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
		fail("node %u ends communicator %u without the sequencer's command", s->node,
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
		comm_give_up(s);
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

/* Reports the node's whole state to the next sequencer. */
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
			const bool failed = m->vote == VOTE_FAILED && !m->known_failed;
			if (failed)
				send_withdraw(m, NULL, &m->note);
			if (failed && m->asked)
				send_wait_no_more(m);
			else if (m->asked && m->request)
				send_withdraw(m, m->request, &note);
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
	fail("no node succeeds the sequencer that node %u has lost", w->node);
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
