/* SPDX-License-Identifier: Apache-2.0 */
#include "sequencer_state.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"

struct sequencer *sequencer_create(const struct sequencer_ops *ops, void *arg, uint32_t nodes,
				   bool active)
{
	struct sequencer *q = calloc(1, sizeof(*q) + nodes * sizeof(q->at[0]));
	if (!q)
		return NULL;
	q->ops = ops;
	q->arg = arg;
	q->nodes = nodes;
	q->active = active;
	return q;
}

/* ---- Internode communicators ---- */

static bool internode_comm_open(struct sequencer *q, uint64_t id)
{
	struct open_internode_comm *s;
	HASH_FIND(hh, q->internode_comms, &id, sizeof(id), s);
	if (s)
		return true;
	s = malloc(sizeof(*s));
	if (!s)
		return false;
	s->id = id;
	HASH_ADD(hh, q->internode_comms, id, sizeof(s->id), s);
	return true;
}

static void internode_comm_shut(struct sequencer *q, uint64_t id)
{
	struct open_internode_comm *s;
	HASH_FIND(hh, q->internode_comms, &id, sizeof(id), s);
	if (!s)
		return;
	HASH_DEL(q->internode_comms, s);
	free(s);
}

/* ---- Operations ---- */

struct operation *sequencer_find(const struct sequencer *q, uint64_t internode_id,
				 const struct operation_key *key)
{
	const struct operation_id id = {internode_id, *key};
	struct operation *o;
	HASH_FIND(hh, q->operations, &id, sizeof(id), o);
	return o;
}

/* Created if needed. NULL: no memory, or nodes disagree on how many take part. */
static struct operation *get(struct sequencer *q, uint64_t now_ns, uint64_t internode_id,
			     const struct operation_key *key, uint32_t nvoters)
{
	struct operation *o = sequencer_find(q, internode_id, key);
	if (o)
		return o->nvoters == nvoters ? o : NULL;
	o = calloc(1, sizeof(*o) + nvoters * sizeof(o->voters[0]));
	if (!o)
		return NULL;
	o->id = (struct operation_id){internode_id, *key};
	o->nvoters = nvoters;
	o->since_ns = now_ns;
	for (uint32_t i = 0; i < nvoters; i++)
		o->voters[i].node = UNKNOWN_NODE;
	HASH_ADD(hh, q->operations, id, sizeof(o->id), o);
	return o;
}

static void forget_operation(struct sequencer *q, struct operation *o)
{
	HASH_DEL(q->operations, o);
	for (uint32_t i = 0; i < o->nvoters; i++)
		free(o->voters[i].vote.failed);
	free(o);
}

static void ask(struct sequencer *q, struct operation *o, struct voter *p)
{
	if (!q->active || p->vote.kind || p->asked || p->node == UNKNOWN_NODE ||
	    q->at[p->node].lost)
		return;
	p->asked = true;
	q->ops->ask(q->arg, p->node, o->id.internode_id, &o->id.key, &o->why);
}

void sequencer_ask_all(struct sequencer *q, struct operation *o)
{
	for (uint32_t i = 0; i < o->nvoters; i++)
		ask(q, o, &o->voters[i]);
}

/* ---- Requests ---- */

static void unhook(struct sequencer *q, const struct request *r, const struct request_entry *at)
{
	struct operation *o = sequencer_find(q, at->internode_id, &at->key);
	for (uint32_t i = 0; o && i < o->nvoters; i++) {
		struct voter *p = &o->voters[i];
		if (p->request != r)
			continue;
		p->vote.kind = VOTE_NONE;
		p->asked = false;
		p->request = NULL;
		o->votes--;
		if (o->withdrawn) /* its vote does not count any more */
			ask(q, o, p);
	}
	if (o && !o->votes && !o->withdrawn)
		forget_operation(q, o);
}

static void forget_request(struct sequencer *q, struct request *r)
{
	HASH_DEL(q->requests, r);
	for (uint32_t i = 0; i < r->n && r->whole; i++)
		unhook(q, r, &r->entries[i]);
	free(r->entries);
	free(r);
}

static struct request *find_request(const struct sequencer *q, uint32_t node, uint64_t number)
{
	const struct request_key key = {node, number};
	struct request *r;
	HASH_FIND(hh, q->requests, &key, sizeof(key), r);
	return r;
}

/* ---- The end of an operation ---- */

