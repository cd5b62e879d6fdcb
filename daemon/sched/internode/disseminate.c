/* SPDX-License-Identifier: Apache-2.0
 * READY votes that other nodes pass on, so that a collective costs each node about log2(nodes)
 * messages if all vote at about the same time. This is a dissemination barrier: in step k, each
 * node sends its own vote and those of the nodes before it, 2^k in all, to the node 2^k places
 * after it. If a step's votes are not all known within DISSEMINATE_NS, those that are known are
 * sent, and later ones within DISSEMINATE_NS after they have come, so that every node soon knows
 * whose are missing. FAILED votes are rare, and go straight to all.
 *
 * There is one path from each node to each other one. If a node on it ends the epoch, or if the
 * operation's deadline passes, a node that lacks votes asks those nodes directly (PULL, ASK). So
 * each node keeps its last votes on operations that have ended here. */
#include "disseminate.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "node_match.h"

#define BODY_MAX (12 * 1024)
/* Other nodes may still lack votes on the newest collective, or on those of the newest group. */
#define KEPT	 64

/* Equal votes of `count` nodes, of `voter` and those before it, wrapping around; then the bytes of
 * each of them. */
struct equal_votes {
	uint32_t voter, count, bytes, reserved;
	struct svc_record record;
};

_Static_assert(sizeof(struct equal_votes) + DISSEMINATE_BYTES_MAX <= BODY_MAX,
	       "the largest vote fits");
_Static_assert(sizeof(struct internode_header) + BODY_MAX + 8 <= CARRIER_MESSAGE_MAX,
	       "a message fits into a packet");

bool disseminate_used(const struct internode_comm *s, const struct operation_key *key)
{
	return key->a == -1 && key->b == -1 && s->nnodes > DISSEMINATE_DIRECT_NODES &&
	       !internode_comm_is_sequenced(s);
}

static bool is_disseminated(const struct node_match *j)
{
	return disseminate_used(j->comm->internode, &j->key);
}

static uint32_t places_before(const struct internode_comm *s, uint32_t voter, uint32_t places)
{
	return (voter + s->nnodes - places) % s->nnodes;
}

/* ---- Messages ---- */

struct message {
	struct scheduler *sched;
	struct internode_comm *s;
	const struct operation_key *key;
	uint32_t to;
	size_t bytes;
	struct equal_votes last; /* as in the body, at `at` */
	size_t at;
	char body[BODY_MAX];
};

static void message_begin(struct message *m, struct scheduler *sched, struct internode_comm *s,
			  const struct operation_key *key, uint32_t to)
{
	m->sched = sched;
	m->s = s;
	m->key = key;
	m->to = to;
	m->bytes = 0;
	m->last.count = 0;
}

static void message_send(struct message *m)
{
	if (m->bytes)
		internode_comm_send(m->sched, m->s, m->to, INTERNODE_VOTES, m->key, m->body,
				    m->bytes, NULL, 0);
	m->bytes = 0;
	m->last.count = 0;
}

/* The fields of a record that other nodes compare. */
static struct svc_record compared(const struct svc_record *r)
{
	return (struct svc_record){.op = r->op,
				   .type = r->type,
				   .redop = r->redop,
				   .peer = r->peer,
				   .count = r->count,
				   .agreement = r->agreement,
				   .tag = r->tag};
}

/* Does the vote continue the message's last entry? */
static bool continues(const struct message *m, uint32_t voter, const struct svc_record *record,
		      size_t bytes)
{
	const struct equal_votes *v = &m->last;
	return v->count && places_before(m->s, v->voter, v->count) == voter && v->bytes == bytes &&
	       m->bytes + bytes <= BODY_MAX && !memcmp(&v->record, record, sizeof(*record));
}

