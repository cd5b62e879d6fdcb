/* SPDX-License-Identifier: Apache-2.0 */
#include "sequencer.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/hash.h"
#include "base/nofail.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "vote.h"

struct request_key {
	uint64_t node, number;
};

/* One request of a node. */
struct request {
	struct request_key key;
	UT_hash_handle hh;
	struct request *next; /* in a connected set */
	struct set *set;      /* that is being launched; NULL: none yet */
	bool proposed;	      /* ... and the node has proposed its time */
	bool whole;	      /* all messages have come */
	uint64_t visit;
	uint64_t order; /* of its first entry */
	uint32_t n;
	struct request_entry *entries;
};

/* Requests of one communicator that are launched together, as soon as all nodes have proposed a
 * time. Until then, only the end of the communicator takes them back. */
struct set {
	struct request *requests;
	uint32_t waiting; /* requests without a proposal */
	struct launch_time at;
};

/* One node of an operation. */
struct voter {
	struct vote vote;
	bool asked;
	struct request *request;
};

struct operation_id {
	uint64_t internode_id;
	struct operation_key key;
};

/* An operation that has votes, or was withdrawn. */
struct operation {
	struct operation_id id;
	UT_hash_handle hh;
	struct led_comm *led; /* NULL: a creation */
	uint64_t since_ns;
	uint64_t due_ns; /* when the requested votes are due; 0: none were requested */
	bool withdrawn;	 /* a node wants it to fail, with this status: */
	ncclsvc_status why;
	uint32_t votes, shown; /* so far; and when waiting nodes were last told */
	uint32_t nvoters;
	struct voter voters[]; /* by place; of a pair: sender, receiver */
};

/* A communicator that this node leads. */
struct led_comm {
	uint64_t id;
	UT_hash_handle hh;
	bool closing;	 /* some nodes have left */
	uint64_t due_ns; /* then: when it is closed without the others; 0: not known yet */
	uint32_t nnodes, nranks;
	uint32_t *node_of; /* [nranks]: the place of the rank's node */
	struct led_node {
		uint32_t node;
		bool left, lost;
	} nodes[]; /* by place */
};

struct sequencer {
	const struct sequencer_ops *ops;
	void *arg;
	uint64_t visit, looked_ns;
	struct led_comm *led;
	struct request *requests;
	struct operation *operations;
	uint64_t sets; /* begun so far */
};

struct sequencer *sequencer_create(const struct sequencer_ops *ops, void *arg)
{
	struct sequencer *q = calloc(1, sizeof(*q));
	if (!q)
		return NULL;
	q->ops = ops;
	q->arg = arg;
	return q;
}

/* ---- Communicators ---- */

void sequencer_lead(struct sequencer *q, const struct sequencer_comm *c)
{
	struct led_comm *l = nofail_calloc(1, sizeof(*l) + c->nnodes * sizeof(l->nodes[0]),
					   "a communicator's nodes");
	l->id = c->internode_id;
	l->nnodes = c->nnodes;
	l->nranks = c->nranks;
	l->node_of = nofail_malloc(c->nranks * sizeof(*l->node_of), "a communicator's ranks");
	memcpy(l->node_of, c->node_of, c->nranks * sizeof(*l->node_of));
	for (uint32_t i = 0; i < c->nnodes; i++)
		l->nodes[i].node = c->nodes[i];
	HASH_ADD(hh, q->led, id, sizeof(l->id), l);
}

static struct led_comm *led_find(const struct sequencer *q, uint64_t id)
{
	struct led_comm *l;
	HASH_FIND(hh, q->led, &id, sizeof(id), l);
	return l;
}

static void led_free(struct sequencer *q, struct led_comm *l)
{
	HASH_DEL(q->led, l);
	free(l->node_of);
	free(l);
}

/* The node's place; nnodes: it has none. */
static uint32_t place_of(const struct led_comm *l, uint32_t node)
{
	uint32_t place = 0;
	while (place < l->nnodes && l->nodes[place].node != node)
		place++;
	return place;
}

