/* SPDX-License-Identifier: Apache-2.0
 * A chunk's sends and receives: the credits for them, and the transfers in MPI. */
#include <stdlib.h>
#include <utlist.h>

#include "channel/mpi_api.h"
#include "internode.h"

/* ---- Tags ---- */

static int32_t tag_get(struct engine *e)
{
	return internode_of(e)->ntags ? internode_of(e)->tags[--internode_of(e)->ntags]
				      : MPI_TAG_DATA + (int32_t)internode_of(e)->fresh_tags++;
}

void transfer_tag_put(struct engine *e, int32_t tag)
{
	if (internode_of(e)->ntags == internode_of(e)->tags_room) {
		uint32_t more = internode_of(e)->tags_room ? internode_of(e)->tags_room * 2 : 256;
		int32_t *tags = realloc(internode_of(e)->tags, more * sizeof(*tags));
		if (!tags)
			return;
		internode_of(e)->tags = tags;
		internode_of(e)->tags_room = more;
	}
	internode_of(e)->tags[internode_of(e)->ntags++] = tag;
}

/* ---- Credits ---- */

static bool same(const struct operation_key *a, const struct operation_key *b)
{
	return a->a == b->a && a->b == b->b && a->seq == b->seq && a->part == b->part;
}

void transfer_refuse_credits(struct engine *e, struct internode_comm *s,
			     const struct operation_key *key,
			     bool (*those)(const struct operation_key *a,
					   const struct operation_key *b))
{
	struct credit *k, *next;
	DL_FOREACH_SAFE (s->credits, k, next) {
		if (!those(&k->key, key))
			continue;
		internode_comm_refuse_credit(e, (int)s->nodes[k->node], k->note.tag);
		DL_DELETE(s->credits, k);
		free(k);
	}
}

void transfer_abort_op(struct engine *e, struct op *op)
{
	op->aborted = true;
	transfer_refuse_credits(e, op->comm->internode, &op->key, same);
}

/* ---- Transfers ---- */

/* Messages that a node sent before it died may still arrive and match, until the epoch ends. */
static bool is_lost(struct engine *e, struct transfer *f)
{
	struct op *op = f->chunk->op;
	if (!e->lost[op->comm->internode->nodes[f->node]])
		return false;
	f->over = true;
	transfer_abort_op(e, op);
	return true;
}

void transfer_receive(struct engine *e, struct transfer *f)
{
	struct op *op = f->chunk->op;
	struct internode_comm *s = op->comm->internode;
	f->begun = true;
	if (is_lost(e, f))
		return;
	f->tag = tag_get(e);
	if (e->config.mpi->receive(f->at, f->bytes, (int)s->nodes[f->node], f->tag, f)) {
		f->over = true;
		transfer_abort_op(e, op);
		internode_comm_give_up(e, op->comm, NCCLSVC_SYSTEM, f->node);
		return;
	}
	e->flights++;
	struct credit_note note = {f->chunk->index, f->phase, f->tag};
	internode_comm_send(e, s, f->node, INTERNODE_CREDIT, &op->key, &note, sizeof(note), NULL,
			    0);
}

static void send_flow(struct engine *e, struct transfer *f, int32_t tag)
{
	struct op *op = f->chunk->op;
	f->begun = true;
	if (is_lost(e, f))
		return;
	if (e->config.mpi->send(f->at, f->bytes, (int)op->comm->internode->nodes[f->node], tag,
				f)) {
		f->over = true;
		transfer_abort_op(e, op);
		internode_comm_give_up(e, op->comm, NCCLSVC_SYSTEM, f->node);
		return;
	}
	table_count(&e->table.messages, 1);
	e->flights++;
}

void transfer_offer(struct engine *e, struct transfer *f)
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
		send_flow(e, f, tag);
		return;
	}
}

static bool is_ready(const struct block_chunk *p, const struct transfer *f)
{
	return p->stage == (f->phase == GATHER ? STAGE_GATHER : STAGE_RESULT);
}

void transfer_credit(struct engine *e, struct internode_comm *s, uint32_t place,
		     const struct operation_key *key, const struct credit_note *note)
{
	struct op *op;
	DL_FOREACH (s->ops, op) {
		if (same(&op->key, key))
			break;
	}
	bool late = op ? op->aborted : s->comm->ended;
	if (!op && s->comm->transport->expects)
		late = !s->comm->transport->expects(e, s->comm, key);
	if (late) {
		internode_comm_refuse_credit(e, (int)s->nodes[place], note->tag);
		return;
	}
	struct block_chunk *p = NULL;
	if (op)
		DL_SEARCH_SCALAR(op->chunks, p, index, note->chunk);
	for (uint32_t i = 0; p && i < p->ntransfers; i++) {
		struct transfer *f = &p->transfers[i];
		if (f->send && !f->begun && f->node == place && (uint32_t)f->phase == note->phase &&
		    is_ready(p, f)) {
			send_flow(e, f, note->tag);
			return;
		}
	}
	struct credit *k = malloc(sizeof(*k));
	if (!k) {
		internode_comm_refuse_credit(e, (int)s->nodes[place], note->tag);
		internode_comm_give_up(e, s->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	*k = (struct credit){.key = *key, .node = place, .note = *note};
	DL_APPEND(s->credits, k);
}
