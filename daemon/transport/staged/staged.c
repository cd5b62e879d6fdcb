/* SPDX-License-Identifier: Apache-2.0
 * Staged operations: their chunks, one stage after the other, and their ends. */
#include "staged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "names.h"
#include "operation.h"
#include "sched/order.h"
#include "worker/queue.h"

#define CHUNKS_MAX 4 /* of one operation under way */

int staged_start_member(struct engine *e, struct member *m)
{
	struct session *s = m->session;
	m->generation = e->devices[m->device].generation;
	if (!s->lines && !(s->lines = calloc(SVC_TIMELINES, sizeof(*s->lines))))
		return -ENOMEM;
	return 0;
}

/* ---- Chunks ---- */

static void free_chunk(struct chunk *k)
{
	free(k->awaited);
	free(k->slots);
	free(k->shadows);
	free(k);
}

static struct chunk *alloc_chunk(struct staged *op)
{
	struct chunk *k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->op = op;
	k->awaited = calloc(op->ntasks, sizeof(*k->awaited));
	k->slots = calloc(op->ntasks, sizeof(*k->slots));
	k->shadows = calloc(op->ntasks, sizeof(*k->shadows));
	if (k->awaited && k->slots && k->shadows)
		return k;
	free_chunk(k);
	return NULL;
}

static bool take_slots(struct engine *e, struct chunk *k)
{
	const struct staged *op = k->op;
	char *slots[op->ntasks];
	uint32_t n = 0;
	for (uint32_t i = 0; i < op->ntasks; i++)
		n += copy_needs_slot(op, i);
	if (!slots_take(e, n, op->across && !op->under_way, slots))
		return false;
	for (uint32_t i = 0; i < op->ntasks; i++)
		if (copy_needs_slot(op, i))
			k->slots[i] = slots[--n];
	return true;
}

/* Without memory, the members of one node end alike; other nodes have begun. */
static void give_up(struct engine *e, struct staged *op, int result)
{
	if (op->across) {
		op->aborted = true;
		span_give_up(e, op->comm, result, UINT32_MAX);
	}
	op->result = result;
}

/* False: there is no room now. */
static bool begin_chunk(struct engine *e, struct staged *op)
{
	const uint64_t left = op->record.count - op->taken;
	struct chunk *k = alloc_chunk(op);
	if (!k) {
		give_up(e, op, NCCLSVC_NO_MEMORY);
		return false;
	}
	if (!take_slots(e, k)) {
		free_chunk(k);
		return false;
	}
	k->lo = op->taken;
	k->count = left < op->step ? left : op->step;
	k->part = ++op->parts;
	op->taken += k->count;
	op->under_way++;
	DL_APPEND(op->chunks, k);
	return true;
}

static void end_chunk(struct engine *e, struct chunk *k)
{
	struct staged *op = k->op;
	for (uint32_t i = 0; i < op->ntasks; i++)
		if (k->slots[i])
			slots_give(e, k->slots[i]);
	DL_DELETE(op->chunks, k);
	op->under_way--;
	free_chunk(k);
}

void staged_moved(struct chunk *k, bool aborted)
{
	k->moving = false;
	k->op->aborted |= aborted;
}

static bool move_across(struct engine *e, struct chunk *k)
{
	struct staged *op = k->op;
	struct task **tasks = calloc(op->ntasks, sizeof(struct task *));
	struct junction_key key = op->key;
	key.part = k->part;
	for (uint32_t i = 0; tasks && i < op->ntasks; i++)
		tasks[i] = op->tasks[i] ? &k->shadows[i] : NULL;
	k->moving = true; /* it may be over at once */
	if (tasks && across_start(e, op->comm, &key, tasks, k))
		return true;
	free(tasks);
	return false;
}

/* False: out of memory. */
static bool reduce_here(struct engine *e, struct chunk *k)
{
	const struct staged *op = k->op;
	struct task *tasks[op->ntasks];
	for (uint32_t i = 0; i < op->ntasks; i++)
		tasks[i] = &k->shadows[i];
	k->moving = true;
	enum begun begun = run_tasks(e, op->comm, tasks, op->ntasks, k);
	k->moving = begun == BEGUN_RUNNING;
	return begun != BEGUN_NO_MEMORY;
}

static void move(struct engine *e, struct chunk *k)
{
	struct staged *op = k->op;
	bool good = true;
	copy_make_shadows(k);
	if (op->across)
		good = move_across(e, k);
	else if (svc_op_reduces(op->record.op))
		good = reduce_here(e, k);
	if (good)
		return;
	k->moving = false;
	give_up(e, op, NCCLSVC_NO_MEMORY);
}

/* Takes it as far as it goes now; true if that is any further. It may be freed. */
static bool advance_chunk(struct engine *e, struct chunk *k)
{
	const struct staged *op = k->op;
	bool any = false;
	for (;;) {
		if (k->begun && (k->stage == CHUNK_MOVE ? k->moving : !copy_landed(e, k)))
			return any;
		if (k->begun)
			k->stage++;
		k->begun = false;
		if (k->stage == CHUNK_OVER || op->aborted || op->result) {
			end_chunk(e, k);
			return true;
		}
		if (k->stage == CHUNK_MOVE)
			move(e, k);
		else if (!copy_launch(e, k))
			return any;
		any = k->begun = true;
	}
}

