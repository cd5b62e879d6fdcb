/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks on GPUs that NCCL runs. A record for each task goes to the worker of its member's GPU. The
 * scheduler alone orders a node's launches, so all workers launch their common operations in the
 * same order. A member's task group is launched as one ncclGroup (sched/queue/set.h).
 *
 * The GPU writes the progress of launched tasks to the slot's counter: completion.c.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "nccl.h"
#include "proto/abi/worker_queue.h"
#include "sched/base/supervisor.h"
#include "sched/base/timeline.h"
#include "sched/queue/set.h"
#include "transport/device/device.h"

/* Per member. A launch blocks its worker when the driver's queues are full, and then no operation
 * could be aborted any more. Collectives that are requested ahead (order.c) may come on top. */
#define IN_FLIGHT_MAX 64

struct slot_progress *nccl_progress(const struct scheduler *sched, const struct member *m)
{
	return &sched->devices[m->device].queue->slots[m->comm->comm_slot];
}

static void begin(struct scheduler *sched, struct comm *c)
{
	if (c->comm_slot == EPOCH_WITHOUT_NCCL)
		return;
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].session)
			c->members[k].slot_seq =
				atomic_load(&nccl_progress(sched, &c->members[k])->completed);
}

/* ---- Launching ---- */

/* A set that is larger than the limit by itself is launched when nothing else is in flight. */
static bool too_many_in_flight(struct task *const *tasks, uint32_t n)
{
	bool full = false;
	for (uint32_t i = 0; i < n; i++) {
		struct member *m = tasks[i]->member;
		if (m->n_in_flight >= IN_FLIGHT_MAX)
			full = m->full = true;
	}
	return full;
}

static bool any_without_nccl(struct task *const *tasks, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (tasks[i]->comm->comm_slot == EPOCH_WITHOUT_NCCL)
			return true;
	return false;
}

static bool is_absent(const struct task *t, uint32_t region)
{
	return region && t->session->regions[region].absent;
}

/* The worker could not import again what its predecessor had. */
static bool any_absent(struct task *const *tasks, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (is_absent(tasks[i], tasks[i]->record.src_region) ||
		    is_absent(tasks[i], tasks[i]->record.dst_region))
			return true;
	return false;
}

/* Counts only queues. *devices: bitmap of the devices concerned. */
static enum room room_for(struct scheduler *sched, struct task *const *tasks, uint32_t n,
			  uint32_t *devices)
{
	enum room room = ROOM_NOW;
	*devices = 0;
	for (uint32_t i = 0; i < n; i++) {
		sched->devices[tasks[i]->member->device].wanted++;
		*devices |= 1u << tasks[i]->member->device;
	}
	for (uint32_t i = 0; i < SCHEDULER_DEVICES; i++) {
		struct device *d = &sched->devices[i];
		if (!d->wanted)
			continue;
		if (d->wanted > WORKER_LAUNCHES)
			room = ROOM_NEVER;
		else if (room == ROOM_NOW && !device_room(d, d->wanted))
			room = ROOM_LATER;
		d->wanted = 0;
	}
	return room;
}

static enum room reserve(struct scheduler *sched, struct task *const *tasks, uint32_t n,
			 bool promised)
{
	uint32_t devices;
	if (any_without_nccl(tasks, n) || sched->drained) /* then the next daemon launches them */
		return ROOM_HELD;
	if (!promised && any_absent(tasks, n))
		return ROOM_GONE;
	if (!promised && too_many_in_flight(tasks, n))
		return ROOM_HELD;
	enum room room = room_for(sched, tasks, n, &devices);
	if (nccl_of(sched)->full_round != sched->sets->launch_round) {
		nccl_of(sched)->full_round = sched->sets->launch_round;
		nccl_of(sched)->full_devices = 0;
	}
	/* Later sets must not overtake on a full device; on other devices they continue. */
	if (room == ROOM_NOW && !promised && devices & nccl_of(sched)->full_devices)
		room = ROOM_LATER;
	if (room == ROOM_LATER)
		nccl_of(sched)->full_devices |= devices;
	return room;
}

/* A worker that has started since the task came may have imported its memory elsewhere. */
static uint64_t address(const struct task *t, uint32_t region, uint64_t offset, const char *nowhere)
{
	const char *at = region ? t->session->regions[region].base + offset : nowhere;
	return (uint64_t)(uintptr_t)at;
}

static struct launch *write_launch(struct scheduler *sched, struct task *t)
{
	const struct svc_record *r = &t->record;
	struct launch *l = device_next_slot(&sched->devices[t->member->device]);
	*l = (struct launch){.slot = t->comm->comm_slot, .seq = ++t->member->slot_seq};
	t->slot_seq = l->seq;
	l->src = address(t, r->src_region, r->src_offset, t->src);
	l->dst = address(t, r->dst_region, r->dst_offset, t->dst);
	l->count = r->count;
	l->value = r->value;
	l->task = t->uid;
	l->session = t->session->slot;
	l->timeline = r->timeline;
	l->peer = r->peer;
	l->op = r->op;
	l->type = r->type;
	l->redop = r->redop;
	l->flags = LAUNCH_MORE;
	if (r->flags & SVC_TASK_CAPTURED_GROUP) {
		l->flags |= LAUNCH_CAPTURED | (timeline_input_there(t) ? 0 : LAUNCH_AHEAD);
		l->value = SVC_CAPTURED_GROUP_DONE;
		l->once = r->number ? (uint32_t)r->value : 0;
	}
	return l;
}

