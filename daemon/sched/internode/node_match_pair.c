/* SPDX-License-Identifier: Apache-2.0
 * Matching of a Send on one node and a Recv on another. Each plan counts its own pairs, so that
 * leftovers of an abandoned plan match nothing. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "coord/plan.h"
#include "deadlock.h"
#include "node_match.h"
#include "proto/names.h"
#include "proto/task.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "sched/queue/plan_slots.h"
#include "sched/queue/release.h"

static int32_t local_rank(const struct node_match *j)
{
	return j->mine ? j->key.b : j->key.a;
}

/* The number of pairs of ranks with one rank on this node. */
static size_t pairs(const struct internode_comm *s)
{
	return (size_t)internode_comm_local_count(s) * s->comm->nranks;
}

/* NULL: out of memory. */
static uint64_t *pair_counter(struct internode_comm *s, bool send, int32_t rank, int32_t peer,
			      bool planned)
{
	uint32_t i = 0;
	if (!s->sent)
		s->sent = calloc(2 * pairs(s), sizeof(*s->sent));
	if (!s->received)
		s->received = calloc(2 * pairs(s), sizeof(*s->received));
	if (!s->sent || !s->received)
		return NULL;
	while (internode_comm_locals(s)[i] != (uint32_t)rank)
		i++;
	return (send ? s->sent : s->received) + (planned ? pairs(s) : 0) +
	       (size_t)i * s->comm->nranks + (uint32_t)peer;
}

bool node_match_pair_past(struct internode_comm *s, const struct operation_key *key)
{
	const struct comm *c = s->comm;
	const bool send = s->node_of[key->a] == s->me;
	const int32_t rank = send ? key->a : key->b, peer = send ? key->b : key->a;
	const struct member *m = &c->members[rank];
	const uint32_t plan = operation_plan(key);
	const uint32_t known = c->plan ? c->plan->number : 0;
	if (s->node_of[rank] != s->me || m->gone)
		return true;
	if (plan && (plan <= m->plan_left || plan < known))
		return true;
	if (plan > known)
		return false;
	const uint64_t *next = pair_counter(s, send, rank, peer, plan);
	return !next || ((uint64_t)plan << PLAN_SHIFT | *next) > key->seq;
}

/* ---- Planned or not ---- */

/* The status when only one side is planned. */
static ncclsvc_status kind_status(const struct node_match *j, bool sends, bool planned)
{
	ncclsvc_status st = status_of(NCCLSVC_MISMATCH);
	st.field = NCCLSVC_FIELD_PLAN;
	st.value_a = sends == planned;
	st.value_b = !st.value_a;
	status_name_ranks(j->comm, &st, j->key.a, j->key.b);
	return st;
}

/* It has failed without a task here: its counterpart has matched another task, or all members
 * waited for each other. A task that comes now is a different operation. */
static bool is_skipped(const struct node_match *j)
{
	return j->resolved && j->votes == j->nvoters &&
	       (deadlock_is_cause(&j->status) ||
		(j->status.result == NCCLSVC_MISMATCH && j->status.field == NCCLSVC_FIELD_PLAN));
}

void node_match_check_kind(struct scheduler *sched, struct node_match *j)
{
	const bool sends = !j->mine;
	const unsigned op = sends ? NCCLSVC_SEND : NCCLSVC_RECV;
	const int32_t peer = sends ? j->key.b : j->key.a;
	struct task *t;
	DL_FOREACH (j->comm->members[local_rank(j)].queue, t) {
		if (t->stage < AT_HEAD)
			return;
		const struct node_match *other = t->node_match;
		if (!other || other->votes > 1 || t->record.op != op || t->record.peer != peer ||
		    !operation_plan(&other->key) == !operation_plan(&j->key))
			continue;
		const ncclsvc_status st = kind_status(j, sends, operation_plan(&other->key));
		node_match_ask(sched, t, &st);
		node_match_vote_failed(sched, j, &st);
		return;
	}
}

/* ---- Posting ---- */

