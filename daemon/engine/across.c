/* SPDX-License-Identifier: Apache-2.0
 * Moving the bytes of tasks that met on several nodes, piece by piece: some are on their way while
 * others are reduced or copied. The engine's thread never waits for any of it. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "cluster/mpi_api.h"
#include "names.h"
#include "order.h"
#include "reduce.h"
#include "span.h"
#include "staged.h"

#define WINDOW	       8	   /* pieces of one operation that are under way */
#define INLINE_BYTES   (64 * 1024) /* more than that is the pool's */
#define SCANS_PER_TURN 65536
#define BUFFERS_KEPT   64
#define BUFFER_BYTES   (2 * 1024 * 1024 + 65536)

enum phase { GIVING = 1, RESULT };

enum stage {
	STAGE_PREPARE, /* this node's contribution is put together */
	STAGE_GIVE,    /* contributions go to the owner */
	STAGE_REDUCE,
	STAGE_RESULT, /* what the owner has goes to whom it is for */
	STAGE_SHARE,  /* it is copied to this node's other ranks */
	STAGE_OVER,
};

struct flow {
	enum in_flight kind; /* first: what MPI gives back */
	bool send, begun, over;
	enum phase phase;
	uint32_t node; /* place */
	int32_t tag;
	char *at;
	uint64_t bytes;
	struct piece *piece;
};

struct piece {
	struct job job; /* first: what the pool gives back */
	struct op *op;
	struct piece *prev, *next;
	uint64_t index;
	struct stretch x;
	enum stage stage;
	bool working; /* the pool has it */
	char *mine;   /* this node's contribution, or what it swaps; NULL: not needed */
	char *others; /* the others' contributions, or what came to swap */
	uint32_t nflows;
	struct flow flows[];
};

struct op {
	struct comm *comm;
	struct junction_key key;
	struct task **tasks;
	struct chunk *chunk; /* that it is part of; NULL: none */
	struct course course;
	uint64_t next_piece;
	uint32_t under_way;
	bool aborted, advancing;
	struct piece *pieces;
	struct op *prev, *next;
};

/* ---- Memory and tags ---- */

static char *buffer_get(struct engine *e, uint64_t bytes)
{
	if (bytes <= BUFFER_BYTES && e->nbuffers)
		return e->buffers[--e->nbuffers];
	char *p = malloc(bytes <= BUFFER_BYTES ? BUFFER_BYTES : bytes);
	if (!p)
		abort(); /* the other nodes have begun */
	return p;
}

static void buffer_put(struct engine *e, char *p, uint64_t bytes)
{
	if (p && bytes <= BUFFER_BYTES && e->nbuffers < BUFFERS_KEPT)
		e->buffers[e->nbuffers++] = p;
	else
		free(p);
}

static int32_t tag_get(struct engine *e)
{
	return e->ntags ? e->tags[--e->ntags] : MPI_TAG_DATA + (int32_t)e->fresh_tags++;
}

/* Nothing more comes with this tag. */
static void tag_put(struct engine *e, int32_t tag)
{
	if (e->ntags == e->tags_room) {
		uint32_t more = e->tags_room ? e->tags_room * 2 : 256;
		int32_t *tags = realloc(e->tags, more * sizeof(*tags));
		if (!tags)
			return;
		e->tags = tags;
		e->tags_room = more;
	}
	e->tags[e->ntags++] = tag;
}

/* ---- Flows ---- */

static bool same(const struct junction_key *a, const struct junction_key *b)
{
	return a->a == b->a && a->b == b->b && a->seq == b->seq && a->part == b->part;
}

static bool same_whole(const struct junction_key *a, const struct junction_key *b)
{
	return a->a == b->a && a->b == b->b && a->seq == b->seq;
}

static void refuse_credits(struct engine *e, struct span *s, const struct junction_key *key,
			   bool (*those)(const struct junction_key *a,
					 const struct junction_key *b))
{
	struct credit *k, *next;
	DL_FOREACH_SAFE (s->credits, k, next) {
		if (!those(&k->key, key))
			continue;
		span_refuse_credit(e, (int)s->nodes[k->node], k->note.tag);
		DL_DELETE(s->credits, k);
		free(k);
	}
}

/* It can't be done: nothing more of it begins, and who has given credit for it is told. */
static void abort_op(struct engine *e, struct op *op)
{
	op->aborted = true;
	refuse_credits(e, op->comm->span, &op->key, same);
}

