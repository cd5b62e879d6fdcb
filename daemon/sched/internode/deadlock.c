/* SPDX-License-Identifier: Apache-2.0
 *
 * Deadlock detection on a communicator of several nodes: all members wait for each other. On one
 * node, order.c detects this; here, each node only knows its own members, and messages may be in
 * transit.
 *
 * A node whose members have all waited for a while reports to the communicator's first node which
 * operations they have posted to other nodes: a collective's number, or the number of a Send or
 * Recv between two ranks. When all nodes have reported, the first node asks each one: do its
 * members wait as they did when it reported, and has it still not voted on the operations that the
 * other nodes have posted and it has not? If all say yes, this is a deadlock:
 *
 *   - A node that is in the same state at two times was in that state in between, since no task
 *     comes back. So at the moment when the first node began to ask, all nodes were in the states
 *     that they had reported.
 *   - At that moment each posted operation lacked a node that takes part in it, and a member of
 *     that node had to continue before it could be posted there. All members waited, either for
 *     such an operation or for a member of their own node.
 *   - No message in transit unblocks a member. READY, or a launch, completes only an operation on
 *     which all nodes have voted, and then one of them does not say yes. A node that has failed an
 *     operation, or waits for answers to such a failure, does not say yes either.
 *
 * A node does not wait if something of it is about to fail (a deadline has passed, a member has
 * left), moves bytes, or waits for memory or a stream. An operation that all nodes
 * have posted, and that waits on GPUs for the rest of its set, lacks no node: this is no deadlock
 * here, whatever the set waits for.
 *
 * The first node then sends all nodes an INTERNODE_ASK: they fail the operations that their members
 * wait for, as if the deadline had passed, with one status. Each node sends the same to the others
 * before its members continue: operations posted later are not part of the deadlock, and must not
 * reach a node that has not broken it. (On GPUs they reach no node.) Another node's failure with
 * such a status may come earlier, and has the same effect. If two tasks have matched after all, for
 * example because a third was cancelled, these two continue.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "deadlock.h"
#include "node_match.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "sched/base/status.h"
#include "sched/queue/release.h"

#define KEYS_MAX   256	/* per message */
#define REPORT_MAX 4096 /* keys per report; beyond that, only deadlines end waits */

/* From a node to the first node: a part of its report (query_seq 0), or "yes" to the question with
 * that number. From the first node to a node: that question. */
struct deadlock_note {
	uint32_t query_seq, nkeys;
	/* Of a report: */
	uint32_t at, total;   /* keys: the first of this part, and the total number */
	uint64_t entered;     /* collectives that this node is ready for, or that have ended */
	uint64_t collectives; /* collectives that have ended, or that some local members have posted
			       */
	int32_t rank;	      /* one of its members, and the operation in which it waits */
	uint32_t op;
	/* The operations posted here to other nodes; or, in a question, those that other nodes have
	 * posted. */
	struct operation_key keys[KEYS_MAX];
};

_Static_assert(sizeof(struct deadlock_note) <= INTERNODE_BODY_MAX, "a note fits into a message");

struct report {
	bool whole;
	uint32_t nkeys, total;
	uint64_t entered, collectives;
	int32_t rank;
	uint32_t op;
	struct operation_key *keys;
};

struct deadlock {
	/* Waiting states; 0: none. */
	uint64_t seen;	    /* at the last look */
	uint64_t reported;  /* to the first node */
	uint64_t confirmed; /* in answer to its question */
	/* On the first node: */
	uint32_t query_seq, awaited; /* answers */
	struct report reports[];     /* by node index */
};

/* ---- Does this node wait? ---- */

/* The member's head waits for others, and not for memory or a stream. Its tasks are mixed into the
 * state: uids are never reused, and a task's stage only rises. A tombstone waits, too, for the
 * other members of this node to post its collective. */
static bool member_waits(const struct member *m, uint64_t *state)
{
	const struct task *t;
	bool any = false;
	if (m->ready || m->inputs)
		return false;
	DL_FOREACH (m->queue, t) {
		if (t->stage < AT_HEAD)
			break;
		const struct node_match *j = t->node_match;
		if (t->waits_input || (j && j->asked) || (t->stage == RUNNING && !j))
			return false;
		any = any || t->stage == POSTED || j;
		*state = (*state ^ (t->uid << 4 | t->tombstone << 3 | t->stage)) *
			 UINT64_C(0x100000001b3);
	}
	return any;
}

