/* SPDX-License-Identifier: Apache-2.0
 * The invariants: all nodes launch the same operations, in the same order where they share a GPU;
 * an operation ends with the same status on all nodes, which names the missing ranks or the
 * difference; no task waits forever; and sequencers forget everything. */
#include <string.h>

#include "launches.h"
#include "sched/internode/node_match.h"
#include "sched/internode/sequence.h"
#include "sched/queue/set.h"

/* An operation, as observed on all nodes. */
struct seen {
	uint32_t comm;
	struct operation_key key;
	struct task_plan *tasks[RANKS_MAX]; /* that are posted, by rank */
	bool voted_failed[NODES_MAX];
	int voted_result[NODES_MAX];
	uint32_t missing; /* ranks that their nodes lacked when they failed it, as bits */
	bool tombstone;	  /* a node failed it with the status of a task that had ended */
	uint32_t failed;  /* nodes that received its failure, as bits; with: */
	struct failed_note note;
	uint64_t launched[NODES_MAX]; /* order of launches there; 0: not launched */
	uint32_t set;		      /* an operation launched together with it on some node */
};

static struct seen seen[TASKS_MAX];
static uint32_t nseen;
static uint64_t launches[NODES_MAX];

void check_begin(void)
{
	nseen = 0;
	memset(launches, 0, sizeof(launches));
}

static struct seen *get(uint32_t comm, const struct operation_key *key)
{
	for (uint32_t i = 0; i < nseen; i++)
		if (seen[i].comm == comm && operation_same(&seen[i].key, key))
			return &seen[i];
	if (nseen == TASKS_MAX)
		abort();
	seen[nseen] = (struct seen){.comm = comm, .key = *key, .set = nseen};
	return &seen[nseen++];
}

#define NAME	   "%d-%d %d of communicator %u"
#define NAME_OF(o) (o)->key.a, (o)->key.b, (int)(o)->key.seq, (o)->comm

static bool takes_part(const struct seen *o, uint32_t rank)
{
	return o->key.a < 0 || (int32_t)rank == o->key.a || (int32_t)rank == o->key.b;
}

static uint32_t node_of(const struct seen *o, uint32_t rank)
{
	return comms[o->comm].node_of[rank];
}

/* ---- Events ---- */

static void note_posted(struct seen *o, const struct task *t)
{
	struct task_plan *plan = t ? &tasks[t->request_id] : NULL;
	if (!t || plan->has_key)
		return;
	plan->has_key = true;
	plan->key = o->key;
	o->tasks[t->rank] = plan;
}

void check_posted(struct scheduler *sched, struct internode_comm *s,
		  const struct operation_key *key)
{
	const struct comm *c = s->comm;
	const struct node_match *j = node_match_find(s, key);
	struct seen *o = get(c->slot, key);
	if (nodes[sched->config.node].ends)
		return;
	for (uint32_t k = 0; j && j->tasks && k < (key->a < 0 ? c->nranks : 2); k++)
		note_posted(o, j->tasks[k]);
	for (uint32_t k = 0; key->a < 0 && key->seq == c->collectives && k < c->nranks; k++)
		note_posted(o, c->collective[k]);
}

void check_voted_failed(struct scheduler *sched, struct internode_comm *s,
			const struct operation_key *key, const ncclsvc_status *st)
{
	const uint32_t node = sched->config.node;
	struct seen *o = get(s->comm->slot, key);
	if (o->voted_failed[node])
		return;
	o->voted_failed[node] = true;
	o->voted_result[node] = st->result;
	o->tombstone |= st->done_ns != 0;
	for (uint32_t k = 0; k < comms[o->comm].nranks; k++)
		if (takes_part(o, k) && node_of(o, k) == node && !o->tasks[k])
			o->missing |= UINT32_C(1) << k;
}

/* The two sets of operations are launched as one. */
static void join(struct seen *a, const struct seen *b)
{
	const uint32_t from = b->set;
	for (uint32_t i = 0; i < nseen; i++)
		if (seen[i].set == from)
			seen[i].set = a->set;
}