static void receive_flow(struct engine *e, struct flow *f)
{
	struct op *op = f->piece->op;
	struct span *s = op->comm->span;
	f->begun = true;
	f->tag = tag_get(e);
	if (e->config.mpi->receive(f->at, f->bytes, (int)s->nodes[f->node], f->tag, f)) {
		f->over = true;
		abort_op(e, op);
		span_give_up(e, op->comm, NCCLSVC_SYSTEM, f->node);
		return;
	}
	e->flights++;
	struct credit_note note = {f->piece->index, f->phase, f->tag};
	span_send(e, s, f->node, SPAN_CREDIT, &op->key, &note, sizeof(note), NULL, 0);
}

static void send_flow(struct engine *e, struct flow *f, int32_t tag)
{
	struct op *op = f->piece->op;
	f->begun = true;
	if (e->config.mpi->send(f->at, f->bytes, (int)op->comm->span->nodes[f->node], tag, f)) {
		f->over = true;
		abort_op(e, op);
		span_give_up(e, op->comm, NCCLSVC_SYSTEM, f->node);
		return;
	}
	e->flights++;
}

/* Sends it if the receiver has given credit already. */
static void offer_flow(struct engine *e, struct flow *f)
{
	struct op *op = f->piece->op;
	struct span *s = op->comm->span;
	struct credit *k;
	DL_FOREACH (s->credits, k) {
		if (k->node != f->node || k->note.piece != f->piece->index ||
		    k->note.phase != f->phase || !same(&k->key, &op->key))
			continue;
		int32_t tag = k->note.tag;
		DL_DELETE(s->credits, k);
		free(k);
		send_flow(e, f, tag);
		return;
	}
}

static bool is_ready(const struct piece *p, const struct flow *f)
{
	return p->stage == (f->phase == GIVING ? STAGE_GIVE : STAGE_RESULT);
}

void across_credit(struct engine *e, struct span *s, uint32_t place, const struct junction_key *key,
		   const struct credit_note *note)
{
	struct op *op;
	DL_FOREACH (s->ops, op) {
		if (same(&op->key, key))
			break;
	}
	bool late = op ? op->aborted : s->comm->ended;
	if (!op && s->comm->staged)
		late = !staged_expects(e, s->comm, key);
	if (late) {
		span_refuse_credit(e, (int)s->nodes[place], note->tag);
		return;
	}
	struct piece *p = NULL;
	if (op)
		DL_SEARCH_SCALAR(op->pieces, p, index, note->piece);
	for (uint32_t i = 0; p && i < p->nflows; i++) {
		struct flow *f = &p->flows[i];
		if (f->send && !f->begun && f->node == place && (uint32_t)f->phase == note->phase &&
		    is_ready(p, f)) {
			send_flow(e, f, note->tag);
			return;
		}
	}
	struct credit *k = malloc(sizeof(*k));
	if (!k)
		abort();
	*k = (struct credit){.key = *key, .node = place, .note = *note};
	DL_APPEND(s->credits, k);
}

/* ---- The work on one piece ---- */

/* AllToAll: where one of this node's two ranks has, or wants, the block of the other. */
static char *swap_at(const struct course *p, const struct stretch *x, bool dst)
{
	uint32_t a, b;
	course_pair(x->block, &a, &b);
	bool mine_a = x->owner == p->span->me;
	const struct task *t = p->tasks[mine_a ? a : b];
	uint64_t at = (mine_a ? b : a) * p->share + x->lo;
	return (dst ? t->dst : t->src) + at;
}

static void exchange_here(const struct course *p, const struct stretch *x)
{
	char one[4096], other[4096];
	uint32_t a, b;
	course_pair(x->block, &a, &b);
	struct task *ta = p->tasks[a], *tb = p->tasks[b];
	for (uint64_t i = 0; i < x->bytes; i += sizeof(one)) {
		size_t n = x->bytes - i < sizeof(one) ? x->bytes - i : sizeof(one);
		uint64_t at_b = b * p->share + x->lo + i, at_a = a * p->share + x->lo + i;
		memcpy(one, ta->src + at_b, n);
		memcpy(other, tb->src + at_a, n);
		memcpy(tb->dst + at_a, one, n);
		memcpy(ta->dst + at_b, other, n);
	}
}

static void share_result(const struct course *p, const struct stretch *x)
{
	const struct span *s = p->span;
	char *targets[span_local_count(s)];
	uint32_t n = course_targets(p, x, targets), from = 0;
	const char *source = targets[0];
	if (!n)
		return;
	/* The owner's ranks have theirs, if it was reduced. */
	if (x->owner == s->me && !x->reduces)
		source = course_source(p, x, course_giver(p, x));
	else
		from = 1;
	for (uint32_t i = from; i < n; i++)
		copy_block(targets[i], source, x->bytes, false);
}

