/* SPDX-License-Identifier: Apache-2.0
 * Matching of tasks across nodes: each node votes READY or FAILED once, and all reach the same
 * conclusion, as internode_comm.h explains. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "deadlock.h"
#include "disseminate.h"
#include "node_match.h"
#include "proto/names.h"
#include "proto/task.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "sched/queue/match.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"
#include "sequence.h"

#define MATCHES_MAX 65536 /* per communicator: how far other nodes may be ahead */

/* ---- Lookup ---- */

struct node_match *node_match_find(struct internode_comm *s, const struct operation_key *key)
{
	struct node_match *j;
	HASH_FIND(hh, s->matches, key, sizeof(*key), j);
	return j;
}

struct node_match *node_match_get(struct internode_comm *s, const struct operation_key *key)
{
	struct node_match *j = node_match_find(s, key);
	if (j)
		return j;
	uint32_t n = key->a < 0 ? s->nnodes : 2;
	j = HASH_COUNT(s->matches) < MATCHES_MAX ? calloc(1, sizeof(*j) + n * sizeof(j->voters[0]))
						 : NULL;
	if (!j)
		return NULL;
	j->key = *key;
	j->comm = s->comm;
	j->nvoters = n;
	j->mine = key->a < 0 ? s->me : s->node_of[key->a] == s->me ? 0 : 1;
	HASH_ADD(hh, s->matches, key, sizeof(j->key), j);
	return j;
}

void node_match_free(struct scheduler *sched, struct internode_comm *s, struct node_match *j)
{
	if (j->due_ns)
		DL_DELETE2(sched->internode->asked, j, prev_due, next_due);
	disseminate_forget(sched, j);
	HASH_DEL(s->matches, j);
	for (uint32_t i = 0; i < j->nvoters; i++) {
		free(j->voters[i].vote.failed);
		free(j->voters[i].payload);
	}
	free(j->tasks);
	free(j);
}

static struct operation_key collective_key(const struct comm *c)
{
	return (struct operation_key){-1, -1, c->collectives, 0};
}

uint32_t node_match_node_index(const struct node_match *j, uint32_t voter)
{
	const struct internode_comm *s = j->comm->internode;
	if (j->key.a < 0)
		return voter;
	return s->node_of[voter ? j->key.b : j->key.a];
}

uint32_t node_match_voter_of(const struct node_match *j, uint32_t node_index)
{
	if (j->key.a < 0)
		return node_index;
	return j->comm->internode->node_of[j->key.a] == node_index ? 0 : 1;
}

/* ---- Conclusions ---- */

bool node_match_differs(const struct node_match *j, const ncclsvc_status *st)
{
	return j->key.a < 0 && mismatch_is_cause(st);
}

/* The outcome for all nodes, and the records that members have posted. */
static void sum_up(const struct node_match *j, struct outcome *all)
{
	all->failed = false;
	all->status = status_ok;
	all->posted.nkinds = 0; /* the kinds are set before they are read */
	for (uint32_t i = 0; i < j->nvoters; i++)
		outcome_add(all, &j->voters[i].vote);
	if (node_match_differs(j, &all->status))
		match_mismatch_status(j->comm, &all->posted, &all->status);
}

/* All nodes are ready; do their records agree? */
static bool find_mismatch(const struct node_match *j, const struct mismatch *posted,
			  ncclsvc_status *st)
{
	if (j->key.a < 0)
		return match_mismatch_status(j->comm, posted, st);
	*st = status_of(NCCLSVC_MISMATCH);
	st->field = svc_record_differs(&j->voters[0].vote.record, &j->voters[1].vote.record,
				       &st->value_a, &st->value_b);
	status_name_ranks(j->comm, st, j->key.a, j->key.b);
	return st->field;
}

