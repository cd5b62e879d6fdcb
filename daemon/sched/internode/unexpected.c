/* SPDX-License-Identifier: Apache-2.0
 * Messages of other nodes about an epoch that has not begun here.
 *
 * The rendezvous of epochs across nodes names them by a counter, and announces the names to each
 * node in order. So a name beyond the last one announced here will come later; an announced epoch
 * is about to begin, runs, or has ended. When the rendezvous is lost, other nodes announce the
 * names that they know, soon but in any order.
 *
 * The memory for such messages is limited. If some are dropped, their epoch fails with LIMIT as
 * soon as it begins, since it would hang without them. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/timings.h"
#include "coord/messages.h"
#include "internode_loop.h"
#include "unexpected.h"

#define UNEXPECTED_MAX (64 * 1024 * 1024) /* bytes */

struct unexpected {
	struct unexpected *prev, *next;
	int node;
	size_t bytes;
	struct internode_header header;
	char body[];
};

/* ---- Names ---- */

/* An epoch that a communicator across nodes is about to begin. */
struct announced {
	uint64_t id; /* 0: none */
	bool lost;   /* messages about it were dropped */
	UT_hash_handle hh;
};

/* A rendezvous, with the names that it gives to epochs, in order. */
struct announcer {
	uint64_t announced; /* the last one announced here, while the node lives */
	uint64_t lost;	    /* messages about unannounced names up to this one were dropped */
	uint64_t lost_ns;   /* when the node was lost; 0: it lives */
};

struct unexpected_messages {
	struct unexpected *messages; /* by time */
	size_t bytes;
	struct announced *announced;  /* by slot */
	struct announced *expected;   /* those, by id */
	struct announcer *announcers; /* [0]: names without a rendezvous */
};

/* The index of the rendezvous that has given it: 1 + the node; 0: none, in tests. */
static uint32_t announcer_of(const struct scheduler *sched, uint64_t id)
{
	const uint64_t announcer = id >> EPOCH_RENDEZVOUS_SHIFT;
	return announcer <= sched->config.nodes ? (uint32_t)announcer : 0;
}

static struct announced *announced_as(const struct scheduler *sched, uint64_t id)
{
	struct announced *a;
	HASH_FIND(hh, sched->unexpected->expected, &id, sizeof(id), a);
	return a;
}

static bool is_to_come(const struct scheduler *sched, uint64_t id)
{
	const struct announcer *announcer = &sched->unexpected->announcers[announcer_of(sched, id)];
	return id > announcer->announced &&
	       (!announcer->lost_ns || sched->now - announcer->lost_ns < UNEXPECTED_KEPT_NS);
}

bool unexpected_is_announced(const struct scheduler *sched, uint64_t id)
{
	return is_to_come(sched, id) || announced_as(sched, id);
}

static bool is_lost(const struct scheduler *sched, uint64_t id)
{
	const struct announced *a = announced_as(sched, id);
	return a ? a->lost : id <= sched->unexpected->announcers[announcer_of(sched, id)].lost;
}

/* ---- Messages ---- */

/* No node waits for this message; but a credit is always answered. */
static void refuse(struct scheduler *sched, const struct internode_header *h, const char *body,
		   int node)
{
	struct credit_note note;
	if (h->kind != INTERNODE_CREDIT || sched->internode->lost[node])
		return;
	memcpy(&note, body, sizeof(note));
	internode_comm_refuse_credit(sched, node, note.tag);
}

static void take(struct scheduler *sched, struct unexpected *m)
{
	DL_DELETE(sched->unexpected->messages, m);
	sched->unexpected->bytes -= m->bytes;
}

static void drop(struct scheduler *sched, struct unexpected *m)
{
	take(sched, m);
	refuse(sched, &m->header, m->body, m->node);
	free(m);
}

static void drop_all(struct scheduler *sched, uint64_t id)
{
	struct unexpected *m, *next;
	DL_FOREACH_SAFE (sched->unexpected->messages, m, next)
		if (m->header.internode_id == id)
			drop(sched, m);
}

/* Drops all messages about an epoch, which are now incomplete. For an unannounced epoch, this may
 * also affect others. */
static void lose(struct scheduler *sched, uint64_t id)
{
	struct announced *a = announced_as(sched, id);
	struct announcer *announcer = &sched->unexpected->announcers[announcer_of(sched, id)];
	if (a)
		a->lost = true;
	else if (id > announcer->lost)
		announcer->lost = id;
	drop_all(sched, id);
}

