/* SPDX-License-Identifier: Apache-2.0
 * Messages of other nodes about an epoch that has not begun here.
 *
 * The rendezvous of epochs across nodes names them by a counter, and announces the names to each
 * node in order. So a name beyond the last one announced here will come later; an announced epoch
 * is about to begin, runs, or has ended.
 *
 * The memory for such messages is limited. If some are dropped, their epoch fails with LIMIT as
 * soon as it begins, since it would hang without them. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/nofail.h"
#include "base/timings.h"
#include "coord/messages.h"
#include "internode_loop.h"
#include "unexpected.h"

#define UNEXPECTED_MAX (64 * 1024 * 1024) /* bytes */
#define ANNOUNCERS_MAX 4096

struct unexpected {
	struct unexpected *prev, *next;
	int node;
	size_t bytes;
	uint64_t since_ns;
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
	uint64_t prefix;    /* of the names */
	uint64_t announced; /* the last one announced here */
	uint64_t lost;	    /* messages about unannounced names up to this one were dropped */
	UT_hash_handle hh;
};

struct unexpected_messages {
	struct unexpected *messages; /* by time */
	size_t bytes;
	struct announced *announced;  /* by slot */
	struct announced *expected;   /* those, by id */
	struct announcer *announcers; /* by prefix; the one that was new first, first */
};

static uint64_t prefix_of(uint64_t id)
{
	return id >> EPOCH_NUMBER_BITS;
}

/* NULL: none of its names was announced here. */
static struct announcer *announcer_of(const struct scheduler *sched, uint64_t id)
{
	const uint64_t prefix = prefix_of(id);
	struct announcer *a;
	HASH_FIND(hh, sched->unexpected->announcers, &prefix, sizeof(prefix), a);
	return a;
}

/* The oldest gives way: its names are again taken for ones to come, for a while. */
static struct announcer *new_announcer(struct scheduler *sched, uint64_t id)
{
	struct unexpected_messages *u = sched->unexpected;
	struct announcer *oldest = u->announcers;
	if (HASH_COUNT(u->announcers) >= ANNOUNCERS_MAX) {
		HASH_DEL(u->announcers, oldest);
		free(oldest);
	}
	struct announcer *a = nofail_calloc(1, sizeof(*a), "a rendezvous");
	a->prefix = prefix_of(id);
	HASH_ADD(hh, u->announcers, prefix, sizeof(a->prefix), a);
	return a;
}

static struct announced *announced_as(const struct scheduler *sched, uint64_t id)
{
	struct announced *a;
	HASH_FIND(hh, sched->unexpected->expected, &id, sizeof(id), a);
	return a;
}

static bool is_to_come(const struct scheduler *sched, uint64_t id)
{
	const struct announcer *a = announcer_of(sched, id);
	return !a || id > a->announced;
}

bool unexpected_is_announced(const struct scheduler *sched, uint64_t id)
{
	return is_to_come(sched, id) || announced_as(sched, id);
}

static bool is_lost(const struct scheduler *sched, uint64_t id)
{
	const struct announced *a = announced_as(sched, id);
	const struct announcer *by = announcer_of(sched, id);
	return a ? a->lost : by && id <= by->lost;
}

/* ---- Messages ---- */

/* No node waits for this message. But credits, and the OVER of a suspended epoch, are always
 * answered. */
static void refuse(struct scheduler *sched, const struct internode_header *h, const char *body,
		   int node)
{
	struct credit_note note;
	if (h->kind == INTERNODE_OVER && h->key.subop)
		internode_comm_say_gone(sched, h->internode_id, (uint32_t)node);
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
	struct announcer *by = announcer_of(sched, id);
	if (!a && !by)
		by = new_announcer(sched, id);
	if (a)
		a->lost = true;
	else if (id > by->lost)
		by->lost = id;
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
	*m = (struct unexpected){.node = node, .bytes = size, .since_ns = sched->now, .header = *h};
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
	struct announcer *a = announcer_of(sched, id);
	a = a ? a : new_announcer(sched, id);
	if (id <= a->announced)
		return;
	a->announced = id;
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

/* The rendezvous announces a name to all nodes at once; what is still unannounced after long never
 * will be. */
void unexpected_expire(struct scheduler *sched)
{
	struct unexpected *m; /* the oldest */
	while ((m = sched->unexpected->messages) &&
	       sched->now - m->since_ns >= UNEXPECTED_KEPT_NS &&
	       !announced_as(sched, m->header.internode_id))
		lose(sched, m->header.internode_id);
}

bool unexpected_init(struct scheduler *sched)
{
	struct unexpected_messages *u = calloc(1, sizeof(*u));
	sched->unexpected = u;
	if (!u)
		return false;
	u->announced = calloc(sched->config.comms_max, sizeof(*u->announced));
	return u->announced;
}

void unexpected_finish(struct scheduler *sched)
{
	struct unexpected_messages *u = sched->unexpected;
	struct announcer *a;
	if (!u)
		return;
	HASH_CLEAR(hh, u->expected);
	free(u->announced);
	while ((a = u->announcers)) {
		HASH_DEL(u->announcers, a);
		free(a);
	}
	while (u->messages) {
		struct unexpected *m = u->messages;
		take(sched, m);
		free(m);
	}
	free(u);
}