void node_match_end_tasks(struct scheduler *sched, struct node_match *j, const ncclsvc_status *st)
{
	uint32_t n = j->key.a < 0 ? j->comm->nranks : 2;
	for (uint32_t k = 0; j->tasks && k < n; k++) {
		struct task *t = j->tasks[k];
		if (!t)
			continue;
		node_match_release(sched, t);
		release_end(sched, t, st);
	}
}

void node_match_conclude_failed(struct scheduler *sched, struct node_match *j)
{
	struct comm *c = j->comm;
	if (j->key.a >= 0) {
		j->resolved = true; /* for tasks posted later, since no task waits here */
		return;
	}
	if (j->key.seq < c->collectives) { /* and no task will be posted */
		node_match_free(sched, c->internode, j);
		return;
	}
	if (j->key.seq > c->collectives) {
		j->resolved = true;
		return;
	}
	ncclsvc_status st = j->status;
	node_match_free(sched, c->internode, j);
	if (deadlock_is_cause(&st)) { /* tasks posted from now on are a different operation */
		match_end_collective(sched, c, &st);
		return;
	}
	release_collective(sched, c, &st);
	if (c->collective_here == c->here)
		match_end_collective(sched, c, &st);
}

/* Do its bytes, if any, travel with the votes? */
static bool comes_along(const struct comm *c, const struct svc_record *r, bool p2p)
{
	return c->transport->eager && c->transport->eager(c->internode, r, p2p);
}

/* They no longer wait for other nodes. */
static void end_started(struct scheduler *sched, struct task *const *tasks, uint32_t n,
			const ncclsvc_status *st)
{
	for (uint32_t k = 0; k < n; k++)
		if (tasks[k])
			release_end(sched, tasks[k], st);
}

static void start(struct scheduler *sched, struct node_match *j)
{
	struct comm *c = j->comm;
	struct task **tasks = j->tasks;
	bool p2p = j->key.a >= 0;
	uint32_t n = p2p ? 2 : c->nranks;
	ncclsvc_status st = status_ok;
	for (uint32_t k = 0; k < n; k++) {
		if (!tasks[k])
			continue;
		node_match_release(sched, tasks[k]);
		tasks[k]->started_ns = sched->now;
		task_show(sched, tasks[k]);
	}
	if (comes_along(c, &j->voters[j->mine].vote.record, p2p)) {
		if (c->transport->unpack && !c->transport->unpack(c->internode, tasks, j)) {
			/* Does the node run another version of this program? */
			st = status_of(NCCLSVC_PROTOCOL);
			internode_comm_give_up(sched, c, NCCLSVC_PROTOCOL, UINT32_MAX);
		}
		end_started(sched, tasks, n, &st);
		node_match_free(sched, c->internode, j);
		return;
	}
	struct operation_key key = j->key;
	j->tasks = NULL;
	node_match_free(sched, c->internode, j);
	const struct match match = {.comm = c, .tasks = tasks, .ntasks = n, .at = &key};
	if (c->transport->start(sched, &match) == BEGUN_NO_MEMORY) {
		/* The other nodes have begun; their operation ends with the epoch. */
		st = status_of(NCCLSVC_NO_MEMORY);
		end_started(sched, tasks, n, &st);
		internode_comm_give_up(sched, c, NCCLSVC_NO_MEMORY, UINT32_MAX);
	}
	free(tasks);
}

void node_match_conclude(struct scheduler *sched, struct node_match *j)
{
	struct outcome all;
	sum_up(j, &all);
	ncclsvc_status st = all.status;
	if (j->due_ns) {
		DL_DELETE2(sched->internode->asked, j, prev_due, next_due);
		j->due_ns = 0;
	}
	if (!all.failed && !find_mismatch(j, &all.posted, &st)) {
		start(sched, j);
		return;
	}
	j->status = st;
	if (!j->tasks) {
		node_match_conclude_failed(sched, j);
		return;
	}
	node_match_end_tasks(sched, j, &st);
	node_match_free(sched, j->comm->internode, j);
}

