/* SPDX-License-Identifier: Apache-2.0
 * One chunk of an operation, through its stages: its memory, its transfers, and the work on it. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "internode.h"
#include "reduce/reduce.h"
#include "sched/base/sched_sessions.h"

#define INLINE_BYTES (64 * 1024) /* larger work goes to the pool */
#define BUFFER_BYTES (2 * 1024 * 1024 + 65536)

/* ---- Memory ---- */

/* NULL: out of memory. */
static char *buffer_get(struct scheduler *sched, uint64_t bytes)
{
	if (bytes <= BUFFER_BYTES && internode_of(sched)->nbuffers)
		return internode_of(sched)->buffers[--internode_of(sched)->nbuffers];
	return malloc(bytes <= BUFFER_BYTES ? BUFFER_BYTES : bytes);
}

static void buffer_put(struct scheduler *sched, char *p, uint64_t bytes)
{
	if (p && bytes <= BUFFER_BYTES && internode_of(sched)->nbuffers < BUFFERS_KEPT)
		internode_of(sched)->buffers[internode_of(sched)->nbuffers++] = p;
	else
		free(p);
}

/* ---- Work ---- */

/* AllToAll: where one of this node's two ranks has, or wants, the other's block. */
static char *swap_at(const struct schedule *p, const struct segment *x, bool dst)
{
	uint32_t a, b;
	schedule_pair(x->block, &a, &b);
	bool mine_a = x->owner == p->internode->me;
	const struct task *t = p->tasks[mine_a ? a : b];
	uint64_t at = (mine_a ? b : a) * p->share + x->lo;
	return (dst ? t->dst : t->src) + at;
}

