/* SPDX-License-Identifier: Apache-2.0
 * Communicators on several nodes: the location of their ranks, and the messages between engines. */
#include "internode_comm.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/nofail.h"
#include "base/timings.h"
#include "channel/mpi_api.h"
#include "deadlock.h"
#include "node_match.h"
#include "sched/release.h"
#include "sched/set.h"
#include "sequence.h"
#include "unexpected.h"

#define MESSAGES_PER_TURN 64
#define DONE_PER_TURN	  32
#define MESSAGE		  "a message to another node" /* without it, the nodes would permanently disagree */

struct message {
	struct flight flight; /* must come first */
	struct message *prev, *next;
	int node;
	size_t bytes;
	struct internode_header header;
	char body[];
};

/* ---- Start and end ---- */

/* Fills nodes (in the order of their first ranks), node_of, counts, first and ranks. */
static void lay_out(struct internode_comm *s, const struct epoch_member *members, uint32_t nranks,
		    uint32_t nodes_max)
{
	uint32_t *place = nofail_malloc(nodes_max * sizeof(*place), "an epoch's nodes");
	for (uint32_t i = 0; i < nodes_max; i++)
		place[i] = UINT32_MAX;
	for (uint32_t k = 0; k < nranks; k++) {
		uint32_t node = members[k].node;
		if (place[node] == UINT32_MAX) {
			place[node] = s->nnodes++;
			s->nodes[place[node]] = node;
		}
		s->node_of[k] = place[node];
		s->counts[place[node]]++;
	}
	for (uint32_t p = 0, at = 0; p < s->nnodes; at += s->counts[p++]) {
		s->first[p] = at;
		if (s->counts[p] > s->most)
			s->most = s->counts[p];
	}
	for (uint32_t p = 0, at = 0; p < s->nnodes; p++)
		for (uint32_t k = 0; k < nranks; k++)
			if (s->node_of[k] == p)
				s->ranks[at++] = k;
	free(place);
}

void internode_comm_create(struct engine *e, struct comm *c, const struct command *cmd)
{
	const uint32_t n = c->nranks;
	struct internode_comm *s = nofail_calloc(1, sizeof(*s), "an epoch's nodes");
	c->internode = s;
	s->comm = c;
	s->id = cmd->epoch_start.internode_id;
	s->nodes = nofail_calloc(n, sizeof(*s->nodes), "an epoch's nodes");
	s->counts = nofail_calloc(n, sizeof(*s->counts), "an epoch's nodes");
	s->first = nofail_calloc(n, sizeof(*s->first), "an epoch's nodes");
	s->ranks = nofail_calloc(n, sizeof(*s->ranks), "an epoch's nodes");
	s->node_of = nofail_calloc(n, sizeof(*s->node_of), "an epoch's nodes");
	lay_out(s, cmd->epoch_start.members, n, e->config.nodes);
	s->overs = nofail_calloc(s->nnodes, sizeof(*s->overs), "an epoch's nodes");
	s->me = internode_comm_place(s, (int)e->config.node);
	HASH_ADD(hh, e->internode_comms, id, sizeof(s->id), s);
}

static void free_credits(struct engine *e, struct internode_comm *s)
{
	struct credit *k, *next;
	DL_FOREACH_SAFE (s->credits, k, next) {
		internode_comm_refuse_credit(e, (int)s->nodes[k->node], k->note.tag);
		DL_DELETE(s->credits, k);
		free(k);
	}
}

void internode_comm_free(struct engine *e, struct comm *c)
{
	struct internode_comm *s = c->internode;
	struct node_match *j, *next;
	if (!s)
		return;
	free_credits(e, s);
	HASH_ITER (hh, s->matches, j, next)
		node_match_free(e, s, j);
	HASH_DEL(e->internode_comms, s);
	if (s->due_ns)
		DL_DELETE2(e->endings, s, prev_ending, next_ending);
	free(s->overs);
	free(s->counts);
	free(s->first);
	free(s->ranks);
	free(s->node_of);
	deadlock_free(s);
	free(s->sent);
	free(s->received);
	c->internode = NULL;
	sequence_ended(e, s);
}

/* A deadlock that this node has broken is the reason, even if another node has yet to answer. */
static const ncclsvc_status *end_of(const struct node_match *j)
{
	return j->asked && deadlock_is_cause(&j->status) ? &j->status : &j->comm->end;
}

