/* SPDX-License-Identifier: Apache-2.0
 * Launches on GPUs of several nodes: this node's requests, the sequencers' answers, and the order
 * of launches (coord/sequencer.h). */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/nofail.h"
#include "base/timings.h"
#include "node_match.h"
#include "sched/base/task_state.h"
#include "sched/queue/set.h"
#include "sequence.h"

#define ENTRIES_SENT                                                                               \
	((INTERNODE_EAGER_BYTES - 256) / sizeof(struct request_entry)) /* per message */
#define WITHDRAW_ALL (OPERATION_MAKE - 1) /* no more requests of the communicator follow */

/* To be launched together on this node. */
struct launch_request {
	struct launch_request *prev, *next;
	struct launch_request *prev_due, *next_due;
	uint64_t number;
	uint32_t leader;	    /* the node whose sequencer it goes to */
	struct set_match *any;	    /* a match, or */
	struct creation *creation;  /* a creation */
	creation_launch_fn *launch; /* for a creation */
	uint64_t proposed; /* the time that this node has proposed; 0: none, or not any more */
	bool ordered;	   /* it is due, at: */
	struct launch_time at;
	uint32_t n;
	struct request_entry entries[];
};

/* To the sequencer, with INTERNODE_WITHDRAW of an operation. (For a creation, key.seq is the
 * request's number.) */
struct withdrawal {
	uint64_t number; /* of the request that it was in, or as sequencer_withdraw says */
	struct failed_note note;
};

_Static_assert(sizeof(struct withdrawal) <= INTERNODE_BODY_MAX, "a withdrawal fits into a message");

struct sequence {
	struct launch_request *requests, *due; /* all; and those that are due, by time */
	uint64_t nrequests;		       /* the last number */
	uint64_t clock;			       /* the latest time that this node knows of */
	struct sequencer *sequencer;	       /* of the communicators that this node leads */
	uint64_t message_ns;		       /* when a node last sent it a message */
};

static uint32_t leader_of(const struct internode_comm *s)
{
	return s->nodes[0];
}

static void say(struct scheduler *sched, uint32_t node, const struct internode_header *h,
		const void *body)
{
	if (!sched->internode->lost[node])
		internode_comm_send_node(sched, node, h, body);
}

/* ---- This node's requests ---- */

static void request_forget(struct scheduler *sched, struct launch_request *r)
{
	if (r->ordered)
		DL_DELETE2(sched->sequence->due, r, prev_due, next_due);
	else
		sched->internode->committed--;
	DL_DELETE(sched->sequence->requests, r);
	free(r->creation);
	free(r);
}

static void send_request(struct scheduler *sched, const struct launch_request *r)
{
	for (uint32_t i = 0; i < r->n; i += ENTRIES_SENT) {
		uint32_t n = r->n - i < ENTRIES_SENT ? r->n - i : ENTRIES_SENT;
		const struct internode_header h = {
			.kind = INTERNODE_REQUEST,
			.internode_id = r->entries[0].internode_id,
			.key = {.a = i + n < r->n,
				.seq = r->number,
				.subop = r->creation ? OPERATION_MAKE : 0},
			.bytes = n * sizeof(r->entries[0])};
		say(sched, r->leader, &h, r->entries + i);
	}
}

static void add_request(struct scheduler *sched, struct launch_request *r)
{
	r->number = ++sched->sequence->nrequests;
	sched->internode->committed++;
	DL_APPEND(sched->sequence->requests, r);
	send_request(sched, r);
}

/* Visits each match once. */
static bool speaks(const struct task *t)
{
	return t->node_match && t->match->tasks[0] == t;
}

/* False: the communicator is about to end, so no more requests of it follow. */
static bool is_open(const struct internode_comm *s)
{
	return !s->left && !s->closed && !s->unled && !s->comm->internode_comm_failed;
}

