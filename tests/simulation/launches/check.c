/* SPDX-License-Identifier: Apache-2.0
 * The invariants: all nodes launch the same operations, in the same order where they share a GPU;
 * an operation ends with the same status on all nodes, which names the missing ranks or the
 * difference; no task waits forever; and sequencers forget everything. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launches.h"

char failure[512];

/* An operation, as observed on all nodes. */
struct seen {
	uint32_t comm;
	struct operation_key key;
	uint64_t posted[RANKS_MAX]; /* in the order of all records; 0: not posted */
	struct svc_record records[RANKS_MAX];
	uint64_t voted_failed[NODES_MAX]; /* by node */
	int voted_result[NODES_MAX];
	bool tombstone;
	uint32_t failed;	      /* nodes that received its failure, as bits; with: */
	uint64_t launched[NODES_MAX]; /* order of launches there; 0: not launched */
	uint64_t grant;
	struct failed_note note;
};

static struct seen seen[TASKS_MAX];
static uint32_t nseen;
static uint64_t events, launches[NODES_MAX];

void fail(const char *format, ...)
{
	va_list args;
	if (failure[0])
		return;
	va_start(args, format);
	vsnprintf(failure, sizeof(failure), format, args);
	va_end(args);
}

void check_begin(void)
{
	nseen = 0;
	events = 0;
	memset(launches, 0, sizeof(launches));
}

static struct seen *get(uint32_t comm, const struct operation_key *key)
{
	for (uint32_t i = 0; i < nseen; i++)
		if (seen[i].comm == comm && same_key(&seen[i].key, key))
			return &seen[i];
	if (nseen == TASKS_MAX)
		abort();
	seen[nseen] = (struct seen){.comm = comm, .key = *key};
	return &seen[nseen++];
}

#define NAME	   "%d-%d %d of communicator %d"
#define NAME_OF(o) (o)->key.a, (o)->key.b, (int)(o)->key.seq, (int)comms[(o)->comm].id

static bool takes_part(const struct seen *o, uint32_t rank)
{
	return o->key.a < 0 || (int32_t)rank == o->key.a || (int32_t)rank == o->key.b;
}

static uint32_t node_of(const struct seen *o, uint32_t rank)
{
	const struct comm_plan *p = &comms[o->comm];
	return p->nodes[p->place_of[rank]];
}

/* ---- Events ---- */

void check_posted(const struct task *t)
{
	struct seen *o = get(t->comm, &t->key);
	o->posted[t->rank] = ++events;
	o->records[t->rank] = t->record;
}

void check_votes_failed(const struct match *m, bool tombstone)
{
	struct seen *o = get(m->at->index, &m->key);
	o->voted_failed[m->at->node] = ++events;
	o->voted_result[m->at->node] = m->status.result;
	o->tombstone |= tombstone;
}

void check_launched(uint32_t node, const struct launch_request *r)
{
	launches[node]++;
	for (uint32_t i = 0; i < r->n; i++) {
		struct seen *o =
			get((uint32_t)(r->entries[i].internode_id - 100), &r->entries[i].key);
		trace(node, "launches " NAME, NAME_OF(o));
		if (o->launched[node])
			fail("node %u launches " NAME " twice", node, NAME_OF(o));
		if (o->failed && !comm_is_lost(o->comm))
			fail("node %u launches " NAME ", which has already failed", node,
			     NAME_OF(o));
		o->launched[node] = launches[node];
		o->grant = r->grant;
	}
}

static bool is_missing(const struct seen *o, uint32_t rank)
{
	const uint64_t voted = o->voted_failed[node_of(o, rank)];
	return takes_part(o, rank) && (!o->posted[rank] || (voted && o->posted[rank] > voted));
}

static void check_timeout(const struct seen *o, const ncclsvc_status *st)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < nnodes; k++)
		if (o->voted_failed[k] && o->voted_result[k] != NCCLSVC_TIMEOUT)
			return; /* that node's status does not name the missing ranks */
	for (uint32_t k = 0; k < comms[o->comm].nranks; k++)
		n += is_missing(o, k);
	if (n != st->missing_count)
		fail("TIMEOUT of " NAME " names %u ranks, but %u are missing", NAME_OF(o),
		     st->missing_count, n);
	for (uint32_t i = 0; i < st->missing_count && i < NCCLSVC_MISSING_SHOWN; i++)
		if (!is_missing(o, (uint32_t)st->missing[i]))
			fail("TIMEOUT of " NAME " names rank %d, which has posted it", NAME_OF(o),
			     st->missing[i]);
}