static void message_add(struct message *m, uint32_t voter, const struct svc_record *posted,
			const char *payload, size_t bytes)
{
	const struct svc_record record = compared(posted);
	if (!continues(m, voter, &record, bytes)) {
		if (m->bytes + sizeof(m->last) + bytes > BODY_MAX)
			message_send(m);
		m->last = (struct equal_votes){
			.voter = voter, .bytes = (uint32_t)bytes, .record = record};
		m->at = m->bytes;
		m->bytes += sizeof(m->last);
	}
	m->last.count++;
	memcpy(m->body + m->at, &m->last, sizeof(m->last));
	if (bytes)
		memcpy(m->body + m->bytes, payload, bytes);
	m->bytes += bytes;
}

/* ---- This node's votes ---- */

struct kept_vote {
	uint64_t collectives; /* 1 + the operation's key.seq; 0: none */
	struct svc_record record;
	size_t bytes;
	char payload[DISSEMINATE_BYTES_MAX];
};

/* Without memory for the vote, nodes that lack it run into their deadlines. */
static void keep_own(const struct node_match *j)
{
	struct internode_comm *s = j->comm->internode;
	const struct node_vote *mine = &j->voters[j->mine];
	if (!is_disseminated(j) || mine->vote.kind != VOTE_READY || mine->direct || j->comm->ended)
		return;
	if (!s->kept)
		s->kept = calloc(KEPT, sizeof(*s->kept));
	if (!s->kept)
		return;
	struct kept_vote *k = &s->kept[j->key.seq % KEPT];
	k->collectives = j->key.seq + 1;
	k->record = mine->vote.record;
	k->bytes = mine->bytes;
	if (mine->bytes)
		memcpy(k->payload, mine->payload, mine->bytes);
}

void disseminate_answer(struct scheduler *sched, struct internode_comm *s,
			const struct node_match *j, const struct operation_key *key, uint32_t to)
{
	const struct node_vote *mine = j ? &j->voters[j->mine] : NULL;
	const struct kept_vote *k = s->kept ? &s->kept[key->seq % KEPT] : NULL;
	struct message m;
	message_begin(&m, sched, s, key, to);
	if (mine && mine->vote.kind == VOTE_READY && !mine->direct)
		message_add(&m, s->me, &mine->vote.record, mine->payload, mine->bytes);
	else if (!mine && k && k->collectives == key->seq + 1)
		message_add(&m, s->me, &k->record, k->payload, k->bytes);
	message_send(&m);
}

void disseminate_pull(struct scheduler *sched, const struct node_match *j)
{
	for (uint32_t i = 0; is_disseminated(j) && i < j->nvoters; i++)
		if (!j->voters[i].vote.kind && i != j->mine)
			internode_comm_send(sched, j->comm->internode, i, INTERNODE_PULL, &j->key,
					    "", 0, NULL, 0);
}

/* ---- Steps ---- */

static void send_step(struct scheduler *sched, struct node_match *j, uint32_t step, uint32_t width)
{
	struct internode_comm *s = j->comm->internode;
	struct message m;
	message_begin(&m, sched, s, &j->key, (s->me + (1u << step)) % s->nnodes);
	for (uint32_t i = 0; i < width; i++) {
		const uint32_t voter = places_before(s, s->me, i);
		struct node_vote *v = &j->voters[voter];
		if (v->vote.kind != VOTE_READY || v->direct || v->steps >> step & 1)
			continue;
		v->steps |= 1u << step;
		message_add(&m, voter, &v->vote.record, v->payload, v->bytes);
	}
	message_send(&m);
}

/* late: also sends the known votes of incomplete steps. Returns whether a step is incomplete. */
static bool send_steps(struct scheduler *sched, struct node_match *j, bool late)
{
	const struct internode_comm *s = j->comm->internode;
	uint32_t known = 0; /* votes, counted back from this node's without a gap */
	bool incomplete = false;
	for (uint32_t step = 0; 1u << step < s->nnodes; step++) {
		const uint32_t all = s->nnodes - (1u << step);
		const uint32_t width = all < 1u << step ? all : 1u << step;
		while (known < width && j->voters[places_before(s, s->me, known)].vote.kind)
			known++;
		if (known >= width || late)
			send_step(sched, j, step, width);
		incomplete |= known < width;
	}
	return incomplete;
}

