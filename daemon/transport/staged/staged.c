/* SPDX-License-Identifier: Apache-2.0
 * Staged operations: the stages of their chunks, and their ends. */
#include "staged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "abi/worker_queue.h"
#include "base/clock.h"
#include "names.h"
#include "operation.h"
#include "sched/base/comm.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "sched/queue/release.h"
#include "transport/device/device.h"

#define CHUNKS_MAX 4 /* in progress per operation */

/* The transports that move and reduce the data copied to the host. */
static const struct transport *host(const struct engine *e)
{
	return e->config.transports[TRANSPORT_HOST];
}

static const struct transport *internode(const struct engine *e)
{
	return e->config.transports[TRANSPORT_INTERNODE];
}

/* There is nothing to copy. */
static bool is_empty(const struct svc_record *r)
{
	return r->op == NCCLSVC_BARRIER || !r->count;
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
		internode_comm_give_up(e, op->comm, result, UINT32_MAX);
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

static void moved(struct engine *e, struct part *part, bool aborted)
{
	struct chunk *k = (struct chunk *)part;
	(void)e;
	k->moving = false;
	k->op->aborted |= aborted;
}

static void move(struct engine *e, struct chunk *k)
{
	struct staged *op = k->op;
	struct task *tasks[op->ntasks];
	struct operation_key key = op->key;
	copy_make_shadows(k);
	if (!op->across && !svc_op_reduces(op->record.op))
		return;
	for (uint32_t i = 0; i < op->ntasks; i++)
		tasks[i] = op->tasks[i] ? &k->shadows[i] : NULL;
	key.part = k->part;
	k->in.over = moved;
	k->moving = true; /* it may end at once */
	const struct match match = {op->comm, tasks, op->ntasks, op->across ? &key : NULL, &k->in};
	const enum begun begun = (op->across ? internode(e) : host(e))->start(e, &match);
	if (begun != BEGUN_RUNNING)
		k->moving = false;
	if (begun == BEGUN_NO_MEMORY)
		give_up(e, op, NCCLSVC_NO_MEMORY);
}

/* Advances it as far as possible now; true if it has advanced. It may be freed. */
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
	DL_DELETE(staging_of(e)->ops, op);
	for (uint32_t i = 0; i < op->ntasks; i++)
		if (op->tasks[i])
			release_end(e, op->tasks[i], &st);
	free(op);
	if (c->ended && !c->pending)
		order_free_comm(e, c);
}

/* *full: an earlier operation waits for slots, so this one must not take any. */
static bool advance(struct engine *e, struct staged *op, bool *full)
{
	bool any = false;
	struct chunk *k, *next;
	/* Not where it was noticed, which may be inside the loop over them. */
	if (op->aborted && op->across && !op->given_up) {
		op->given_up = true;
		internode(e)->break_off(e, op->comm, &op->key);
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
	/* An aborted operation ends with its epoch, which has the reason. */
	if (op->aborted ? op->comm->ended : op->result || op->taken == op->record.count) {
		finish(e, op);
		return true;
	}
	return any;
}

static bool poll(struct engine *e)
{
	bool any = false, full = false;
	struct staged *op, *next;
	DL_FOREACH_SAFE (staging_of(e)->ops, op, next)
		any |= advance(e, op, &full);
	if (any)
		e->now = clock_now();
	if (!staging_of(e)->ops)
		e->polled &= ~(1u << TRANSPORT_STAGED);
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

static enum begun start(struct engine *e, const struct match *m)
{
	struct comm *c = m->comm;
	const uint32_t ntasks = m->ntasks;
	if (!m->at && is_empty(&m->tasks[0]->record)) {
		for (uint32_t i = 0; i < ntasks; i++)
			m->tasks[i]->started_ns = e->now;
		return BEGUN_DONE;
	}
	struct staged *op = calloc(1, sizeof(*op) + ntasks * sizeof(op->tasks[0]));
	if (!op)
		return BEGUN_NO_MEMORY;
	op->comm = c;
	op->ntasks = ntasks;
	op->across = m->at;
	if (m->at)
		op->key = *m->at;
	for (uint32_t i = ntasks; i-- > 0;) {
		struct task *t = m->tasks[i];
		op->tasks[i] = t;
		if (!t)
			continue;
		op->record = t->record;
		t->started_ns = e->now;
		if (t->published)
			order_show_as(e, t, NCCLSVC_LAUNCHED);
	}
	op->pair = svc_op_is_p2p(op->record.op);
	op->size = svc_type_size(op->record.type);
	op->step = staged_step(op);
	op->aborted = worker_gone(e, op);
	DL_APPEND(staging_of(e)->ops, op);
	e->polled |= 1u << TRANSPORT_STAGED;
	return BEGUN_RUNNING;
}

/* ---- Ends ---- */

static bool expects(const struct engine *e, const struct comm *c, const struct operation_key *key)
{
	const struct staged *op;
	DL_FOREACH (staging_of(e)->ops, op)
		if (op->comm == c && op->across && operation_same(&op->key, key))
			return !op->aborted;
	return !c->ended;
}

static void begin(struct engine *e, struct comm *c)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].session)
			c->members[k].generation = e->devices[c->members[k].device].generation;
}