void internode_comm_end_epoch(struct engine *e, struct comm *c)
{
	struct internode_comm *s = c->internode;
	struct node_match *j, *next;
	if (!s)
		return;
	HASH_ITER (hh, s->matches, j, next) {
		uint32_t n = j->key.a < 0 ? c->nranks : 2;
		for (uint32_t k = 0; j->tasks && k < n; k++) {
			struct task *t = j->tasks[k];
			if (!t)
				continue;
			node_match_release(e, t);
			release_end(e, t, end_of(j));
		}
		node_match_free(e, s, j);
	}
}

/* Have all surviving nodes sent OVER? Then all know the same set of agreed operations. */
static bool all_over(const struct engine *e, const struct internode_comm *s)
{
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (!s->overs[p] && !e->lost[s->nodes[p]])
			return false;
	return true;
}

bool internode_comm_is_here(const struct comm *c, int32_t rank)
{
	return !c->internode || c->internode->node_of[rank] == c->internode->me;
}

bool internode_comm_is_sequenced(const struct internode_comm *s)
{
	return s->comm->transport->flags & TRANSPORT_GROUPS;
}

static bool agreed(struct engine *e, struct internode_comm *s)
{
	return internode_comm_is_sequenced(s) ? !s->unled && sequence_closed(e, s) : all_over(e, s);
}

static void end_now(struct engine *e, struct internode_comm *s, bool in_order)
{
	s->due_ns = e->now + (in_order ? EPOCH_DRAIN_NS : 0);
	if (s->requested && !in_order)
		engine_event(e,
			     &(struct event){.kind = EVENT_EPOCH_DIRTY, .epoch = {s->comm->slot}});
	order_run_ready(e); /* members whose turn it is continue */
	release_epoch(e, s->comm, &s->end);
}

/* True: it has ended. */
static bool try_end(struct engine *e, struct internode_comm *s)
{
	bool in_order = agreed(e, s);
	bool hopeless = s->unled && sequence_closed(e, s);
	if (!in_order && !hopeless && e->now < s->due_ns)
		return false;
	end_now(e, s, in_order);
	return true;
}

bool internode_comm_begin_end(struct engine *e, struct comm *c, const ncclsvc_status *end)
{
	struct internode_comm *s = c->internode;
	if (!s)
		return false;
	if (s->over)
		return true;
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (p != s->me)
			internode_comm_send(e, s, p, INTERNODE_OVER,
					    &(struct operation_key){-1, -1, 0, 0}, "", 0, NULL, 0);
	if (internode_comm_is_sequenced(s)) {
		if (e->matched_new) /* matches found by now are requested first */
			set_launch(e);
		s->left = true;
		sequence_leave(e, s);
	}
	s->over = s->overs[s->me] = true;
	s->end = *end;
	c->end = *end;
	c->ending = true;
	s->due_ns = e->now + (internode_comm_is_sequenced(s) ? EPOCH_CLOSE_NS : EPOCH_OVER_NS);
	DL_APPEND2(e->endings, s, prev_ending, next_ending);
	try_end(e, s);
	return true;
}

static void break_off_flights(struct engine *e, struct internode_comm *s)
{
	if (s->comm->transport->break_off)
		s->comm->transport->break_off(e, s->comm, NULL);
}

/* Ends epochs that are due. */
static void check_endings(struct engine *e)
{
	struct internode_comm *s, *next;
	DL_FOREACH_SAFE2 (e->endings, s, next, next_ending) {
		if (!s->comm->ended)
			try_end(e, s);
		else if (s->comm->cleared < s->comm->nranks)
			release_epoch(e, s->comm, &s->end);
		else if (e->now >= s->due_ns)
			break_off_flights(e, s);
	}
}

uint32_t internode_comm_place(const struct internode_comm *s, int node)
{
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (s->nodes[p] == (uint32_t)node)
			return p;
	return UINT32_MAX;
}

void internode_comm_give_up_for(struct engine *e, struct comm *c, int result, int32_t node)
{
	if (c->internode_comm_failed || c->ended)
		return;
	c->internode_comm_failed = true;
	engine_event(e, &(struct event){.kind = EVENT_INTERNODE_FAILED,
					.internode = {c->slot, c->epoch, result, node}});
}

void internode_comm_give_up(struct engine *e, struct comm *c, int result, uint32_t place)
{
	internode_comm_give_up_for(e, c, result,
				   place == UINT32_MAX ? -1 : (int32_t)c->internode->nodes[place]);
}

/* ---- Sending ---- */

static void message_over(struct engine *e, struct flight *f, size_t bytes, bool failed)
{
	struct message *m = (struct message *)f;
	(void)bytes;
	(void)failed;
	DL_DELETE(e->messages, m);
	free(m);
}

