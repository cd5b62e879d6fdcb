/* SPDX-License-Identifier: Apache-2.0
 * Other nodes' messages about matches, and the effect of their members' leaving. */
#include <stdlib.h>
#include <string.h>

#include "deadlock.h"
#include "disseminate.h"
#include "node_match.h"
#include "sched/base/status.h"
#include "sched/base/supervisor.h"
#include "sched/queue/match.h"
#include "sched/queue/release.h"
#include "sequence.h"

#define ANY_PLACE UINT32_MAX

/* Other nodes want to end it, or will, and this node has not voted: so it fails it. */
static void agree_to_fail(struct scheduler *sched, struct node_match *j, const ncclsvc_status *why)
{
	ncclsvc_status st = *why;
	if (j->comm->internode->over)
		return;
	node_match_name_missing(j->comm, j, &st);
	node_match_vote_failed(sched, j, &st);
}

/* A rank without which the operation cannot run; -1: none. */
static int32_t who_is_gone(const struct comm *c, const struct operation_key *key)
{
	const struct internode_comm *s = c->internode;
	for (uint32_t k = 0; key->a < 0 && c->gone && k < c->nranks; k++)
		if (c->members[k].gone)
			return (int32_t)k;
	for (int i = 0; key->a >= 0 && i < 2; i++) {
		int32_t rank = i ? key->b : key->a;
		if (s->node_of[rank] == s->me && c->members[rank].gone)
			return rank;
	}
	return -1;
}

/* Does this node take part in the operation, with that index or, for a pair, any other? */
static bool key_valid(const struct internode_comm *s, uint32_t node_index,
		      const struct operation_key *key)
{
	const int32_t n = (int32_t)s->comm->nranks;
	if (key->a == -1 && key->b == -1)
		return true;
	if (key->a < 0 || key->a >= n || key->b < 0 || key->b >= n)
		return false;
	uint32_t a = s->node_of[key->a], b = s->node_of[key->b];
	uint32_t other = a == s->me ? b : a;
	return a != b && (a == s->me || b == s->me) &&
	       (node_index == ANY_PLACE || other == node_index);
}

/* Has this operation already ended here? Then the node's vote is of no use. */
static bool is_past(const struct comm *c, const struct operation_key *key)
{
	return key->a < 0 && key->seq < c->collectives + c->poisoned;
}

/* Inspection is told that all members of that node have posted the collective. */
static void show_posted(const struct node_match *j, uint32_t node_index)
{
	const struct comm *c = j->comm;
	const struct internode_comm *s = c->internode;
	for (uint32_t i = 0; j->key.a < 0 && i < s->counts[node_index]; i++) {
		struct member_progress *progress =
			c->members[s->ranks[s->first[node_index] + i]].progress;
		if (atomic_load_explicit(&progress->collectives, memory_order_relaxed) <=
		    j->key.seq)
			atomic_store_explicit(&progress->collectives, j->key.seq + 1,
					      memory_order_relaxed);
	}
}

