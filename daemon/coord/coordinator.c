/* SPDX-License-Identifier: Apache-2.0
 * The coordinator of an epoch: rank 0's node. Messages from two nodes may overtake each other, so
 * other nodes' requests may come before START, or after the end. */
#include "coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "base/nofail.h"
#include "base/timings.h"
#include "plan.h"

#define COORDINATORS_MAX SVC_COMMS_MAX

static struct coordinator *find(const struct coord *c, const uint8_t *id)
{
	struct coordinator *r;
	HASH_FIND(hh, c->coordinators, id, sizeof(r->id), r);
	return r;
}

static struct coordinator *find_epoch(const struct coord *c, const uint8_t *id, uint32_t epoch)
{
	struct coordinator *r = find(c, id);
	return r && r->epoch == epoch ? r : NULL;
}

static void forget(struct coord *c, struct coordinator *r)
{
	HASH_DEL(c->coordinators, r);
	if (!r->started)
		DL_DELETE2(c->unstarted, r, prev_unstarted, next_unstarted);
	split_forget(r);
	plans_forget(r);
	free(r);
}

/* When it is forgotten, if START has not come by then. */
static uint64_t unstarted_end(const struct coord *c, const struct coordinator *r)
{
	return r->since_ns + (c->keep_ns > RENDEZVOUS_KEPT_NS ? c->keep_ns : RENDEZVOUS_KEPT_NS);
}

static struct coordinator *create(struct coord *c, const struct control_epoch *m)
{
	/* Coordinators without START may never end otherwise. */
	if (HASH_COUNT(c->coordinators) >= COORDINATORS_MAX && c->unstarted)
		forget(c, c->unstarted);
	if (HASH_COUNT(c->coordinators) >= COORDINATORS_MAX)
		return NULL;
	struct coordinator *r = nofail_calloc(1, sizeof(*r), "an epoch's coordinator");
	memcpy(r->id, m->id, sizeof(r->id));
	memcpy(r->label, m->label, sizeof(r->label));
	r->label[sizeof(r->label) - 1] = '\0';
	r->epoch = m->epoch;
	r->nranks = m->nranks;
	r->since_ns = coord_now(c);
	HASH_ADD(hh, c->coordinators, id, sizeof(r->id), r);
	DL_APPEND2(c->unstarted, r, prev_unstarted, next_unstarted);
	c->ops->deadline(c->arg, unstarted_end(c, r));
	return r;
}

/* Returns the epoch's coordinator, created if needed. NULL: the epoch has ended, or there are too
 * many. */
static struct coordinator *get(struct coord *c, const struct control_epoch *m)
{
	struct coordinator *r = find(c, m->id);
	if (r && r->epoch > m->epoch)
		return NULL;
	if (r && (r->epoch < m->epoch || r->nranks != m->nranks)) {
		forget(c, r);
		r = NULL;
	}
	return r ? r : create(c, m);
}

struct coordinator *coordinator_for(struct coord *c, uint32_t from, const struct control_epoch *m)
{
	struct coordinator *r = get(c, m);
	if (r)
		r->nodes[from] = true;
	return r;
}

void coordinator_tell(struct coord *c, const struct coordinator *r, const struct control_result *m)
{
	const size_t size = sizeof(*m) + m->count * sizeof(m->subcomms[0]);
	for (uint32_t node = 0; node < c->n; node++)
		if (r->nodes[node] && !coord_is_gone(c, node))
			coord_send(c, node, CONTROL_RESULT, m, size);
}

struct control_result coordinator_result(const uint8_t *id, uint32_t epoch, uint32_t asked,
					 uint32_t seq, int result, const char *text)
{
	struct control_result m = {.epoch = epoch, .seq = seq, .asked = asked, .result = result};
	memcpy(m.id, id, sizeof(m.id));
	snprintf(m.text, sizeof(m.text), "%s", text);
	return m;
}

void coordinator_refuse(struct coord *c, uint32_t to, const struct control_epoch *of,
			uint32_t asked, uint32_t seq)
{
	const struct control_result m =
		coordinator_result(of->id, of->epoch, asked, seq, NCCLSVC_STALE_EPOCH, STALE_TEXT);
	coord_send(c, to, CONTROL_RESULT, &m, sizeof(m));
}

void coordinator_late(struct coord *c, const struct coordinator *r, uint32_t to, uint32_t asked,
		      uint32_t seq)
{
	if (!r->failed)
		return;
	const struct control_result m =
		coordinator_result(r->id, r->epoch, asked, seq, r->failed,
				   "another member's call failed before this one came");
	coord_send(c, to, CONTROL_RESULT, &m, sizeof(m));
}

static bool lacks_node(const struct coord *c, const struct control_start *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (coord_is_gone(c, m->members[k].node))
			return true;
	return false;
}

bool coordinator_has_started(const struct coord *c, const uint8_t *id, uint32_t epoch)
{
	const struct coordinator *r = find_epoch(c, id, epoch);
	return r && r->started;
}

void coordinator_start(struct coord *c, const struct control_start *m)
{
	struct control_epoch of = {.epoch = m->epoch, .nranks = m->nranks};
	struct coordinator *r = find(c, m->id);
	memcpy(of.id, m->id, sizeof(of.id));
	memcpy(of.label, m->label, sizeof(of.label));
	if (r && r->epoch != m->epoch)
		forget(c, r); /* this epoch replaces the old one */
	if (m->members[0].node != c->me)
		return;
	if (lacks_node(c, m))
		return; /* the epoch ended before it began */
	r = get(c, &of);
	if (!r)
		return; /* later requests are answered with that */
	if (!r->started)
		DL_DELETE2(c->unstarted, r, prev_unstarted, next_unstarted);
	r->started = true;
	for (uint32_t k = 0; k < m->nranks; k++)
		r->nodes[m->members[k].node] = true;
}

void coordinator_broken(struct coord *c, const struct control_break *m)
{
	struct coordinator *r = find_epoch(c, m->id, m->epoch);
	if (r)
		forget(c, r); /* the members' nodes know why */
}

void coordinator_left(struct coord *c, const struct control_left *m)
{
	struct coordinator *r = find_epoch(c, m->id, m->epoch);
	char text[SVC_TEXT_BYTES];
	if (!r || m->plan)
		return;
	if (++r->nleft == r->nranks) {
		forget(c, r);
		return;
	}
	snprintf(text, sizeof(text), PLAN_GONE_TEXT, m->rank, m->pid, r->label);
	split_fail(c, r, NCCLSVC_PEER_GONE, "a member left before the split was done");
	plans_fail(c, r, NCCLSVC_PEER_GONE, text);
}

void coordinator_withdrawn(struct coord *c, const struct control_withdraw *m)
{
	struct coordinator *r = find_epoch(c, m->id, m->epoch);
	if (!r || m->rank >= r->nranks)
		return;
	split_withdrawn(c, r, m);
	plans_withdrawn(c, r, m);
}

void coordinator_node_lost(struct coord *c, uint32_t node)
{
	struct coordinator *r, *next;
	HASH_ITER (hh, c->coordinators, r, next)
		if (r->nodes[node])
			forget(c, r); /* the other nodes have noticed it themselves */
}

uint64_t coordinator_expire(struct coord *c)
{
	const uint64_t now = coord_now(c);
	while (c->unstarted && now >= unstarted_end(c, c->unstarted))
		forget(c, c->unstarted);
	return c->unstarted ? unstarted_end(c, c->unstarted) : 0;
}

void coordinator_free(struct coord *c)
{
	struct coordinator *r, *next;
	HASH_ITER (hh, c->coordinators, r, next)
		forget(c, r);
}