static void run_stage(struct job *job, uint32_t chunk)
{
	struct piece *p = (struct piece *)job;
	const struct course *course = &p->op->course;
	(void)chunk;
	switch (p->stage) {
	case STAGE_PREPARE:
		course_contribute(course, &p->x, p->mine);
		break;
	case STAGE_REDUCE:
		course_reduce(course, &p->x, p->others);
		break;
	case STAGE_SHARE:
		if (!p->x.exchanges)
			share_result(course, &p->x);
		else if (p->x.owner == p->x.to)
			exchange_here(course, &p->x);
		else if (p->others)
			memcpy(swap_at(course, &p->x, true), p->others, p->x.bytes);
		break;
	default:
		break;
	}
}

/* True if there is something for the pool, or to be run, in this stage. */
static bool has_work(const struct piece *p)
{
	const struct course *course = &p->op->course;
	const struct stretch *x = &p->x;
	const bool owner = x->owner == course->span->me;
	switch (p->stage) {
	case STAGE_PREPARE:
		return p->mine;
	case STAGE_REDUCE:
		return x->reduces && owner;
	case STAGE_SHARE:
		if (x->exchanges)
			return p->others || x->owner == x->to;
		return x->spreads ? !(x->reduces && owner)
				  : owner && x->to == x->owner && !x->reduces;
	default:
		return false;
	}
}

static bool work(struct engine *e, struct piece *p)
{
	uint64_t bytes = p->x.bytes * p->op->course.span->nnodes;
	if (bytes <= INLINE_BYTES || e->config.threads < 2) {
		run_stage(&p->job, 0);
		return false;
	}
	p->job.run = run_stage;
	p->job.chunks = 1;
	p->job.across = true;
	p->working = true;
	e->jobs++;
	pool_submit(e->pool, &p->job);
	return true;
}

/* Are all flows of that phase over? Those of an operation that was given up need not begin. */
static bool flows_over(const struct piece *p, enum phase phase)
{
	for (uint32_t i = 0; i < p->nflows; i++) {
		const struct flow *f = &p->flows[i];
		if (f->phase == phase && !f->over && (f->begun || !p->op->aborted))
			return false;
	}
	return true;
}

static void offer_flows(struct engine *e, struct piece *p, enum phase phase)
{
	for (uint32_t i = 0; i < p->nflows; i++) {
		struct flow *f = &p->flows[i];
		if (f->phase == phase && f->send && !f->begun && !p->op->aborted)
			offer_flow(e, f);
	}
}

static void finish_piece(struct engine *e, struct piece *p)
{
	struct op *op = p->op;
	DL_DELETE(op->pieces, p);
	op->under_way--;
	uint64_t whole = 0;
	for (uint32_t k = 0; p->x.reduces && k < op->course.span->nnodes; k++)
		whole += course_contributions(&op->course, k) * p->x.bytes;
	if (!p->x.reduces)
		whole = p->x.bytes;
	buffer_put(e, p->mine, whole);
	buffer_put(e, p->others, whole);
	free(p);
}

/* Takes it as far as it goes now. True if it is over, and freed. */
static bool advance_piece(struct engine *e, struct piece *p)
{
	const struct op *op = p->op;
	while (!p->working) {
		switch (p->stage) {
		case STAGE_GIVE:
			if (!flows_over(p, GIVING))
				return false;
			break;
		case STAGE_RESULT:
			if (!flows_over(p, RESULT))
				return false;
			break;
		case STAGE_OVER:
			finish_piece(e, p);
			return true;
		default:
			break;
		}
		if (op->aborted) {
			if (!flows_over(p, GIVING) || !flows_over(p, RESULT))
				return false;
			finish_piece(e, p);
			return true;
		}
		p->stage++;
		if (p->stage == STAGE_GIVE)
			offer_flows(e, p, GIVING);
		if (p->stage == STAGE_RESULT)
			offer_flows(e, p, RESULT);
		if (has_work(p) && work(e, p))
			return false;
	}
	return false;
}

static void add_flow(struct piece *p, enum phase phase, bool send, uint32_t node, char *at,
		     uint64_t bytes)
{
	p->flows[p->nflows++] = (struct flow){
		.kind = FLIES_FLOW,
		.send = send,
		.phase = phase,
		.node = node,
		.at = at,
		.bytes = bytes,
		.piece = p,
	};
}

static char *writable(const char *p)
{
	return (char *)(uintptr_t)p;
}

