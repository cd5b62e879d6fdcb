/* SPDX-License-Identifier: Apache-2.0
 * Moving the bytes of tasks that met on several nodes, piece by piece: some are on their way while
 * others are reduced or copied. The engine's thread never waits for any of it. */
#include <stdlib.h>
#include <utlist.h>

#include "across.h"
#include "channel/mpi_api.h"
#include "sched/order.h"
#include "transport/staged/staged.h"

#define WINDOW	       8 /* pieces of one operation that are under way */
#define SCANS_PER_TURN 65536

static void finish_op(struct engine *e, struct op *op)
{
	struct comm *c = op->comm;
	uint32_t n = op->course.p2p ? 2 : c->nranks;
	struct chunk *chunk = op->chunk;
	ncclsvc_status st = op->aborted ? c->end : complete_ok;
	DL_DELETE(c->span->ops, op);
	e->ops--;
	if (chunk) {
		bool aborted = op->aborted;
		free(op->tasks);
		free(op);
		staged_moved(chunk, aborted);
		return;
	}
	for (uint32_t k = 0; k < n; k++)
		if (op->tasks[k])
			order_end_task(e, op->tasks[k], &st);
	free(op->tasks);
	free(op);
	if (c->ended && !c->pending)
		order_free_comm(e, c);
}

/* Begins what pieces it may, and ends it when all are over. */
static void advance_op(struct engine *e, struct op *op)
{
	unsigned scans = 0;
	if (op->advancing)
		return;
	op->advancing = true;
	while (!op->aborted && op->under_way < WINDOW && op->next_piece < op->course.pieces &&
	       scans++ < SCANS_PER_TURN) {
		struct stretch x;
		uint64_t index = op->next_piece++;
		if (course_stretch(&op->course, index, &x) && course_involved(&op->course, &x))
			piece_begin(e, op, index, &x);
	}
	op->advancing = false;
	bool all = op->next_piece == op->course.pieces;
	e->op_scans |= !all && op->under_way < WINDOW && !op->aborted;
	/* What was given up ends with its epoch, which says why. */
	if (!op->under_way && (op->aborted ? op->comm->ended : all))
		finish_op(e, op);
}

bool across_start(struct engine *e, struct comm *c, const struct junction_key *key,
		  struct task **tasks, struct chunk *chunk)
{
	struct op *op = calloc(1, sizeof(*op));
	if (!op)
		return false;
	op->comm = c;
	op->key = *key;
	op->tasks = tasks;
	op->chunk = chunk;
	course_make(&op->course, c->span, tasks, key->a, key->b);
	DL_APPEND(c->span->ops, op);
	e->ops++;
	advance_op(e, op);
	return true;
}

static void advance_all(struct engine *e, struct piece *p)
{
	struct op *op = p->op;
	piece_advance(e, p);
	advance_op(e, op);
}

void across_flow_done(struct engine *e, void *flow, size_t bytes, bool failed)
{
	struct flow *f = flow;
	e->flights--;
	f->over = true;
	if (!f->send) {
		if (!failed)
			flow_tag_put(e, f->tag);
		if (failed || bytes != f->bytes)
			flow_abort_op(e, f->piece->op); /* the other side has given up */
	}
	advance_all(e, f->piece);
}

void across_job_done(struct engine *e, struct job *job)
{
	struct piece *p = (struct piece *)job;
	p->working = false;
	advance_all(e, p);
}

/* Operations that had too much to look at in one turn. */
void across_continue(struct engine *e)
{
	struct span *s, *next_span;
	e->op_scans = false;
	HASH_ITER (hh, e->spans, s, next_span) {
		struct op *op, *next;
		DL_FOREACH_SAFE (s->ops, op, next)
			advance_op(e, op);
	}
}

/* ---- Ends ---- */

static void poke(struct engine *e, struct op *op)
{
	struct piece *p, *next;
	DL_FOREACH_SAFE (op->pieces, p, next)
		if (!p->working)
			piece_advance(e, p);
}

/* Those that could not go on; the others may, for a little while. */
void across_end(struct engine *e, struct span *s)
{
	struct op *op, *next;
	DL_FOREACH_SAFE (s->ops, op, next)
		if (op->aborted)
			advance_op(e, op);
}

void across_abort(struct engine *e, struct span *s)
{
	struct op *op, *next;
	staged_abort(e, s->comm);
	DL_FOREACH_SAFE (s->ops, op, next) {
		flow_abort_op(e, op);
		poke(e, op);
		advance_op(e, op);
	}
}

void across_give_up(struct engine *e, struct span *s, const struct junction_key *key)
{
	struct op *op, *next;
	DL_FOREACH_SAFE (s->ops, op, next) {
		if (!junction_same_operation(&op->key, key))
			continue;
		flow_abort_op(e, op);
		poke(e, op);
		advance_op(e, op);
	}
	flow_refuse_credits(e, s, key, junction_same_operation);
}

void across_node_lost(struct engine *e, struct span *s, uint32_t place)
{
	struct op *op, *next;
	staged_abort(e, s->comm);
	DL_FOREACH_SAFE (s->ops, op, next) {
		struct piece *p, *after;
		flow_abort_op(e, op);
		DL_FOREACH_SAFE (op->pieces, p, after) {
			for (uint32_t i = 0; i < p->nflows; i++) {
				struct flow *f = &p->flows[i];
				if (f->node != place || !f->begun || f->over)
					continue;
				e->config.mpi->drop(f);
				if (f->send) { /* forgotten: nobody reads it */
					f->over = true;
					e->flights--;
				}
			}
			if (!p->working)
				piece_advance(e, p);
		}
		advance_op(e, op);
	}
}
