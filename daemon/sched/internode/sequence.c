/* SPDX-License-Identifier: Apache-2.0
 * Launches on GPUs of several nodes: this node's requests, and the answers of the sequencer
 * (coord/sequencer.h). */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/nofail.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "node_match.h"
#include "sched/queue/set.h"
#include "sequence.h"

#define FAILED_KEPT  256 /* per epoch */
/* Per message: */
#define GRANTS_SENT  (INTERNODE_EAGER_BYTES / sizeof(struct grant))
#define ENTRIES_SENT ((INTERNODE_EAGER_BYTES - 256) / sizeof(struct request_entry))

#define WITHDRAW_ALL (OPERATION_MAKE - 1) /* no more requests of the communicator follow */

/* To be launched together on this node. */
struct launch_request {
	struct launch_request *prev, *next;
	struct launch_request *prev_due, *next_due;
	uint64_t number;
	struct set_match *any;	    /* a match, or */
	struct creation *creation;  /* a creation */
	creation_launch_fn *launch; /* for a creation */
	bool ordered;
	uint64_t grant;
	uint32_t n;
	struct request_entry entries[];
};

struct failed_operation {
	struct failed_operation *prev, *next;
	struct operation_key key;
	struct failed_note note;
};

/* To the sequencer, with INTERNODE_WITHDRAW of an operation. (For a creation, key.seq is the
 * request's number; for the whole communicator, its nodes follow.) */
struct withdrawal {
	uint64_t number; /* of the request that it was in, or as sequencer_withdraw says */
	struct failed_note note;
	uint32_t nnodes, reserved;
	uint32_t nodes[CLUSTER_NODES_MAX]; /* the first nnodes are sent */
};

_Static_assert(sizeof(struct withdrawal) <= INTERNODE_BODY_MAX, "a withdrawal fits into a message");

struct sequence {
	struct launch_request *requests, *due; /* to the sequencer; and those that are due */
	uint64_t nrequests;		       /* so far */
	struct grant *granted;		       /* [tasks_max]: recent launches */
	uint64_t ngranted;		       /* so far */
	uint32_t lost;			       /* how many nodes with a sequencer were lost */
	uint64_t succession_due_ns;	       /* when the next one must continue; 0: it runs */
	struct sequencer *sequencer;	       /* on this node, if it must run the sequencer */
	uint64_t message_ns;		       /* when a node last sent it a message */
	struct internode_comm *ended;	       /* on GPUs, for EPOCH_CLOSE_NS */
};

static uint32_t sequencer_node(const struct scheduler *sched)
{
	uint32_t node = 0;
	while (node < sched->config.nodes - 1 && sched->internode->lost[node])
		node++;
	return node;
}

bool sequence_is_by(const struct scheduler *sched, uint32_t node)
{
	return sequencer_node(sched) == node;
}

uint32_t sequence_node_index(const struct scheduler *sched, const struct internode_comm *s)
{
	return internode_comm_node_index(s, (int)sequencer_node(sched));
}

static void say(struct scheduler *sched, const struct internode_header *h, const void *body)
{
	internode_comm_send_node(sched, sequencer_node(sched), h, body);
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
		const struct internode_header h = {.kind = INTERNODE_REQUEST,
						   .key = {.a = i + n < r->n, .seq = r->number},
						   .bytes = n * sizeof(r->entries[0])};
		say(sched, &h, r->entries + i);
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

/* The communicator is about to end, so no more requests of it follow. */
static bool all_open(const struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++) {
		const struct internode_comm *s = sched->sets->visited[i]->comm->internode;
		if (s && (s->left || s->unled || s->comm->internode_comm_failed))
			return false;
	}
	return true;
}

/* None of these is ever launched. */
static void refuse_visited(struct scheduler *sched, int result)
{
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		if (sched->sets->visited[i]->comm->internode)
			internode_comm_give_up(sched, sched->sets->visited[i]->comm, result,
					       UINT32_MAX);
}

