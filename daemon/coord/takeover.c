/* SPDX-License-Identifier: Apache-2.0
 * When a node learns of a loss, it registers its members with the new rendezvous, and then tells
 * all nodes that it has done so. Messages between two nodes stay in order, so that message comes
 * after the registrations. */
#include "takeover.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "rendezvous.h"

struct lost_node {
	struct lost_node *prev, *next;
	uint32_t node;
	uint64_t since_ns; /* 0: another node knows of the loss, this one does not */
	bool registered[]; /* by node */
};

/* A JOIN held back. */
struct kept_join {
	struct kept_join *prev, *next;
	uint32_t from;
	uint64_t since_ns;
	struct control_join join;
	bool withdrawn;
	struct control_withdraw withdraw;
};

/* NULL: there is none, or no memory for it. */
static struct lost_node *lost_node(struct coord *c, uint32_t node)
{
	struct lost_node *l;
	DL_SEARCH_SCALAR(c->lost, l, node, node);
	if (l || !(l = calloc(1, sizeof(*l) + c->n * sizeof(l->registered[0]))))
		return l;
	l->node = node;
	DL_APPEND(c->lost, l);
	return l;
}

static bool lacks_registrations(struct coord *c, uint32_t node)
{
	const struct lost_node *l = lost_node(c, node);
	if (!l || coord_now(c) >= l->since_ns + NODES_REGISTER_NS)
		return false;
	for (uint32_t k = 0; k < c->n; k++)
		if (!l->registered[k] && !coord_is_gone(c, k))
			return true;
	return false;
}

/* This node is the rendezvous when all nodes before it are lost; other nodes may know that sooner.
 */
static bool is_being_taken_over(struct coord *c, const uint8_t *id)
{
	for (uint32_t node = rendezvous_node(c, id); node != c->me; node = (node + 1) % c->n)
		if (!coord_is_gone(c, node) || lacks_registrations(c, node))
			return true;
	return false;
}

static bool keep(struct coord *c, uint32_t from, const struct control_join *m)
{
	struct kept_join *k = calloc(1, sizeof(*k));
	if (!k)
		return false;
	k->from = from;
	k->since_ns = coord_now(c);
	k->join = *m;
	DL_APPEND(c->kept_joins, k);
	c->ops->deadline(c->arg, k->since_ns + NODES_REGISTER_NS);
	return true;
}

static void drop(struct coord *c, struct kept_join *k)
{
	DL_DELETE(c->kept_joins, k);
	free(k);
}

/* The withdrawal may concern other waiting members, so the JOIN is handled first, and then the
 * withdrawal. */
void takeover_withdrawn(struct coord *c, uint32_t from, const struct control_withdraw *m)
{
	struct kept_join *k, *next;
	DL_FOREACH_SAFE (c->kept_joins, k, next) {
		if (k->from != from || m->epoch || k->join.rank != m->rank ||
		    k->join.session != m->session || memcmp(k->join.id, m->id, sizeof(m->id)) != 0)
			continue;
		k->withdrawn = true;
		k->withdraw = *m;
		if (m->why == WITHDRAW_CANCELLED && !k->join.split)
			drop(c, k);
	}
	rendezvous_withdrawn(c, from, m);
}

/* Handles the JOINs that need not wait any more. Returns the next deadline; 0: none. */
static uint64_t handle_kept(struct coord *c)
{
	uint64_t next_ns = 0;
	struct kept_join *k, *next;
	DL_FOREACH_SAFE (c->kept_joins, k, next) {
		const uint64_t end = k->since_ns + NODES_REGISTER_NS;
		if (coord_now(c) < end && is_being_taken_over(c, k->join.id)) {
			next_ns = earlier(next_ns, end);
			continue;
		}
		rendezvous_join(c, k->from, &k->join);
		if (k->withdrawn)
			rendezvous_withdrawn(c, k->from, &k->withdraw);
		drop(c, k);
	}
	return next_ns;
}

static void registered(struct coord *c, uint32_t from, uint32_t lost)
{
	struct lost_node *l = lost_node(c, lost);
	if (l)
		l->registered[from] = true;
	handle_kept(c);
}

void takeover_join(struct coord *c, uint32_t from, const struct control_join *m)
{
	if (m->registered)
		registered(c, from, m->registered - 1);
	else if (m->runs || !is_being_taken_over(c, m->id) || !keep(c, from, m))
		rendezvous_join(c, from, m);
}

void takeover_node_lost(struct coord *c, uint32_t node)
{
	struct lost_node *l = lost_node(c, node);
	struct kept_join *k, *next;
	if (l)
		l->since_ns = coord_now(c);
	DL_FOREACH_SAFE (c->kept_joins, k, next)
		if (k->from == node)
			drop(c, k);
	handle_kept(c);
}

uint64_t takeover_expire(struct coord *c)
{
	return handle_kept(c);
}

void takeover_free(struct coord *c)
{
	struct lost_node *l, *next_lost;
	struct kept_join *k, *next;
	DL_FOREACH_SAFE (c->lost, l, next_lost)
		free(l);
	DL_FOREACH_SAFE (c->kept_joins, k, next)
		free(k);
	c->lost = NULL;
	c->kept_joins = NULL;
}
