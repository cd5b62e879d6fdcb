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

static void message_over(struct scheduler *sched, struct flight *f, size_t bytes, bool failed)
{
	struct internode_message *m = (struct internode_message *)f;
	(void)bytes;
	(void)failed;
	DL_DELETE(sched->internode->messages, m);
	free(m);
}

/* A lost message is not missed for long: either its node is lost, or a deadline passes. */
static void keep_until_sent(struct scheduler *sched, struct internode_message *m, int sent)
{
	if (sent) { /* done, or not sent */
		free(m);
		return;
	}
	DL_APPEND(sched->internode->messages, m);
	sched->internode->flights++;
}

static void post_message(struct scheduler *sched, struct internode_message *m)
{
	table_count(&sched->table.messages, 1);
	keep_until_sent(sched, m, sched->config.carrier->say(&m->header, m->bytes, m->node, m));
}

void internode_comm_send(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			 enum internode_kind kind, const struct operation_key *key,
			 const void *body, size_t bytes, const void *more, size_t more_bytes)
{
	struct internode_message *m = nofail_malloc(sizeof(*m) + bytes + more_bytes, MESSAGE);
	m->flight.done = message_over;
	m->node = (int)s->nodes[node_index];
	m->bytes = sizeof(m->header) + bytes + more_bytes;
	m->header = (struct internode_header){.magic = INTERNODE_MAGIC,
					      .kind = (uint16_t)kind,
					      .internode_id = s->id,
					      .key = *key,
					      .bytes = bytes + more_bytes};
	memcpy(m->body, body, bytes);
	if (more_bytes)
		memcpy(m->body + bytes, more, more_bytes);
	post_message(sched, m);
}

void internode_comm_send_node(struct scheduler *sched, uint32_t node,
			      const struct internode_header *h, const void *body)
{
	struct internode_message *m = nofail_malloc(sizeof(*m) + h->bytes, MESSAGE);
	m->flight.done = message_over;
	m->node = (int)node;
	m->bytes = sizeof(m->header) + h->bytes;
	m->header = *h;
	m->header.magic = INTERNODE_MAGIC;
	if (h->bytes)
		memcpy(m->body, body, h->bytes);
	if (node == sched->config.node)
		DL_APPEND(sched->internode->own, m);
	else
		post_message(sched, m);
}

void internode_comm_refuse_credit(struct scheduler *sched, int node, int32_t tag)
{
	struct internode_message *m = nofail_malloc(sizeof(*m), MESSAGE);
	m->flight.done = message_over;
	m->node = node;
	m->bytes = 0;
	table_count(&sched->table.messages, 1);
	keep_until_sent(sched, m, sched->config.carrier->send(NULL, 0, node, tag, m));
}

/* ---- Receiving ---- */

bool internode_comm_all_left(const struct internode_comm *s, uint32_t node_index)
{
	for (uint32_t i = 0; i < s->counts[node_index]; i++)
		if (!s->comm->members[s->ranks[s->first[node_index] + i]].gone)
			return false;
	return true;
}