/* ---- Operations ---- */

static void finish(struct engine *e, struct staged *op)
{
	struct comm *c = op->comm;
	ncclsvc_status st = op->aborted ? c->end : op->result ? status_of(op->result) : complete_ok;
	DL_DELETE(e->staged, op);
	for (uint32_t i = 0; i < op->ntasks; i++)
		if (op->tasks[i])
			order_end_task(e, op->tasks[i], &st);
	free(op);
	if (c->ended && !c->pending)
		order_free_comm(e, c);
}

/* *full: an earlier one waits for slots, so this one is not to take any. */
static bool advance(struct engine *e, struct staged *op, bool *full)
{
	bool any = false;
	struct chunk *k, *next;
	/* Not where it was noticed, which may be in the midst of them. */
	if (op->aborted && op->across && !op->given_up) {
		op->given_up = true;
		across_give_up(e, op->comm->span, &op->key);
	}
	DL_FOREACH_SAFE (op->chunks, k, next)
		any |= advance_chunk(e, k);
	while (!op->aborted && !op->result && op->taken < op->record.count &&
	       op->under_way < CHUNKS_MAX) {
		if ((*full && !(op->across && !op->under_way)) || !begin_chunk(e, op)) {
			*full = true;
			break;
		}
		any = true;
		advance_chunk(e, op->chunks->prev);
	}
	if (op->under_way)
		return any;
	/* What was broken off ends with its epoch, which says why. */
	if (op->aborted ? op->comm->ended : op->result || op->taken == op->record.count) {
		finish(e, op);
		return true;
	}
	return any;
}

bool staged_poll(struct engine *e)
{
	bool any = false, full = false;
	struct staged *op, *next;
	DL_FOREACH_SAFE (e->staged, op, next)
		any |= advance(e, op, &full);
	if (any)
		e->now = engine_clock();
	return any;
}

static bool worker_gone(const struct engine *e, const struct staged *op)
{
	for (uint32_t i = 0; i < op->ntasks; i++) {
		const struct member *m = op->tasks[i] ? op->tasks[i]->member : NULL;
		if (m && (!m->generation || e->devices[m->device].generation != m->generation))
			return true;
	}
	return false;
}

static bool create(struct engine *e, struct comm *c, struct task *const *tasks, uint32_t ntasks,
		   const struct junction_key *key)
{
	struct staged *op = calloc(1, sizeof(*op) + ntasks * sizeof(op->tasks[0]));
	if (!op)
		return false;
	op->comm = c;
	op->ntasks = ntasks;
	op->across = key != NULL;
	if (key)
		op->key = *key;
	for (uint32_t i = ntasks; i-- > 0;) {
		struct task *t = tasks[i];
		op->tasks[i] = t;
		if (!t)
			continue;
		op->record = t->record;
		t->started_ns = e->now;
		if (t->published)
			table_state(&e->table, t->slot, NCCLSVC_LAUNCHED, e->now);
	}
	op->pair = svc_op_is_p2p(op->record.op);
	op->size = svc_type_size(op->record.type);
	op->step = staged_step(op);
	op->aborted = worker_gone(e, op);
	DL_APPEND(e->staged, op);
	return true;
}

enum begun staged_meet(struct engine *e, struct comm *c, struct task *const *tasks, uint32_t ntasks)
{
	if (staged_is_empty(&tasks[0]->record)) {
		for (uint32_t i = 0; i < ntasks; i++)
			tasks[i]->started_ns = e->now;
		return BEGUN_DONE;
	}
	return create(e, c, tasks, ntasks, NULL) ? BEGUN_RUNNING : BEGUN_NO_MEMORY;
}

bool staged_start(struct engine *e, struct comm *c, const struct junction_key *key,
		  struct task **tasks)
{
	if (!create(e, c, tasks, key->a >= 0 ? 2 : c->nranks, key))
		return false;
	free(tasks);
	return true;
}

/* ---- Ends ---- */

bool staged_expects(const struct engine *e, const struct comm *c, const struct junction_key *key)
{
	const struct staged *op;
	DL_FOREACH (e->staged, op)
		if (op->comm == c && op->across && junction_same_operation(&op->key, key))
			return !op->aborted;
	return !c->ended;
}

void staged_end_epoch(struct engine *e, struct comm *c)
{
	struct staged *op;
	DL_FOREACH (e->staged, op)
		if (op->comm == c && !op->across)
			op->aborted = true;
}

void staged_abort(struct engine *e, struct comm *c)
{
	struct staged *op;
	DL_FOREACH (e->staged, op)
		if (op->comm == c)
			op->aborted = true;
}

void staged_worker(struct engine *e, uint32_t device, uint32_t generation)
{
	struct staged *op;
	struct device *d = &e->devices[device];
	d->generation = generation;
	for (int i = 0; i < COPY_LANES; i++)
		d->copies[i] = atomic_load(&d->queue->lanes[i].completed);
	DL_FOREACH (e->staged, op)
		if (worker_gone(e, op))
			op->aborted = true;
}

void staged_finish_all(struct engine *e)
{
	struct staged *op, *next;
	struct chunk *k, *after;
	DL_FOREACH_SAFE (e->staged, op, next) {
		DL_FOREACH_SAFE (op->chunks, k, after)
			free_chunk(k);
		free(op);
	}
	slots_free(e);
}
