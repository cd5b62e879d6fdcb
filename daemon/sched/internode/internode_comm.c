/* SPDX-License-Identifier: Apache-2.0
 * Communicators on several nodes: the location of their ranks, and the messages between schedulers.
 */
#include "internode_comm.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/nofail.h"
#include "channel/carrier.h"
#include "sched/base/supervisor.h"

#define MESSAGE "a message to another node" /* without it, the nodes would permanently disagree */

/* ---- Start and end ---- */

/* Fills nodes (in the order of their first ranks), node_of, counts, first and ranks. */
static void lay_out(struct internode_comm *s, const struct epoch_member *members, uint32_t nranks,
		    uint32_t nodes_max)
{
	uint32_t *node_index = nofail_malloc(nodes_max * sizeof(*node_index), "an epoch's nodes");
	for (uint32_t i = 0; i < nodes_max; i++)
		node_index[i] = UINT32_MAX;
	for (uint32_t k = 0; k < nranks; k++) {
		uint32_t node = members[k].node;
		if (node_index[node] == UINT32_MAX) {
			node_index[node] = s->nnodes++;
			s->nodes[node_index[node]] = node;
		}
		s->node_of[k] = node_index[node];
		s->counts[node_index[node]]++;
	}
	for (uint32_t p = 0, at = 0; p < s->nnodes; at += s->counts[p++]) {
		s->first[p] = at;
		if (s->counts[p] > s->most)
			s->most = s->counts[p];
	}
	for (uint32_t p = 0, at = 0; p < s->nnodes; p++)
		for (uint32_t k = 0; k < nranks; k++)
			if (s->node_of[k] == p)
				s->ranks[at++] = k;
	free(node_index);
}

void internode_comm_create(struct scheduler *sched, struct comm *c, const struct command *cmd)
{
	const uint32_t n = c->nranks;
	struct internode_comm *s = nofail_calloc(1, sizeof(*s), "an epoch's nodes");
	c->internode = s;
	s->comm = c;
	s->id = cmd->epoch_start.internode_id;
	s->nodes = nofail_calloc(n, sizeof(*s->nodes), "an epoch's nodes");
	s->counts = nofail_calloc(n, sizeof(*s->counts), "an epoch's nodes");
	s->first = nofail_calloc(n, sizeof(*s->first), "an epoch's nodes");
	s->ranks = nofail_calloc(n, sizeof(*s->ranks), "an epoch's nodes");
	s->node_of = nofail_calloc(n, sizeof(*s->node_of), "an epoch's nodes");
	lay_out(s, cmd->epoch_start.members, n, sched->config.nodes);
	s->overs = nofail_calloc(s->nnodes, sizeof(*s->overs), "an epoch's nodes");
	s->waits = nofail_calloc(s->nnodes, sizeof(*s->waits), "an epoch's nodes");
	s->me = internode_comm_node_index(s, (int)sched->config.node);
	HASH_ADD(hh, sched->internode->comms, id, sizeof(s->id), s);
}

bool internode_comm_is_sequenced(const struct internode_comm *s)
{
	return s->comm->transport->flags & TRANSPORT_GROUPS;
}

uint32_t internode_comm_node_index(const struct internode_comm *s, int node)
{
	for (uint32_t p = 0; p < s->nnodes; p++)
		if (s->nodes[p] == (uint32_t)node)
			return p;
	return UINT32_MAX;
}

void internode_comm_give_up_for(struct scheduler *sched, struct comm *c, int result, int32_t node)
{
	if (c->internode_comm_failed || c->ended)
		return;
	c->internode_comm_failed = true;
	supervisor_event(sched, &(struct event){.kind = EVENT_INTERNODE_FAILED,
						.internode = {c->slot, c->epoch, result, node}});
}

void internode_comm_give_up(struct scheduler *sched, struct comm *c, int result,
			    uint32_t node_index)
{
	internode_comm_give_up_for(
		sched, c, result,
		node_index == UINT32_MAX ? -1 : (int32_t)c->internode->nodes[node_index]);
}

/* ---- Sending ---- */

static void packet_over(struct scheduler *sched, struct flight *f, size_t bytes, bool failed)
{
	struct internode_packet *p = (struct internode_packet *)f;
	(void)bytes;
	(void)failed;
	DL_DELETE(sched->internode->sending, p);
	free(p);
}