void sequence_request(struct scheduler *sched, bool fits)
{
	struct comm *c = sched->sets->visited[0]->comm;
	uint32_t n = 0;
	if (!is_open(c->internode))
		return;
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		n += speaks(sched->sets->visited[i]);
	if (!fits || n > REQUEST_ENTRIES_MAX) {
		internode_comm_give_up(sched, c, NCCLSVC_LIMIT, UINT32_MAX);
		return;
	}
	struct launch_request *r = calloc(1, sizeof(*r) + n * sizeof(r->entries[0]));
	if (!r) {
		internode_comm_give_up(sched, c, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	r->any = sched->sets->visited[0]->match;
	r->leader = leader_of(c->internode);
	c->internode->requested = true;
	for (uint32_t i = 0; i < sched->sets->nvisited; i++) {
		struct task *t = sched->sets->visited[i];
		t->match->request = r;
		t->requested = true;
		/* The next one need not wait for the answer. */
		member_make_ready(sched, member_of(t));
		if (speaks(t))
			node_match_entry(t->node_match, &r->entries[r->n++]);
	}
	add_request(sched, r);
}

void sequence_request_creation(struct scheduler *sched, struct creation *k,
			       creation_launch_fn *launch)
{
	struct launch_request *r = nofail_calloc(1, sizeof(*r) + sizeof(r->entries[0]),
						 "a place in the order of launches");
	r->creation = k;
	r->leader = k->leader;
	r->launch = launch;
	r->n = 1;
	r->entries[0] = (struct request_entry){
		.internode_id = k->nccl_id,
		.key = {.subop = OPERATION_MAKE},
		.nvoters = k->nnodes,
		.order = ++sched->sets->nmatched,
	};
	add_request(sched, r);
}

static void withdraw(struct scheduler *sched, const struct internode_comm *s,
		     const struct operation_key *key, uint64_t number,
		     const struct failed_note *note)
{
	const struct withdrawal w = {.number = number, .note = *note};
	const struct internode_header h = {
		.kind = INTERNODE_WITHDRAW, .internode_id = s->id, .key = *key, .bytes = sizeof(w)};
	say(sched, leader_of(s), &h, &w);
}

void sequence_withdraw(struct scheduler *sched, const struct internode_comm *s,
		       const struct operation_key *key, const struct launch_request *r,
		       const struct failed_note *note)
{
	withdraw(sched, s, key, r ? r->number : 0, note);
}

void sequence_wait_no_more(struct scheduler *sched, const struct internode_comm *s,
			   const struct operation_key *key, const struct failed_note *note)
{
	withdraw(sched, s, key, WAITS_NO_MORE, note);
}

void sequence_void(struct scheduler *sched, struct launch_request *r)
{
	struct set_match *m;
	DL_FOREACH (sched->sets->matched, m)
		if (m->request == r) {
			m->request = NULL;
			for (uint32_t i = 0; i < m->ntasks; i++)
				m->tasks[i]->requested = false;
			set_look(sched, m); /* may be launched by another request */
		}
	sched->sets->changed = true;
	request_forget(sched, r);
}

void sequence_give_up(struct scheduler *sched, struct launch_request *r)
{
	struct internode_comm *s;
	HASH_FIND(hh, sched->internode->comms, &r->entries[0].internode_id, sizeof(s->id), s);
	if (s) {
		s->unled = true;
		internode_comm_give_up(sched, s->comm, NCCLSVC_TIMEOUT, UINT32_MAX);
	}
	sequence_void(sched, r);
}

void sequence_cancel_creation(struct scheduler *sched, uint64_t number)
{
	struct launch_request *r;
	DL_FOREACH (sched->sequence->requests, r)
		if (r->creation && r->creation->number == number)
			break;
	if (!r)
		return;
	if (!r->ordered)
		say(sched, r->leader,
		    &(struct internode_header){.kind = INTERNODE_WITHDRAW,
					       .key = {.seq = r->number, .subop = OPERATION_MAKE}},
		    NULL);
	sched->sets->changed = true; /* others may have waited for its time */
	request_forget(sched, r);
}

/* A launch whose time is not known yet may come before this one. */
static bool is_preceded(const struct sequence *q, const struct launch_request *due)
{
	const struct launch_request *r;
	DL_FOREACH (q->requests, r)
		if (r->proposed && !r->ordered && r->proposed <= due->at.time)
			return true;
	return false;
}

bool sequence_next(const struct scheduler *sched, struct set_match **m)
{
	const struct launch_request *due = sched->sequence->due;
	*m = due ? due->any : NULL;
	return due && !is_preceded(sched->sequence, due);
}

bool sequence_launch_creation(struct scheduler *sched)
{
	return sched->sequence->due->launch(sched, sched->sequence->due->creation);
}

void sequence_launched(struct scheduler *sched)
{
	request_forget(sched, sched->sequence->due);
}

/* ---- The end of an epoch ---- */

static bool names(const struct launch_request *r, uint64_t internode_id)
{
	return !r->creation && r->entries[0].internode_id == internode_id;
}

void sequence_leave(struct scheduler *sched, const struct internode_comm *s)
{
	const struct internode_header h = {
		.kind = INTERNODE_WITHDRAW, .internode_id = s->id, .key = {.subop = WITHDRAW_ALL}};
	say(sched, leader_of(s), &h, NULL);
}

bool sequence_closed(const struct scheduler *sched, const struct internode_comm *s)
{
	const struct launch_request *r;
	DL_FOREACH2 (sched->sequence->due, r, next_due)
		if (names(r, s->id))
			return false; /* other nodes launch it, and so will this node */
	return s->closed;
}

bool sequence_was_closed(const struct comm *c)
{
	return c->internode->closed;
}

/* ---- Messages from sequencers ---- */

/* Its sequencer has dropped everything that names the communicator. */
static void be_closed(struct scheduler *sched, uint32_t from, uint64_t id)
{
	struct launch_request *r, *next;
	struct internode_comm *s;
	HASH_FIND(hh, sched->internode->comms, &id, sizeof(id), s);
	if (!s || leader_of(s) != from)
		return;
	s->closed = true;
	DL_FOREACH_SAFE (sched->sequence->requests, r, next)
		if (!r->ordered && names(r, id))
			sequence_void(sched, r);
}

/* NULL: it is void, already ordered, or led by another node. */
static struct launch_request *find(const struct scheduler *sched, uint32_t from, uint64_t number)
{
	struct launch_request *r;
	DL_SEARCH_SCALAR(sched->sequence->requests, r, number, number);
	return r && r->leader == from && !r->ordered ? r : NULL;
}

bool sequence_launches(const struct scheduler *sched)
{
	const struct launch_request *r;
	DL_FOREACH (sched->sequence->requests, r)
		if (r->proposed)
			return true;
	return false;
}

/* Proposes 0 if this node has given up the request, so that the others need not wait. */
static void be_prepared(struct scheduler *sched, uint32_t from, uint64_t number)
{
	struct launch_request *r = find(sched, from, number);
	/* It is left unanswered, so that no node launches it. Splits are answered, so that they
	 * complete. */
	if (sched->quiet && !(r && r->creation))
		return;
	if (r && !r->proposed)
		r->proposed = ++sched->sequence->clock;
	const struct internode_header h = {.kind = INTERNODE_PROPOSE,
					   .key = {.seq = number, .subop = r ? r->proposed : 0}};
	say(sched, from, &h, NULL);
}

static int by_time(const struct launch_request *a, const struct launch_request *b)
{
	const struct launch_time *x = &a->at, *y = &b->at;
	if (x->time != y->time)
		return x->time < y->time ? -1 : 1;
	if (x->internode_id != y->internode_id)
		return x->internode_id < y->internode_id ? -1 : 1;
	return x->set < y->set ? -1 : x->set > y->set;
}

/* Requests of one set stay in the order in which the sequencer tells this node of them. */
static void add_due(struct sequence *q, struct launch_request *r)
{
	struct launch_request *later = q->due;
	while (later && by_time(later, r) <= 0)
		later = later->next_due;
	if (!later) {
		DL_APPEND2(q->due, r, prev_due, next_due);
		return;
	}
	DL_PREPEND_ELEM2(q->due, later, r, prev_due, next_due);
}

static void be_ordered(struct scheduler *sched, uint32_t from, const struct internode_header *h,
		       const char *body)
{
	struct launch_request *r = find(sched, from, h->key.seq);
	struct launch_time at;
	if (h->bytes != sizeof(at))
		return;
	memcpy(&at, body, sizeof(at));
	if (at.time > sched->sequence->clock)
		sched->sequence->clock = at.time;
	sched->sets->changed = true; /* others may have waited for this time */
	if (!r)
		return;
	sched->internode->committed--;
	r->ordered = true;
	r->at = at;
	add_due(sched->sequence, r);
}

/* ---- Messages from this node's own sequencer ---- */

static void tell_prepare(void *arg, uint32_t node, uint64_t number)
{
	const struct internode_header h = {.kind = INTERNODE_PREPARE, .key = {.seq = number}};
	say(arg, node, &h, NULL);
}

static void tell_launch(void *arg, uint32_t node, uint64_t number, const struct launch_time *at)
{
	const struct internode_header h = {
		.kind = INTERNODE_LAUNCH, .key = {.seq = number}, .bytes = sizeof(*at)};
	say(arg, node, &h, at);
}

static void tell_failed(void *arg, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, const struct failed_note *note)
{
	const struct internode_header h = {.kind = INTERNODE_FAILED,
					   .internode_id = internode_id,
					   .key = *key,
					   .bytes = sizeof(*note)};
	say(arg, node, &h, note);
}

static void tell_ask(void *arg, uint32_t node, uint64_t internode_id,
		     const struct operation_key *key, const ncclsvc_status *why)
{
	const struct internode_header h = {.kind = INTERNODE_ASK,
					   .internode_id = internode_id,
					   .key = *key,
					   .bytes = sizeof(*why)};
	say(arg, node, &h, why);
}

static void tell_closed(void *arg, uint32_t node, uint64_t internode_id)
{
	say(arg, node,
	    &(struct internode_header){.kind = INTERNODE_CLOSED, .internode_id = internode_id},
	    NULL);
}

static void tell_waiting(void *arg, uint32_t node, uint64_t internode_id,
			 const struct operation_key *key, const uint32_t *node_indexes, uint32_t n)
{
	const struct internode_header h = {.kind = INTERNODE_READY,
					   .internode_id = internode_id,
					   .key = *key,
					   .bytes = n * sizeof(node_indexes[0])};
	say(arg, node, &h, node_indexes);
}

const struct sequencer_ops sequence_ops = {
	.prepare = tell_prepare,
	.launch = tell_launch,
	.failed = tell_failed,
	.ask = tell_ask,
	.closed = tell_closed,
	.waiting = tell_waiting,
};

/* ---- Receiving ---- */

static void take_withdrawal(struct scheduler *sched, uint32_t from,
			    const struct internode_header *h, const char *body)
{
	struct sequencer *q = sched->sequence->sequencer;
	struct withdrawal w;
	if (h->key.subop == OPERATION_MAKE) {
		sequencer_forget(q, from, h->key.seq);
	} else if (h->key.subop == WITHDRAW_ALL) {
		sequencer_leave(q, from, h->internode_id);
	} else if (h->bytes == sizeof(w)) {
		memcpy(&w, body, sizeof(w));
		sequencer_withdraw(q, sched->now, from, h->internode_id, &h->key, w.number,
				   &w.note);
	}
}

static void take_request(struct scheduler *sched, uint32_t from, const struct internode_header *h,
			 const char *body)
{
	struct request_entry entries[ENTRIES_SENT];
	const uint64_t n = h->bytes / sizeof(entries[0]);
	if (!n || n > ENTRIES_SENT || h->bytes % sizeof(entries[0]))
		return;
	memcpy(entries, body, h->bytes);
	sequencer_request(sched->sequence->sequencer, sched->now, from, h->key.seq, h->key.a,
			  entries, (uint32_t)n);
}

void sequence_take_message(struct scheduler *sched, const struct internode_header *h,
			   const char *body, int node)
{
	const uint32_t from = (uint32_t)node;
	sched->sequence->message_ns = sched->now;
	switch (h->kind) {
	case INTERNODE_PREPARE:
		be_prepared(sched, from, h->key.seq);
		break;
	case INTERNODE_LAUNCH:
		be_ordered(sched, from, h, body);
		break;
	case INTERNODE_CLOSED:
		be_closed(sched, from, h->internode_id);
		break;
	case INTERNODE_REQUEST:
		take_request(sched, from, h, body);
		break;
	case INTERNODE_PROPOSE:
		sequencer_propose(sched->sequence->sequencer, from, h->key.seq, h->key.subop);
		break;
	case INTERNODE_WITHDRAW:
		take_withdrawal(sched, from, h, body);
		break;
	}
}

/* ---- Loss of a node ---- */

/* The supervisor learns of the loss by itself, but perhaps later. */
static void be_unled(struct scheduler *sched, struct internode_comm *s)
{
	s->unled = true;
	internode_comm_give_up_for(sched, s->comm, NCCLSVC_PEER_GONE, (int32_t)leader_of(s));
	be_closed(sched, leader_of(s), s->id);
}

void sequence_begin(struct scheduler *sched, struct internode_comm *s)
{
	struct sequencer *q = sched->sequence->sequencer;
	if (!internode_comm_is_sequenced(s))
		return;
	if (s->me) {
		if (sched->internode->lost[leader_of(s)])
			be_unled(sched, s);
		return;
	}
	sequencer_lead(q, &(struct sequencer_comm){.internode_id = s->id,
						   .nnodes = s->nnodes,
						   .nranks = s->comm->nranks,
						   .nodes = s->nodes,
						   .node_of = s->node_of});
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (sched->internode->lost[s->nodes[p]])
			sequencer_lose_node(q, s->nodes[p]);
}

void sequence_node_lost(struct scheduler *sched, uint32_t node)
{
	struct launch_request *r;
	struct internode_comm *s, *next;
	sequencer_lose_node(sched->sequence->sequencer, node);
	HASH_ITER (hh, sched->internode->comms, s, next)
		if (internode_comm_is_sequenced(s) && leader_of(s) == node)
			be_unled(sched, s);
	DL_FOREACH (sched->sequence->requests, r)
		if (r->leader == node)
			r->proposed = 0; /* a creation, which is about to be cancelled */
	sched->sets->changed = true;
}

void sequence_poll(struct scheduler *sched)
{
	sequencer_look(sched->sequence->sequencer, sched->now);
}

bool sequence_init(struct scheduler *sched)
{
	struct sequence *s = calloc(1, sizeof(*s));
	sched->sequence = s;
	if (!s)
		return false;
	s->nrequests = clock_now(); /* numbers of this node's previous daemon are not used again */
	s->sequencer = sequencer_create(&sequence_ops, sched);
	return s->sequencer;
}

void sequence_finish(struct scheduler *sched)
{
	struct sequence *s = sched->sequence;
	if (!s)
		return;
	while (s->requests)
		request_forget(sched, s->requests);
	sequencer_free(s->sequencer);
	free(s);
}

bool sequence_awaited(const struct scheduler *sched)
{
	return sequencer_awaited(sched->sequence->sequencer);
}

uint64_t sequence_message_ns(const struct scheduler *sched)
{
	return sched->sequence->message_ns;
}