static void course_flows_of_reduction(struct engine *e, struct piece *p)
{
	const struct course *course = &p->op->course;
	const struct span *s = course->span;
	const struct stretch *x = &p->x;
	uint64_t all = 0, at = 0;
	if (x->owner != s->me) {
		uint64_t n = course_contributions(course, s->me);
		char *from = writable(course_source(course, x, span_locals(s)[0]));
		if (span_local_count(s) > 1)
			from = p->mine = buffer_get(e, n * x->bytes);
		add_flow(p, GIVING, true, x->owner, from, n * x->bytes);
		return;
	}
	for (uint32_t k = 0; k < s->nnodes; k++)
		all += k == s->me ? 0 : course_contributions(course, k) * x->bytes;
	p->others = buffer_get(e, all);
	for (uint32_t k = 0; k < s->nnodes; k++) {
		if (k == s->me)
			continue;
		uint64_t n = course_contributions(course, k) * x->bytes;
		add_flow(p, GIVING, false, k, p->others + at, n);
		at += n;
	}
}

static void course_flows_of_exchange(struct engine *e, struct piece *p)
{
	const struct course *course = &p->op->course;
	const struct stretch *x = &p->x;
	const bool owner = x->owner == course->span->me;
	uint32_t other = owner ? x->to : x->owner, a, b;
	if (x->owner == x->to)
		return;
	course_pair(x->block, &a, &b);
	const struct task *t = course->tasks[owner ? a : b];
	char *to = swap_at(course, x, true);
	/* In place, what comes must not overwrite what has not gone yet. */
	if (t->src == t->dst)
		to = p->others = buffer_get(e, x->bytes);
	add_flow(p, RESULT, true, other, swap_at(course, x, false), x->bytes);
	add_flow(p, RESULT, false, other, to, x->bytes);
}

static void course_flows_of_result(struct piece *p)
{
	const struct course *course = &p->op->course;
	const struct span *s = course->span;
	const struct stretch *x = &p->x;
	char *targets[span_local_count(s)];
	uint32_t ntargets = course_targets(course, x, targets);
	if (x->owner != s->me) {
		if (x->spreads || (x->to == s->me && !x->reduces))
			add_flow(p, RESULT, false, x->owner, targets[0], x->bytes);
		return;
	}
	char *from = x->reduces ? (ntargets ? targets[0] : NULL)
				: writable(course_source(course, x, course_giver(course, x)));
	for (uint32_t k = 0; k < s->nnodes; k++)
		if (k != s->me && (x->spreads || (k == x->to && !x->reduces)))
			add_flow(p, RESULT, true, k, from, x->bytes);
}

static void begin_piece(struct engine *e, struct op *op, uint64_t index, const struct stretch *x)
{
	const struct span *s = op->comm->span;
	struct piece *p = calloc(1, sizeof(*p) + 2 * s->nnodes * sizeof(p->flows[0]));
	if (!p)
		abort();
	p->op = op;
	p->index = index;
	p->x = *x;
	if (x->reduces)
		course_flows_of_reduction(e, p);
	if (x->exchanges)
		course_flows_of_exchange(e, p);
	else
		course_flows_of_result(p);
	op->under_way++;
	DL_APPEND(op->pieces, p);
	for (uint32_t i = 0; i < p->nflows; i++)
		if (!p->flows[i].send)
			receive_flow(e, &p->flows[i]);
	if (has_work(p) && work(e, p))
		return;
	advance_piece(e, p);
}

/* ---- Operations ---- */

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
			begin_piece(e, op, index, &x);
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
	advance_piece(e, p);
	advance_op(e, op);
}

void across_flow_done(struct engine *e, void *flow, size_t bytes, bool failed)
{
	struct flow *f = flow;
	e->flights--;
	f->over = true;
	if (!f->send) {
		if (!failed)
			tag_put(e, f->tag);
		if (failed || bytes != f->bytes)
			abort_op(e, f->piece->op); /* the other side has given up */
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

static void poke(struct engine *e, struct op *op)
{
	struct piece *p, *next;
	DL_FOREACH_SAFE (op->pieces, p, next)
		if (!p->working)
			advance_piece(e, p);
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
		abort_op(e, op);
		poke(e, op);
		advance_op(e, op);
	}
}

void across_give_up(struct engine *e, struct span *s, const struct junction_key *key)
{
	struct op *op, *next;
	DL_FOREACH_SAFE (s->ops, op, next) {
		if (!same_whole(&op->key, key))
			continue;
		abort_op(e, op);
		poke(e, op);
		advance_op(e, op);
	}
	refuse_credits(e, s, key, same_whole);
}

void across_node_lost(struct engine *e, struct span *s, uint32_t place)
{
	struct op *op, *next;
	staged_abort(e, s->comm);
	DL_FOREACH_SAFE (s->ops, op, next) {
		struct piece *p, *after;
		abort_op(e, op);
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
				advance_piece(e, p);
		}
		advance_op(e, op);
	}
}