static struct internode_packet *new_packet(uint32_t node, size_t room)
{
	struct internode_packet *p = nofail_malloc(sizeof(*p) + room, MESSAGE);
	p->flight.done = packet_over;
	p->node = node;
	p->bytes = 0;
	return p;
}

/* A lost packet is not missed for long: either its node is lost, or a deadline passes. */
static void keep_until_sent(struct scheduler *sched, struct internode_packet *p, int sent)
{
	if (sent) { /* done, or not sent */
		free(p);
		return;
	}
	DL_APPEND(sched->internode->sending, p);
	sched->internode->flights++;
}

struct internode_packet *internode_comm_take_packet(struct scheduler *sched, uint32_t node)
{
	struct internode_packet *p;
	DL_SEARCH_SCALAR(sched->internode->open, p, node, node);
	if (!p)
		return NULL;
	DL_DELETE(sched->internode->open, p);
	if (sched->internode->newest[node] == p)
		sched->internode->newest[node] = NULL;
	return p;
}

static void send_packet(struct scheduler *sched, uint32_t node)
{
	struct internode_packet *p = internode_comm_take_packet(sched, node);
	struct internode_packet *less = realloc(p, sizeof(*p) + p->bytes);
	p = less ? less : p;
	keep_until_sent(sched, p, sched->config.carrier->say(p->data, p->bytes, (int)p->node, p));
}

void internode_comm_flush(struct scheduler *sched)
{
	struct internode_packet *p, *next;
	DL_FOREACH_SAFE (sched->internode->open, p, next)
		if (p->node != sched->config.node)
			send_packet(sched, p->node);
}

/* Where the next message to that node goes. */
static struct internode_packet *packet_with_room(struct scheduler *sched, uint32_t node,
						 size_t bytes)
{
	struct internode_packet *p = sched->internode->newest[node];
	if (p && bytes <= CARRIER_MESSAGE_MAX - p->bytes)
		return p;
	p = sched->internode->newest[node] = new_packet(node, CARRIER_MESSAGE_MAX);
	DL_APPEND(sched->internode->open, p);
	return p;
}

static void append(struct internode_packet *p, const void *data, size_t bytes)
{
	memcpy(p->data + p->bytes, data, bytes);
	p->bytes += bytes;
}

static void send_to(struct scheduler *sched, uint32_t node, struct internode_header *h,
		    const void *body, const void *more, size_t more_bytes)
{
	static const char zeros[8];
	if (sched->internode->lost[node])
		return;
	if (node != sched->config.node)
		table_count(&sched->table.messages, 1);
	const size_t padding = -(sizeof(*h) + h->bytes) % 8;
	struct internode_packet *p = packet_with_room(sched, node, sizeof(*h) + h->bytes + padding);
	h->magic = INTERNODE_MAGIC;
	append(p, h, sizeof(*h));
	if (h->bytes > more_bytes)
		append(p, body, h->bytes - more_bytes);
	if (more_bytes)
		append(p, more, more_bytes);
	append(p, zeros, padding);
}

void internode_comm_send(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			 enum internode_kind kind, const struct operation_key *key,
			 const void *body, size_t bytes, const void *more, size_t more_bytes)
{
	struct internode_header h = {.kind = (uint16_t)kind,
				     .internode_id = s->id,
				     .key = *key,
				     .bytes = bytes + more_bytes};
	send_to(sched, s->nodes[node_index], &h, body, more, more_bytes);
}

void internode_comm_send_node(struct scheduler *sched, uint32_t node,
			      const struct internode_header *h, const void *body)
{
	struct internode_header own = *h;
	send_to(sched, node, &own, body, NULL, 0);
}

void internode_comm_say_gone(struct scheduler *sched, uint64_t id, uint32_t node)
{
	const struct internode_header h = {.kind = INTERNODE_GONE, .internode_id = id};
	internode_comm_send_node(sched, node, &h, "");
}

void internode_comm_refuse_credit(struct scheduler *sched, int node, int32_t tag)
{
	struct internode_packet *p = new_packet((uint32_t)node, 0);
	table_count(&sched->table.messages, 1);
	keep_until_sent(sched, p, sched->config.carrier->send(NULL, 0, node, tag, p));
}

/* ---- Receiving ---- */

bool internode_comm_all_left(const struct internode_comm *s, uint32_t node_index)
{
	for (uint32_t i = 0; i < s->counts[node_index]; i++)
		if (!s->comm->members[s->ranks[s->first[node_index] + i]].gone)
			return false;
	return true;
}