/* Operations between nodes have a short while in which they may still succeed. */
static void epoch_end(struct engine *e, struct comm *c)
{
	struct staged *op;
	DL_FOREACH (staging_of(e)->ops, op)
		if (op->comm == c && !op->across)
			op->aborted = true;
	(c->internode ? internode(e) : host(e))->epoch_end(e, c);
}

static void abort_ops(const struct engine *e, const struct comm *c)
{
	struct staged *op;
	DL_FOREACH (staging_of(e)->ops, op)
		if (op->comm == c)
			op->aborted = true;
}

static void abort_all(struct engine *e, struct comm *c, const struct operation_key *key)
{
	(void)key; /* all */
	abort_ops(e, c);
	internode(e)->break_off(e, c, NULL);
}

static void node_lost(struct engine *e, struct comm *c, uint32_t place)
{
	abort_ops(e, c);
	internode(e)->node_lost(e, c, place);
}

static void credit(struct engine *e, struct internode_comm *s, uint32_t place,
		   const struct operation_key *key, const struct credit_note *note)
{
	internode(e)->credit(e, s, place, key, note);
}

/* Without bytes, since these are copied later. */
static bool eager(const struct internode_comm *s, const struct svc_record *r, bool p2p)
{
	(void)s;
	(void)p2p;
	return is_empty(r);
}

/* A GPU's worker runs, or is gone (0). */
static void set_worker(struct engine *e, uint32_t device, uint32_t generation)
{
	struct staged *op;
	struct device *d = &e->devices[device];
	d->generation = generation;
	for (int i = 0; i < COPY_SLOTS; i++)
		d->copies[i] = atomic_load(&d->queue->slots[i].completed);
	DL_FOREACH (staging_of(e)->ops, op)
		if (worker_gone(e, op))
			op->aborted = true;
}

static void command(struct engine *e, const struct command *cmd)
{
	if (cmd->kind == COMMAND_DEVICE_ADD)
		device_add(e, cmd->device.device, cmd->device.queue, cmd->device.doorbell);
	if (cmd->kind == COMMAND_STAGING)
		slots_add(e, cmd);
	if (cmd->kind == COMMAND_DEVICE_WORKER)
		set_worker(e, cmd->worker.device, cmd->worker.generation);
}

static void finish_all(struct engine *e)
{
	struct staged *op, *next;
	struct chunk *k, *after;
	DL_FOREACH_SAFE (staging_of(e)->ops, op, next) {
		DL_FOREACH_SAFE (op->chunks, k, after)
			free_chunk(k);
		free(op);
	}
	slots_free(e);
}

const struct transport staged_transport = {
	.state_bytes = sizeof(struct staging),
	.epoch_begin = begin,
	.epoch_end = epoch_end,
	.start = start,
	.poll = poll,
	.command = command,
	.finish = finish_all,
	.eager = eager,
	.credit = credit,
	.expects = expects,
	.break_off = abort_all,
	.node_lost = node_lost,
};