/* A lost message is not missed for long: either its node is lost, or a deadline passes. */
static void keep_until_sent(struct engine *e, struct message *m, int sent)
{
	if (sent) { /* done, or not sent */
		free(m);
		return;
	}
	DL_APPEND(e->messages, m);
	e->flights++;
}

static void post_message(struct engine *e, struct message *m)
{
	table_count(&e->table.messages, 1);
	keep_until_sent(e, m, e->config.mpi->say(&m->header, m->bytes, m->node, m));
}

void internode_comm_send(struct engine *e, struct internode_comm *s, uint32_t place,
			 enum internode_kind kind, const struct operation_key *key,
			 const void *body, size_t bytes, const void *more, size_t more_bytes)
{
	struct message *m = nofail_malloc(sizeof(*m) + bytes + more_bytes, MESSAGE);
	m->flight.over = message_over;
	m->node = (int)s->nodes[place];
	m->bytes = sizeof(m->header) + bytes + more_bytes;
	m->header = (struct internode_header){.magic = INTERNODE_MAGIC,
					      .kind = (uint16_t)kind,
					      .internode_id = s->id,
					      .key = *key,
					      .bytes = bytes + more_bytes};
	memcpy(m->body, body, bytes);
	if (more_bytes)
		memcpy(m->body + bytes, more, more_bytes);
	post_message(e, m);
}

void internode_comm_send_node(struct engine *e, uint32_t node, const struct internode_header *h,
			      const void *body)
{
	struct message *m = nofail_malloc(sizeof(*m) + h->bytes, MESSAGE);
	m->flight.over = message_over;
	m->node = (int)node;
	m->bytes = sizeof(m->header) + h->bytes;
	m->header = *h;
	m->header.magic = INTERNODE_MAGIC;
	if (h->bytes)
		memcpy(m->body, body, h->bytes);
	if (node == e->config.node)
		DL_APPEND(e->own, m);
	else
		post_message(e, m);
}

void internode_comm_refuse_credit(struct engine *e, int node, int32_t tag)
{
	struct message *m = nofail_malloc(sizeof(*m), MESSAGE);
	m->flight.over = message_over;
	m->node = node;
	m->bytes = 0;
	table_count(&e->table.messages, 1);
	keep_until_sent(e, m, e->config.mpi->send(NULL, 0, node, tag, m));
}

/* ---- Receiving ---- */

bool internode_comm_all_left(const struct internode_comm *s, uint32_t place)
{
	for (uint32_t i = 0; i < s->counts[place]; i++)
		if (!s->comm->members[s->ranks[s->first[place] + i]].gone)
			return false;
	return true;
}

void internode_comm_dispatch(struct engine *e, const struct internode_header *h, const char *body,
			     int node)
{
	struct internode_comm *s;
	struct credit_note note;
	if (h->kind >= INTERNODE_REQUEST && h->kind <= INTERNODE_SUCCESSION) {
		sequence_take_message(e, h, body, node);
		return;
	}
	HASH_FIND(hh, e->internode_comms, &h->internode_id, sizeof(h->internode_id), s);
	if (h->kind == INTERNODE_CREDIT) {
		if (h->bytes != sizeof(note))
			return;
		memcpy(&note, body, sizeof(note));
		if (note.tag < MPI_TAG_DATA)
			return;
	}
	if (!s && unexpected_is_announced(e, h->internode_id)) {
		unexpected_keep(e, h, body, node);
		return;
	}
	uint32_t place = s ? internode_comm_place(s, node) : UINT32_MAX;
	if (h->kind == INTERNODE_CREDIT) {
		if (s && place != UINT32_MAX && s->comm->transport->credit)
			s->comm->transport->credit(e, s, place, &h->key, &note);
		else
			internode_comm_refuse_credit(e, node, note.tag);
		return;
	}
	const bool vote = h->kind == INTERNODE_FAILED || h->kind == INTERNODE_ASK ||
			  h->kind == INTERNODE_READY;
	if (s && vote && internode_comm_is_sequenced(s)) {
		if (!s->comm->ended && (sequence_is_by(e, (uint32_t)node) || !place))
			node_match_take_decision(e, s, h, body);
		return;
	}
	if (!s || place == UINT32_MAX || place == s->me)
		return;
	if (h->kind == INTERNODE_OVER) {
		s->overs[place] = true;
		if (internode_comm_is_sequenced(s) && !s->over &&
		    internode_comm_all_left(s, s->me)) /* nobody here will end it */
			internode_comm_give_up(e, s->comm, NCCLSVC_CANCELLED, UINT32_MAX);
		node_match_node_over(e, s->comm, place);
	}
	if (h->kind == INTERNODE_OVER || s->comm->ended)
		return;
	if (h->kind == INTERNODE_DEADLOCK)
		deadlock_take_message(e, s, place, body, h->bytes);
	else
		node_match_take_message(e, s, place, h, body);
}

