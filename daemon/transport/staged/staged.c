/* SPDX-License-Identifier: Apache-2.0
 * Staged operations: the stages of their chunks, and their ends. */
#include "staged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "proto/abi/worker_queue.h"
#include "proto/names.h"
#include "proto/operation.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "sched/queue/release.h"
#include "transport/device/device.h"

#define CHUNKS_MAX 4 /* in progress per operation */

/* The transports that move and reduce the data copied to the host. */
static const struct transport *host(const struct scheduler *sched)
{
	return sched->config.transports[TRANSPORT_HOST];
}

static const struct transport *internode(const struct scheduler *sched)
{
	return sched->config.transports[TRANSPORT_INTERNODE];
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

static bool take_slots(struct scheduler *sched, struct chunk *k)
{
	const struct staged *op = k->op;
	char *slots[op->ntasks];
	uint32_t n = 0;
	for (uint32_t i = 0; i < op->ntasks; i++)
		n += copy_needs_slot(op, i);
	if (!slots_take(sched, n, op->across && !op->under_way, slots))
		return false;
	for (uint32_t i = 0; i < op->ntasks; i++)
		if (copy_needs_slot(op, i))
			k->slots[i] = slots[--n];
	return true;
}

/* Without memory, the members of one node end alike; other nodes have begun. */
static void give_up(struct scheduler *sched, struct staged *op, int result)
{
	if (op->across) {
		op->aborted = true;
		internode_comm_give_up(sched, op->comm, result, UINT32_MAX);
	}
	op->result = result;
}

/* False: there is no room now. */
static bool begin_chunk(struct scheduler *sched, struct staged *op)
{
	const uint64_t left = op->record.count - op->taken;
	struct chunk *k = alloc_chunk(op);
	if (!k) {
		give_up(sched, op, NCCLSVC_NO_MEMORY);
		return false;
	}
	if (!take_slots(sched, k)) {
		free_chunk(k);
		return false;
	}
	k->lo = op->taken;
	k->count = left < op->step ? left : op->step;
	k->subop = ++op->subops;
	op->taken += k->count;
	op->under_way++;
	DL_APPEND(op->chunks, k);
	return true;
}

static void end_chunk(struct scheduler *sched, struct chunk *k)
{
	struct staged *op = k->op;
	for (uint32_t i = 0; i < op->ntasks; i++)
		if (k->slots[i])
			slots_give(sched, k->slots[i]);
	DL_DELETE(op->chunks, k);
	op->under_way--;
	free_chunk(k);
}

static void moved(struct scheduler *sched, struct subop *subop, bool aborted)
{
	struct chunk *k = (struct chunk *)subop;
	(void)sched;
	k->moving = false;
	k->op->aborted |= aborted;
}

static void move(struct scheduler *sched, struct chunk *k)
{
	struct staged *op = k->op;
	struct task *tasks[op->ntasks];
	struct operation_key key = op->key;
	copy_make_shadows(k);
	if (!op->across && !svc_op_reduces(op->record.op))
		return;
	for (uint32_t i = 0; i < op->ntasks; i++)
		tasks[i] = op->tasks[i] ? &k->shadows[i] : NULL;
	key.subop = k->subop;
	k->in.done = moved;
	k->moving = true; /* it may end at once */
	const struct match match = {op->comm, tasks, op->ntasks, op->across ? &key : NULL, &k->in};
	const enum begun begun =
		(op->across ? internode(sched) : host(sched))->start(sched, &match);
	if (begun != BEGUN_RUNNING)
		k->moving = false;
	if (begun == BEGUN_NO_MEMORY)
		give_up(sched, op, NCCLSVC_NO_MEMORY);
}

/* Advances it as far as possible now; true if it has advanced. It may be freed. */
static bool advance_chunk(struct scheduler *sched, struct chunk *k)
{
	const struct staged *op = k->op;
	bool any = false;
	for (;;) {
		if (k->begun && (k->stage == CHUNK_MOVE ? k->moving : !copy_landed(sched, k)))
			return any;
		if (k->begun)
			k->stage++;
		k->begun = false;
		if (k->stage == CHUNK_OVER || op->aborted || op->result) {
			end_chunk(sched, k);
			return true;
		}
		if (k->stage == CHUNK_MOVE)
			move(sched, k);
		else if (!copy_launch(sched, k))
			return any;
		any = k->begun = true;
	}
}

/* ---- Operations ---- */

static void finish(struct scheduler *sched, struct staged *op)
{
	struct comm *c = op->comm;
	ncclsvc_status st = op->aborted ? c->end : op->result ? status_of(op->result) : status_ok;
	DL_DELETE(staging_of(sched)->ops, op);
	for (uint32_t i = 0; i < op->ntasks; i++)
		if (op->tasks[i])
			release_end(sched, op->tasks[i], &st);
	free(op);
	if (c->ended && !c->pending)
		comm_gone(sched, c);
}

/* *full: an earlier operation waits for slots, so this one must not take any. */
static bool advance(struct scheduler *sched, struct staged *op, bool *full)
{
	bool any = false;
	struct chunk *k, *next;
	/* Not where it was noticed, which may be inside the loop over them. */
	if (op->aborted && op->across && !op->given_up) {
		op->given_up = true;
		internode(sched)->break_off(sched, op->comm, &op->key);
	}
	DL_FOREACH_SAFE (op->chunks, k, next)
		any |= advance_chunk(sched, k);
	while (!op->aborted && !op->result && op->taken < op->record.count &&
	       op->under_way < CHUNKS_MAX) {
		if ((*full && !(op->across && !op->under_way)) || !begin_chunk(sched, op)) {
			*full = true;
			break;
		}
		any = true;
		advance_chunk(sched, op->chunks->prev);
	}
	if (op->under_way)
		return any;
	/* An aborted operation ends with its epoch, which has the reason. */
	if (op->aborted ? op->comm->ended : op->result || op->taken == op->record.count) {
		finish(sched, op);
		return true;
	}
	return any;
}

static bool poll(struct scheduler *sched)
{
	bool any = false, full = false;
	struct staged *op, *next;
	DL_FOREACH_SAFE (staging_of(sched)->ops, op, next)
		any |= advance(sched, op, &full);
	if (any)
		sched->now = clock_now();
	if (!staging_of(sched)->ops)
		sched->polled &= ~(1u << TRANSPORT_STAGED);
	return any;
}

static bool worker_gone(const struct scheduler *sched, const struct staged *op)
{
	for (uint32_t i = 0; i < op->ntasks; i++) {
		const struct member *m = op->tasks[i] ? op->tasks[i]->member : NULL;
		if (m && (!m->generation || sched->devices[m->device].generation != m->generation))
			return true;
	}
	return false;
}

static enum begun start(struct scheduler *sched, const struct match *m)
{
	struct comm *c = m->comm;
	const uint32_t ntasks = m->ntasks;
	if (!m->at && is_empty(&m->tasks[0]->record)) {
		for (uint32_t i = 0; i < ntasks; i++)
			m->tasks[i]->started_ns = sched->now;
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
		t->started_ns = sched->now;
		if (t->published)
			task_show_as(sched, t, NCCLSVC_LAUNCHED);
	}
	op->pair = svc_op_is_p2p(op->record.op);
	op->size = svc_type_size(op->record.type);
	op->step = staged_step(op);
	op->aborted = worker_gone(sched, op);
	DL_APPEND(staging_of(sched)->ops, op);
	sched->polled |= 1u << TRANSPORT_STAGED;
	return BEGUN_RUNNING;
}

/* ---- Ends ---- */

static bool expects(const struct scheduler *sched, const struct comm *c,
		    const struct operation_key *key)
{
	const struct staged *op;
	DL_FOREACH (staging_of(sched)->ops, op)
		if (op->comm == c && op->across && operation_same(&op->key, key))
			return !op->aborted;
	return !c->ended;
}

static void begin(struct scheduler *sched, struct comm *c)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].session)
			c->members[k].generation = sched->devices[c->members[k].device].generation;
}