static void watch(struct scheduler *sched, struct comm *c)
{
	if (c->launched)
		return;
	c->launched = true;
	sched->polled |= 1u << TRANSPORT_NCCL;
	DL_APPEND2(nccl_of(sched)->launched, c, prev_launched, next_launched);
}

/* NCCL matches the Sends and Recvs of two ranks in their order, which must be the same on both. The
 * tasks of a plan's group come in any order, and are sorted by their places. */
static bool comes_before(const struct task *a, const struct task *b)
{
	return a->record.plan ? a->record.plan_task < b->record.plan_task : a->uid < b->uid;
}

static struct task *next_until(const struct task *t, const struct task *first)
{
	return t->next_in_group == first ? NULL : t->next_in_group;
}

/* Launches the tasks on t's GPU, beginning with t, as one ncclGroup. */
static void launch_on_device(struct scheduler *sched, struct task *t, const struct task *first)
{
	struct launch *last = NULL;
	const int32_t device = t->member->device;
	for (; t; t = next_until(t, first)) {
		if (t->in_flight || t->member->device != device)
			continue;
		last = write_launch(sched, t);
		t->member->n_in_flight++;
		watch(sched, t->comm);
		set_launched(sched, t);
	}
	last->flags &= (uint8_t)~LAUNCH_MORE;
}

/* One member's group, or its only task, on each of its GPUs. */
static void launch_bundle(struct scheduler *sched, struct task *any)
{
	struct task *first = any, *t = any;
	while ((t = next_until(t, any)))
		if (comes_before(t, first))
			first = t;
	for (t = first; t; t = next_until(t, first))
		if (!t->in_flight)
			launch_on_device(sched, t, first);
	if (!(any->record.flags & SVC_TASK_CAPTURED_GROUP))
		return;
	struct line *l = &any->session->lines[any->record.timeline];
	l->newest = any->record.value;
	l->launched++;
}

static void launch(struct scheduler *sched, struct task *const *tasks, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!tasks[i]->in_flight)
			launch_bundle(sched, tasks[i]);
	device_ring(sched);
}

static struct comm *comm_of(const struct scheduler *sched, const struct command *cmd)
{
	struct comm *c = sched->comms[cmd->nccl.comm];
	return c && c->epoch == cmd->nccl.epoch && !c->ended ? c : NULL;
}

static void give(struct scheduler *sched, const struct command *cmd)
{
	struct comm *c = comm_of(sched, cmd);
	if (!c || c->comm_slot != EPOCH_WITHOUT_NCCL)
		return;
	c->comm_slot = cmd->nccl.comm_slot;
	c->nccl_wanted = false;
	begin(sched, c);
	sched->sets->changed = true;
}

/* Captured groups need the workers: these release their streams if the daemon dies. */
static bool may_take(const struct comm *c)
{
	return !c->pending && !c->launched && !c->captured_timelines && !c->plan && !c->ending;
}

static void take(struct scheduler *sched, const struct command *cmd)
{
	struct comm *c = comm_of(sched, cmd);
	const bool taken = c && may_take(c);
	if (taken)
		c->comm_slot = EPOCH_WITHOUT_NCCL;
	supervisor_event(sched, &(struct event){.kind = EVENT_NCCL_TAKEN,
						.nccl = {cmd->nccl.comm, cmd->nccl.epoch, taken}});
}

static void command(struct scheduler *sched, const struct command *cmd)
{
	if (cmd->kind == COMMAND_DEVICE_ADD)
		device_add(sched, cmd->device.device, cmd->device.queue, cmd->device.doorbell);
	else if (cmd->kind == COMMAND_MAKE)
		creation_add(sched, cmd->creation);
	else if (cmd->kind == COMMAND_MAKE_NOT)
		creation_cancel(sched, cmd->creation_number);
	else if (cmd->kind == COMMAND_NCCL_GIVE)
		give(sched, cmd);
	else if (cmd->kind == COMMAND_NCCL_TAKE)
		take(sched, cmd);
}

void nccl_completed(struct scheduler *sched, struct member *m)
{
	m->n_in_flight--;
	if (m->full && m->n_in_flight <= IN_FLIGHT_MAX / 2) {
		m->full = false;
		sched->sets->changed = true;
	}
}

const struct transport nccl_transport = {
	.flags = TRANSPORT_ON_STREAMS | TRANSPORT_GROUPS | TRANSPORT_REDUCES_ALL,
	.state_bytes = sizeof(struct nccl),
	.epoch_begin = begin,
	.epoch_end = nccl_epoch_end,
	.release = nccl_release,
	.dead = nccl_dead,
	.start = set_add,
	.reserve = reserve,
	.launch = launch,
	.poll = nccl_poll,
	.runs = nccl_runs,
	.command = command,
	.finish = creation_finish,
};
