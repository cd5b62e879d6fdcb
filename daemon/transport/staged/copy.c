/* SPDX-License-Identifier: Apache-2.0
 *
 * The locations of a chunk's blocks. A task reads, and writes, one block or one for each rank.
 * Blocks have count elements, and a chunk has an equal segment of each. In a slot they are
 * contiguous.
 *
 * If all members are local, a slot has its member's input, and members copy from the others' slots.
 * Reductions are done in place first: of all into the first member's slot, or of each block into
 * its own rank's slot. Otherwise a slot has its member's input and output, as for an in-place
 * operation; AllToAll has both, one after the other. */
#include <string.h>

#include "proto/abi/worker_queue.h"
#include "proto/names.h"
#include "proto/task.h"
#include "staged.h"
#include "transport/device/device.h"

#define DEPTH_BYTES  (512u << 10) /* the minimum size of a chunk, if there is as much */
#define DEPTH	     4		  /* chunks per operation that make splitting worthwhile */
#define STEP_ALIGNED 64

struct blocks {
	uint32_t in, out;	/* number of blocks */
	uint32_t in_at, out_at; /* offsets in its slot; out_at: between nodes */
};

static uint32_t nranks(const struct staged *op)
{
	return op->pair ? 1 : op->comm->nranks;
}

static struct blocks blocks_of(const struct staged *op, uint32_t i)
{
	const struct task *t = op->tasks[i];
	const uint32_t n = nranks(op);
	struct blocks b = {0};
	uint64_t src, dst, one = op->record.count * op->size;
	if (!t)
		return b;
	svc_task_extent(&t->record, n, t->rank, &src, &dst);
	b.in = (uint32_t)(src / one);
	b.out = (uint32_t)(dst / one);
	if (!op->across)
		return b;
	if (b.in == 1 && b.out > 1)
		b.in_at = (uint32_t)t->rank;
	else if (b.in > 1 && b.out == 1)
		b.out_at = (uint32_t)t->rank;
	else if (b.in > 1)
		b.out_at = b.in;
	return b;
}

/* Blocks in the largest slot of any member on any node. */
static uint32_t blocks_most(const struct staged *op)
{
	const uint32_t n = nranks(op), sends = svc_op_sends_each(op->record.op) ? n : 0;
	const uint32_t receives = op->across && svc_op_receives_each(op->record.op) ? n : 0;
	return sends + receives ? sends + receives : 1;
}

static uint64_t whole(uint64_t elements)
{
	return elements / STEP_ALIGNED * STEP_ALIGNED;
}

uint64_t staged_step(const struct staged *op)
{
	const uint64_t unit = op->size * blocks_most(op);
	uint64_t most = whole(STAGING_SLOT_BYTES / unit), least = whole(DEPTH_BYTES / unit);
	uint64_t step = whole(op->record.count / DEPTH);
	if (step < least)
		step = least;
	/* 2 x 4096 blocks of 64 elements fit. */
	return step > most ? most : step < STEP_ALIGNED ? STEP_ALIGNED : step;
}

bool copy_needs_slot(const struct staged *op, uint32_t i)
{
	const struct blocks b = blocks_of(op, i);
	return b.in || (op->across && b.out);
}

/* ---- Launches ---- */

static uint64_t block_bytes(const struct chunk *k)
{
	return k->count * k->op->size;
}

/* The address of this chunk in a block of the task's memory. */
static uint64_t device_at(const struct chunk *k, const char *memory, uint32_t block)
{
	const struct staged *op = k->op;
	return (uint64_t)(uintptr_t)memory + (block * op->record.count + k->lo) * op->size;
}

static char *slot_at(const struct chunk *k, uint32_t i, uint32_t block)
{
	return k->slots[i] + block * block_bytes(k);
}

static void launch(struct scheduler *sched, struct chunk *k, uint32_t i, uint64_t device,
		   char *host, uint32_t blocks)
{
	struct task *t = k->op->tasks[i];
	struct device *d = &sched->devices[t->member->device];
	struct launch *l = device_next_slot(d);
	*l = (struct launch){
		.count = block_bytes(k),
		.seq = ++d->copies[k->stage == CHUNK_OUT],
		.task = t->uid,
		.slot = k->stage == CHUNK_OUT ? COPY_OUT : COPY_IN,
		.op = k->op->record.op,
		.blocks = blocks,
		.generation = t->member->generation,
		.host = (uint64_t)(host - staging_of(sched)->slots.base),
		.stride = k->op->record.count * k->op->size,
		.host_stride = block_bytes(k),
	};
	*(k->stage == CHUNK_OUT ? &l->dst : &l->src) = device;
	k->awaited[i] = l->seq;
}