static void check_mismatch(const struct seen *o, const struct failed_note *note)
{
	ncclsvc_status st = note->status;
	uint64_t a, b;
	if (o->key.a < 0 && !mismatch_status(&note->posted, comms[o->comm].nranks, &st)) {
		fail("MISMATCH of " NAME ", but its records agree", NAME_OF(o));
		return;
	}
	if (st.rank_a < 0 || st.rank_b < 0 || !o->posted[st.rank_a] || !o->posted[st.rank_b] ||
	    svc_record_differs(&o->records[st.rank_a], &o->records[st.rank_b], &a, &b) !=
		    st.field ||
	    a != st.value_a || b != st.value_b)
		fail("MISMATCH of " NAME " between ranks %d and %d is false", NAME_OF(o), st.rank_a,
		     st.rank_b);
}

static bool same_status(const ncclsvc_status *a, const ncclsvc_status *b)
{
	const uint32_t n =
		a->missing_count < NCCLSVC_MISSING_SHOWN ? a->missing_count : NCCLSVC_MISSING_SHOWN;
	return a->result == b->result && a->field == b->field && a->rank_a == b->rank_a &&
	       a->rank_b == b->rank_b && a->missing_count == b->missing_count &&
	       a->value_a == b->value_a && a->value_b == b->value_b &&
	       !memcmp(a->missing, b->missing, n * sizeof(a->missing[0]));
}

void check_failed(uint32_t node, const struct match *m, const struct failed_note *note)
{
	struct seen *o = get(m->at->index, &m->key);
	if (o->failed && !same_status(&o->note.status, &note->status))
		fail(NAME " fails with %d on node %u, and with %d on others", NAME_OF(o),
		     note->status.result, node, o->note.status.result);
	if (!o->failed && note->status.result == NCCLSVC_TIMEOUT && !o->tombstone &&
	    !comm_is_lost(o->comm))
		check_timeout(o, &note->status);
	if (!o->failed && note->status.result == NCCLSVC_MISMATCH)
		check_mismatch(o, note);
	for (uint32_t k = 0; k < nnodes && !comm_is_lost(o->comm); k++)
		if (o->launched[k])
			fail(NAME " fails on node %u, but was launched on node %u", NAME_OF(o),
			     node, k);
	o->failed |= UINT32_C(1) << node;
	o->note = *note;
}

/* ---- At rest ---- */

/* Returns whether all operations that must be launched together with t are posted by all ranks. */
static bool is_whole(struct task *t)
{
	static struct task *all[TASKS_MAX];
	static bool in[TASKS_MAX];
	uint32_t n = 0;
	memset(in, 0, sizeof(in));
	all[n++] = t;
	in[t - tasks] = true;
	for (uint32_t i = 0; i < n; i++) {
		struct task *u = all[i]->next_in_group;
		const struct comm_plan *p = &comms[all[i]->comm];
		uint32_t posted = 0;
		if (all[i]->place != RUNNING)
			return false;
		if (u && !in[u - tasks]) {
			in[u - tasks] = true;
			all[n++] = u;
		}
		for (uint32_t k = 0; k < ntasks; k++) {
			u = &tasks[k];
			const struct local_comm *s = &nodes[u->node].comms[u->comm];
			if (u->comm != all[i]->comm || u->place != RUNNING ||
			    !same_key(&u->key, &all[i]->key) || s->over || s->failed ||
			    !nodes[u->node].alive)
				continue;
			posted++;
			if (!in[k]) {
				in[k] = true;
				all[n++] = u;
			}
		}
		if (posted < (all[i]->pair ? 2 : p->nranks))
			return false;
	}
	return true;
}

static void check_waiting(struct task *t)
{
	const struct local_comm *s = &nodes[t->node].comms[t->comm];
	if (s->failed || s->over || t->tombstone)
		return;
	if (profile.regular)
		fail("rank %u of communicator %d on node %u waits for ever", t->rank,
		     (int)comms[t->comm].id, t->node);
	if (t->deadline)
		fail("rank %u of communicator %d on node %u still waits after its deadline",
		     t->rank, (int)comms[t->comm].id, t->node);
	if (t->place == RUNNING && is_whole(t))
		fail("%d-%d %d of communicator %d is complete, but not launched on node %u",
		     t->key.a, t->key.b, (int)t->key.seq, (int)comms[t->comm].id, t->node);
}

