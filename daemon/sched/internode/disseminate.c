/* SPDX-License-Identifier: Apache-2.0
 * READY votes that other nodes pass on, so that a collective costs each node log2(nodes) messages.
 * This is a dissemination barrier: in step k, each node sends its own vote and those of the nodes
 * before it, 2^k in all, to the node 2^k places after it. A step whose votes are not all known
 * within DISSEMINATE_NS sends those that are, and later ones as they come, so that every node soon
 * knows who is missing. FAILED votes are rare, and go straight to all. */
#include "disseminate.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "node_match.h"

#define BODY_MAX (12 * 1024)

/* Equal votes of `count` nodes, from `voter` on downwards; then the bytes of each of them. */
struct equal_votes {
	uint32_t voter, count, bytes, reserved;
	struct svc_record record;
};

_Static_assert(sizeof(struct equal_votes) + INTERNODE_EAGER_BYTES <= BODY_MAX,
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

/* ---- Sending ---- */

struct message {
	struct scheduler *sched;
	const struct node_match *j;
	uint32_t to;
	size_t bytes;
	struct equal_votes last; /* as in the body, at `at` */
	size_t at;
	char body[BODY_MAX];
};

static void message_begin(struct message *m, struct scheduler *sched, const struct node_match *j,
			  uint32_t to)
{
	m->sched = sched;
	m->j = j;
	m->to = to;
	m->bytes = 0;
	m->last.count = 0;
}

static void message_send(struct message *m)
{
	if (m->bytes)
		internode_comm_send(m->sched, m->j->comm->internode, m->to, INTERNODE_VOTES,
				    &m->j->key, m->body, m->bytes, NULL, 0);
	m->bytes = 0;
	m->last.count = 0;
}

/* What other nodes compare. */
static struct svc_record compared(const struct svc_record *r)
{
	return (struct svc_record){.op = r->op,
				   .type = r->type,
				   .redop = r->redop,
				   .flags = r->flags,
				   .peer = r->peer,
				   .count = r->count,
				   .agreement = r->agreement,
				   .tag = r->tag};
}

static uint32_t places_before(const struct node_match *j, uint32_t voter, uint32_t places)
{
	return (voter + j->nvoters - places) % j->nvoters;
}

/* Does the vote continue the message's last entry? */
static bool continues(const struct message *m, uint32_t voter, const struct svc_record *record,
		      size_t bytes)
{
	const struct equal_votes *v = &m->last;
	return v->count && places_before(m->j, v->voter, v->count) == voter && v->bytes == bytes &&
	       m->bytes + bytes <= BODY_MAX && !memcmp(&v->record, record, sizeof(*record));
}

static void message_add(struct message *m, uint32_t voter)
{
	const struct node_vote *v = &m->j->voters[voter];
	const struct svc_record record = compared(&v->vote.record);
	if (!continues(m, voter, &record, v->bytes)) {
		if (m->bytes + sizeof(m->last) + v->bytes > BODY_MAX)
			message_send(m);
		m->last = (struct equal_votes){
			.voter = voter, .bytes = (uint32_t)v->bytes, .record = record};
		m->at = m->bytes;
		m->bytes += sizeof(m->last);
	}
	m->last.count++;
	memcpy(m->body + m->at, &m->last, sizeof(m->last));
	if (v->bytes)
		memcpy(m->body + m->bytes, v->payload, v->bytes);
	m->bytes += v->bytes;
}

void disseminate_own(struct scheduler *sched, const struct node_match *j, uint32_t voter)
{
	struct message m;
	message_begin(&m, sched, j, voter);
	message_add(&m, j->mine);
	message_send(&m);
}

static void send_step(struct scheduler *sched, struct node_match *j, uint32_t step, uint32_t width)
{
	struct message m;
	message_begin(&m, sched, j, (j->mine + (1u << step)) % j->nvoters);
	for (uint32_t i = 0; i < width; i++) {
		const uint32_t voter = places_before(j, j->mine, i);
		struct node_vote *v = &j->voters[voter];
		if (v->vote.kind != VOTE_READY || v->direct || v->steps >> step & 1)
			continue;
		v->steps |= 1u << step;
		message_add(&m, voter);
	}
	message_send(&m);
}

/* late: of incomplete steps, too. Returns whether a step is incomplete. */
static bool send_steps(struct scheduler *sched, struct node_match *j, bool late)
{
	uint32_t known = 0; /* as many votes, without a gap */
	bool incomplete = false;
	for (uint32_t step = 0; 1u << step < j->nvoters; step++) {
		const uint32_t all = j->nvoters - (1u << step);
		const uint32_t width = all < 1u << step ? all : 1u << step;
		while (known < width && j->voters[places_before(j, j->mine, known)].vote.kind)
			known++;
		if (known >= width || late)
			send_step(sched, j, step, width);
		incomplete |= known < width;
	}
	return incomplete;
}

void disseminate_forget(struct scheduler *sched, struct node_match *j)
{
	if (j->late_ns)
		DL_DELETE2(sched->internode->late, j, prev_late, next_late);
	j->late_ns = 0;
}

void disseminate_votes(struct scheduler *sched, struct node_match *j)
{
	if (!is_disseminated(j))
		return;
	if (!send_steps(sched, j, false)) {
		disseminate_forget(sched, j);
	} else if (!j->late_ns) {
		j->late_ns = sched->now + DISSEMINATE_NS;
		DL_APPEND2(sched->internode->late, j, prev_late, next_late);
	}
}

void disseminate_expire(struct scheduler *sched)
{
	struct node_match *j, *next;
	DL_FOREACH_SAFE2 (sched->internode->late, j, next, next_late) {
		if (j->late_ns > sched->now)
			return; /* so are all after it */
		disseminate_forget(sched, j);
		send_steps(sched, j, true);
	}
}

/* ---- Receiving ---- */

static bool votes_valid(const struct node_match *j, const struct equal_votes *v, size_t left)
{
	return v->voter < j->nvoters && v->count && v->count < j->nvoters &&
	       v->bytes <= INTERNODE_EAGER_BYTES && left / v->count >= v->bytes;
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
			const uint32_t voter = places_before(j, v.voter, i);
			if (!j->voters[voter].vote.kind && voter != j->mine &&
			    !keep(sched, j, voter, &v.record, body, v.bytes))
				return true;
		}
	}
	return !bytes;
}

/* ---- The end of an epoch ---- */

/* All nodes but lost ones will know all votes on this operation. */
static bool is_agreed(const struct scheduler *sched, const struct node_match *j)
{
	const struct internode_comm *s = j->comm->internode;
	for (uint32_t p = 0; p < s->nnodes; p++) {
		if (sched->internode->lost[s->nodes[p]])
			continue;
		if (!s->overs[p] || s->overs[p] - 1 <= j->key.seq)
			return false;
	}
	return true;
}

/* Does a node that is not lost have a vote that this one lacks? */
static bool lacks_votes(const struct scheduler *sched, const struct node_match *j)
{
	const struct internode_comm *s = j->comm->internode;
	for (uint32_t i = 0; i < j->nvoters; i++)
		if (!j->voters[i].vote.kind && !sched->internode->lost[s->nodes[i]])
			return true;
	return false;
}

bool disseminate_pending(const struct scheduler *sched, const struct internode_comm *s)
{
	const struct node_match *j;
	for (j = s->matches; j; j = j->hh.next)
		if (is_disseminated(j) && !j->resolved && is_agreed(sched, j) &&
		    lacks_votes(sched, j))
			return true;
	return false;
}