/* Removes the operation; everything requested together with it must be requested again. */
void sequencer_fail(struct sequencer *q, struct operation *o, const struct failed_note *note)
{
	const struct operation_id id = o->id;
	for (uint32_t i = 0; i < o->nvoters; i++)
		if (o->voters[i].node != UNKNOWN_NODE && !q->at[o->voters[i].node].lost)
			q->ops->failed(q->arg, o->voters[i].node, id.internode_id, &id.key, note);
	o->withdrawn = false;
	for (uint32_t i = 0; i < o->nvoters; i++)
		if (o->voters[i].request) {
			o->votes++; /* keeps it alive beyond the request */
			forget_request(q, o->voters[i].request);
			o->votes--;
		}
	forget_operation(q, o);
}

/* All nodes are ready; do their records agree? */
static bool records_differ(const struct operation *o, const struct outcome *outcome,
			   ncclsvc_status *st)
{
	if (o->id.key.subop == OPERATION_MAKE)
		return false;
	*st = (ncclsvc_status){
		.result = NCCLSVC_MISMATCH, .rank_a = o->id.key.a, .rank_b = o->id.key.b};
	if (o->id.key.a < 0)
		return outcome->posted.nkinds > 1;
	st->field = svc_record_differs(&o->voters[0].vote.record, &o->voters[1].vote.record,
				       &st->value_a, &st->value_b);
	return st->field;
}

/* A deadline has passed, and no rank is missing: an operation connected to this one is. */
static ncclsvc_status failed_status(const struct operation *o, const struct outcome *outcome)
{
	ncclsvc_status st = outcome->failed ? outcome->status : o->why;
	if (st.result == NCCLSVC_TIMEOUT && !st.field && !st.missing_count && !st.done_ns)
		st.field = NCCLSVC_FIELD_GROUP;
	return st;
}

static void sum_up(const struct operation *o, struct outcome *outcome)
{
	*outcome = (struct outcome){0};
	for (uint32_t i = 0; i < o->nvoters; i++)
		outcome_add(outcome, &o->voters[i].vote);
}

bool sequencer_must_fail(const struct operation *o)
{
	struct outcome outcome;
	ncclsvc_status st;
	sum_up(o, &outcome);
	return outcome.failed || records_differ(o, &outcome, &st);
}

/* All have voted. True: it has failed. */
bool sequencer_conclude(struct sequencer *q, struct operation *o)
{
	struct failed_note note = {.node = -1};
	struct outcome outcome;
	sum_up(o, &outcome);
	if (outcome.failed || !records_differ(o, &outcome, &note.status)) {
		if (!outcome.failed && !o->withdrawn)
			return false;
		note.status = failed_status(o, &outcome);
	}
	note.posted = outcome.posted;
	sequencer_fail(q, o, &note);
	return true;
}

/* ---- Connected sets ---- */

/* Returns the first of all requests that must be launched with r; NULL: some are missing. */
static struct request *gather(struct sequencer *q, struct request *r)
{
	struct request *last = r;
	r->visit = ++q->visit;
	r->next = NULL;
	for (const struct request *at = r; at; at = at->next)
		for (uint32_t k = 0; k < at->n; k++) {
			struct operation *o =
				sequencer_find(q, at->entries[k].internode_id, &at->entries[k].key);
			if (!o || o->votes < o->nvoters)
				return NULL;
			for (uint32_t i = 0; i < o->nvoters; i++) {
				struct request *other = o->voters[i].request;
				if (!other)
					return NULL;
				if (other->visit == q->visit)
					continue;
				other->visit = q->visit;
				other->next = NULL;
				last->next = other;
				last = other;
			}
		}
	return r;
}

/* From now on, none of them can be taken back. */
static void keep(struct sequencer *q, const struct request *r)
{
	for (; r; r = r->next)
		for (uint32_t i = 0; i < r->n; i++)
			sequencer_find(q, r->entries[i].internode_id, &r->entries[i].key)
				->withdrawn = false;
}

static void launch(struct sequencer *q, struct request *r, uint64_t grant)
{
	q->ops->launch(q->arg, (uint32_t)r->key.node, r->key.number, grant);
	forget_request(q, r);
}

static int by_order(const struct request *a, const struct request *b)
{
	if (a->order != b->order)
		return a->order < b->order ? -1 : 1;
	return a->key.number < b->key.number ? -1 : a->key.number > b->key.number;
}