/* The task whose slot has the block that this task receives; *at is the block's index. */
static uint32_t source_of(const struct staged *op, uint32_t i, uint32_t block, uint32_t *at)
{
	const struct svc_record *r = &op->record;
	*at = svc_op_sends_each(r->op) ? i : 0;
	if (svc_op_reduces(r->op)) /* into the receiver's own slot, or the first */
		return *at;
	return svc_op_sends(r->op, r->peer, block) ? block : (uint32_t)r->peer;
}

/* In place, a task's block for itself is there already. */
static bool is_there(const struct chunk *k, uint32_t i, uint32_t block, uint32_t from, uint32_t at)
{
	const struct task *t = k->op->tasks[i];
	return from == i && !k->op->pair && !svc_op_reduces(k->op->record.op) &&
	       device_at(k, t->src, at) == device_at(k, t->dst, block);
}

static void launch_out(struct scheduler *sched, struct chunk *k, uint32_t i)
{
	const struct staged *op = k->op;
	const struct blocks b = blocks_of(op, i);
	const char *dst = op->tasks[i]->dst;
	if (op->across) {
		launch(sched, k, i, device_at(k, dst, 0), slot_at(k, i, b.out_at), b.out);
		return;
	}
	for (uint32_t block = 0; block < b.out; block++) {
		uint32_t at, from = source_of(op, i, block, &at);
		if (!is_there(k, i, block, from, at))
			launch(sched, k, i, device_at(k, dst, block), slot_at(k, from, at), 1);
	}
}

bool copy_launch(struct scheduler *sched, struct chunk *k)
{
	const struct staged *op = k->op;
	const bool out = k->stage == CHUNK_OUT;
	for (uint32_t i = 0; i < op->ntasks; i++) {
		/* Both tasks of a pair may be on one GPU; nothing is written until all of it fits.
		 */
		const uint32_t most = op->across ? 2 : 2 + blocks_of(op, i).out;
		if (op->tasks[i] &&
		    !device_room(&sched->devices[op->tasks[i]->member->device], most))
			return false;
	}
	memset(k->awaited, 0, op->ntasks * sizeof(*k->awaited));
	for (uint32_t i = 0; i < op->ntasks; i++) {
		const struct blocks b = blocks_of(op, i);
		if (out && b.out)
			launch_out(sched, k, i);
		else if (!out && b.in)
			launch(sched, k, i, device_at(k, op->tasks[i]->src, 0),
			       slot_at(k, i, b.in_at), b.in);
	}
	device_ring(sched);
	return true;
}

bool copy_landed(const struct scheduler *sched, const struct chunk *k)
{
	const struct staged *op = k->op;
	for (uint32_t i = 0; i < op->ntasks; i++) {
		if (!op->tasks[i] || !k->awaited[i])
			continue;
		const struct member *m = op->tasks[i]->member;
		const struct device *d = &sched->devices[m->device];
		const struct slot_progress *slot =
			&d->queue->slots[k->stage == CHUNK_OUT ? COPY_OUT : COPY_IN];
		/* Copies of a lost worker never complete. */
		if (d->generation == m->generation &&
		    atomic_load_explicit(&slot->completed, memory_order_acquire) < k->awaited[i])
			return false;
	}
	return true;
}

/* ---- On the host ---- */

void copy_make_shadows(struct chunk *k)
{
	const struct staged *op = k->op;
	for (uint32_t i = 0; i < op->ntasks; i++) {
		struct task *shadow = &k->shadows[i];
		const struct task *t = op->tasks[i];
		if (!t)
			continue;
		const struct blocks b = blocks_of(op, i);
		*shadow = (struct task){.record = t->record,
					.rank = t->rank,
					.src = k->slots[i],
					.dst = k->slots[i]};
		shadow->record.count = k->count;
		if (k->slots[i] && op->across) {
			shadow->src = slot_at(k, i, b.in_at);
			shadow->dst = slot_at(k, i, b.out_at);
			continue;
		}
		if (op->record.op == NCCLSVC_REDUCE_SCATTER) {
			shadow->dst = slot_at(k, i, i);
			continue;
		}
		/* Once, for all to copy it. */
		shadow->record.op = NCCLSVC_REDUCE;
		shadow->record.peer = 0;
	}
}