/* Ranks of the communicator, on different nodes; or a collective. */
static bool key_valid(const struct led_comm *l, const struct operation_key *key)
{
	const int32_t n = (int32_t)l->nranks;
	if (key->a == -1 && key->b == -1)
		return true;
	return key->a >= 0 && key->a < n && key->b >= 0 && key->b < n &&
	       l->node_of[key->a] != l->node_of[key->b];
}

/* The node's index among the operation's voters; UINT32_MAX: it has none. */
static uint32_t voter_of(const struct led_comm *l, const struct operation_key *key, uint32_t node)
{
	const uint32_t place = place_of(l, node);
	if (place == l->nnodes)
		return UINT32_MAX;
	if (key->a < 0)
		return place;
	return l->node_of[key->a] == place ? 0 : l->node_of[key->b] == place ? 1 : UINT32_MAX;
}

/* ---- Operations ---- */

static struct operation *find(const struct sequencer *q, uint64_t internode_id,
			      const struct operation_key *key)
{
	const struct operation_id id = {internode_id, *key};
	struct operation *o;
	HASH_FIND(hh, q->operations, &id, sizeof(id), o);
	return o;
}

/* Created if needed. NULL: no memory, or nodes disagree on how many take part in a creation. */
static struct operation *get(struct sequencer *q, uint64_t now_ns, struct led_comm *l,
			     uint64_t internode_id, const struct operation_key *key,
			     uint32_t nvoters)
{
	struct operation *o = find(q, internode_id, key);
	if (o)
		return o->nvoters == nvoters ? o : NULL;
	o = calloc(1, sizeof(*o) + nvoters * sizeof(o->voters[0]));
	if (!o)
		return NULL;
	o->id = (struct operation_id){internode_id, *key};
	o->led = l;
	o->nvoters = nvoters;
	o->since_ns = now_ns;
	HASH_ADD(hh, q->operations, id, sizeof(o->id), o);
	return o;
}

static uint32_t nvoters_of(const struct led_comm *l, const struct operation_key *key)
{
	return key->a < 0 ? l->nnodes : 2;
}

static void forget_operation(struct sequencer *q, struct operation *o)
{
	HASH_DEL(q->operations, o);
	for (uint32_t i = 0; i < o->nvoters; i++)
		free(o->voters[i].vote.failed);
	free(o);
}

/* The voter's node. */
static const struct led_node *node_of_voter(const struct operation *o, uint32_t voter)
{
	const struct operation_key *key = &o->id.key;
	if (key->a < 0)
		return &o->led->nodes[voter];
	return &o->led->nodes[o->led->node_of[voter ? key->b : key->a]];
}

static void ask(struct sequencer *q, struct operation *o, uint32_t voter)
{
	struct voter *p = &o->voters[voter];
	const struct led_node *at = node_of_voter(o, voter);
	if (p->vote.kind || p->asked || at->lost)
		return;
	p->asked = true;
	q->ops->ask(q->arg, at->node, o->id.internode_id, &o->id.key, &o->why);
}

/* Asks all nodes that have not voted. */
static void ask_all(struct sequencer *q, struct operation *o)
{
	for (uint32_t i = 0; i < o->nvoters; i++)
		ask(q, o, i);
}

/* ---- Requests ---- */