static void stop_waiting(struct scheduler *sched, struct node_match *j)
{
	if (j->late_ns)
		DL_DELETE2(sched->internode->late, j, prev_late, next_late);
	j->late_ns = 0;
}

static void wait_until(struct scheduler *sched, struct node_match *j, uint64_t ns)
{
	if (j->late_ns)
		return;
	j->late_ns = ns;
	DL_APPEND2(sched->internode->late, j, prev_late, next_late);
}

/* Does it still lack votes that may have got lost on their way? */
static bool pulls(const struct node_match *j)
{
	return j->comm->internode->any_over && j->voters[j->mine].vote.kind &&
	       j->votes < j->nvoters;
}

void disseminate_votes(struct scheduler *sched, struct node_match *j)
{
	if (!is_disseminated(j))
		return;
	if (send_steps(sched, j, false) || pulls(j))
		wait_until(sched, j, sched->now + DISSEMINATE_NS);
	else
		stop_waiting(sched, j);
}

void disseminate_expire(struct scheduler *sched)
{
	struct node_match *j, *next;
	DL_FOREACH_SAFE2 (sched->internode->late, j, next, next_late) {
		if (j->late_ns > sched->now)
			continue;
		stop_waiting(sched, j);
		send_steps(sched, j, true);
		if (!pulls(j))
			continue;
		disseminate_pull(sched, j);
		wait_until(sched, j, sched->now + DISSEMINATE_PULL_NS);
	}
}

void disseminate_forget(struct scheduler *sched, struct node_match *j)
{
	stop_waiting(sched, j);
	keep_own(j);
}

/* ---- Receiving ---- */

static bool votes_valid(const struct node_match *j, const struct equal_votes *v, size_t left)
{
	return v->voter < j->nvoters && v->count && v->count < j->nvoters &&
	       v->bytes <= DISSEMINATE_BYTES_MAX && left / v->count >= v->bytes;
}

bool disseminate_keep(struct scheduler *sched, struct node_match *j, const char *body, size_t bytes,
		      vote_keeper *keep)
{
	struct equal_votes v;
	while (bytes >= sizeof(v)) {
		memcpy(&v, body, sizeof(v));
		body += sizeof(v);
		bytes -= sizeof(v);
		if (!votes_valid(j, &v, bytes))
			return false;
		for (uint32_t i = 0; i < v.count; i++, body += v.bytes, bytes -= v.bytes) {
			const uint32_t voter = places_before(j->comm->internode, v.voter, i);
			if (!j->voters[voter].vote.kind && voter != j->mine &&
			    !keep(sched, j, voter, &v.record, body, v.bytes))
				return true;
		}
	}
	return !bytes;
}

/* ---- The end of an epoch ---- */

void disseminate_over(struct scheduler *sched, struct internode_comm *s)
{
	struct node_match *j, *next;
	if (s->any_over)
		return;
	s->any_over = true;
	HASH_ITER (hh, s->matches, j, next) {
		if (!is_disseminated(j) || !pulls(j))
			continue;
		disseminate_pull(sched, j);
		stop_waiting(sched, j);
		wait_until(sched, j, sched->now + DISSEMINATE_PULL_NS);
	}
}

/* Are votes under way, and will all of them come? */
static bool is_pending(const struct scheduler *sched, const struct node_match *j)
{
	const struct internode_comm *s = j->comm->internode;
	bool lacks = false;
	for (uint32_t p = 0; p < s->nnodes; p++) {
		if (j->voters[p].vote.kind)
			continue;
		if (sched->internode->lost[s->nodes[p]] || s->overs[p] < j->key.seq + 2)
			return false;
		lacks = true;
	}
	return lacks;
}

bool disseminate_pending(const struct scheduler *sched, const struct internode_comm *s)
{
	const struct node_match *j;
	for (j = s->matches; j; j = j->hh.next)
		if (is_disseminated(j) && is_pending(sched, j))
			return true;
	return false;
}