/* NULL: out of memory. */
static struct node_match *next_match(struct scheduler *sched, struct internode_comm *s,
				     const struct task *t)
{
	const bool send = t->record.op == NCCLSVC_SEND;
	const int32_t peer = t->record.peer;
	const uint32_t plan = plan_number(t);
	struct operation_key key = {send ? t->rank : peer, send ? peer : t->rank, 0, 0};
	uint64_t *next = pair_counter(s, send, t->rank, peer, plan);
	struct node_match *j;
	while (next) {
		key.seq = (uint64_t)plan << PLAN_SHIFT | (*next)++;
		j = node_match_get(s, &key);
		if (!j || !is_skipped(j))
			return j;
		node_match_free(sched, s, j);
	}
	return NULL;
}

/* The other side has failed it, or this side did when asked. */
static void post_to_failed(struct scheduler *sched, struct node_match *j, struct task *t)
{
	const ncclsvc_status st = j->status;
	if (!j->voters[j->mine].vote.kind) /* the other side waits for it */
		node_match_tell_failed(sched, j, &(struct failed_note){.status = st});
	node_match_free(sched, t->comm->internode, j);
	release_end(sched, t, &st);
}

static void post_failure(struct scheduler *sched, struct node_match *j, struct task *t)
{
	const ncclsvc_status st = t->tombstone ? t->end : status_refused(t);
	struct internode_comm *s = t->comm->internode;
	const struct operation_key key = j->key;
	node_match_vote_failed(sched, j, &st);
	j = node_match_find(s, &key);
	if (j && j->resolved)
		node_match_free(sched, s, j);
	else if (j) /* the other side's vote will come, and no task waits for it here */
		j->resolved = true;
	release_end(sched, t, &st);
}

void node_match_post_p2p(struct scheduler *sched, struct task *t)
{
	struct comm *c = t->comm;
	if (c->internode->over) { /* it is about to end */
		t->stage = POSTED;
		member_of(t)->posted++;
		return;
	}
	struct node_match *j = next_match(sched, c->internode, t);
	struct task **tasks = calloc(2, sizeof(struct task *));
	if (!j || !tasks) {
		ncclsvc_status st = status_of(NCCLSVC_NO_MEMORY);
		free(tasks);
		release_end(sched, t, &st);
		internode_comm_give_up(sched, c, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	t->stage = POSTED;
	member_of(t)->posted++;
	tasks[t->record.op == NCCLSVC_SEND ? 0 : 1] = t;
	if (j->voters[0].vote.kind == VOTE_FAILED || j->voters[1].vote.kind == VOTE_FAILED) {
		free(tasks);
		post_to_failed(sched, j, t);
		return;
	}
	if (t->tombstone || svc_record_refuses(&t->record)) {
		free(tasks);
		post_failure(sched, j, t);
		return;
	}
	j->tasks = tasks;
	node_match_commit(sched, j, t);
	node_match_vote_ready(sched, j, &t->record);
}

/* ---- Ended plans ---- */

void node_match_forget_left(struct scheduler *sched, struct node_match *j)
{
	const int32_t rank = local_rank(j);
	const uint32_t plan = operation_plan(&j->key);
	const bool voted = j->voters[j->mine].vote.kind;
	if (!plan || plan > j->comm->members[rank].plan_left || j->tasks ||
	    (voted && j->votes < j->nvoters))
		return;
	const ncclsvc_status st = plan_left_status(j->comm, rank);
	if (!voted && !j->comm->internode->over)
		node_match_tell_failed(sched, j, &(struct failed_note){.status = st});
	node_match_free(sched, j->comm->internode, j);
}

void node_match_plan_left(struct scheduler *sched, struct comm *c, int32_t rank)
{
	struct node_match *j, *next;
	HASH_ITER (hh, c->internode->matches, j, next)
		if (j->key.a >= 0 && local_rank(j) == rank)
			node_match_forget_left(sched, j);
}

void node_match_plan_begins(const struct comm *c)
{
	struct internode_comm *s = c->internode;
	if (!s || !s->sent || !s->received)
		return;
	memset(s->sent + pairs(s), 0, pairs(s) * sizeof(*s->sent));
	memset(s->received + pairs(s), 0, pairs(s) * sizeof(*s->received));
}