void unexpected_keep(struct scheduler *sched, const struct internode_header *h, const char *body,
		     int node)
{
	size_t size = sizeof(struct unexpected) + h->bytes;
	struct unexpected *m = NULL;
	/* The oldest is the least likely to begin. */
	while (sched->unexpected->messages && sched->unexpected->bytes + size > UNEXPECTED_MAX &&
	       !is_lost(sched, h->internode_id))
		lose(sched, sched->unexpected->messages->header.internode_id);
	if (!is_lost(sched, h->internode_id) && !(m = malloc(size)))
		lose(sched, h->internode_id);
	if (!m) {
		refuse(sched, h, body, node);
		return;
	}
	*m = (struct unexpected){.node = node, .bytes = size, .header = *h};
	memcpy(m->body, body, h->bytes);
	sched->unexpected->bytes += size;
	DL_APPEND(sched->unexpected->messages, m);
}

/* ---- Epochs ---- */

/* Drops messages about epochs that will not come any more. */
static void sweep(struct scheduler *sched)
{
	struct unexpected *m, *next;
	DL_FOREACH_SAFE (sched->unexpected->messages, m, next)
		if (!unexpected_is_announced(sched, m->header.internode_id))
			drop(sched, m);
}

static void note_name(struct scheduler *sched, uint64_t id)
{
	struct announcer *announcer = &sched->unexpected->announcers[announcer_of(sched, id)];
	if (announcer->lost_ns || id <= announcer->announced)
		return;
	announcer->announced = id;
	sweep(sched);
}

static void forget_name(struct scheduler *sched, struct announced *a)
{
	if (a->id)
		HASH_DEL(sched->unexpected->expected, a);
	*a = (struct announced){0};
}

static void expect(struct scheduler *sched, struct announced *a, uint64_t id)
{
	if (a->id && a->id != id)
		drop_all(sched, a->id);
	forget_name(sched, a);
	if (!id || announced_as(sched, id))
		return;
	a->lost = is_lost(sched, id);
	a->id = id;
	HASH_ADD(hh, sched->unexpected->expected, id, sizeof(a->id), a);
}

void unexpected_announce(struct scheduler *sched, uint32_t slot, uint64_t id)
{
	if (slot < sched->config.comms_max)
		expect(sched, &sched->unexpected->announced[slot], id);
	if (id)
		note_name(sched, id);
}

void unexpected_deliver(struct scheduler *sched, struct comm *c)
{
	struct unexpected *m, *next;
	const uint64_t id = c->internode ? c->internode->id : 0;
	const bool lost = id && is_lost(sched, id);
	forget_name(sched, &sched->unexpected->announced[c->slot]);
	if (!id)
		return;
	if (lost)
		internode_comm_give_up(sched, c, NCCLSVC_LIMIT, UINT32_MAX);
	DL_FOREACH_SAFE (sched->unexpected->messages, m, next) {
		if (m->header.internode_id != id)
			continue;
		take(sched, m);
		internode_comm_dispatch(sched, &m->header, m->body, m->node);
		free(m);
	}
	note_name(sched, id);
}

void unexpected_node_lost(struct scheduler *sched, uint32_t node)
{
	sched->unexpected->announcers[1 + node].lost_ns = sched->now;
}

void unexpected_expire(struct scheduler *sched)
{
	const struct unexpected *m = sched->unexpected->messages; /* the oldest */
	if (!m)
		return;
	const uint64_t lost_ns =
		sched->unexpected->announcers[announcer_of(sched, m->header.internode_id)].lost_ns;
	if (lost_ns && sched->now - lost_ns >= UNEXPECTED_KEPT_NS)
		sweep(sched);
}

bool unexpected_init(struct scheduler *sched)
{
	struct unexpected_messages *u = calloc(1, sizeof(*u));
	sched->unexpected = u;
	if (!u)
		return false;
	u->announcers = calloc(1 + sched->config.nodes, sizeof(*u->announcers));
	u->announced = calloc(sched->config.comms_max, sizeof(*u->announced));
	return u->announcers && u->announced;
}

void unexpected_finish(struct scheduler *sched)
{
	struct unexpected_messages *u = sched->unexpected;
	if (!u)
		return;
	HASH_CLEAR(hh, u->expected);
	free(u->announced);
	free(u->announcers);
	while (u->messages) {
		struct unexpected *m = u->messages;
		take(sched, m);
		free(m);
	}
	free(u);
}