static void check_all_here(uint32_t node, const struct seen *o)
{
	for (uint32_t k = 0; k < comms[o->comm].nranks; k++)
		if (takes_part(o, k) && node_of(o, k) == node &&
		    (!o->tasks[k] || !o->tasks[k]->launched))
			fail("node %u launches " NAME " without rank %u", node, NAME_OF(o), k);
}

static void check_group(uint32_t node, const struct task_plan *t)
{
	for (const struct task_plan *u = tasks; u < tasks + ntasks; u++)
		if (u->group == t->group && u->comm == t->comm && u->posted && !u->told &&
		    !u->launched)
			fail("node %u launches %d-%d %d of communicator %u without all of its "
			     "group",
			     node, t->key.a, t->key.b, (int)t->key.seq, t->comm);
}

void check_launched(uint32_t node, struct task *const *launched, uint32_t n)
{
	struct seen *first = NULL;
	if (nodes[node].ends)
		return;
	launches[node]++;
	for (uint32_t i = 0; i < n; i++) {
		struct task_plan *t = &tasks[launched[i]->request_id];
		struct seen *o = get(t->comm, &t->key);
		trace(node, "launches " NAME, NAME_OF(o));
		if (t->launched)
			fail("node %u launches " NAME " twice", node, NAME_OF(o));
		if (o->failed && !comm_is_lost(o->comm))
			fail("node %u launches " NAME ", which has already failed", node,
			     NAME_OF(o));
		t->launched = true;
		o->launched[node] = launches[node];
		first = first ? first : o;
		join(first, o);
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct task_plan *t = &tasks[launched[i]->request_id];
		check_all_here(node, get(t->comm, &t->key));
		check_group(node, t);
	}
}

static void check_timeout(const struct seen *o, const ncclsvc_status *st)
{
	for (uint32_t k = 0; k < nnodes; k++)
		if (o->voted_failed[k] && o->voted_result[k] != NCCLSVC_TIMEOUT)
			return; /* that node's status does not name the missing ranks */
	if ((uint32_t)__builtin_popcount(o->missing) != st->missing_count)
		fail("TIMEOUT of " NAME " names %u ranks, but %d are missing", NAME_OF(o),
		     st->missing_count, __builtin_popcount(o->missing));
	for (uint32_t i = 0; i < st->missing_count && i < NCCLSVC_MISSING_SHOWN; i++)
		if (!(o->missing >> st->missing[i] & 1))
			fail("TIMEOUT of " NAME " names rank %d, which has posted it", NAME_OF(o),
			     st->missing[i]);
}

/* Fills in which ranks differ. */
static void check_mismatch(const struct seen *o, const struct failed_note *note, ncclsvc_status *st)
{
	uint64_t a, b;
	if (o->key.a < 0 && !mismatch_status(&note->posted, comms[o->comm].nranks, st)) {
		fail("MISMATCH of " NAME ", but its records agree", NAME_OF(o));
		return;
	}
	const struct task_plan *x = st->rank_a < 0 ? NULL : o->tasks[st->rank_a];
	const struct task_plan *y = st->rank_b < 0 ? NULL : o->tasks[st->rank_b];
	if (!x || !y || svc_record_differs(&x->record, &y->record, &a, &b) != st->field ||
	    a != st->value_a || b != st->value_b)
		fail("MISMATCH of " NAME " between ranks %d and %d is false", NAME_OF(o),
		     st->rank_a, st->rank_b);
}

static bool same_status(const ncclsvc_status *a, const ncclsvc_status *b)
{
	const uint32_t n =
		a->missing_count < NCCLSVC_MISSING_SHOWN ? a->missing_count : NCCLSVC_MISSING_SHOWN;
	const bool same_ranks = a->rank_a == b->rank_a && a->rank_b == b->rank_b;
	/* A TIMEOUT also names which ranks came late to this node. */
	return a->result == b->result && a->field == b->field &&
	       (same_ranks || a->result == NCCLSVC_TIMEOUT) &&
	       a->missing_count == b->missing_count && a->value_a == b->value_a &&
	       a->value_b == b->value_b &&
	       !memcmp(a->missing, b->missing, n * sizeof(a->missing[0]));
}