void node_match_ready(struct node_match *j, uint32_t voter, const struct svc_record *record)
{
	const struct internode_comm *s = j->comm->internode;
	const bool pair = j->key.a >= 0;
	j->voters[voter].vote = (struct vote){
		.kind = VOTE_READY,
		.rank = pair ? (voter ? j->key.b : j->key.a) : (int32_t)s->ranks[s->first[voter]],
		.count = pair ? 1 : s->counts[voter],
		.record = *record,
	};
}

static void count_vote(struct scheduler *sched, struct node_match *j)
{
	j->votes++;
	disseminate_votes(sched, j);
	if (j->votes == j->nvoters)
		node_match_conclude(sched, j);
}

/* ---- Votes ---- */

void node_match_tell_failed(struct scheduler *sched, const struct node_match *j,
			    const struct failed_note *failed)
{
	if (internode_comm_is_sequenced(j->comm->internode)) {
		sequence_withdraw(sched, j->comm->internode, &j->key, NULL, failed);
		return;
	}
	for (uint32_t i = 0; i < j->nvoters; i++)
		if (i != j->mine)
			internode_comm_send(sched, j->comm->internode, node_match_node_index(j, i),
					    INTERNODE_FAILED, &j->key, failed, sizeof(*failed),
					    NULL, 0);
}

bool node_match_keep_failed(struct node_match *j, uint32_t voter, const struct failed_note *failed)
{
	struct vote *v = &j->voters[voter].vote;
	v->failed = malloc(sizeof(*v->failed));
	if (v->failed)
		*v->failed = *failed;
	return v->failed;
}

/* The local ranks that have not posted the current collective. (A task that ended before its turn
 * named them at its end.) */
void node_match_name_missing(const struct comm *c, const struct node_match *j, ncclsvc_status *st)
{
	const struct internode_comm *s = c->internode;
	if (st->result != NCCLSVC_TIMEOUT || st->done_ns)
		return;
	st->missing_count = 0;
	memset(st->missing, 0, sizeof(st->missing));
	if (j->key.a >= 0) {
		st->missing[st->missing_count++] = j->mine ? j->key.b : j->key.a;
		return;
	}
	for (uint32_t i = 0; i < internode_comm_local_count(s); i++) {
		uint32_t rank = internode_comm_locals(s)[i];
		/* No local rank has posted a later collective. */
		if (j->key.seq == c->collectives && c->collective[rank])
			continue;
		if (st->missing_count < NCCLSVC_MISSING_SHOWN)
			st->missing[st->missing_count] = (int32_t)rank;
		st->missing_count++;
	}
}

/* Collects the records that this node's members have posted so far. */
static void collect_records(const struct node_match *j, struct mismatch *posted)
{
	const struct comm *c = j->comm;
	if (j->tasks)
		match_collect_records(c, j->tasks, posted);
	else if (j->key.seq == c->collectives)
		match_collect_records(c, c->collective, posted);
}