static bool keep_ready(struct scheduler *sched, struct node_match *j, uint32_t voter,
		       const struct svc_record *record, const char *payload, size_t bytes)
{
	struct node_vote *v = &j->voters[voter];
	if (bytes) {
		v->payload = malloc(bytes);
		if (!v->payload) {
			internode_comm_give_up(sched, j->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
			return false;
		}
		memcpy(v->payload, payload, bytes);
	}
	v->bytes = bytes;
	node_match_ready(j, voter, record);
	j->votes++;
	if (!j->first_ns)
		j->first_ns = sched->now;
	show_posted(j, voter);
	return true;
}

/* Other nodes' READY votes were kept. */
static void look_at_votes(struct scheduler *sched, struct node_match *j)
{
	const int32_t gone = j->voters[j->mine].vote.kind ? -1 : who_is_gone(j->comm, &j->key);
	const bool pair = j->key.a >= 0;
	disseminate_votes(sched, j);
	if (gone >= 0) {
		ncclsvc_status st = status_gone(j->comm, gone);
		node_match_vote_failed(sched, j, &st);
	} else if (j->votes == j->nvoters) {
		if (pair && j->resolved) /* this side failed, and no task waits */
			node_match_free(sched, j->comm->internode, j);
		else
			node_match_conclude(sched, j);
	} else if (pair && j->comm->plan) {
		node_match_check_kind(sched, j);
	}
}

static void take_ready(struct scheduler *sched, struct node_match *j, uint32_t voter,
		       const char *body, size_t bytes)
{
	struct svc_record record;
	memcpy(&record, body, sizeof(record));
	j->voters[voter].direct = true;
	if (keep_ready(sched, j, voter, &record, body + sizeof(record), bytes - sizeof(record)))
		look_at_votes(sched, j);
}

void node_match_take_votes(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			   const struct internode_header *h, const char *body)
{
	struct node_match *j = node_match_find(s, &h->key);
	const bool pull = h->kind == INTERNODE_PULL;
	if (!disseminate_used(s, &h->key) || (!pull && !h->bytes)) {
		internode_comm_give_up(sched, s->comm, NCCLSVC_PROTOCOL, node_index);
		return;
	}
	if (pull) {
		disseminate_answer(sched, s, j, &h->key, node_index);
		return;
	}
	if (!j && is_past(s->comm, &h->key))
		return;
	j = j ? j : node_match_get(s, &h->key);
	const uint32_t before = j ? j->votes : 0;
	if (!j)
		internode_comm_give_up(sched, s->comm, NCCLSVC_LIMIT, node_index);
	else if (!disseminate_keep(sched, j, body, h->bytes, keep_ready))
		internode_comm_give_up(sched, s->comm, NCCLSVC_PROTOCOL, node_index);
	else if (j->votes != before)
		look_at_votes(sched, j);
}

/* Invalid ranks, from a node that should know better. */
static bool note_valid(const struct comm *c, const struct failed_note *failed)
{
	const struct mismatch *m = &failed->posted;
	bool valid = failed->status.rank_a < (int32_t)c->nranks && m->nkinds <= MISMATCH_KINDS;
	for (uint32_t i = 0; valid && i < m->nkinds; i++)
		valid = m->kinds[i].rank >= 0 && m->kinds[i].rank < (int32_t)c->nranks &&
			m->kinds[i].count <= c->nranks && svc_op_known(m->kinds[i].record.op);
	return valid;
}

/* A failure that names a departed rank also reports the departure, so that members may rejoin at
 * once. */
static void learn_departure(struct scheduler *sched, struct comm *c, const ncclsvc_status *st)
{
	const int32_t rank = st->result == NCCLSVC_PEER_GONE ? st->rank_a : -1;
	if (rank < 0 || (uint32_t)rank >= c->nranks || c->members[rank].gone ||
	    c->internode->node_of[rank] == c->internode->me || st->field == NCCLSVC_FIELD_NODE)
		return;
	supervisor_event(sched, &(struct event){.kind = EVENT_MEMBER_LEFT,
						.left = {c->slot, c->epoch, rank}});
	release_member(sched, c, rank);
}

static void take_failed(struct scheduler *sched, struct node_match *j, uint32_t voter,
			const struct failed_note *failed)
{
	const ncclsvc_status *st = &failed->status;
	const struct vote *mine = &j->voters[j->mine].vote;
	bool resolved = j->resolved;
	if (!node_match_keep_failed(j, voter, failed)) {
		internode_comm_give_up(sched, j->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	if (!note_valid(j->comm, failed)) {
		internode_comm_give_up(sched, j->comm, NCCLSVC_PROTOCOL,
				       node_match_node_index(j, voter));
		return;
	}
	if (j->key.a >= 0 && (!mine->kind || resolved)) {
		/* Kept for a task posted later; or both sides have failed, and it is done. */
		j->voters[voter].vote.kind = VOTE_FAILED;
		j->votes++;
		j->resolved = true;
		j->status = *st;
		if (resolved)
			node_match_free(sched, j->comm->internode, j);
		return;
	}
	j->voters[voter].vote.kind = VOTE_FAILED;
	j->votes++;
	disseminate_votes(sched, j);
	const bool differs = node_match_differs(j, st);
	if (differs)
		show_posted(j, voter);
	if (!mine->kind && !differs)
		agree_to_fail(sched, j, st); /* and that may conclude it */
	else if (j->votes == j->nvoters)
		node_match_conclude(sched, j);
}

/* The next match that waits in vain for a vote of that node, which is over; NULL: none does. */
static struct node_match *waits_for(const struct internode_comm *s, uint32_t node_index)
{
	for (struct node_match *j = s->matches; j; j = j->hh.next) {
		const uint32_t voter = node_match_voter_of(j, node_index);
		const bool voted =
			disseminate_used(s, &j->key) && j->key.seq < s->overs[node_index] - 1;
		if (node_match_node_index(j, voter) == node_index && j->voters[j->mine].vote.kind &&
		    !j->voters[voter].vote.kind && !voted && !j->resolved)
			return j;
	}
	return NULL;
}

void node_match_node_over(struct scheduler *sched, struct comm *c, uint32_t node_index)
{
	struct internode_comm *s = c->internode;
	struct node_match *j;
	const int32_t rank = (int32_t)s->ranks[s->first[node_index]];
	if (internode_comm_is_sequenced(s) || !s->overs[node_index] || c->ended ||
	    !internode_comm_all_left(s, node_index))
		return;
	const struct failed_note gone = {.status = status_gone(c, rank)};
	while (!s->over && (j = waits_for(s, node_index)))
		take_failed(sched, j, node_match_voter_of(j, node_index), &gone);
}

void node_match_take_message(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			     const struct internode_header *h, const char *body)
{
	struct comm *c = s->comm;
	struct operation_key key = h->key;
	ncclsvc_status st;
	struct failed_note failed;
	size_t least = h->kind == INTERNODE_READY    ? sizeof(struct svc_record)
		       : h->kind == INTERNODE_FAILED ? sizeof(failed)
						     : sizeof(st);
	if (h->bytes < least || !key_valid(s, node_index, &key)) {
		internode_comm_give_up(sched, c, NCCLSVC_PROTOCOL, node_index);
		return;
	}
	if (h->kind == INTERNODE_FAILED) {
		memcpy(&failed, body, sizeof(failed));
		learn_departure(sched, c, &failed.status);
	} else if (h->kind == INTERNODE_ASK) {
		memcpy(&st, body, sizeof(st));
		learn_departure(sched, c, &st);
	}
	if (h->kind != INTERNODE_READY)
		deadlock_break(sched, s, body);
	struct node_match *j = node_match_find(s, &key);
	/* The asking node has voted already, so an operation unknown here has ended, unless its
	 * vote is still being passed on. */
	const bool disseminated = disseminate_used(s, &key) && key.seq != DEADLOCK_ALL;
	if (!j && h->kind == INTERNODE_ASK && disseminated && is_past(c, &key))
		disseminate_answer(sched, s, NULL, &key, node_index);
	if (!j && (is_past(c, &key) || (h->kind == INTERNODE_ASK && !disseminated)))
		return;
	if (!j)
		j = node_match_get(s, &key);
	if (!j) {
		internode_comm_give_up(sched, c, NCCLSVC_LIMIT, node_index);
		return;
	}
	uint32_t voter = node_match_voter_of(j, node_index);
	if (h->kind == INTERNODE_ASK) {
		if (!j->voters[j->mine].vote.kind)
			agree_to_fail(sched, j, &st);
		else if (disseminated)
			disseminate_answer(sched, s, j, &key, node_index);
	} else if (j->voters[voter].vote.kind || voter == j->mine) {
		internode_comm_give_up(sched, c, NCCLSVC_PROTOCOL, node_index);
		return;
	} else if (h->kind == INTERNODE_READY) {
		take_ready(sched, j, voter, body, h->bytes);
	} else {
		take_failed(sched, j, voter, &failed);
	}
	j = key.a >= 0 && operation_plan(&key) ? node_match_find(s, &key) : NULL;
	if (j)
		node_match_forget_left(sched, j);
}

/* ---- The sequencer ---- */

static void show_waiting(const struct node_match *j, const char *body, size_t bytes)
{
	for (; bytes >= sizeof(uint32_t); body += sizeof(uint32_t), bytes -= sizeof(uint32_t)) {
		uint32_t voter;
		memcpy(&voter, body, sizeof(voter));
		if (voter < j->nvoters)
			show_posted(j, voter);
	}
}

static void be_asked(struct scheduler *sched, struct node_match *j, const ncclsvc_status *why)
{
	if (!j->voters[j->mine].vote.kind) {
		agree_to_fail(sched, j, why);
	} else if (j->voters[j->mine].vote.kind == VOTE_READY && !j->asked) {
		/* It has been requested, so it is in progress. */
		j->status = *why;
		if (!node_match_request(j))
			node_match_withdraw(sched, j);
	}
}

/* It fails on all nodes. */
static void be_failed(struct scheduler *sched, struct node_match *j,
		      const struct failed_note *failed)
{
	ncclsvc_status st = failed->status;
	struct comm *c = j->comm;
	const bool pair = j->key.a >= 0;
	if (node_match_differs(j, &st))
		match_mismatch_status(c, &failed->posted, &st);
	else if (pair && st.result == NCCLSVC_MISMATCH)
		status_name_ranks(c, &st, st.rank_a, st.rank_b);
	j->status = st;
	j->votes = j->nvoters;
	if (j->tasks) {
		node_match_call_off(sched, j);
		node_match_end_tasks(sched, j, &st);
		node_match_free(sched, c->internode, j);
	} else if (pair && j->resolved) { /* no task waits for it */
		node_match_free(sched, c->internode, j);
	} else {
		node_match_conclude_failed(sched, j);
	}
}

void node_match_take_decision(struct scheduler *sched, struct internode_comm *s,
			      const struct internode_header *h, const char *body)
{
	struct comm *c = s->comm;
	struct failed_note failed = {0};
	const bool fails = h->kind == INTERNODE_FAILED;
	const size_t least = fails			? sizeof(failed)
			     : h->kind == INTERNODE_ASK ? sizeof(failed.status)
							: 0;
	if (h->bytes < least || !key_valid(s, ANY_PLACE, &h->key)) {
		internode_comm_give_up(sched, c, NCCLSVC_PROTOCOL, UINT32_MAX);
		return;
	}
	memcpy(&failed, body, least);
	if (failed.ends_epoch) {
		internode_comm_give_up(sched, c, failed.status.result,
				       failed.node < 0 || (uint32_t)failed.node >= s->nnodes
					       ? UINT32_MAX
					       : (uint32_t)failed.node);
		return;
	}
	if (fails && !note_valid(c, &failed)) {
		internode_comm_give_up(sched, c, NCCLSVC_PROTOCOL, UINT32_MAX);
		return;
	}
	learn_departure(sched, c, &failed.status);
	if (h->kind != INTERNODE_READY)
		deadlock_break(sched, s, body);
	struct node_match *j = node_match_find(s, &h->key);
	if (!j && h->kind == INTERNODE_ASK && h->key.seq != DEADLOCK_ALL && !is_past(c, &h->key))
		j = node_match_get(s, &h->key);
	if (!j)
		return; /* it has ended here */
	if (h->kind == INTERNODE_READY)
		show_waiting(j, body, h->bytes);
	else if (fails)
		be_failed(sched, j, &failed);
	else
		be_asked(sched, j, &failed.status);
	j = h->key.a >= 0 && operation_plan(&h->key) ? node_match_find(s, &h->key) : NULL;
	if (j)
		node_match_forget_left(sched, j);
}

/* ---- A member leaves ---- */

/* Does it need that rank, and does this node's vote still count? */
static bool is_concerned(const struct node_match *j, int32_t rank)
{
	const struct internode_comm *s = j->comm->internode;
	const bool known_here = s->node_of[rank] == s->me || internode_comm_is_sequenced(s);
	return j->key.a < 0 || (known_here && (j->key.a == rank || j->key.b == rank));
}

static struct task *any_task(const struct node_match *j)
{
	const uint32_t n = j->key.a < 0 ? j->comm->nranks : 2;
	for (uint32_t k = 0; j->tasks && k < n; k++)
		if (j->tasks[k])
			return j->tasks[k];
	return NULL;
}

void node_match_member_left(struct scheduler *sched, struct comm *c, int32_t rank,
			    const ncclsvc_status *st)
{
	struct internode_comm *s = c->internode;
	struct node_match *j, *next;
	if (!s)
		return;
	/* Operations that other nodes wait in and on which this node has not voted; on GPUs, it
	 * does not know who waits. */
	HASH_ITER (hh, s->matches, j, next) {
		if (!is_concerned(j, rank))
			continue;
		struct task *t = internode_comm_is_sequenced(s) ? any_task(j) : NULL;
		if (t)
			node_match_ask(sched, t, st);
		else if (!j->voters[j->mine].vote.kind)
			node_match_vote_failed(sched, j, st);
	}
	node_match_node_over(sched, c, s->node_of[rank]);
	if (c->collective_here && !c->poisoned)
		node_match_fail_collective(sched, c, st);
}