/* Each node uses the order in which its members have posted, as NCCL would in their processes. */
void sequencer_launch_all(struct sequencer *q, struct request *at, uint64_t grant)
{
	struct request *next;
	keep(q, at);
	LL_SORT(at, by_order);
	for (; at; at = next) {
		next = at->next;
		launch(q, at, grant);
	}
}

bool sequencer_try_launch(struct sequencer *q, struct request *r)
{
	struct request *at = gather(q, r);
	if (!at)
		return false;
	sequencer_launch_all(q, at, ++q->grants);
	return true;
}

/* ---- Messages from nodes ---- */

static void end_epoch(struct sequencer *q, uint32_t node, const struct operation_id *id, int result,
		      int32_t silent)
{
	const struct failed_note note = {
		.status = {.result = result}, .ends_epoch = true, .node = silent};
	if (!q->at[node].lost)
		q->ops->failed(q->arg, node, id->internode_id, &id->key, &note);
}

static bool is_valid(const struct sequencer *q, const struct request_entry *at)
{
	const bool pair = at->key.a >= 0;
	return at->nvoters && at->nvoters <= q->nodes &&
	       (entry_makes(at) || (at->place < at->nvoters && (!pair || at->nvoters == 2)));
}

/* False: no memory. */
static bool hook(struct sequencer *q, uint64_t now_ns, struct request *r,
		 const struct request_entry *at)
{
	struct operation *o = get(q, now_ns, at->internode_id, &at->key, at->nvoters);
	if (!o || (!entry_makes(at) && !internode_comm_open(q, at->internode_id)))
		return false;
	uint32_t place = at->place;
	for (place = entry_makes(at) ? 0 : place; entry_makes(at) && place < o->nvoters; place++)
		if (!o->voters[place].vote.kind)
			break;
	/* Another node has this place, or this node has voted before: the operation is never
	 * launched, and ends with its epoch. */
	if (place == o->nvoters || o->voters[place].vote.kind)
		return true;
	struct voter *p = &o->voters[place];
	p->vote = (struct vote){VOTE_READY, at->rank, at->count, at->record, NULL};
	p->node = (uint32_t)r->key.node;
	p->request = r;
	o->votes++;
	return true;
}

/* None of these can be launched: their epochs end. */
static void refuse_request(struct sequencer *q, struct request *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (!entry_makes(&r->entries[i]))
			end_epoch(q, (uint32_t)r->key.node,
				  &(struct operation_id){r->entries[i].internode_id,
							 r->entries[i].key},
				  NCCLSVC_NO_MEMORY, -1);
	forget_request(q, r);
}

static void take_request(struct sequencer *q, uint64_t now_ns, struct request *r)
{
	r->whole = true;
	for (uint32_t i = 0; i < r->n; i++)
		if (!hook(q, now_ns, r, &r->entries[i])) {
			refuse_request(q, r);
			return;
		}
	if (!q->active)
		return;
	for (uint32_t i = 0; i < r->n; i++) {
		struct operation *o =
			sequencer_find(q, r->entries[i].internode_id, &r->entries[i].key);
		if (o && o->votes == o->nvoters && sequencer_must_fail(o)) {
			sequencer_conclude(q, o);
			return; /* the request is void */
		}
	}
	if (sequencer_try_launch(q, r))
		return;
	/* Withdrawn operations that cannot be launched now fail. */
	for (uint32_t i = 0; i < r->n; i++) {
		struct operation *o =
			sequencer_find(q, r->entries[i].internode_id, &r->entries[i].key);
		if (o && o->votes == o->nvoters && o->withdrawn) {
			sequencer_conclude(q, o);
			return;
		}
	}
}

/* NULL: no memory. */
static struct request *get_request(struct sequencer *q, uint32_t node, uint64_t number)
{
	struct request *r = find_request(q, node, number);
	if (r)
		return r;
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->key = (struct request_key){node, number};
	HASH_ADD(hh, q->requests, key, sizeof(r->key), r);
	return r;
}