static void exchange_here(const struct schedule *p, const struct segment *x)
{
	char one[4096], other[4096];
	uint32_t a, b;
	schedule_pair(x->block, &a, &b);
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

static void share_result(const struct schedule *p, const struct segment *x)
{
	const struct internode_comm *s = p->internode;
	char *targets[internode_comm_local_count(s)];
	uint32_t n = schedule_targets(p, x, targets), from = 0;
	const char *source = targets[0];
	if (!n)
		return;
	/* If it was reduced, the owner's ranks have theirs. */
	if (x->owner == s->me && !x->reduces)
		source = schedule_source(p, x, schedule_sender(p, x));
	else
		from = 1;
	for (uint32_t i = from; i < n; i++)
		copy_block(targets[i], source, x->bytes, false);
}

static void run_stage(struct job *job, uint32_t chunk)
{
	struct block_chunk *p = (struct block_chunk *)job;
	const struct schedule *schedule = &p->op->schedule;
	(void)chunk;
	switch (p->stage) {
	case STAGE_PREPARE:
		schedule_contribute(schedule, &p->x, p->mine);
		break;
	case STAGE_REDUCE:
		schedule_reduce(schedule, &p->x, p->others);
		break;
	case STAGE_SHARE:
		if (!p->x.exchanges)
			share_result(schedule, &p->x);
		else if (p->x.owner == p->x.to)
			exchange_here(schedule, &p->x);
		else if (p->others)
			memcpy(swap_at(schedule, &p->x, true), p->others, p->x.bytes);
		break;
	default:
		break;
	}
}

/* True if this stage has work, for the pool or to be run here. */
static bool has_work(const struct block_chunk *p)
{
	const struct schedule *schedule = &p->op->schedule;
	const struct segment *x = &p->x;
	const bool owner = x->owner == schedule->internode->me;
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

static bool work(struct scheduler *sched, struct block_chunk *p)
{
	const uint64_t bytes = p->x.bytes * p->op->schedule.internode->nnodes;
	struct pool *own = user_own_pool(sched, p->op->tasks, p->op->ntasks);
	if (!own && (bytes <= INLINE_BYTES || sched->config.threads < 2)) {
		run_stage(&p->job, 0);
		return false;
	}
	p->job.run = run_stage;
	p->job.chunks = 1;
	p->job.done = internode_work_over;
	p->working = true;
	sched->jobs++;
	pool_submit(own ? own : sched->pool, &p->job, !own);
	return true;
}

/* ---- Stages ---- */

/* Have all transfers of that phase ended? Those of an abandoned operation need not begin. */
static bool transfers_over(const struct block_chunk *p, enum phase phase)
{
	for (uint32_t i = 0; i < p->ntransfers; i++) {
		const struct transfer *f = &p->transfers[i];
		if (f->phase == phase && !f->over && (f->begun || !p->op->aborted))
			return false;
	}
	return true;
}

static void offer_transfers(struct scheduler *sched, struct block_chunk *p, enum phase phase)
{
	for (uint32_t i = 0; i < p->ntransfers; i++) {
		struct transfer *f = &p->transfers[i];
		if (f->phase == phase && f->send && !f->begun && !p->op->aborted)
			transfer_offer(sched, f);
	}
}

static void finish_chunk(struct scheduler *sched, struct block_chunk *p)
{
	struct op *op = p->op;
	DL_DELETE(op->chunks, p);
	op->under_way--;
	uint64_t whole = 0;
	for (uint32_t k = 0; p->x.reduces && k < op->schedule.internode->nnodes; k++)
		whole += schedule_contributions(&op->schedule, k) * p->x.bytes;
	if (!p->x.reduces)
		whole = p->x.bytes;
	buffer_put(sched, p->mine, whole);
	buffer_put(sched, p->others, whole);
	free(p);
}

bool chunk_advance(struct scheduler *sched, struct block_chunk *p)
{
	const struct op *op = p->op;
	while (!p->working) {
		switch (p->stage) {
		case STAGE_GATHER:
			if (!transfers_over(p, GATHER))
				return false;
			break;
		case STAGE_RESULT:
			if (!transfers_over(p, RESULT))
				return false;
			break;
		case STAGE_OVER:
			finish_chunk(sched, p);
			return true;
		default:
			break;
		}
		if (op->aborted) {
			if (!transfers_over(p, GATHER) || !transfers_over(p, RESULT))
				return false;
			finish_chunk(sched, p);
			return true;
		}
		p->stage++;
		if (p->stage == STAGE_GATHER)
			offer_transfers(sched, p, GATHER);
		if (p->stage == STAGE_RESULT)
			offer_transfers(sched, p, RESULT);
		if (has_work(p) && work(sched, p))
			return false;
	}
	return false;
}

/* ---- Start ---- */

static void add_transfer(struct block_chunk *p, enum phase phase, bool send, uint32_t node,
			 char *at, uint64_t bytes)
{
	p->transfers[p->ntransfers++] = (struct transfer){
		.flight = {internode_flow_over},
		.send = send,
		.phase = phase,
		.node = node,
		.at = at,
		.bytes = bytes,
		.chunk = p,
	};
}

static char *writable(const char *p)
{
	return (char *)(uintptr_t)p;
}

/* False: out of memory. */
static bool transfers_of_reduction(struct scheduler *sched, struct block_chunk *p)
{
	const struct schedule *schedule = &p->op->schedule;
	const struct internode_comm *s = schedule->internode;
	const struct segment *x = &p->x;
	uint64_t all = 0, at = 0;
	if (x->owner != s->me) {
		uint64_t n = schedule_contributions(schedule, s->me);
		char *from = writable(schedule_source(schedule, x, internode_comm_locals(s)[0]));
		if (internode_comm_local_count(s) > 1)
			from = p->mine = buffer_get(sched, n * x->bytes);
		add_transfer(p, GATHER, true, x->owner, from, n * x->bytes);
		return from;
	}
	for (uint32_t k = 0; k < s->nnodes; k++)
		all += k == s->me ? 0 : schedule_contributions(schedule, k) * x->bytes;
	p->others = buffer_get(sched, all);
	if (!p->others)
		return false;
	for (uint32_t k = 0; k < s->nnodes; k++) {
		if (k == s->me)
			continue;
		uint64_t n = schedule_contributions(schedule, k) * x->bytes;
		add_transfer(p, GATHER, false, k, p->others + at, n);
		at += n;
	}
	return true;
}

/* False: out of memory. */
static bool transfers_of_exchange(struct scheduler *sched, struct block_chunk *p)
{
	const struct schedule *schedule = &p->op->schedule;
	const struct segment *x = &p->x;
	const bool owner = x->owner == schedule->internode->me;
	uint32_t other = owner ? x->to : x->owner, a, b;
	if (x->owner == x->to)
		return true;
	schedule_pair(x->block, &a, &b);
	const struct task *t = schedule->tasks[owner ? a : b];
	char *to = swap_at(schedule, x, true);
	/* In place, received data must not overwrite data that was not sent yet. */
	if (t->src == t->dst)
		to = p->others = buffer_get(sched, x->bytes);
	add_transfer(p, RESULT, true, other, swap_at(schedule, x, false), x->bytes);
	add_transfer(p, RESULT, false, other, to, x->bytes);
	return to;
}

static void transfers_of_result(struct block_chunk *p)
{
	const struct schedule *schedule = &p->op->schedule;
	const struct internode_comm *s = schedule->internode;
	const struct segment *x = &p->x;
	char *targets[internode_comm_local_count(s)];
	uint32_t ntargets = schedule_targets(schedule, x, targets);
	if (x->owner != s->me) {
		if (x->spreads || (x->to == s->me && !x->reduces))
			add_transfer(p, RESULT, false, x->owner, targets[0], x->bytes);
		return;
	}
	char *from = x->reduces
			     ? (ntargets ? targets[0] : NULL)
			     : writable(schedule_source(schedule, x, schedule_sender(schedule, x)));
	for (uint32_t k = 0; k < s->nnodes; k++)
		if (k != s->me && (x->spreads || (k == x->to && !x->reduces)))
			add_transfer(p, RESULT, true, k, from, x->bytes);
}

/* NULL: out of memory. */
static struct block_chunk *make(struct scheduler *sched, struct op *op, uint64_t index,
				const struct segment *x)
{
	const struct internode_comm *s = op->comm->internode;
	struct block_chunk *p = calloc(1, sizeof(*p) + 2 * s->nnodes * sizeof(p->transfers[0]));
	if (!p)
		return NULL;
	p->op = op;
	p->index = index;
	p->x = *x;
	if ((x->reduces && !transfers_of_reduction(sched, p)) ||
	    (x->exchanges && !transfers_of_exchange(sched, p))) {
		free(p); /* it has no other memory yet */
		return NULL;
	}
	if (!x->exchanges)
		transfers_of_result(p);
	return p;
}

void chunk_begin(struct scheduler *sched, struct op *op, uint64_t index, const struct segment *x)
{
	struct block_chunk *p = make(sched, op, index, x);
	if (!p) {
		/* The other nodes have begun; their operation ends with the epoch. */
		transfer_abort_op(sched, op);
		internode_comm_give_up(sched, op->comm, NCCLSVC_NO_MEMORY, UINT32_MAX);
		return;
	}
	op->under_way++;
	DL_APPEND(op->chunks, p);
	for (uint32_t i = 0; i < p->ntransfers; i++)
		if (!p->transfers[i].send)
			transfer_receive(sched, &p->transfers[i]);
	if (has_work(p) && work(sched, p))
		return;
	chunk_advance(sched, p);
}