/* This node's waiting state; 0: not all of its members wait. */
static uint64_t waits(const struct internode_comm *s)
{
	uint64_t state = UINT64_C(0xcbf29ce484222325);
	bool any = false;
	if (s->ops || s->over || s->comm->ended || node_match_voted(s->comm))
		return 0;
	for (uint32_t i = 0; i < internode_comm_local_count(s); i++) {
		const struct member *m = &s->comm->members[internode_comm_locals(s)[i]];
		if (m->gone)
			continue;
		if (!member_waits(m, &state))
			return 0;
		any = true;
	}
	return any ? state | 1 : 0;
}

/* The first collective on which this node has not voted, if it has no open vote. */
static uint64_t next_collective(const struct comm *c)
{
	return c->collectives + c->poisoned;
}

/* Has this node not voted on the operation, and will it not before its members continue? */
static bool is_open(struct internode_comm *s, const struct operation_key *key)
{
	const struct comm *c = s->comm;
	const struct node_match *j = node_match_find(s, key);
	if (j && j->voters[j->mine].vote.kind)
		return false;
	if (key->a < 0)
		return key->seq >= next_collective(c) && !c->gone;
	return !node_match_pair_past(s, key);
}

/* ---- Messages between nodes ---- */

static size_t note_bytes(const struct deadlock_note *n)
{
	return offsetof(struct deadlock_note, keys) + n->nkeys * sizeof(n->keys[0]);
}

static void send_note(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		      const struct deadlock_note *n)
{
	const struct operation_key none = {-1, -1, 0, 0};
	internode_comm_send(sched, s, node_index, INTERNODE_DEADLOCK, &none, n, note_bytes(n), NULL,
			    0);
}

static bool note_valid(const struct internode_comm *s, const struct deadlock_note *note)
{
	const int32_t nranks = (int32_t)s->comm->nranks;
	bool valid = note->rank >= 0 && note->rank < nranks && note->total <= REPORT_MAX;
	for (uint32_t i = 0; i < note->nkeys; i++) {
		const struct operation_key *k = &note->keys[i];
		valid = valid && ((k->a == -1 && k->b == -1) ||
				  (k->a >= 0 && k->a < nranks && k->b >= 0 && k->b < nranks));
	}
	return valid;
}

static struct deadlock *get(struct internode_comm *s)
{
	if (!s->deadlock)
		s->deadlock = calloc(1, sizeof(*s->deadlock) +
						s->nnodes * sizeof(s->deadlock->reports[0]));
	return s->deadlock; /* without memory, deadlines apply */
}

/* ---- The first node ---- */

/* The status, naming members of two nodes that wait in different operations, if there are any. Its
 * number: how many collectives will have ended, the same on all nodes. */
static ncclsvc_status deadlock_status(const struct internode_comm *s)
{
	const struct report *reports = s->deadlock->reports, *one = &reports[0],
			    *other = &reports[1];
	ncclsvc_status st = status_of(NCCLSVC_MISMATCH);
	for (uint32_t p = 2; p < s->nnodes && other->op == one->op; p++)
		other = &reports[p];
	st.field = NCCLSVC_FIELD_ORDER;
	st.value_a = one->op;
	st.value_b = other->op;
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (reports[p].collectives > st.number)
			st.number = reports[p].collectives;
	status_name_ranks(s->comm, &st, one->rank, other->rank);
	return st;
}

static void forget_reports(const struct internode_comm *s)
{
	for (uint32_t p = 0; p < s->nnodes; p++) {
		free(s->deadlock->reports[p].keys);
		s->deadlock->reports[p] = (struct report){0};
	}
}

/* Without memory it stays incomplete, and deadlines apply. */
static void keep_report(struct report *r, const struct deadlock_note *part)
{
	if (!part->at) {
		free(r->keys);
		*r = (struct report){.total = part->total,
				     .entered = part->entered,
				     .collectives = part->collectives,
				     .rank = part->rank,
				     .op = part->op,
				     .keys = calloc(part->total + 1, sizeof(*r->keys))};
	}
	r->whole = false;
	if (!r->keys || part->at != r->nkeys || part->nkeys > r->total - r->nkeys)
		return;
	memcpy(r->keys + r->nkeys, part->keys, part->nkeys * sizeof(*r->keys));
	r->nkeys += part->nkeys;
	r->whole = r->nkeys == r->total;
}

static void tell_others(struct scheduler *sched, struct internode_comm *s, const ncclsvc_status *st)
{
	const struct operation_key all = {-1, -1, DEADLOCK_ALL, 0};
	for (uint32_t p = 1; p < s->nnodes; p++)
		if (p != s->me)
			internode_comm_send(sched, s, p, INTERNODE_ASK, &all, st, sizeof(*st), NULL,
					    0);
}