void sequencer_request(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t number,
		       bool more, const struct request_entry *entries, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!is_valid(q, &entries[i]))
			return;
	struct request *r = get_request(q, node, number);
	if (r && (r->whole || n > REQUEST_ENTRIES_MAX - r->n))
		return;
	struct request_entry *all = r ? realloc(r->entries, (r->n + n) * sizeof(*entries)) : NULL;
	if (!all) {
		for (uint32_t i = 0; i < n; i++)
			end_epoch(q, node,
				  &(struct operation_id){entries[i].internode_id, entries[i].key},
				  NCCLSVC_NO_MEMORY, -1);
		return;
	}
	r->entries = all;
	memcpy(r->entries + r->n, entries, n * sizeof(*entries));
	r->n += n;
	for (uint32_t i = 0; i < n; i++)
		if (!r->order || entries[i].order < r->order)
			r->order = entries[i].order;
	if (!more)
		take_request(q, now_ns, r);
}

void sequencer_withdraw(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, uint64_t number,
			const struct failed_note *note, const uint32_t *nodes, uint32_t n)
{
	uint32_t place = 0;
	while (place < n && nodes[place] != node)
		place++;
	for (uint32_t i = 0; i < n; i++)
		if (nodes[i] >= q->nodes)
			return;
	if (number == FAILED_BEFORE) {
		succession_keep_failure(q, &(struct operation_id){internode_id, *key}, note);
		return;
	}
	const bool spoke = number == WAITS_NO_MORE;
	struct operation *o = spoke ? sequencer_find(q, internode_id, key) : NULL;
	/* Its request was launched or has failed, and that message is on its way to it. */
	if (place == n || (spoke ? !o : number && !find_request(q, node, number)))
		return;
	if (!o)
		o = get(q, now_ns, internode_id, key, n);
	if (!o || !internode_comm_open(q, internode_id)) {
		end_epoch(q, node, &(struct operation_id){internode_id, *key}, NCCLSVC_NO_MEMORY,
			  -1);
		return;
	}
	struct voter *p = &o->voters[place];
	for (uint32_t i = 0; i < n; i++)
		o->voters[i].node = nodes[i];
	const bool votes = !p->vote.kind && !number;
	if (votes) {
		p->vote.failed = malloc(sizeof(*p->vote.failed));
		if (!p->vote.failed) {
			end_epoch(q, node, &o->id, NCCLSVC_NO_MEMORY, -1);
			return;
		}
		*p->vote.failed = *note;
		p->vote.kind = VOTE_FAILED;
		o->votes++;
	}
	const bool waits = votes && key->a < 0 && mismatch_is_cause(&note->status);
	if (!waits && !o->withdrawn) {
		o->withdrawn = true;
		o->why = note->status;
		o->due_ns = now_ns + NODE_ANSWER_NS;
	}
	if (!q->active)
		return;
	if (o->withdrawn)
		sequencer_ask_all(q, o);
	if (o->votes == o->nvoters)
		sequencer_conclude(q, o);
}

void sequencer_forget(struct sequencer *q, uint32_t node, uint64_t number)
{
	struct request *r = find_request(q, node, number);
	if (r)
		forget_request(q, r);
}

/* ---- Ends of communicators ---- */

static bool names(const struct request *r, uint64_t internode_id)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->entries[i].internode_id == internode_id && !entry_makes(&r->entries[i]))
			return true;
	return false;
}

static void forget_internode_comm(struct sequencer *q, uint64_t internode_id)
{
	struct request *r, *next;
	struct operation *o, *after;
	HASH_ITER (hh, q->requests, r, next)
		if (names(r, internode_id))
			forget_request(q, r);
	HASH_ITER (hh, q->operations, o, after)
		if (o->id.internode_id == internode_id && o->id.key.subop != OPERATION_MAKE)
			forget_operation(q, o);
	internode_comm_shut(q, internode_id);
}

static void close_internode_comm(struct sequencer *q, struct closing *c)
{
	forget_internode_comm(q, c->internode_id);
	DL_DELETE(q->closings, c);
	for (uint32_t i = 0; i < c->n; i++)
		if (!q->at[c->nodes[i].node].lost)
			q->ops->closed(q->arg, c->nodes[i].node, c->internode_id);
	free(c);
}

/* Have all surviving nodes left it? */
void sequencer_try_close(struct sequencer *q, struct closing *c)
{
	if (!q->active)
		return;
	for (uint32_t i = 0; i < c->n; i++)
		if (!c->nodes[i].left && !q->at[c->nodes[i].node].lost)
			return;
	close_internode_comm(q, c);
}