void check_rest(void)
{
	for (uint32_t i = 0; i < ntasks; i++)
		if (nodes[tasks[i].node].alive && tasks[i].place < LAUNCHED)
			check_waiting(&tasks[i]);
}

/* ---- At the end ---- */

/* Checks that the operation is launched on all living nodes, or on none. */
static void check_all_launched(const struct seen *o)
{
	int with = -1, without = -1;
	for (uint32_t k = 0; k < comms[o->comm].nranks; k++) {
		const uint32_t node = node_of(o, k);
		if (!takes_part(o, k) || !nodes[node].alive)
			continue;
		if (o->launched[node])
			with = (int)node;
		else
			without = (int)node;
	}
	if (with >= 0 && without >= 0)
		fail(NAME " is launched on node %d, but not on node %d", NAME_OF(o), with, without);
}

/* Whether the operations share a GPU of the node: one process has a rank in both. */
static bool share_gpu(const struct seen *x, const struct seen *y, uint32_t node)
{
	const struct comm_plan *p = &comms[x->comm], *q = &comms[y->comm];
	for (uint32_t i = 0; i < p->nranks; i++)
		for (uint32_t k = 0; k < q->nranks; k++)
			if (takes_part(x, i) && takes_part(y, k) && node_of(x, i) == node &&
			    node_of(y, k) == node && p->process_of[i] == q->process_of[k])
				return true;
	return false;
}

/* Checks that all nodes on which the operations share a GPU launch them in the same order. */
static void check_order(const struct seen *x, const struct seen *y)
{
	int one = -1;
	if (x->grant == y->grant)
		return;
	for (uint32_t k = 0; k < nnodes; k++) {
		if (!x->launched[k] || !y->launched[k] || x->launched[k] == y->launched[k] ||
		    !share_gpu(x, y, k))
			continue;
		if (one >= 0 &&
		    (x->launched[k] < y->launched[k]) != (x->launched[one] < y->launched[one]))
			fail("nodes %d and %u launch " NAME " and " NAME " in different orders",
			     one, k, NAME_OF(x), NAME_OF(y));
		one = (int)k;
	}
}

static void check_statuses(void)
{
	for (uint32_t i = 0; i < ntasks; i++)
		for (uint32_t k = 0; k < i; k++) {
			const struct task *t = &tasks[i], *u = &tasks[k];
			if (t->told && u->told && t->has_key && u->has_key && t->comm == u->comm &&
			    same_key(&t->key, &u->key) && !same_status(&t->status, &u->status))
				fail("%d-%d %d of communicator %d ends with %d on node %u, and "
				     "with %d on "
				     "node %u",
				     t->key.a, t->key.b, (int)t->key.seq, (int)comms[t->comm].id,
				     t->status.result, t->node, u->status.result, u->node);
		}
}

static void check_sequencers(void)
{
	for (uint32_t k = 0; k < nnodes; k++) {
		if (!nodes[k].alive)
			continue;
		if (sequencer_awaited(nodes[k].sequencer))
			fail("node %u's sequencer knows of a communicator when all have ended", k);
		if (sequencers_held(k))
			fail("node %u's sequencer holds %d pieces of memory when all communicators "
			     "have "
			     "ended",
			     k, (int)sequencers_held(k));
	}
}

void check_end(void)
{
	for (uint32_t i = 0; i < ntasks; i++)
		if (nodes[tasks[i].node].alive && tasks[i].place < LAUNCHED)
			fail("rank %u of communicator %d on node %u waits when all communicators "
			     "have ended",
			     tasks[i].rank, (int)comms[tasks[i].comm].id, tasks[i].node);
	for (uint32_t i = 0; i < nseen; i++) {
		if (!comm_is_lost(seen[i].comm))
			check_all_launched(&seen[i]);
		for (uint32_t k = 0; k < i; k++)
			check_order(&seen[i], &seen[k]);
	}
	check_statuses();
	check_sequencers();
}