void check_failed(struct scheduler *sched, struct internode_comm *s,
		  const struct operation_key *key, const struct failed_note *sent)
{
	const uint32_t node = sched->config.node;
	struct seen *o = get(s->comm->slot, key);
	struct failed_note note = *sent;
	if (note.ends_epoch) {
		if (!comm_is_lost(o->comm))
			fail("the sequencer ends communicator %u on node %u", o->comm, node);
		return;
	}
	if (note.status.result == NCCLSVC_MISMATCH && note.status.field == NCCLSVC_FIELD_ORDER) {
		/* A group is refused as a whole when one of its communicators has ended. */
		if (!profile.strays && !profile.leaves && !profile.dies && !profile.cuts)
			fail(NAME " is a deadlock in programs without one", NAME_OF(o));
	} else if (note.status.result == NCCLSVC_MISMATCH)
		check_mismatch(o, &note, &note.status);
	if (o->failed && !same_status(&o->note.status, &note.status))
		fail(NAME " fails with %d on node %u, and with %d on others", NAME_OF(o),
		     note.status.result, node, o->note.status.result);
	if (!o->failed && note.status.result == NCCLSVC_TIMEOUT && !o->tombstone &&
	    !comm_is_lost(o->comm))
		check_timeout(o, &note.status);
	for (uint32_t k = 0; k < nnodes && !comm_is_lost(o->comm); k++)
		if (o->launched[k])
			fail(NAME " fails on node %u, but was launched on node %u", NAME_OF(o),
			     node, k);
	o->failed |= UINT32_C(1) << node;
	o->note = note;
}

/* ---- At rest ---- */

static bool is_matched(const struct task_plan *t)
{
	const struct task *real =
		nodes[t->node].alive && !comms[t->comm].ending
			? node_task(t->node, t->comm, t->rank, (uint32_t)(t - tasks))
			: NULL;
	return real && real->match;
}

static void add(struct task_plan **all, uint32_t *n, struct task_plan *t)
{
	for (uint32_t i = 0; i < *n; i++)
		if (all[i] == t)
			return;
	all[(*n)++] = t;
}

/* Returns whether all operations that must be launched together with t have matched. */
static bool is_whole(struct task_plan *t)
{
	static struct task_plan *all[TASKS_MAX];
	uint32_t n = 0;
	add(all, &n, t);
	for (uint32_t i = 0; i < n; i++) {
		t = all[i];
		if (!t->posted || !is_matched(t))
			return false;
		const struct task *next =
			node_task(t->node, t->comm, t->rank, (uint32_t)(t - tasks))->next_in_group;
		if (next)
			add(all, &n, &tasks[next->request_id]);
		const struct seen *o = get(t->comm, &t->key);
		for (uint32_t k = 0; k < comms[o->comm].nranks; k++) {
			if (!takes_part(o, k))
				continue;
			if (!o->tasks[k])
				return false;
			add(all, &n, o->tasks[k]);
		}
	}
	return true;
}

static void check_waiting(struct task_plan *t)
{
	if (comms[t->comm].ending)
		return;
	if (profile.regular)
		fail("rank %u of communicator %u on node %u waits for ever", t->rank, t->comm,
		     t->node);
	if (t->record.timeout_ns)
		fail("rank %u of communicator %u on node %u still waits after its deadline",
		     t->rank, t->comm, t->node);
	if (t->has_key && is_whole(t))
		fail("%d-%d %d of communicator %u is complete, but not launched on node %u",
		     t->key.a, t->key.b, (int)t->key.seq, t->comm, t->node);
}

