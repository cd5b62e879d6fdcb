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
struct giver {
	uint64_t announced; /* the last one announced here, while the node lives */
	uint64_t lost;	    /* messages about unannounced names up to this one were dropped */
	uint64_t lost_ns;   /* when the node was lost; 0: it lives */
};

/* The index of the rendezvous that has given it: 1 + the node; 0: none, in tests. */
static uint32_t giver_of(const struct engine *e, uint64_t id)
{
	const uint64_t giver = id >> EPOCH_RENDEZVOUS_SHIFT;
	return giver <= e->config.nodes ? (uint32_t)giver : 0;
}

static struct announced *announced_as(const struct engine *e, uint64_t id)
{
	struct announced *a;
	HASH_FIND(hh, e->expected, &id, sizeof(id), a);
	return a;
}

static bool is_to_come(const struct engine *e, uint64_t id)
{
	const struct giver *giver = &e->givers[giver_of(e, id)];
	return id > giver->announced &&
	       (!giver->lost_ns || e->now - giver->lost_ns < UNEXPECTED_KEPT_NS);
}

bool unexpected_is_announced(const struct engine *e, uint64_t id)
{
	return is_to_come(e, id) || announced_as(e, id);
}

static bool is_lost(const struct engine *e, uint64_t id)
{
	const struct announced *a = announced_as(e, id);
	return a ? a->lost : id <= e->givers[giver_of(e, id)].lost;
}

/* ---- Messages ---- */

/* No node waits for this message; but a credit is always answered. */
static void refuse(struct engine *e, const struct internode_header *h, const char *body, int node)
{
	struct credit_note note;
	if (h->kind != INTERNODE_CREDIT || e->lost[node])
		return;
	memcpy(&note, body, sizeof(note));
	internode_comm_refuse_credit(e, node, note.tag);
}

static void take(struct engine *e, struct unexpected *m)
{
	DL_DELETE(e->unexpected, m);
	e->unexpected_bytes -= m->bytes;
}

static void drop(struct engine *e, struct unexpected *m)
{
	take(e, m);
	refuse(e, &m->header, m->body, m->node);
	free(m);
}

static void drop_all(struct engine *e, uint64_t id)
{
	struct unexpected *m, *next;
	DL_FOREACH_SAFE (e->unexpected, m, next)
		if (m->header.internode_id == id)
			drop(e, m);
}

/* Drops all messages about an epoch, which are now incomplete. For an unannounced epoch, this may
 * also affect others. */
static void lose(struct engine *e, uint64_t id)
{
	struct announced *a = announced_as(e, id);
	struct giver *giver = &e->givers[giver_of(e, id)];
	if (a)
		a->lost = true;
	else if (id > giver->lost)
		giver->lost = id;
	drop_all(e, id);
}

void unexpected_keep(struct engine *e, const struct internode_header *h, const char *body, int node)
{
	size_t size = sizeof(struct unexpected) + h->bytes;
	struct unexpected *m = NULL;
	/* The oldest is the least likely to begin. */
	while (e->unexpected && e->unexpected_bytes + size > UNEXPECTED_MAX &&
	       !is_lost(e, h->internode_id))
		lose(e, e->unexpected->header.internode_id);
	if (!is_lost(e, h->internode_id) && !(m = malloc(size)))
		lose(e, h->internode_id);
	if (!m) {
		refuse(e, h, body, node);
		return;
	}
	*m = (struct unexpected){.node = node, .bytes = size, .header = *h};
	memcpy(m->body, body, h->bytes);
	e->unexpected_bytes += size;
	DL_APPEND(e->unexpected, m);
}

/* ---- Epochs ---- */

/* Drops messages about epochs that will not come any more. */
static void sweep(struct engine *e)
{
	struct unexpected *m, *next;
	DL_FOREACH_SAFE (e->unexpected, m, next)
		if (!unexpected_is_announced(e, m->header.internode_id))
			drop(e, m);
}

static void note_name(struct engine *e, uint64_t id)
{
	struct giver *giver = &e->givers[giver_of(e, id)];
	if (giver->lost_ns || id <= giver->announced)
		return;
	giver->announced = id;
	sweep(e);
}

static void forget_name(struct engine *e, struct announced *a)
{
	if (a->id)
		HASH_DEL(e->expected, a);
	*a = (struct announced){0};
}

static void expect(struct engine *e, struct announced *a, uint64_t id)
{
	if (a->id && a->id != id)
		drop_all(e, a->id);
	forget_name(e, a);
	if (!id || announced_as(e, id))
		return;
	a->lost = is_lost(e, id);
	a->id = id;
	HASH_ADD(hh, e->expected, id, sizeof(a->id), a);
}

void unexpected_announce(struct engine *e, uint32_t slot, uint64_t id)
{
	if (slot < e->config.comms_max)
		expect(e, &e->announced[slot], id);
	if (id)
		note_name(e, id);
}

void unexpected_deliver(struct engine *e, struct comm *c)
{
	struct unexpected *m, *next;
	const uint64_t id = c->internode ? c->internode->id : 0;
	const bool lost = id && is_lost(e, id);
	forget_name(e, &e->announced[c->slot]);
	if (!id)
		return;
	if (lost)
		internode_comm_give_up(e, c, NCCLSVC_LIMIT, UINT32_MAX);
	DL_FOREACH_SAFE (e->unexpected, m, next) {
		if (m->header.internode_id != id)
			continue;
		take(e, m);
		internode_comm_dispatch(e, &m->header, m->body, m->node);
		free(m);
	}
	note_name(e, id);
}

void unexpected_node_lost(struct engine *e, uint32_t node)
{
	e->givers[1 + node].lost_ns = e->now;
}

void unexpected_expire(struct engine *e)
{
	const struct unexpected *m = e->unexpected; /* the oldest */
	const uint64_t lost_ns = e->givers[giver_of(e, m->header.internode_id)].lost_ns;
	if (lost_ns && e->now - lost_ns >= UNEXPECTED_KEPT_NS)
		sweep(e);
}

bool unexpected_init(struct engine *e)
{
	e->givers = calloc(1 + e->config.nodes,
			   sizeof(*e->givers)); /* [0]: names without a rendezvous */
	e->announced = calloc(e->config.comms_max, sizeof(*e->announced)); /* by slot */
	return e->givers && e->announced;
}

void unexpected_finish(struct engine *e)
{
	HASH_CLEAR(hh, e->expected);
	free(e->announced);
	free(e->givers);
	while (e->unexpected) {
		struct unexpected *m = e->unexpected;
		take(e, m);
		free(m);
	}
}
