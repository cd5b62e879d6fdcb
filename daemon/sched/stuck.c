/* SPDX-License-Identifier: Apache-2.0
 *
 * Members on several nodes that all wait for each other. On one node it is plain to see (order.c);
 * here, each node knows about its own members only, and messages may be under way.
 *
 * A node all of whose members have waited for a while tells the span's first node, with how many
 * messages of the span it has sent and heard so far. When all have told that, and as many were
 * heard as sent, the first node asks all once more. If nothing has changed anywhere, then there was
 * a moment at which all waited and no message was under way: between the last node's first word and
 * the first node's second. So nobody can ever go on (Mattern's four counters). All nodes then fail
 * what their members wait for, as if its deadline had passed: should somebody have come meanwhile
 * after all, because a task was cancelled, say, what he meets goes on.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "names.h"
#include "operation.h"
#include "order.h"
#include "span.h"

/* What a node tells the first. */
struct stuck_note {
	uint64_t sent, heard;
	uint64_t collectives; /* that are over, or that some members here have posted */
	uint32_t round;	      /* which it answers; 0: it tells by itself */
	int32_t rank;	      /* one of its members, and what that waits in */
	uint32_t op, reserved;
};

struct stuck {
	bool was, told;	      /* at the last look; and the first node knows */
	uint64_t sent, heard; /* then */
	/* The first node's: */
	uint32_t round, confirmed;
	struct told_note {
		struct stuck_note note;
		bool valid;
	} notes[]; /* by place */
};

/* ---- Is this node? ---- */

/* Its head waits for others, and for nobody's memory or stream. */
static bool member_waits(const struct member *m)
{
	const struct task *t;
	bool any = false;
	if (m->ready || m->inputs)
		return false;
	DL_FOREACH (m->queue, t) {
		if (t->place < AT_HEAD)
			break;
		const struct junction *j = t->junction;
		if (t->waits_input || (j && (j->asked || j->withheld)) ||
		    (t->place == RUNNING && !j))
			return false;
		any = any || t->place == POSTED || t->junction;
	}
	return any;
}

static bool node_waits(const struct span *s)
{
	bool any = false;
	if (s->ops || s->over || s->comm->ended || s->comm->haunted)
		return false;
	for (uint32_t i = 0; i < span_local_count(s); i++) {
		const struct member *m = &s->comm->members[span_locals(s)[i]];
		if (m->gone)
			continue;
		if (!member_waits(m))
			return false;
		any = true;
	}
	return any;
}

static bool unchanged(const struct span *s)
{
	return s->stuck && s->stuck->was && s->stuck->sent == s->sent_messages &&
	       s->stuck->heard == s->heard_messages;
}

/* ---- The first node ---- */

static void send_to(struct engine *e, struct span *s, uint32_t place, enum span_kind kind,
		    uint64_t round, const void *body, size_t bytes)
{
	const struct junction_key key = {-1, -1, round, 0};
	if (place == s->me)
		stuck_hear(e, s, place, kind, &key, body, bytes);
	else
		span_send(e, s, place, kind, &key, body, bytes, NULL, 0);
}

static void send_all(struct engine *e, struct span *s, enum span_kind kind, uint64_t round,
		     const void *body, size_t bytes)
{
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (p != s->me)
			send_to(e, s, p, kind, round, body, bytes);
	send_to(e, s, s->me, kind, round, body, bytes);
}

/* Of two nodes, by their members that wait in different operations, if there are such. Its number:
 * how many collectives are over then, on all nodes alike. */
static ncclsvc_status circle_status(const struct span *s)
{
	const struct stuck_note *one = &s->stuck->notes[0].note, *other = &s->stuck->notes[1].note;
	ncclsvc_status st = status_of(NCCLSVC_MISMATCH);
	for (uint32_t p = 2; p < s->nnodes && other->op == one->op; p++)
		other = &s->stuck->notes[p].note;
	st.field = NCCLSVC_FIELD_ORDER;
	st.value_a = one->op;
	st.value_b = other->op;
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (s->stuck->notes[p].note.collectives > st.number)
			st.number = s->stuck->notes[p].note.collectives;
	order_name_ranks(s->comm, &st, one->rank, other->rank);
	return st;
}

static bool all_told(const struct span *s)
{
	uint64_t sent = 0, heard = 0;
	for (uint32_t p = 0; p < s->nnodes; p++) {
		if (!s->stuck->notes[p].valid)
			return false;
		sent += s->stuck->notes[p].note.sent;
		heard += s->stuck->notes[p].note.heard;
	}
	return sent == heard;
}