void node_match_vote_failed(struct scheduler *sched, struct node_match *j, const ncclsvc_status *st)
{
	struct failed_note failed = {.status = *st};
	const struct internode_comm *s = j->comm->internode;
	if (s->over)
		return;
	if (node_match_differs(j, st))
		collect_records(j, &failed.posted);
	j->status = *st;
	if (!node_match_keep_failed(j, j->mine, &failed)) {
		internode_comm_give_up(sched, j->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	node_match_tell_failed(sched, j, &failed);
	if (internode_comm_is_sequenced(s)) {
		j->voters[j->mine].vote.kind = VOTE_FAILED;
		return;
	}
	j->voters[j->mine].vote.kind = VOTE_FAILED;
	count_vote(sched, j);
}

/* Tells the sequencer together with everything connected to it on this node. */
static void offer(struct scheduler *sched, struct node_match *j)
{
	const ncclsvc_status st = status_of(NCCLSVC_NO_MEMORY);
	const struct match match = {.comm = j->comm,
				    .tasks = j->tasks,
				    .ntasks = j->key.a < 0 ? j->comm->nranks : 2,
				    .at = &j->key};
	if (j->comm->transport->start(sched, &match) == BEGUN_NO_MEMORY)
		node_match_vote_failed(sched, j, &st);
}

/* Sends it to all other nodes, with the bytes for each. */
static void send_ready(struct scheduler *sched, struct node_match *j,
		       const struct svc_record *record, bool packs)
{
	struct internode_comm *s = j->comm->internode;
	char payload[INTERNODE_EAGER_BYTES];
	const bool p2p = j->key.a >= 0;
	j->voters[j->mine].direct = true;
	for (uint32_t i = 0; i < j->nvoters; i++) {
		if (i == j->mine)
			continue;
		uint32_t node_index = node_match_node_index(j, i);
		size_t n =
			packs ? s->comm->transport->pack(s, j->tasks, node_index, p2p, payload) : 0;
		internode_comm_send(sched, s, node_index, INTERNODE_READY, &j->key, record,
				    sizeof(*record), payload, n);
	}
}

/* Do all nodes get the same bytes? */
static bool is_same_for_all(const struct svc_record *r)
{
	return !svc_op_sends_each(r->op) && !svc_op_root_receives(r->op);
}

/* Keeps the bytes for all other nodes with this node's vote. False: they are too many, or there is
 * no memory. */
static bool keep_payload(struct node_match *j)
{
	struct internode_comm *s = j->comm->internode;
	struct node_vote *mine = &j->voters[j->mine];
	char payload[INTERNODE_EAGER_BYTES];
	const size_t n = s->comm->transport->pack(s, j->tasks, !s->me, false, payload);
	if (n > DISSEMINATE_BYTES_MAX)
		return false;
	mine->payload = n ? malloc(n) : NULL;
	if (n && !mine->payload)
		return false;
	if (n)
		memcpy(mine->payload, payload, n);
	mine->bytes = n;
	return true;
}

void node_match_vote_ready(struct scheduler *sched, struct node_match *j,
			   const struct svc_record *record)
{
	struct internode_comm *s = j->comm->internode;
	const bool packs = s->comm->transport->pack && comes_along(j->comm, record, j->key.a >= 0);
	node_match_ready(j, j->mine, record);
	if (internode_comm_is_sequenced(s)) {
		offer(sched, j);
		return;
	}
	if (!disseminate_used(s, &j->key) || (packs && !is_same_for_all(record)) ||
	    (packs && !keep_payload(j)))
		send_ready(sched, j, record, packs);
	count_vote(sched, j);
}

void node_match_commit(struct scheduler *sched, struct node_match *j, struct task *t)
{
	struct member *m = member_of(t);
	t->node_match = j;
	sched->internode->committed++;
	m->posted--;
	m->running++;
	t->comm->running++;
	t->stage = RUNNING;
	member_update_blocked(m);
}

/* Sets the deadline for what the other nodes say. The sequencer waits for nodes, too, so its answer
 * may take twice as long. */
static void await_answers(struct scheduler *sched, struct node_match *j)
{
	const unsigned steps = internode_comm_is_sequenced(j->comm->internode) ? 2 : 1;
	if (j->due_ns)
		DL_DELETE2(sched->internode->asked, j, prev_due, next_due);
	j->due_ns = sched->now + steps * NODE_ANSWER_NS;
	DL_APPEND2(sched->internode->asked, j, prev_due, next_due);
}

bool node_match_post_collective(struct scheduler *sched, struct comm *c,
				const ncclsvc_status *differ)
{
	if (!c->internode)
		return false;
	if (c->internode->over)
		return true; /* it is about to end */
	const struct operation_key key = collective_key(c);
	struct node_match *j = node_match_get(c->internode, &key);
	struct task **tasks = calloc(c->nranks, sizeof(struct task *));
	if (!j || !tasks) {
		free(tasks);
		internode_comm_give_up(sched, c, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return true;
	}
	const struct svc_record *record = NULL;
	j->tasks = tasks;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t = c->collective[k];
		if (!t)
			continue;
		tasks[k] = t;
		record = &t->record;
		c->collective[k] = NULL;
		c->members[k].collective = NULL;
		node_match_commit(sched, j, t);
		/* The set's next collective is launched together with it. */
		if (t->next_in_group)
			member_make_ready(sched, &c->members[k]);
	}
	c->collective_here = 0;
	c->collectives++;
	if (differ) {
		await_answers(sched, j);
		node_match_vote_failed(sched, j, differ);
	} else {
		node_match_vote_ready(sched, j, record);
	}
	return true;
}

bool node_match_fail_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *st)
{
	struct operation_key key = collective_key(c);
	if (!c->internode)
		return false;
	if (c->internode->over)
		return true;
	struct node_match *j = node_match_get(c->internode, &key);
	if (!j) {
		internode_comm_give_up(sched, c, NCCLSVC_LIMIT, UINT32_MAX);
		return true;
	}
	if (j->voters[j->mine].vote.kind)
		return true;
	ncclsvc_status own = *st;
	node_match_name_missing(c, j, &own);
	await_answers(sched, j);
	disseminate_pull(sched, j);
	node_match_vote_failed(sched, j, &own);
	return true;
}

/* Fails it for members that have posted it and for those that have not, whose next collective is a
 * later one. A poisoned collective has failed on all nodes. */
static void give_up_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *st)
{
	const uint64_t seq = c->collectives;
	node_match_look(sched, c);
	if (!c->poisoned)
		node_match_fail_collective(sched, c, st);
	if (c->collectives == seq)
		match_end_collective(sched, c, st);
}