static void declare(struct scheduler *sched, struct internode_comm *s)
{
	const ncclsvc_status st = deadlock_status(s);
	s->deadlock->query_seq++;
	forget_reports(s);
	tell_others(sched, s, &st);
	deadlock_break(sched, s, &st);
}

static void count_answer(struct scheduler *sched, struct internode_comm *s)
{
	if (!--s->deadlock->awaited)
		declare(sched, s);
}

/* Does the operation posted by node `from` wait for node `to`? */
static bool waits_for(const struct internode_comm *s, const struct operation_key *key,
		      uint32_t from, uint32_t to)
{
	if (key->a < 0)
		return key->seq >= s->deadlock->reports[to].entered;
	return to != from && (s->node_of[key->a] == to || s->node_of[key->b] == to);
}

/* Does the operation lack a node, according to the reports? */
static bool lacks_some(const struct internode_comm *s, const struct operation_key *key,
		       uint32_t from)
{
	for (uint32_t to = 0; to < s->nnodes; to++)
		if (waits_for(s, key, from, to))
			return true;
	return false;
}

static bool may_be_deadlock(const struct internode_comm *s)
{
	const struct report *reports = s->deadlock->reports;
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (!reports[p].whole)
			return false;
	for (uint32_t p = 0; p < s->nnodes; p++)
		for (uint32_t i = 0; i < reports[p].nkeys; i++)
			if (!lacks_some(s, &reports[p].keys[i], p))
				return false;
	return true;
}

static void answer(struct scheduler *sched, struct internode_comm *s,
		   const struct deadlock_note *question);

static void ask(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		const struct deadlock_note *question)
{
	s->deadlock->awaited++;
	if (node_index == s->me)
		answer(sched, s, question);
	else
		send_note(sched, s, node_index, question);
}

/* Asks about all operations that wait for that node, in as many questions as needed. */
static void ask_node(struct scheduler *sched, struct internode_comm *s, uint32_t node_index)
{
	struct deadlock_note question = {.query_seq = s->deadlock->query_seq};
	for (uint32_t p = 0; p < s->nnodes; p++) {
		const struct report *report = &s->deadlock->reports[p];
		for (uint32_t i = 0; i < report->nkeys; i++) {
			if (!waits_for(s, &report->keys[i], p, node_index))
				continue;
			if (question.nkeys == KEYS_MAX) {
				ask(sched, s, node_index, &question);
				question.nkeys = 0;
			}
			question.keys[question.nkeys++] = report->keys[i];
		}
	}
	ask(sched, s, node_index, &question);
}

/* A node has reported, or says yes. */
static void take_note(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		      const struct deadlock_note *note)
{
	struct deadlock *k = get(s);
	if (!k)
		return;
	if (note->query_seq) {
		if (note->query_seq == k->query_seq && k->awaited)
			count_answer(sched, s);
		return;
	}
	keep_report(&k->reports[node_index], note);
	k->query_seq++; /* invalidates earlier questions */
	k->awaited = 0;
	if (!may_be_deadlock(s))
		return;
	k->awaited = 1; /* until the last question is sent */
	for (uint32_t p = 0; p < s->nnodes; p++)
		ask_node(sched, s, p);
	count_answer(sched, s);
}

/* ---- Every node ---- */

static void tell_first(struct scheduler *sched, struct internode_comm *s,
		       const struct deadlock_note *note)
{
	if (s->me)
		send_note(sched, s, 0, note);
	else
		take_note(sched, s, 0, note);
}

/* A node that does not wait, or no longer as it did, reports again when it does. */
static void answer(struct scheduler *sched, struct internode_comm *s,
		   const struct deadlock_note *question)
{
	struct deadlock *k = s->deadlock;
	const uint64_t state = waits(s);
	if (!k || !state || state != k->reported) {
		if (k)
			k->reported = 0;
		return;
	}
	for (uint32_t i = 0; i < question->nkeys; i++)
		if (!is_open(s, &question->keys[i]))
			return; /* the waiting node will be told, and report again */
	k->confirmed = state;
	tell_first(sched, s, &(struct deadlock_note){.query_seq = question->query_seq});
}

/* An operation that a local member waits in, and that other nodes may have matched in part. */
static uint64_t collectives_begun(const struct internode_comm *s)
{
	uint64_t most = 0;
	for (uint32_t i = 0; i < internode_comm_local_count(s); i++) {
		const struct task *t;
		uint64_t n = 0;
		DL_FOREACH (s->comm->members[internode_comm_locals(s)[i]].queue, t) {
			if (t->stage < AT_HEAD)
				break;
			n += !svc_op_is_p2p(t->record.op) && !t->node_match;
		}
		most = n > most ? n : most;
	}
	return most;
}