void check_rest(void)
{
	for (uint32_t i = 0; i < ntasks; i++)
		if (nodes[tasks[i].node].alive && tasks[i].posted && !tasks[i].told)
			check_waiting(&tasks[i]);
}

/* ---- At the end ---- */

/* Checks that the operation is launched on all living nodes, with equal records, or on none. */
static void check_all_launched(const struct seen *o)
{
	const struct task_plan *first = NULL;
	int with = -1, without = -1;
	uint64_t a, b;
	for (uint32_t k = 0; k < comms[o->comm].nranks; k++) {
		const uint32_t node = node_of(o, k);
		if (!takes_part(o, k) || !nodes[node].alive)
			continue;
		if (o->launched[node])
			with = (int)node;
		else
			without = (int)node;
	}
	for (uint32_t k = 0; with >= 0 && k < comms[o->comm].nranks; k++) {
		const struct task_plan *t = o->tasks[k];
		if (!t || !t->launched)
			continue;
		first = first ? first : t;
		if (svc_record_differs(&first->record, &t->record, &a, &b))
			fail(NAME " is launched, but its records differ", NAME_OF(o));
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
			    p->session_of[i] == q->session_of[k])
				return true;
	return false;
}

/* Checks that all nodes on which the operations share a GPU launch them in the same order. */
static void check_order(const struct seen *x, const struct seen *y)
{
	int one = -1;
	if (x->set == y->set)
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

/* Whether a task of the communicator on t's node may have ended by itself, with t's result, which
 * others there get. */
static bool ended_early(const struct task_plan *t)
{
	const int result = t->status.result;
	for (const struct task_plan *u = tasks; u < tasks + ntasks; u++) {
		const uint64_t timeout = u->record.timeout_ns;
		const bool overdue = timeout && t->told_ns >= u->posted_ns + timeout;
		if (u->node == t->node && u->comm == t->comm && u->posted &&
		    (result == NCCLSVC_TIMEOUT ? overdue
					       : result == NCCLSVC_CANCELLED && u->cancelled))
			return true;
	}
	return false;
}

static void check_status(const struct task_plan *t)
{
	const struct seen *o = t->has_key ? get(t->comm, &t->key) : NULL;
	const ncclsvc_status *st = &t->status;
	if (st->result == NCCLSVC_PEER_GONE && comms[t->comm].ending)
		return;
	if (!st->result && !t->launched)
		fail("rank %u of communicator %u succeeds, but was not launched", t->rank, t->comm);
	/* A deadlock ends whatever its members wait in, possibly several operations. */
	if (o && o->failed && st->field != NCCLSVC_FIELD_ORDER &&
	    o->note.status.field != NCCLSVC_FIELD_ORDER && !ended_early(t) &&
	    !same_status(st, &o->note.status))
		fail(NAME " fails with %d, but rank %u gets %d", NAME_OF(o), o->note.status.result,
		     t->rank, st->result);
}

static void check_sequencers(void)
{
	for (uint32_t k = 0; k < nnodes; k++) {
		if (!nodes[k].alive)
			continue;
		if (sequence_awaited(nodes[k].scheduler))
			fail("node %u's sequencer knows of a communicator when all have ended", k);
		if (sequencer_held[k])
			fail("node %u's sequencer holds %d pieces of memory when all communicators "
			     "have ended",
			     k, (int)sequencer_held[k]);
	}
}

void check_end(void)
{
	for (uint32_t i = 0; i < ntasks; i++) {
		const struct task_plan *t = &tasks[i];
		if (!nodes[t->node].alive || !t->posted)
			continue;
		if (!t->told)
			fail("rank %u of communicator %u on node %u waits when all communicators "
			     "have ended",
			     t->rank, t->comm, t->node);
		else
			check_status(t);
	}
	for (uint32_t i = 0; i < nseen; i++) {
		if (!comm_is_lost(seen[i].comm))
			check_all_launched(&seen[i]);
		for (uint32_t k = 0; k < i; k++)
			check_order(&seen[i], &seen[k]);
	}
	check_sequencers();
}
