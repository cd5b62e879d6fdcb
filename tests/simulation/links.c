/* SPDX-License-Identifier: Apache-2.0
 * The connections of standalone daemons: they are opened when there is something to say, and can be
 * cut. Each side notices independently; messages sent until then are lost. When the cut has healed,
 * a new connection is opened. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/nodes/node_reports.h"
#include "simulation.h"

#define NOTICE_NS (10 * S) /* until a silent node counts as lost */

/* Each connection between two nodes has a number. */
static uint32_t newest;
static uint32_t between_nodes[NODES_MAX][NODES_MAX]; /* 0: none */
static uint32_t known[NODES_MAX][NODES_MAX];	     /* to the first one; 0: none */
static bool cut[NODES_MAX][NODES_MAX];
static bool fails[NODES_MAX][NODES_MAX]; /* the first's attempt to connect will fail */
static bool lost[NODES_MAX];		 /* it has lost another node, or another one has lost it */

struct end_of {
	uint32_t node, other, number;
};

void links_begin(void)
{
	newest = 0;
	memset(between_nodes, 0, sizeof(between_nodes));
	memset(known, 0, sizeof(known));
	memset(cut, 0, sizeof(cut));
	memset(fails, 0, sizeof(fails));
	memset(lost, 0, sizeof(lost));
}

bool links_lost(uint32_t node)
{
	return lost[node];
}

bool links_lost_any(void)
{
	for (uint32_t i = 0; i < nnodes; i++)
		if (lost[i])
			return true;
	return false;
}

static struct end_of *end_of(uint32_t node, uint32_t other, uint32_t number)
{
	struct end_of *e = malloc(sizeof(*e));
	if (!e)
		abort();
	*e = (struct end_of){node, other, number};
	return e;
}

/* again: the other one has connected anew. */
static void lose(uint32_t node, uint32_t other, bool again)
{
	struct node *n = &nodes[node].cluster.nodes[other];
	trace((int)node, "loses node %u", other);
	known[node][other] = 0;
	lost[node] = lost[other] = true;
	n->gone = !again;
	n->carried = false;
	remote_node_lost(&nodes[node].comms, other, true);
}

static void on_end(void *arg)
{
	const struct end_of *e = arg;
	if (known[e->node][e->other] == e->number)
		lose(e->node, e->other, false);
}

/* Ends the connection; each side notices within that time. */
static void end(uint32_t a, uint32_t b, uint64_t within)
{
	const uint32_t number = between_nodes[a][b];
	between_nodes[a][b] = between_nodes[b][a] = 0;
	if (!number)
		return;
	at(clock_now() + between(0, within), (int)a, on_end, end_of(a, b, number));
	at(clock_now() + between(0, within), (int)b, on_end, end_of(b, a, number));
}

/* The node hears from the other one over that connection. */
static void greet(uint32_t node, uint32_t other, uint32_t number)
{
	if (known[node][other] == number)
		return;
	if (known[node][other])
		lose(node, other, true); /* it has lost this node before this one noticed */
	known[node][other] = number;
	nodes[node].cluster.nodes[other].gone = false;
	nodes[node].cluster.nodes[other].info.incarnation = node_incarnation(other);
}

static void on_ready(void *arg)
{
	const struct end_of *e = arg;
	if (between_nodes[e->node][e->other] != e->number)
		return;
	greet(e->node, e->other, e->number);
	nodes[e->node].cluster.nodes[e->other].carried = true;
	remote_node_ready(&nodes[e->node].comms);
}

static void on_unreachable(void *arg)
{
	const struct end_of *e = arg;
	fails[e->node][e->other] = false;
	end(e->node, e->other, MS); /* the other one has connected meanwhile */
	if (!nodes[e->node].cluster.nodes[e->other].gone)
		lose(e->node, e->other, false);
}

static void connect_to(uint32_t node, uint32_t other)
{
	if (fails[node][other])
		return;
	if (cut[node][other] || !nodes[other].alive) {
		fails[node][other] = true;
		at(clock_now() + between(MS, cut[node][other] ? NOTICE_NS : profile.delay),
		   (int)node, on_unreachable, end_of(node, other, 0));
		return;
	}
	uint64_t ready = clock_now() + between(MS, profile.delay);
	if (!between_nodes[node][other]) {
		between_nodes[node][other] = between_nodes[other][node] = ++newest;
		at(ready, (int)other, on_ready, end_of(other, node, newest));
	}
	known[node][other] = between_nodes[node][other];
	ready += between(MS, profile.delay); /* the other one has answered */
	at(ready, (int)node, on_ready, end_of(node, other, known[node][other]));
}

uint32_t links_carry(uint32_t node, uint32_t other)
{
	if (nodes[node].cluster.nodes[other].gone)
		return 0;
	if (!known[node][other])
		connect_to(node, other);
	if (fails[node][other])
		return 0;
	return known[node][other] == between_nodes[node][other] ? known[node][other] : 0;
}

bool links_bring(uint32_t node, uint32_t other, uint32_t number)
{
	if (number < known[node][other] || cut[node][other])
		return false;
	if (number != known[node][other] && number != between_nodes[node][other])
		return false; /* already closed */
	greet(node, other, number);
	return true;
}

bool cluster_reaches(struct cluster *c, uint32_t node)
{
	const struct node *n = &c->nodes[node];
	if (node == c->me || c->mpi || n->carried)
		return true;
	if (!n->gone && !known[c->me][node] && nodes[c->me].alive)
		connect_to(c->me, node);
	return false;
}

void links_lose(uint32_t node)
{
	lost[node] = true;
	for (uint32_t k = 0; k < nnodes; k++)
		if (k != node)
			end(node, k, chance(50) ? MS : profile.delay);
}

void links_restart(uint32_t node)
{
	memset(known[node], 0, sizeof(known[node]));
	memset(fails[node], 0, sizeof(fails[node]));
}

static void on_heal(void *arg)
{
	const struct end_of *e = arg;
	trace(-1, "nodes %u and %u reach each other again", e->node, e->other);
	cut[e->node][e->other] = cut[e->other][e->node] = false;
}

void links_cut(uint32_t a, uint32_t b, uint64_t duration)
{
	if (a == b || cut[a][b])
		return;
	trace(-1, "nodes %u and %u cannot reach each other", a, b);
	cut[a][b] = cut[b][a] = true;
	end(a, b, NOTICE_NS);
	at(clock_now() + duration, -1, on_heal, end_of(a, b, 0));
}