/* Do tasks of this node wait there for other nodes? */
static bool is_posted(const struct node_match *j)
{
	return j->tasks;
}

static uint32_t count_posted(const struct internode_comm *s)
{
	const struct node_match *j, *next;
	uint32_t n = 0;
	HASH_ITER (hh, s->matches, j, next)
		n += is_posted(j);
	return n;
}

/* In as many parts as needed. */
static void send_report(struct scheduler *sched, struct internode_comm *s,
			struct deadlock_note *note)
{
	const struct node_match *j, *next;
	HASH_ITER (hh, s->matches, j, next) {
		if (!is_posted(j))
			continue;
		if (note->nkeys == KEYS_MAX) {
			tell_first(sched, s, note);
			note->at += note->nkeys;
			note->nkeys = 0;
		}
		note->keys[note->nkeys++] = j->key;
	}
	tell_first(sched, s, note);
}

static void report(struct scheduler *sched, struct internode_comm *s, uint64_t state)
{
	uint32_t i = 0;
	while (i + 1 < internode_comm_local_count(s) &&
	       s->comm->members[internode_comm_locals(s)[i]].gone)
		i++;
	const uint32_t rank = internode_comm_locals(s)[i];
	struct deadlock_note note = {
		.total = count_posted(s),
		.entered = next_collective(s->comm),
		.collectives = s->comm->collectives + collectives_begun(s),
		.rank = (int32_t)rank,
		.op = s->comm->members[rank].queue->record.op,
	};
	if (note.total > REPORT_MAX)
		return;
	s->deadlock->reported = state;
	send_report(sched, s, &note);
}

static void break_deadlock(struct scheduler *sched, struct internode_comm *s,
			   const ncclsvc_status *why)
{
	struct comm *c = s->comm;
	node_match_give_up(sched, c, why, why->number);
	for (uint32_t i = 0; i < internode_comm_local_count(s); i++) {
		struct task *t, *next;
		DL_FOREACH_SAFE (c->members[internode_comm_locals(s)[i]].queue, t, next) {
			ncclsvc_status st = *why;
			if (t->stage < AT_HEAD)
				break;
			/* No other node knows of it. */
			if (t->stage == AT_HEAD ||
			    (t->stage == POSTED && svc_op_is_p2p(t->record.op)))
				release_end(sched, t, &st);
			else
				release_fail(sched, t, &st);
		}
	}
}

void deadlock_break(struct scheduler *sched, struct internode_comm *s, const void *body)
{
	struct deadlock *k = s->deadlock;
	ncclsvc_status st;
	memcpy(&st, body, sizeof(st));
	if (!deadlock_is_cause(&st) || !k)
		return;
	k->reported = 0; /* the first node has forgotten it; nodes that still wait report again */
	if (!k->confirmed || k->confirmed != waits(s))
		return;
	if (s->me && !internode_comm_is_sequenced(s))
		tell_others(sched, s, &st);
	break_deadlock(sched, s, &st);
}

void deadlock_take_message(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			   const void *body, size_t bytes)
{
	struct deadlock_note note;
	if (s->over || bytes < offsetof(struct deadlock_note, keys) || bytes > sizeof(note))
		return;
	memcpy(&note, body, bytes);
	if (note.nkeys > KEYS_MAX || bytes != note_bytes(&note) || !note_valid(s, &note))
		return;
	if (!s->me)
		take_note(sched, s, node_index, &note);
	else if (!node_index)
		answer(sched, s, &note);
}

static void look(struct scheduler *sched, struct internode_comm *s)
{
	const uint64_t state = waits(s);
	struct deadlock *k = state ? get(s) : s->deadlock;
	if (!k)
		return;
	if (!state)
		k->reported = 0;
	else if (state == k->seen && state != k->reported)
		report(sched, s, state);
	k->seen = state;
}

void deadlock_look(struct scheduler *sched)
{
	struct internode_comm *s, *next;
	if (sched->now < sched->internode->deadlock_ns)
		return;
	sched->internode->deadlock_ns = sched->now + DEADLOCK_LOOK_NS;
	HASH_ITER (hh, sched->internode->comms, s, next)
		if (s->comm->pending)
			look(sched, s);
}

void deadlock_free(struct internode_comm *s)
{
	if (s->deadlock)
		forget_reports(s);
	free(s->deadlock);
}