void node_match_give_up(struct scheduler *sched, struct comm *c, const ncclsvc_status *st,
			uint64_t collectives)
{
	struct node_match *j, *next;
	HASH_ITER (hh, c->internode->matches, j, next)
		if (j->key.a >= 0 && !j->voters[j->mine].vote.kind)
			node_match_vote_failed(sched, j, st);
	for (uint64_t seq = c->collectives; seq < collectives && !c->ended; seq++)
		give_up_collective(sched, c, st);
}

bool node_match_voted(struct comm *c)
{
	if (!c->internode)
		return false;
	const struct operation_key key = collective_key(c);
	struct node_match *j = node_match_find(c->internode, &key);
	return j && j->voters[j->mine].vote.kind && !j->resolved;
}

/* This node's match of the current collective, or NULL. */
static struct node_match *find_current(const struct comm *c)
{
	const struct operation_key key = collective_key(c);
	return c->internode ? node_match_find(c->internode, &key) : NULL;
}

uint64_t node_match_first_ns(struct comm *c)
{
	const struct node_match *j = find_current(c);
	return j ? j->first_ns : 0;
}

bool node_match_awaited(struct comm *c)
{
	const struct node_match *j = find_current(c);
	return !c->internode || (j && j->first_ns && j->votes == j->nvoters - 1);
}

void node_match_look(struct scheduler *sched, struct comm *c)
{
	if (!c->internode || c->poisoned)
		return;
	const struct operation_key key = collective_key(c);
	struct node_match *j = node_match_find(c->internode, &key);
	if (!j || !j->resolved)
		return;
	ncclsvc_status st = j->status;
	node_match_free(sched, c->internode, j);
	c->poisoned = true;
	c->poison = st;
}

/* NULL: it has no tasks here, or they are not to be launched. */
static struct set_match *match_of(const struct node_match *j)
{
	const uint32_t n = j->key.a < 0 ? j->comm->nranks : 2;
	for (uint32_t k = 0; j->tasks && k < n; k++)
		if (j->tasks[k])
			return j->tasks[k]->match;
	return NULL;
}

struct launch_request *node_match_request(const struct node_match *j)
{
	const struct set_match *m = match_of(j);
	return m ? m->request : NULL;
}