static void unhook(struct sequencer *q, const struct request *r, const struct request_entry *at)
{
	struct operation *o = find(q, at->internode_id, &at->key);
	for (uint32_t i = 0; o && i < o->nvoters; i++) {
		struct voter *p = &o->voters[i];
		if (p->request != r)
			continue;
		p->vote.kind = VOTE_NONE;
		p->asked = false;
		p->request = NULL;
		o->votes--;
		if (o->withdrawn) /* its vote does not count any more */
			ask(q, o, i);
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
static void fail(struct sequencer *q, struct operation *o, const struct failed_note *note)
{
	const struct operation_id id = o->id;
	for (uint32_t i = 0; i < o->nvoters; i++)
		if (!node_of_voter(o, i)->lost)
			q->ops->failed(q->arg, node_of_voter(o, i)->node, id.internode_id, &id.key,
				       note);
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

/* All have voted. True: it may never be launched, even if it was withdrawn. */
static bool must_fail(const struct operation *o)
{
	struct outcome outcome;
	ncclsvc_status st;
	sum_up(o, &outcome);
	return outcome.failed || records_differ(o, &outcome, &st);
}

/* All have voted. True: it has failed. */
static bool conclude(struct sequencer *q, struct operation *o)
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
	fail(q, o, &note);
	return true;
}

/* ---- Connected sets ---- */

static bool is_single_collective(const struct request *r)
{
	return r->n == 1 && r->entries[0].key.a < 0;
}

/* One node asks for several collectives that another one has grouped. NCCL might run them in
 * different ways there, so they wait until a deadline passes, as in one node. */
static bool groups_differ(const struct request *all)
{
	const struct request *a, *b;
	bool any = false;
	LL_FOREACH (all, a)
		any = any || a->n > 1;
	if (!any)
		return false;
	LL_FOREACH (all, a)
		for (b = is_single_collective(a) ? a->next : NULL; b; b = b->next)
			if (is_single_collective(b) && b->key.node == a->key.node)
				return true;
	return false;
}

/* Returns the first of all requests that must be launched with r; NULL: some are missing. */
static struct request *gather(struct sequencer *q, struct request *r)
{
	struct request *last = r;
	r->visit = ++q->visit;
	r->next = NULL;
	for (const struct request *at = r; at; at = at->next)
		for (uint32_t k = 0; k < at->n; k++) {
			struct operation *o =
				find(q, at->entries[k].internode_id, &at->entries[k].key);
			if (!o || o->votes < o->nvoters)
				return NULL;
			for (uint32_t i = 0; i < o->nvoters; i++) {
				struct request *other = o->voters[i].request;
				if (!other || other->set)
					return NULL;
				if (other->visit == q->visit)
					continue;
				other->visit = q->visit;
				other->next = NULL;
				last->next = other;
				last = other;
			}
		}
	return groups_differ(r) ? NULL : r;
}

static int by_order(const struct request *a, const struct request *b)
{
	if (a->order != b->order)
		return a->order < b->order ? -1 : 1;
	return a->key.number < b->key.number ? -1 : a->key.number > b->key.number;
}

/* Each node launches in the order in which its members have posted, as NCCL would in their
 * processes. */
static void launch(struct sequencer *q, struct set *set)
{
	struct request *r, *next;
	LL_SORT(set->requests, by_order);
	for (r = set->requests; r; r = next) {
		next = r->next;
		q->ops->launch(q->arg, (uint32_t)r->key.node, r->key.number, &set->at);
		forget_request(q, r);
	}
	free(set);
}

/* Counts a node's proposal. */
static void take_time(struct sequencer *q, struct request *r, uint64_t time)
{
	struct set *set = r->set;
	if (r->proposed)
		return;
	r->proposed = true;
	if (time > set->at.time)
		set->at.time = time;
	if (!--set->waiting)
		launch(q, set);
}

static void end_epoch(struct sequencer *q, uint32_t node, const struct operation_id *id, int result,
		      int32_t silent)
{
	const struct failed_note note = {
		.status = {.result = result}, .ends_epoch = true, .node = silent};
	q->ops->failed(q->arg, node, id->internode_id, &id->key, &note);
}

/* Ends the epoch on the request's node; nothing waits for a creation. */
static void end_epoch_of(struct sequencer *q, uint32_t node, const struct request_entry *at)
{
	if (!entry_makes(at))
		end_epoch(q, node, &(struct operation_id){at->internode_id, at->key},
			  NCCLSVC_NO_MEMORY, -1);
}

/* Begins to launch it with the set connected to it. False: part of that set is missing, or there is
 * no memory, and the epoch ends. */
static bool try_launch(struct sequencer *q, struct request *r)
{
	struct request *all = gather(q, r);
	struct set *set = all ? malloc(sizeof(*set)) : NULL;
	for (; all && !set; all = all->next)
		end_epoch_of(q, (uint32_t)all->key.node, &all->entries[0]);
	if (!set)
		return false;
	const struct request_entry *first = &r->entries[0];
	*set = (struct set){.requests = all,
			    .at = {.internode_id = first->internode_id, .set = ++q->sets}};
	for (r = all; r; r = r->next) {
		r->set = set;
		set->waiting++;
		for (uint32_t i = 0; i < r->n; i++)
			find(q, r->entries[i].internode_id, &r->entries[i].key)->withdrawn = false;
	}
	for (r = all; r; r = r->next)
		q->ops->prepare(q->arg, (uint32_t)r->key.node, r->key.number);
	return true;
}

/* Its requests are no longer launched together. */
static void drop_set(struct set *set)
{
	struct request *r;
	LL_FOREACH (set->requests, r)
		r->set = NULL;
	free(set);
}

/* Is it being launched? */
static bool is_under_way(const struct operation *o)
{
	return o->voters[0].request && o->voters[0].request->set;
}

/* ---- Messages from nodes ---- */

/* Creations are requested one by one; other entries are all of one communicator that this node
 * leads. */
static bool are_valid(const struct sequencer *q, uint32_t node, const struct request *r,
		      const struct request_entry *entries, uint32_t n)
{
	const struct request_entry *first = r && r->n ? &r->entries[0] : &entries[0];
	if (entry_makes(first))
		return n == 1 && first == entries && first->nvoters &&
		       first->nvoters <= CLUSTER_NODES_MAX;
	const struct led_comm *l = led_find(q, first->internode_id);
	for (uint32_t i = 0; l && i < n; i++)
		if (entries[i].internode_id != first->internode_id || entry_makes(&entries[i]) ||
		    !key_valid(l, &entries[i].key) ||
		    voter_of(l, &entries[i].key, node) == UINT32_MAX)
			return false;
	return l;
}

/* False: no memory. */
static bool hook(struct sequencer *q, uint64_t now_ns, struct request *r,
		 const struct request_entry *at)
{
	struct led_comm *l = entry_makes(at) ? NULL : led_find(q, at->internode_id);
	const uint32_t node = (uint32_t)r->key.node;
	struct operation *o = get(q, now_ns, l, at->internode_id, &at->key,
				  l ? nvoters_of(l, &at->key) : at->nvoters);
	if (!o)
		return false;
	uint32_t voter = l ? voter_of(l, &at->key, node) : 0;
	while (!l && voter < o->nvoters && o->voters[voter].request &&
	       o->voters[voter].request->key.node != node)
		voter++;
	if (voter == o->nvoters || o->voters[voter].vote.kind)
		return true; /* the node has voted before, and this request is never launched */
	struct voter *p = &o->voters[voter];
	p->vote = (struct vote){VOTE_READY, at->rank, at->count, at->record, NULL};
	p->request = r;
	o->votes++;
	return true;
}

/* None of these can be launched: their epochs end. */
static void refuse_request(struct sequencer *q, struct request *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		end_epoch_of(q, (uint32_t)r->key.node, &r->entries[i]);
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
	for (uint32_t i = 0; i < r->n; i++) {
		struct operation *o = find(q, r->entries[i].internode_id, &r->entries[i].key);
		if (o && o->votes == o->nvoters && must_fail(o)) {
			conclude(q, o);
			return; /* the request is void */
		}
	}
	if (try_launch(q, r))
		return;
	/* Withdrawn operations that cannot be launched now fail. */
	for (uint32_t i = 0; i < r->n; i++) {
		struct operation *o = find(q, r->entries[i].internode_id, &r->entries[i].key);
		if (o && o->votes == o->nvoters && o->withdrawn) {
			conclude(q, o);
			return;
		}
	}
}

/* NULL: no memory. */
static struct request *new_request(struct sequencer *q, uint32_t node, uint64_t number)
{
	struct request *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->key = (struct request_key){node, number};
	HASH_ADD(hh, q->requests, key, sizeof(r->key), r);
	return r;
}

void sequencer_request(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t number,
		       bool more, const struct request_entry *entries, uint32_t n)
{
	struct request *r = find_request(q, node, number);
	if (!n || !are_valid(q, node, r, entries, n) ||
	    (r && (r->whole || n > REQUEST_ENTRIES_MAX - r->n)))
		return;
	r = r ? r : new_request(q, node, number);
	struct request_entry *all = r ? realloc(r->entries, (r->n + n) * sizeof(*entries)) : NULL;
	if (!all) {
		for (uint32_t i = 0; i < n; i++)
			end_epoch_of(q, node, &entries[i]);
		if (r)
			forget_request(q, r);
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

void sequencer_propose(struct sequencer *q, uint32_t node, uint64_t number, uint64_t time)
{
	struct request *r = find_request(q, node, number);
	if (r && r->set)
		take_time(q, r, time);
}

void sequencer_withdraw(struct sequencer *q, uint64_t now_ns, uint32_t node, uint64_t internode_id,
			const struct operation_key *key, uint64_t number,
			const struct failed_note *note)
{
	struct led_comm *l = led_find(q, internode_id);
	if (!l || !key_valid(l, key) || voter_of(l, key, node) == UINT32_MAX)
		return;
	const bool spoke = number == WAITS_NO_MORE;
	struct operation *o = find(q, internode_id, key);
	if (o && is_under_way(o) && !o->due_ns)
		o->due_ns = now_ns + NODE_ANSWER_NS; /* for the proposals */
	/* The node's request is being launched, or was launched or has failed, and the node will
	 * learn of it. */
	if (spoke ? !o : (number && !find_request(q, node, number)) || (o && is_under_way(o)))
		return;
	if (!o)
		o = get(q, now_ns, l, internode_id, key, nvoters_of(l, key));
	if (!o) {
		end_epoch(q, node, &(struct operation_id){internode_id, *key}, NCCLSVC_NO_MEMORY,
			  -1);
		return;
	}
	struct voter *p = &o->voters[voter_of(l, key, node)];
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
	if (o->withdrawn)
		ask_all(q, o);
	if (o->votes == o->nvoters)
		conclude(q, o);
}

void sequencer_forget(struct sequencer *q, uint32_t node, uint64_t number)
{
	struct request *r = find_request(q, node, number);
	if (r && !r->set)
		forget_request(q, r);
}

/* ---- Ends of communicators ---- */

static bool names(const struct request *r, const struct led_comm *l)
{
	return r->n && r->entries[0].internode_id == l->id && !entry_makes(&r->entries[0]);
}

/* No node has been told to launch the sets that wait for proposals, so none launches them. */
static void close_now(struct sequencer *q, struct led_comm *l)
{
	struct request *r, *next;
	struct operation *o, *after;
	HASH_ITER (hh, q->operations, o, after)
		if (o->led == l)
			forget_operation(q, o);
	HASH_ITER (hh, q->requests, r, next) {
		if (!names(r, l))
			continue;
		if (r->set)
			drop_set(r->set);
		forget_request(q, r);
	}
	for (uint32_t i = 0; i < l->nnodes; i++)
		if (!l->nodes[i].lost)
			q->ops->closed(q->arg, l->nodes[i].node, l->id);
	led_free(q, l);
}

/* Have all surviving nodes left it? */
static void try_close(struct sequencer *q, struct led_comm *l)
{
	for (uint32_t i = 0; i < l->nnodes; i++)
		if (!l->nodes[i].left && !l->nodes[i].lost)
			return;
	close_now(q, l);
}

void sequencer_leave(struct sequencer *q, uint32_t node, uint64_t internode_id)
{
	struct led_comm *l = led_find(q, internode_id);
	const uint32_t place = l ? place_of(l, node) : 0;
	if (!l || place == l->nnodes)
		return;
	l->nodes[place].left = true;
	l->closing = true;
	try_close(q, l);
}

/* A request that is being launched, for which the node has not proposed a time; NULL: none. */
static struct request *unanswered(const struct sequencer *q, uint32_t node)
{
	struct request *r = q->requests;
	while (r && (r->key.node != node || !r->set || r->proposed))
		r = r->hh.next;
	return r;
}

void sequencer_lose_node(struct sequencer *q, uint32_t node)
{
	struct request *r, *next;
	struct led_comm *l, *after;
	HASH_ITER (hh, q->led, l, after)
		if (place_of(l, node) < l->nnodes)
			l->nodes[place_of(l, node)].lost = true;
	HASH_ITER (hh, q->requests, r, next)
		if (r->key.node == node && !r->set)
			forget_request(q, r);
	while ((r = unanswered(q, node))) /* the others do not wait for its time */
		take_time(q, r, 0);
	HASH_ITER (hh, q->led, l, after)
		try_close(q, l);
}

/* ---- Periodic checks ---- */

static void show_waiting(struct sequencer *q, struct operation *o)
{
	uint32_t places[o->nvoters], n = 0;
	for (uint32_t i = 0; i < o->nvoters; i++)
		if (o->voters[i].vote.kind)
			places[n++] = i;
	for (uint32_t i = 0; i < n; i++)
		q->ops->waiting(q->arg, node_of_voter(o, places[i])->node, o->id.internode_id,
				&o->id.key, places, n);
	o->shown = o->votes;
}

static void end_overdue(struct sequencer *q, struct operation *o)
{
	int32_t silent = -1;
	for (uint32_t i = 0; i < o->nvoters && silent < 0; i++)
		if (!o->voters[i].vote.kind || (is_under_way(o) && !o->voters[i].request->proposed))
			silent = (int32_t)(node_of_voter(o, i) - o->led->nodes);
	o->due_ns = 0;
	for (uint32_t i = 0; i < o->nvoters; i++)
		if (!node_of_voter(o, i)->lost)
			end_epoch(q, node_of_voter(o, i)->node, &o->id, NCCLSVC_TIMEOUT, silent);
}

/* A node that lost its connection to this one for a moment might not leave at all. */
static void close_overdue(struct sequencer *q, uint64_t now_ns)
{
	struct led_comm *l, *next;
	HASH_ITER (hh, q->led, l, next) {
		if (!l->closing)
			continue;
		if (!l->due_ns)
			l->due_ns = now_ns + EPOCH_CLOSE_NS;
		else if (now_ns >= l->due_ns)
			close_now(q, l);
	}
}

void sequencer_look(struct sequencer *q, uint64_t now_ns)
{
	struct operation *o, *next;
	if (now_ns - q->looked_ns < SEQUENCER_LOOK_NS)
		return;
	q->looked_ns = now_ns;
	HASH_ITER (hh, q->operations, o, next) {
		if (o->due_ns && now_ns >= o->due_ns)
			end_overdue(q, o);
		else if (o->votes != o->shown && o->led &&
			 now_ns - o->since_ns >= SEQUENCER_LOOK_NS)
			show_waiting(q, o);
	}
	close_overdue(q, now_ns);
}

bool sequencer_awaited(const struct sequencer *q)
{
	return q->led;
}

void sequencer_free(struct sequencer *q)
{
	struct operation *o, *next;
	struct request *r, *after;
	if (!q)
		return;
	HASH_ITER (hh, q->operations, o, next)
		forget_operation(q, o);
	HASH_ITER (hh, q->requests, r, after) {
		if (r->set)
			drop_set(r->set);
		forget_request(q, r);
	}
	while (q->led)
		led_free(q, q->led);
	free(q);
}
