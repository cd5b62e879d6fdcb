/* SPDX-License-Identifier: Apache-2.0
 * Moves the bytes of tasks that matched on several nodes, chunk by chunk: some are in transit while
 * others are reduced or copied. The scheduler's thread never waits for them. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "channel/carrier.h"
#include "internode.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/in_place.h"
#include "sched/base/status.h"
#include "sched/queue/release.h"

#define WINDOW	       8 /* chunks of one operation in progress */
#define SCANS_PER_TURN 65536

static void finish_op(struct scheduler *sched, struct op *op)
{
	struct comm *c = op->comm;
	const uint32_t n = op->schedule.p2p ? 2 : c->nranks;
	struct subop *subop = op->subop;
	ncclsvc_status st = op->aborted ? c->end : status_ok;
	DL_DELETE(c->internode->ops, op);
	sched->internode->ops--;
	if (subop) {
		const bool aborted = op->aborted;
		free(op);
		subop->done(sched, subop, aborted);
		return;
	}
	for (uint32_t k = 0; k < n; k++)
		if (op->tasks[k])
			release_end(sched, op->tasks[k], &st);
	free(op);
	if (c->ended && !c->pending)
		comm_gone(sched, c);
}

/* Starts as many chunks as allowed, and ends the operation when all have ended. */
static void advance_op(struct scheduler *sched, struct op *op)
{
	unsigned scans = 0;
	if (op->advancing)
		return;
	op->advancing = true;
	while (!op->aborted && op->under_way < WINDOW && op->next_chunk < op->schedule.chunks &&
	       scans++ < SCANS_PER_TURN) {
		struct segment x;
		uint64_t index = op->next_chunk++;
		if (schedule_segment(&op->schedule, index, &x) &&
		    schedule_involved(&op->schedule, &x))
			chunk_begin(sched, op, index, &x);
	}
	op->advancing = false;
	bool all = op->next_chunk == op->schedule.chunks;
	if (!all && op->under_way < WINDOW && !op->aborted)
		sched->polled |= 1u << TRANSPORT_INTERNODE;
	/* An aborted operation ends with its epoch, which has the reason. */
	if (!op->under_way && (op->aborted ? op->comm->ended : all))
		finish_op(sched, op);
}

static enum begun start(struct scheduler *sched, const struct match *m)
{
	/* The whole match is local: a Send and its Recv. */
	if (!m->at)
		return sched->config.transports[TRANSPORT_HOST]->start(sched, m);
	struct op *op = calloc(1, sizeof(*op) + m->ntasks * sizeof(op->tasks[0]));
	if (!op)
		return BEGUN_NO_MEMORY;
	op->comm = m->comm;
	op->key = *m->at;
	op->subop = m->subop;
	op->ntasks = m->ntasks;
	memcpy(op->tasks, m->tasks, m->ntasks * sizeof(op->tasks[0]));
	if (!op->subop)
		tasks_mark_in_place(op->tasks, op->ntasks);
	schedule_make(&op->schedule, op->comm->internode, op->tasks, op->key.a, op->key.b);
	DL_APPEND(op->comm->internode->ops, op);
	sched->internode->ops++;
	advance_op(sched, op);
	return BEGUN_RUNNING;
}

static void advance_all(struct scheduler *sched, struct block_chunk *p)
{
	struct op *op = p->op;
	chunk_advance(sched, p);
	advance_op(sched, op);
}

void internode_flow_over(struct scheduler *sched, struct flight *flight, size_t bytes, bool failed)
{
	struct transfer *f = (struct transfer *)flight;
	f->over = true;
	if (!f->send && !failed)
		transfer_tag_put(sched, f->tag);
	/* The connection is broken, or the other side has given up. */
	if (failed || (!f->send && bytes != f->bytes))
		transfer_abort_op(sched, f->chunk->op);
	advance_all(sched, f->chunk);
}

void internode_work_over(struct job *job, void *scheduler)
{
	struct block_chunk *p = (struct block_chunk *)job;
	p->working = false;
	advance_all(scheduler, p);
}

/* Operations with too much to check in one turn. */
static bool poll(struct scheduler *sched)
{
	struct internode_comm *s, *next_comm;
	sched->polled &= ~(1u << TRANSPORT_INTERNODE);
	HASH_ITER (hh, sched->internode->comms, s, next_comm) {
		struct op *op, *next;
		DL_FOREACH_SAFE (s->ops, op, next)
			advance_op(sched, op);
	}
	return false;
}

/* ---- Ends ---- */

static void poke(struct scheduler *sched, struct op *op)
{
	struct block_chunk *p, *next;
	DL_FOREACH_SAFE (op->chunks, p, next)
		if (!p->working)
			chunk_advance(sched, p);
}

/* Ends the aborted operations; the others may continue for a short while. */
static void epoch_end(struct scheduler *sched, struct comm *c)
{
	struct op *op, *next;
	sched->config.transports[TRANSPORT_HOST]->epoch_end(sched, c);
	DL_FOREACH_SAFE (c->internode->ops, op, next)
		if (op->aborted)
			advance_op(sched, op);
}

/* Aborts one operation with all its subops, including those that have not begun. */
static void abort_some(struct scheduler *sched, struct comm *c, const struct operation_key *key)
{
	struct op *op, *next;
	DL_FOREACH_SAFE (c->internode->ops, op, next) {
		if (key && !operation_same(&op->key, key))
			continue;
		transfer_abort_op(sched, op);
		poke(sched, op);
		advance_op(sched, op);
	}
	if (key)
		transfer_refuse_credits(sched, c->internode, key, operation_same);
}

/* Transfers to and from that node never end. */
static void drop_transfers(struct scheduler *sched, struct block_chunk *p, uint32_t node_index)
{
	for (uint32_t i = 0; i < p->ntransfers; i++) {
		struct transfer *f = &p->transfers[i];
		if (f->node != node_index || !f->begun || f->over)
			continue;
		sched->config.carrier->drop(f);
		if (f->send) { /* forget it, since no node reads it */
			f->over = true;
			sched->internode->flights--;
		}
	}
}

static void node_lost(struct scheduler *sched, struct comm *c, uint32_t node_index)
{
	struct op *op, *next;
	DL_FOREACH_SAFE (c->internode->ops, op, next) {
		struct block_chunk *p, *after;
		transfer_abort_op(sched, op);
		DL_FOREACH_SAFE (op->chunks, p, after) {
			drop_transfers(sched, p, node_index);
			if (!p->working)
				chunk_advance(sched, p);
		}
		advance_op(sched, op);
	}
}

static void finish(struct scheduler *sched)
{
	while (internode_of(sched)->nbuffers)
		free(internode_of(sched)->buffers[--internode_of(sched)->nbuffers]);
	free(internode_of(sched)->tags);
}

const struct transport internode_transport = {
	.state_bytes = sizeof(struct internode),
	.epoch_end = epoch_end,
	.start = start,
	.poll = poll,
	.finish = finish,
	.eager = small_fits,
	.pack = small_pack,
	.unpack = small_finish,
	.credit = transfer_credit,
	.break_off = abort_some,
	.node_lost = node_lost,
};