void sequence_request(struct scheduler *sched, bool fits)
{
	uint32_t n = 0;
	if (!all_open(sched))
		return;
	for (uint32_t i = 0; i < sched->sets->nvisited; i++)
		n += speaks(sched->sets->visited[i]);
	if (!fits || n > REQUEST_ENTRIES_MAX) {
		refuse_visited(sched, NCCLSVC_LIMIT);
		return;
	}
	struct launch_request *r = calloc(1, sizeof(*r) + n * sizeof(r->entries[0]));
	if (!r) {
		refuse_visited(sched, NCCLSVC_NO_MEMORY);
		return;
	}
	r->any = sched->sets->visited[0]->match;
	for (uint32_t i = 0; i < sched->sets->nvisited; i++) {
		struct task *t = sched->sets->visited[i];
		t->match->request = r;
		if (!speaks(t))
			continue;
		node_match_entry(t->node_match, &r->entries[r->n++]);
		t->comm->internode->requested = true;
	}
	add_request(sched, r);
}

void sequence_request_creation(struct scheduler *sched, struct creation *k,
			       creation_launch_fn *launch)
{
	struct launch_request *r = nofail_calloc(1, sizeof(*r) + sizeof(r->entries[0]),
						 "a place in the order of launches");
	r->creation = k;
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
	struct withdrawal w = {.number = number, .note = *note};
	if (key->a < 0) {
		w.nnodes = s->nnodes;
		memcpy(w.nodes, s->nodes, s->nnodes * sizeof(w.nodes[0]));
	} else {
		w.nnodes = 2;
		w.nodes[0] = s->nodes[s->node_of[key->a]];
		w.nodes[1] = s->nodes[s->node_of[key->b]];
	}
	const struct internode_header h = {.kind = INTERNODE_WITHDRAW,
					   .internode_id = s->id,
					   .key = *key,
					   .bytes = offsetof(struct withdrawal, nodes) +
						    w.nnodes * sizeof(w.nodes[0])};
	say(sched, &h, &w);
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

static void forget_failed(struct internode_comm *s)
{
	struct failed_operation *oldest = s->failed;
	DL_DELETE(s->failed, oldest);
	s->nfailed--;
	free(oldest);
}

void sequence_remember_failed(struct internode_comm *s, const struct operation_key *key,
			      const struct failed_note *note)
{
	struct failed_operation *f = malloc(sizeof(*f));
	if (!f)
		return; /* nodes that were not told end their epoch */
	*f = (struct failed_operation){.key = *key, .note = *note};
	DL_APPEND(s->failed, f);
	if (++s->nfailed > FAILED_KEPT)
		forget_failed(s);
}

void sequence_void(struct scheduler *sched, struct launch_request *r)
{
	struct set_match *m;
	DL_FOREACH (sched->sets->matched, m)
		if (m->request == r) {
			m->request = NULL;
			set_look(sched, m); /* may be launched by another request */
		}
	sched->sets->changed = true;
	request_forget(sched, r);
}

void sequence_give_up(struct scheduler *sched, struct launch_request *r)
{
	for (uint32_t i = 0; i < r->n; i++) {
		struct internode_comm *s = NULL;
		if (!entry_makes(&r->entries[i]))
			HASH_FIND(hh, sched->internode->comms, &r->entries[i].internode_id,
				  sizeof(s->id), s);
		if (!s)
			continue;
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
		say(sched,
		    &(struct internode_header){.kind = INTERNODE_WITHDRAW,
					       .key = {.seq = r->number, .subop = OPERATION_MAKE}},
		    NULL);
	request_forget(sched, r);
}

bool sequence_next(const struct scheduler *sched, struct set_match **m)
{
	*m = sched->sequence->due ? sched->sequence->due->any : NULL;
	return sched->sequence->due;
}

bool sequence_launch_creation(struct scheduler *sched)
{
	return sched->sequence->due->launch(sched, sched->sequence->due->creation);
}

/* A successor of the sequencer asks for launches of this node that not all nodes have made yet.
 * Their tasks have not ended, so there are never more of them than there is room for tasks. */
void sequence_launched(struct scheduler *sched)
{
	struct launch_request *r = sched->sequence->due;
	for (uint32_t i = 0; i < r->n; i++)
		sched->sequence->granted[sched->sequence->ngranted++ % sched->config.tasks_max] =
			(struct grant){r->grant, r->entries[i].internode_id, r->entries[i].key};
	request_forget(sched, r);
}

/* ---- The end of an epoch ---- */

static bool names(const struct launch_request *r, uint64_t internode_id)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->entries[i].internode_id == internode_id && !entry_makes(&r->entries[i]))
			return true;
	return false;
}