static void take_note(struct engine *e, struct span *s, uint32_t place,
		      const struct stuck_note *note)
{
	struct stuck *k = s->stuck;
	struct told_note *known = &k->notes[place];
	if (note->rank < 0 || (uint32_t)note->rank >= s->comm->nranks)
		return;
	if (!note->round) {
		*known = (struct told_note){*note, true};
		if (!all_told(s))
			return;
		k->confirmed = 0;
		send_all(e, s, SPAN_STILL, ++k->round, "", 0);
	} else if (note->round == k->round && known->valid && note->sent == known->note.sent &&
		   note->heard == known->note.heard && ++k->confirmed == s->nnodes) {
		const ncclsvc_status st = circle_status(s);
		for (uint32_t p = 0; p < s->nnodes; p++)
			k->notes[p].valid = false;
		send_all(e, s, SPAN_CIRCLE, 0, &st, sizeof(st));
	}
}

/* ---- Every node ---- */

static struct stuck *get(struct span *s)
{
	if (!s->stuck)
		s->stuck = calloc(1, sizeof(*s->stuck) + s->nnodes * sizeof(s->stuck->notes[0]));
	return s->stuck; /* without memory, deadlines tell */
}

/* That some member here is in, and other nodes may have met in part. */
static uint64_t collectives_begun(const struct span *s)
{
	uint64_t most = 0;
	for (uint32_t i = 0; i < span_local_count(s); i++) {
		const struct task *t;
		uint64_t n = 0;
		DL_FOREACH (s->comm->members[span_locals(s)[i]].queue, t) {
			if (t->place < AT_HEAD)
				break;
			n += !svc_op_is_p2p(t->record.op) && !t->junction;
		}
		most = n > most ? n : most;
	}
	return most;
}

static void tell(struct engine *e, struct span *s, uint32_t round)
{
	uint32_t i = 0;
	while (i + 1 < span_local_count(s) && s->comm->members[span_locals(s)[i]].gone)
		i++;
	const uint32_t rank = span_locals(s)[i];
	const struct task *head = s->comm->members[rank].queue;
	const struct stuck_note note = {
		.sent = s->stuck->sent,
		.heard = s->stuck->heard,
		.collectives = s->comm->collectives + collectives_begun(s),
		.round = round,
		.rank = (int32_t)rank,
		.op = head ? head->record.op : NCCLSVC_BARRIER,
	};
	send_to(e, s, 0, SPAN_STUCK, 0, &note, sizeof(note));
}

static void break_circle(struct engine *e, struct span *s, const ncclsvc_status *why)
{
	struct comm *c = s->comm;
	junction_give_up(e, c, why, why->number);
	for (uint32_t i = 0; i < span_local_count(s); i++) {
		struct task *t, *next;
		DL_FOREACH_SAFE (c->members[span_locals(s)[i]].queue, t, next) {
			ncclsvc_status st = *why;
			if (t->place < AT_HEAD)
				break;
			/* Nobody else knows of it. */
			if (t->place == AT_HEAD ||
			    (t->place == POSTED && svc_op_is_p2p(t->record.op)))
				release_end(e, t, &st);
			else
				release_fail(e, t, &st);
		}
	}
}

bool stuck_says(unsigned kind, const void *body, size_t bytes)
{
	ncclsvc_status st;
	if ((kind != SPAN_FAILED && kind != SPAN_ASK) || bytes < sizeof(st))
		return false;
	memcpy(&st, body, sizeof(st));
	return stuck_said(&st);
}

void stuck_break(struct engine *e, struct span *s, const void *body)
{
	ncclsvc_status st;
	memcpy(&st, body, sizeof(st));
	if (unchanged(s) && s->stuck->told && node_waits(s)) {
		s->stuck->told = false;
		break_circle(e, s, &st);
	}
}

void stuck_hear(struct engine *e, struct span *s, uint32_t place, enum span_kind kind,
		const struct junction_key *key, const void *body, size_t bytes)
{
	struct stuck_note note;
	if (!get(s) || s->over || s->comm->ended)
		return;
	if (kind == SPAN_STUCK && s->me == 0 && bytes == sizeof(note)) {
		memcpy(&note, body, sizeof(note));
		take_note(e, s, place, &note);
	} else if (kind == SPAN_STILL && place == 0) {
		if (s->stuck->told && unchanged(s) && node_waits(s))
			tell(e, s, (uint32_t)key->seq);
	} else if (kind == SPAN_CIRCLE && place == 0 && bytes == sizeof(ncclsvc_status)) {
		stuck_break(e, s, body);
	}
}

static void look(struct engine *e, struct span *s)
{
	const bool waits = node_waits(s);
	if (!waits && !s->stuck)
		return;
	const bool same = waits && unchanged(s);
	struct stuck *k = get(s);
	if (!k)
		return;
	k->was = waits;
	k->sent = s->sent_messages;
	k->heard = s->heard_messages;
	if (!same)
		k->told = false;
	if (!same || k->told)
		return;
	k->told = true;
	tell(e, s, 0);
}

void stuck_look(struct engine *e)
{
	struct span *s, *next;
	if (e->now < e->stuck_ns)
		return;
	e->stuck_ns = e->now + STUCK_LOOK_NS;
	HASH_ITER (hh, e->spans, s, next)
		if (s->comm->pending)
			look(e, s);
}