/* Operations between nodes have a short while in which they may still succeed. */
static void epoch_end(struct scheduler *sched, struct comm *c)
{
	struct staged *op;
	DL_FOREACH (staging_of(sched)->ops, op)
		if (op->comm == c && !op->across)
			op->aborted = true;
	(c->internode ? internode(sched) : host(sched))->epoch_end(sched, c);
}

static void abort_ops(const struct scheduler *sched, const struct comm *c)
{
	struct staged *op;
	DL_FOREACH (staging_of(sched)->ops, op)
		if (op->comm == c)
			op->aborted = true;
}

static void abort_all(struct scheduler *sched, struct comm *c, const struct operation_key *key)
{
	(void)key; /* all */
	abort_ops(sched, c);
	internode(sched)->break_off(sched, c, NULL);
}

static void node_lost(struct scheduler *sched, struct comm *c, uint32_t node_index)
{
	abort_ops(sched, c);
	internode(sched)->node_lost(sched, c, node_index);
}

static void credit(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		   const struct operation_key *key, const struct credit_note *note)
{
	internode(sched)->credit(sched, s, node_index, key, note);
}

/* Without bytes, since these are copied later. */
static bool eager(const struct internode_comm *s, const struct svc_record *r, bool p2p)
{
	(void)s;
	(void)p2p;
	return is_empty(r);
}

/* A GPU's worker runs, or is gone (0). */
static void set_worker(struct scheduler *sched, uint32_t device, uint32_t generation)
{
	struct staged *op;
	struct device *d = &sched->devices[device];
	d->generation = generation;
	for (int i = 0; i < COPY_SLOTS; i++)
		d->copies[i] = atomic_load(&d->queue->slots[i].completed);
	DL_FOREACH (staging_of(sched)->ops, op)
		if (worker_gone(sched, op))
			op->aborted = true;
}

static void command(struct scheduler *sched, const struct command *cmd)
{
	if (cmd->kind == COMMAND_DEVICE_ADD)
		device_add(sched, cmd->device.device, cmd->device.queue, cmd->device.doorbell);
	if (cmd->kind == COMMAND_STAGING)
		slots_add(sched, cmd);
	if (cmd->kind == COMMAND_DEVICE_WORKER)
		set_worker(sched, cmd->worker.device, cmd->worker.generation);
}

static void finish_all(struct scheduler *sched)
{
	struct staged *op, *next;
	struct chunk *k, *after;
	DL_FOREACH_SAFE (staging_of(sched)->ops, op, next) {
		DL_FOREACH_SAFE (op->chunks, k, after)
			free_chunk(k);
		free(op);
	}
	slots_free(sched);
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
