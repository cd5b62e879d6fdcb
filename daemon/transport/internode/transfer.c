/* SPDX-License-Identifier: Apache-2.0
 * A chunk's sends and receives: the credits for them, and the transfers by the carrier. */
#include <stdlib.h>
#include <utlist.h>

#include "channel/carrier.h"
#include "internode.h"

/* ---- Tags ---- */

static int32_t tag_get(struct scheduler *sched)
{
	return internode_of(sched)->ntags
		       ? internode_of(sched)->tags[--internode_of(sched)->ntags]
		       : CARRIER_TAG_DATA + (int32_t)internode_of(sched)->fresh_tags++;
}

void transfer_tag_put(struct scheduler *sched, int32_t tag)
{
	if (internode_of(sched)->ntags == internode_of(sched)->tags_room) {
		uint32_t more =
			internode_of(sched)->tags_room ? internode_of(sched)->tags_room * 2 : 256;
		int32_t *tags = realloc(internode_of(sched)->tags, more * sizeof(*tags));
		if (!tags)
			return;
		internode_of(sched)->tags = tags;
		internode_of(sched)->tags_room = more;
	}
	internode_of(sched)->tags[internode_of(sched)->ntags++] = tag;
}

/* ---- Credits ---- */

static bool same(const struct operation_key *a, const struct operation_key *b)
{
	return a->a == b->a && a->b == b->b && a->seq == b->seq && a->subop == b->subop;
}

void transfer_refuse_credits(struct scheduler *sched, struct internode_comm *s,
			     const struct operation_key *key,
			     bool (*those)(const struct operation_key *a,
					   const struct operation_key *b))
{
	struct credit *k, *next;
	DL_FOREACH_SAFE (s->credits, k, next) {
		if (!those(&k->key, key))
			continue;
		internode_comm_refuse_credit(sched, (int)s->nodes[k->node], k->note.tag);
		DL_DELETE(s->credits, k);
		free(k);
	}
}

void transfer_abort_op(struct scheduler *sched, struct op *op)
{
	op->aborted = true;
	transfer_refuse_credits(sched, op->comm->internode, &op->key, same);
}

/* ---- Transfers ---- */

/* Messages that a node sent before it died may still arrive and match, until the epoch ends. */
static bool is_lost(struct scheduler *sched, struct transfer *f)
{
	struct op *op = f->chunk->op;
	if (!sched->internode->lost[op->comm->internode->nodes[f->node]])
		return false;
	f->over = true;
	transfer_abort_op(sched, op);
	return true;
}

void transfer_receive(struct scheduler *sched, struct transfer *f)
{
	struct op *op = f->chunk->op;
	struct internode_comm *s = op->comm->internode;
	f->begun = true;
	if (is_lost(sched, f))
		return;
	f->tag = tag_get(sched);
	if (sched->config.carrier->receive(f->at, f->bytes, (int)s->nodes[f->node], f->tag, f)) {
		f->over = true;
		transfer_abort_op(sched, op);
		internode_comm_give_up(sched, op->comm, NCCLSVC_SYSTEM, f->node);
		return;
	}
	sched->internode->flights++;
	struct credit_note note = {f->chunk->index, f->phase, f->tag};
	internode_comm_send(sched, s, f->node, INTERNODE_CREDIT, &op->key, &note, sizeof(note),
			    NULL, 0);
}

static void send_flow(struct scheduler *sched, struct transfer *f, int32_t tag)
{
	struct op *op = f->chunk->op;
	f->begun = true;
	if (is_lost(sched, f))
		return;
	if (sched->config.carrier->send(f->at, f->bytes, (int)op->comm->internode->nodes[f->node],
					tag, f)) {
		f->over = true;
		transfer_abort_op(sched, op);
		internode_comm_give_up(sched, op->comm, NCCLSVC_SYSTEM, f->node);
		return;
	}
	table_count(&sched->table.messages, 1);
	sched->internode->flights++;
}

void transfer_offer(struct scheduler *sched, struct transfer *f)
{
	struct op *op = f->chunk->op;
	struct internode_comm *s = op->comm->internode;
	struct credit *k;
	DL_FOREACH (s->credits, k) {
		if (k->node != f->node || k->note.chunk != f->chunk->index ||
		    k->note.phase != f->phase || !same(&k->key, &op->key))
			continue;
		int32_t tag = k->note.tag;
		DL_DELETE(s->credits, k);
		free(k);
		send_flow(sched, f, tag);
		return;
	}
}

static bool is_ready(const struct block_chunk *p, const struct transfer *f)
{
	return p->stage == (f->phase == GATHER ? STAGE_GATHER : STAGE_RESULT);
}

void transfer_credit(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		     const struct operation_key *key, const struct credit_note *note)
{
	struct op *op;
	DL_FOREACH (s->ops, op) {
		if (same(&op->key, key))
			break;
	}
	bool late = op ? op->aborted : s->comm->ended;
	if (!op && s->comm->transport->expects)
		late = !s->comm->transport->expects(sched, s->comm, key);
	if (late) {
		internode_comm_refuse_credit(sched, (int)s->nodes[node_index], note->tag);
		return;
	}
	struct block_chunk *p = NULL;
	if (op)
		DL_SEARCH_SCALAR(op->chunks, p, index, note->chunk);
	for (uint32_t i = 0; p && i < p->ntransfers; i++) {
		struct transfer *f = &p->transfers[i];
		if (f->send && !f->begun && f->node == node_index &&
		    (uint32_t)f->phase == note->phase && is_ready(p, f)) {
			send_flow(sched, f, note->tag);
			return;
		}
	}
	struct credit *k = malloc(sizeof(*k));
	if (!k) {
		internode_comm_refuse_credit(sched, (int)s->nodes[node_index], note->tag);
		internode_comm_give_up(sched, s->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	*k = (struct credit){.key = *key, .node = node_index, .note = *note};
	DL_APPEND(s->credits, k);
}