void node_match_call_off(struct scheduler *sched, struct node_match *j)
{
	struct set_match *m = match_of(j);
	if (m && m->request)
		sequence_void(sched, m->request);
	if (m)
		set_dissolve(sched, m);
}

/* For a TIMEOUT: all local members have posted it. */
static ncclsvc_status without_missing(const ncclsvc_status *why)
{
	ncclsvc_status st = *why;
	if (st.result == NCCLSVC_TIMEOUT && !st.done_ns) {
		st.missing_count = 0;
		memset(st.missing, 0, sizeof(st.missing));
	}
	return st;
}

void node_match_withdraw(struct scheduler *sched, struct node_match *j)
{
	const struct failed_note note = {.status = without_missing(&j->status)};
	j->asked = true; /* once is enough */
	if (j->voters[j->mine].vote.kind == VOTE_FAILED) {
		sequence_wait_no_more(sched, j->comm->internode, &j->key, &note);
		return;
	}
	node_match_call_off(sched, j);
	node_match_vote_failed(sched, j, &note.status);
}

static void ask_sequencer(struct scheduler *sched, struct node_match *j)
{
	const struct launch_request *r = node_match_request(j);
	const struct failed_note note = {.status = without_missing(&j->status)};
	if (!r)
		node_match_withdraw(sched, j);
	else
		sequence_withdraw(sched, j->comm->internode, &j->key, r, &note);
}

static void ask(struct scheduler *sched, struct node_match *j, const ncclsvc_status *st)
{
	if (j->asked || j->comm->internode->over)
		return;
	j->asked = true;
	j->status = *st;
	await_answers(sched, j);
	if (internode_comm_is_sequenced(j->comm->internode)) {
		ask_sequencer(sched, j);
		return;
	}
	for (uint32_t i = 0; i < j->nvoters; i++)
		if (!j->voters[i].vote.kind)
			internode_comm_send(sched, j->comm->internode, node_match_node_index(j, i),
					    INTERNODE_ASK, &j->key, st, sizeof(*st), NULL, 0);
}

void node_match_ask(struct scheduler *sched, struct task *t, const ncclsvc_status *st)
{
	ask(sched, t->node_match, st);
}

/* The node at fault. */
static uint32_t silent_node(const struct node_match *j)
{
	uint32_t i = 0;
	if (internode_comm_is_sequenced(j->comm->internode))
		return 0; /* its leader */
	while (j->voters[i].vote.kind)
		i++;
	return node_match_node_index(j, i);
}

void node_match_expire(struct scheduler *sched)
{
	struct node_match *j, *next;
	DL_FOREACH_SAFE2 (sched->internode->asked, j, next, next_due) {
		if (j->due_ns > sched->now)
			continue;
		DL_DELETE2(sched->internode->asked, j, prev_due, next_due);
		j->due_ns = 0;
		const ncclsvc_status differ = j->status;
		if (j->tasks && !j->asked)
			ask(sched, j, &differ); /* with the differences known by now */
		else if (j->votes < j->nvoters)
			internode_comm_give_up(sched, j->comm, NCCLSVC_TIMEOUT, silent_node(j));
	}
}

/* ---- Requests to the sequencer ---- */

void node_match_entry(const struct node_match *j, struct request_entry *entry)
{
	const struct internode_comm *s = j->comm->internode;
	const struct vote *v = &j->voters[j->mine].vote;
	*entry = (struct request_entry){
		.internode_id = s->id,
		.key = j->key,
		.rank = v->rank,
		.count = v->count,
		.order = match_of(j)->order,
		.record = v->record,
	};
}

void node_match_launched(struct scheduler *sched, struct node_match *j)
{
	const uint32_t n = j->key.a < 0 ? j->comm->nranks : 2;
	for (uint32_t k = 0; k < n; k++)
		if (j->tasks[k])
			node_match_release(sched, j->tasks[k]);
	node_match_free(sched, j->comm->internode, j);
}