void sequence_leave(struct scheduler *sched, const struct internode_comm *s)
{
	const struct internode_header h = {.kind = INTERNODE_WITHDRAW,
					   .internode_id = s->id,
					   .key = {.subop = WITHDRAW_ALL},
					   .bytes = s->nnodes * sizeof(s->nodes[0])};
	say(sched, &h, s->nodes);
}

static void internode_comm_forget(struct internode_comm *s)
{
	while (s->failed)
		forget_failed(s);
	free(s->nodes);
	free(s);
}

/* Other nodes had left it when it was closed, and do not wait longer for their own end. */
void sequence_ended(struct scheduler *sched, struct internode_comm *s)
{
	if (!s->left) {
		internode_comm_forget(s);
		return;
	}
	s->due_ns = sched->now + EPOCH_CLOSE_NS;
	DL_APPEND2(sched->sequence->ended, s, prev_ending, next_ending);
}

static void forget_ended(struct scheduler *sched)
{
	struct internode_comm *s = sched->sequence->ended;
	DL_DELETE2(sched->sequence->ended, s, prev_ending, next_ending);
	internode_comm_forget(s);
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

/* ---- Messages from the sequencer ---- */

/* The sequencer has dropped everything that names the communicator. */
static void be_closed(struct scheduler *sched, uint64_t id)
{
	struct launch_request *r, *next;
	struct internode_comm *s;
	HASH_FIND(hh, sched->internode->comms, &id, sizeof(id), s);
	if (s)
		s->closed = true;
	DL_FOREACH_SAFE (sched->sequence->requests, r, next)
		if (!r->ordered && names(r, id))
			sequence_void(sched, r);
}

static void be_ordered(struct scheduler *sched, uint64_t number, uint64_t grant)
{
	struct launch_request *r;
	DL_SEARCH_SCALAR(sched->sequence->requests, r, number, number);
	if (!r || r->ordered)
		return;
	sched->internode->committed--;
	r->ordered = true;
	r->grant = grant;
	DL_APPEND2(sched->sequence->due, r, prev_due, next_due);
	sched->sets->changed = true;
}

/* ---- Messages from this node's own sequencer ---- */

static void tell_launch(void *arg, uint32_t node, uint64_t number, uint64_t grant)
{
	struct scheduler *sched = arg;
	const struct internode_header h = {.kind = INTERNODE_LAUNCH,
					   .key = {.seq = number, .subop = grant}};
	if (!sched->internode->lost[node])
		internode_comm_send_node(sched, node, &h, NULL);
}

static void tell_failed(void *arg, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, const struct failed_note *note)
{
	const struct internode_header h = {.kind = INTERNODE_FAILED,
					   .internode_id = internode_id,
					   .key = *key,
					   .bytes = sizeof(*note)};
	internode_comm_send_node(arg, node, &h, note);
}

static void tell_ask(void *arg, uint32_t node, uint64_t internode_id,
		     const struct operation_key *key, const ncclsvc_status *why)
{
	const struct internode_header h = {.kind = INTERNODE_ASK,
					   .internode_id = internode_id,
					   .key = *key,
					   .bytes = sizeof(*why)};
	internode_comm_send_node(arg, node, &h, why);
}

static void tell_closed(void *arg, uint32_t node, uint64_t internode_id)
{
	internode_comm_send_node(
		arg, node,
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
	internode_comm_send_node(arg, node, &h, node_indexes);
}

static void tell_goes_on(void *arg, uint32_t node)
{
	const struct internode_header h = {.kind = INTERNODE_SUCCESSION,
					   .key = {.a = SUCCESSION_GOES_ON}};
	internode_comm_send_node(arg, node, &h, NULL);
}

const struct sequencer_ops sequence_ops = {
	.launch = tell_launch,
	.failed = tell_failed,
	.ask = tell_ask,
	.closed = tell_closed,
	.waiting = tell_waiting,
	.goes_on = tell_goes_on,
};

/* ---- Receiving ---- */

/* It no longer takes part in the communicator. */
static void take_leave(struct scheduler *sched, uint32_t from, const struct internode_header *h,
		       const char *body)
{
	uint32_t nodes[CLUSTER_NODES_MAX];
	if (!h->bytes || h->bytes > sizeof(nodes) || h->bytes % sizeof(nodes[0]))
		return;
	memcpy(nodes, body, h->bytes);
	sequencer_leave(sched->sequence->sequencer, from, h->internode_id, nodes,
			(uint32_t)(h->bytes / sizeof(nodes[0])));
}

static void take_withdrawal(struct scheduler *sched, uint32_t from,
			    const struct internode_header *h, const char *body)
{
	const size_t fixed = offsetof(struct withdrawal, nodes);
	struct withdrawal w;
	if (h->key.subop == OPERATION_MAKE) {
		sequencer_forget(sched->sequence->sequencer, from, h->key.seq);
		return;
	}
	if (h->key.subop == WITHDRAW_ALL) {
		take_leave(sched, from, h, body);
		return;
	}
	if (h->bytes < fixed || h->bytes > sizeof(w))
		return;
	memcpy(&w, body, h->bytes);
	if (h->bytes == fixed + w.nnodes * sizeof(w.nodes[0]))
		sequencer_withdraw(sched->sequence->sequencer, sched->now, from, h->internode_id,
				   &h->key, w.number, &w.note, w.nodes, w.nnodes);
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

static void take_succession(struct scheduler *sched, uint32_t from,
			    const struct internode_header *h, const char *body)
{
	struct grant grants[GRANTS_SENT];
	const uint64_t n = h->bytes / sizeof(grants[0]);
	if (n > GRANTS_SENT || h->bytes % sizeof(grants[0]))
		return;
	memcpy(grants, body, h->bytes);
	if (h->key.a == SUCCESSION_GRANTS)
		sequencer_report(sched->sequence->sequencer, from, grants, (uint32_t)n, true);
	else if (h->key.a == SUCCESSION_REPORTED)
		sequencer_report(sched->sequence->sequencer, from, NULL, 0, false);
	else if (h->key.a == SUCCESSION_GOES_ON)
		sched->sequence->succession_due_ns = 0;
}

void sequence_take_message(struct scheduler *sched, const struct internode_header *h,
			   const char *body, int node)
{
	const uint32_t from = (uint32_t)node;
	sched->sequence->message_ns = sched->now;
	switch (h->kind) {
	case INTERNODE_LAUNCH:
		be_ordered(sched, h->key.seq, h->key.subop);
		break;
	case INTERNODE_CLOSED:
		be_closed(sched, h->internode_id);
		break;
	case INTERNODE_REQUEST:
		take_request(sched, from, h, body);
		break;
	case INTERNODE_WITHDRAW:
		take_withdrawal(sched, from, h, body);
		break;
	case INTERNODE_SUCCESSION:
		take_succession(sched, from, h, body);
		break;
	}
}

/* ---- Loss of the sequencer ---- */

static void say_succession(struct scheduler *sched, enum succession_step step,
			   const struct grant *grants, uint32_t n)
{
	const struct internode_header h = {
		.kind = INTERNODE_SUCCESSION, .key = {.a = step}, .bytes = n * sizeof(*grants)};
	say(sched, &h, grants);
}

/* Sends recent launches, in as many messages as needed, and launches that are due. */
static void report(struct scheduler *sched)
{
	const uint64_t room = sched->config.tasks_max,
		       n = sched->sequence->ngranted < room ? sched->sequence->ngranted : room;
	const struct launch_request *r;
	for (uint64_t i = 0; i < n; i += GRANTS_SENT) {
		const uint64_t some = n - i < GRANTS_SENT ? n - i : GRANTS_SENT;
		say_succession(sched, SUCCESSION_GRANTS, sched->sequence->granted + i,
			       (uint32_t)some);
	}
	DL_FOREACH2 (sched->sequence->due, r, next_due)
		for (uint32_t i = 0; i < r->n; i++)
			say_succession(sched, SUCCESSION_GRANTS,
				       &(struct grant){r->grant, r->entries[i].internode_id,
						       r->entries[i].key},
				       1);
}

static void say_failed_before(struct scheduler *sched, const struct internode_comm *s)
{
	const struct failed_operation *f;
	DL_FOREACH (s->failed, f) {
		const struct withdrawal w = {.number = FAILED_BEFORE, .note = f->note};
		const struct internode_header h = {.kind = INTERNODE_WITHDRAW,
						   .internode_id = s->id,
						   .key = f->key,
						   .bytes = offsetof(struct withdrawal, nodes)};
		say(sched, &h, &w);
	}
}

/* Sends to the next sequencer. */
static void say_again(struct scheduler *sched)
{
	const struct launch_request *r;
	struct internode_comm *s, *next;
	DL_FOREACH (sched->sequence->requests, r)
		if (!r->ordered)
			send_request(sched, r);
	HASH_ITER (hh, sched->internode->comms, s, next) {
		if (!internode_comm_is_sequenced(s))
			continue;
		say_failed_before(sched, s);
		node_match_vote_again(sched, s);
		if (s->left)
			sequence_leave(sched, s);
	}
	DL_FOREACH2 (sched->sequence->ended, s, next_ending) {
		say_failed_before(sched, s);
		sequence_leave(sched, s);
	}
}

/* Epochs with members there end; the supervisor learns of the loss by itself, but perhaps later. */
static void end_those_on(struct scheduler *sched, uint32_t node, bool all)
{
	struct internode_comm *s, *next;
	HASH_ITER (hh, sched->internode->comms, s, next) {
		if (!internode_comm_is_sequenced(s) ||
		    (!all && internode_comm_node_index(s, (int)node) == UINT32_MAX))
			continue;
		s->unled = true;
		internode_comm_give_up_for(sched, s->comm, NCCLSVC_PEER_GONE, (int32_t)node);
	}
}

void sequence_node_lost(struct scheduler *sched, uint32_t node, bool led)
{
	sequencer_lose_node(sched->sequence->sequencer, node,
			    led && sequence_is_by(sched, sched->config.node));
	if (!led)
		return;
	end_those_on(sched, node, false);
	report(sched);
	say_again(sched);
	say_succession(sched, SUCCESSION_REPORTED, NULL, 0);
	sched->sequence->succession_due_ns = sched->now + NODE_ANSWER_NS;
	sched->sequence->lost = node;
}

void sequence_poll(struct scheduler *sched)
{
	sequencer_look(sched->sequence->sequencer, sched->now);
	while (sched->sequence->ended && sched->now >= sched->sequence->ended->due_ns)
		forget_ended(sched);
	if (!sched->sequence->succession_due_ns || sched->now < sched->sequence->succession_due_ns)
		return;
	sched->sequence->succession_due_ns = 0;
	end_those_on(sched, sched->sequence->lost, true);
}

bool sequence_init(struct scheduler *sched)
{
	const struct scheduler_config *c = &sched->config;
	struct sequence *s = calloc(1, sizeof(*s));
	sched->sequence = s;
	if (!s)
		return false;
	s->granted = c->carrier ? calloc(c->tasks_max, sizeof(*s->granted)) : NULL;
	s->sequencer = sequencer_create(&sequence_ops, sched, c->nodes + !c->nodes, !c->node);
	return s->sequencer && (s->granted || !c->carrier);
}

uint64_t sequence_bytes(const struct scheduler_config *config)
{
	return config->carrier ? config->tasks_max * sizeof(struct grant) : 0;
}

void sequence_finish(struct scheduler *sched)
{
	struct sequence *s = sched->sequence;
	if (!s)
		return;
	while (s->requests)
		request_forget(sched, s->requests);
	while (s->ended)
		forget_ended(sched);
	free(s->granted);
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