static bool receive_own(struct engine *e)
{
	struct message *m;
	bool any = false;
	for (; (m = e->own); any = true) {
		DL_DELETE(e->own, m);
		internode_comm_dispatch(e, &m->header, m->body, m->node);
		free(m);
	}
	return any;
}

static bool receive(struct engine *e)
{
	struct internode_header h;
	const char *message;
	size_t bytes;
	int node, n = 0;
	for (; n < MESSAGES_PER_TURN && (message = e->config.mpi->hear(&bytes, &node)); n++) {
		if (!n)
			e->now = clock_now();
		if (bytes < sizeof(h) || e->lost[node])
			continue;
		memcpy(&h, message, sizeof(h));
		if (h.magic != INTERNODE_MAGIC || h.bytes != bytes - sizeof(h) ||
		    h.kind < INTERNODE_READY || h.kind >= INTERNODE_END)
			continue;
		internode_comm_dispatch(e, &h, message + sizeof(h), node);
	}
	return n > 0;
}

static bool collect(struct engine *e)
{
	struct mpi_done done[DONE_PER_TURN];
	unsigned n = e->flights ? e->config.mpi->poll(done, DONE_PER_TURN) : 0;
	for (unsigned i = 0; i < n; i++) {
		struct flight *f = done[i].cookie;
		e->flights--;
		f->over(e, f, done[i].bytes, done[i].failed);
	}
	return n > 0;
}

bool internode_comm_poll(struct engine *e)
{
	e->listened_ns = e->now;
	bool any = receive(e);
	any |= receive_own(e);
	any |= collect(e);
	if (e->unexpected)
		unexpected_expire(e);
	if (e->asked)
		node_match_expire(e);
	if (e->endings)
		check_endings(e);
	if (e->internode_comms)
		deadlock_look(e);
	sequence_poll(e);
	if (e->own)
		any = true;
	if (any)
		e->nodes_ns = e->now;
	return any;
}

uint64_t internode_comm_sleep_ns(struct engine *e)
{
	uint64_t quiet = e->now - e->nodes_ns, wished = e->now - e->sequenced_ns;
	const uint64_t nap = spin_nap_ns(e->now - e->busy_ns, SPIN_NAP_SHARE);
	if (e->own)
		return 0;
	/* Other nodes may wait for this node even if it does not wait for them. */
	if (sequencer_awaited(e->sequencer) && wished < NODES_QUIET_NS && !e->flights &&
	    !e->committed)
		return nap < NODES_NAP_NS ? nap : NODES_NAP_NS;
	/* Other nodes may still ask about epochs that have ended here. */
	if (!e->internode_comms && !e->flights && quiet > NODES_QUIET_NS &&
	    !sequencer_awaited(e->sequencer))
		return NODES_NAP_QUIET_NS;
	if (!e->flights && !e->ops && !e->committed && !e->endings)
		return NODES_NAP_IDLE_NS;
	return nap < NODES_NAP_NS ? nap : NODES_NAP_NS;
}

/* ---- A node is gone ---- */

static void lose_flights(struct engine *e, struct internode_comm *s, uint32_t place)
{
	if (s->comm->transport->node_lost)
		s->comm->transport->node_lost(e, s->comm, place);
}

void internode_comm_node_lost(struct engine *e, uint32_t node)
{
	struct internode_comm *s, *next_comm;
	struct message *m, *next;
	const bool led = sequence_is_by(e, node);
	e->lost[node] = true;
	DL_FOREACH_SAFE (e->messages, m, next) {
		if (m->node != (int)node)
			continue;
		e->config.mpi->drop(m);
		DL_DELETE(e->messages, m);
		e->flights--;
		/* MPI owns its memory forever. */
	}
	HASH_ITER (hh, e->internode_comms, s, next_comm) {
		uint32_t place = internode_comm_place(s, (int)node);
		if (place != UINT32_MAX)
			lose_flights(e, s, place);
	}
	unexpected_node_lost(e, node);
	sequence_node_lost(e, node, led);
}

void internode_comm_finish_all(struct engine *e)
{
	struct message *m, *next;
	unexpected_finish(e);
	DL_FOREACH_SAFE (e->messages, m, next) {
		DL_DELETE(e->messages, m);
		free(m);
	}
	while ((m = e->own)) {
		DL_DELETE(e->own, m);
		free(m);
	}
	sequence_finish(e);
	free(e->lost);
}