void sequencer_leave(struct sequencer *q, uint32_t node, uint64_t internode_id,
		     const uint32_t *nodes, uint32_t n)
{
	struct closing *c;
	for (uint32_t i = 0; i < n; i++)
		if (nodes[i] >= q->nodes)
			return;
	DL_SEARCH_SCALAR(q->closings, c, internode_id, internode_id);
	if (!c) {
		c = calloc(1, sizeof(*c) + n * sizeof(c->nodes[0]));
		if (!c)
			return; /* its nodes wait no longer than EPOCH_CLOSE_NS */
		c->internode_id = internode_id;
		c->n = n;
		for (uint32_t i = 0; i < n; i++)
			c->nodes[i].node = nodes[i];
		DL_APPEND(q->closings, c);
	}
	for (uint32_t i = 0; i < c->n; i++)
		if (c->nodes[i].node == node)
			c->nodes[i].left = true;
	sequencer_try_close(q, c);
}

void sequencer_lose_node(struct sequencer *q, uint32_t node, bool succeeds)
{
	struct request *r, *next;
	struct closing *c, *after;
	q->at[node].lost = true;
	q->succeeds |= succeeds;
	HASH_ITER (hh, q->requests, r, next)
		if (r->key.node == node)
			forget_request(q, r);
	DL_FOREACH_SAFE (q->closings, c, after)
		sequencer_try_close(q, c);
	succession_try(q);
}

/* ---- Periodic checks ---- */

static void show_waiting(struct sequencer *q, struct operation *o)
{
	uint32_t places[o->nvoters], n = 0;
	for (uint32_t i = 0; i < o->nvoters; i++)
		if (o->voters[i].vote.kind)
			places[n++] = i;
	for (uint32_t i = 0; i < n; i++)
		q->ops->waiting(q->arg, o->voters[places[i]].node, o->id.internode_id, &o->id.key,
				places, n);
	o->shown = o->votes;
}

static void end_overdue(struct sequencer *q, struct operation *o)
{
	int32_t silent = -1;
	for (uint32_t i = 0; i < o->nvoters && silent < 0; i++)
		if (!o->voters[i].vote.kind && o->voters[i].node != UNKNOWN_NODE)
			silent = (int32_t)o->voters[i].node;
	o->due_ns = 0;
	for (uint32_t i = 0; i < o->nvoters; i++)
		if (o->voters[i].node != UNKNOWN_NODE)
			end_epoch(q, o->voters[i].node, &o->id, NCCLSVC_TIMEOUT, silent);
}

/* A node that left a communicator and forgot it before the loss of a previous sequencer does not
 * report that again. The others wait no longer than EPOCH_CLOSE_NS, so no operation of the
 * communicator is launched. */
static void close_overdue(struct sequencer *q, uint64_t now_ns)
{
	struct closing *c, *next;
	DL_FOREACH_SAFE (q->closings, c, next) {
		if (!c->due_ns)
			c->due_ns = now_ns + EPOCH_CLOSE_NS;
		else if (now_ns >= c->due_ns)
			close_internode_comm(q, c);
	}
}

void sequencer_look(struct sequencer *q, uint64_t now_ns)
{
	struct operation *o, *next;
	if (!q->active || now_ns - q->looked_ns < SEQUENCER_LOOK_NS)
		return;
	q->looked_ns = now_ns;
	HASH_ITER (hh, q->operations, o, next) {
		if (o->due_ns && now_ns >= o->due_ns)
			end_overdue(q, o);
		else if (o->votes != o->shown && o->id.key.subop != OPERATION_MAKE &&
			 now_ns - o->since_ns >= SEQUENCER_LOOK_NS)
			show_waiting(q, o);
	}
	close_overdue(q, now_ns);
}

bool sequencer_awaited(const struct sequencer *q)
{
	return q->internode_comms;
}

void sequencer_free(struct sequencer *q)
{
	struct operation *o, *next;
	struct request *r, *after;
	if (!q)
		return;
	HASH_ITER (hh, q->operations, o, next)
		forget_operation(q, o);
	HASH_ITER (hh, q->requests, r, after)
		forget_request(q, r);
	while (q->internode_comms)
		internode_comm_shut(q, q->internode_comms->id);
	while (q->closings) {
		struct closing *c = q->closings;
		DL_DELETE(q->closings, c);
		free(c);
	}
	succession_free(q);
	free(q);
}
