/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks on GPUs after their launch (launch.c). The slots' counters say which have completed. Tasks
 * that end with their epoch fail at once, but their streams continue only when the tasks have
 * completed on the GPU, or after a deadline, since an aborted operation may still write. */
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/timings.h"
#include "nccl.h"
#include "proto/abi/worker_queue.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "sched/base/timeline.h"
#include "sched/queue/release.h"

static void complete(struct scheduler *sched, struct task *t, const ncclsvc_status *st)
{
	struct member *m = t->member;
	nccl_completed(sched, m);
	if (t->record.timeline)
		timeline_landed(t);
	release_end(sched, t, st);
}

static void stop_watching(struct scheduler *sched, struct comm *c)
{
	c->launched = false;
	DL_DELETE2(nccl_of(sched)->launched, c, prev_launched, next_launched);
	if (c->ended && !c->pending)
		comm_gone(sched, c);
}

/* Inspection shows whose stream a launched task waits for. And this raises the inputs that an ended
 * session no longer raises, repeatedly: its process's streams can outlive its socket by some
 * milliseconds, and reset raised words. */
static void look_at_inputs(struct scheduler *sched)
{
	struct comm *c;
	struct task *t;
	sched->inputs_ns = sched->now;
	DL_FOREACH2 (nccl_of(sched)->launched, c, next_launched)
		for (uint32_t k = 0; k < c->nranks; k++)
			DL_FOREACH (c->members[k].in_flight, t) {
				if (t->session->leaving)
					timeline_release_input(t);
				task_show(sched, t);
			}
}

/* Has any slot's counter advanced? It also advances when the supervisor has aborted the slot, which
 * a command reports to the scheduler. So a counter's value is used only after all commands that
 * were queued when it was read have run. */
static bool look_at_slots(struct scheduler *sched, struct comm *c)
{
	bool any = false;
	for (uint32_t k = 0; k < c->nranks && !c->looked; k++) {
		struct member *m = &c->members[k];
		if (!m->in_flight)
			continue;
		m->done = atomic_load_explicit(&nccl_progress(sched, m)->completed,
					       memory_order_acquire);
		any |= m->in_flight->slot_seq <= m->done;
	}
	if (any) {
		c->looked = true;
		c->commands_due =
			atomic_load_explicit(&sched->commands_queued, memory_order_acquire);
	}
	return c->looked && c->commands_due <= sched->commands_run;
}

/* Tasks that have run or are running when their epoch is suspended are not repeated. */
static bool is_suspended(const struct comm *c)
{
	return c->end.result == EPOCH_SUSPENDED && !c->broken && !c->dead;
}

/* The status of tasks that land after the end of their epoch. */
static const ncclsvc_status *late_status(const struct comm *c)
{
	if (is_suspended(c))
		return &status_ok;
	return c->end.result == EPOCH_SUSPENDED ? &c->later : &c->end;
}

static void land_all(struct scheduler *sched, struct comm *c)
{
	const ncclsvc_status *st = c->ended || c->broken ? late_status(c) : &status_ok;
	c->looked = false;
	c->moved_ns = sched->now;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		while (m->in_flight && m->in_flight->slot_seq <= m->done)
			complete(sched, m->in_flight, st);
	}
}

static bool any_flies(const struct comm *c)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].in_flight)
			return true;
	return false;
}

bool nccl_poll(struct scheduler *sched)
{
	bool any = false;
	if (nccl_of(sched)->creations)
		creation_poll(sched);
	if (sched->now - sched->inputs_ns > INPUTS_LOOK_NS)
		look_at_inputs(sched);
	struct comm *c, *next;
	for (c = nccl_of(sched)->launched; c; c = next) {
		next = c->next_launched;
		if (c->dead && c->ended) {
			nccl_dead(sched, c);
			any = true;
			continue;
		}
		if (look_at_slots(sched, c)) {
			if (!any)
				sched->now = clock_now();
			any = true;
			land_all(sched, c);
		}
		const bool left = any_flies(c);
		if (c->ended && !c->released && !is_suspended(c) &&
		    sched->now - c->moved_ns > STREAM_RELEASE_NS)
			timeline_release(c);
		if (!left)
			stop_watching(sched, c);
	}
	if (!nccl_of(sched)->launched && !nccl_of(sched)->creations)
		sched->polled &= ~(1u << TRANSPORT_NCCL);
	return any;
}

/* A task launched ahead waits for its stream, which may never come. */
static bool is_awaited(const struct scheduler *sched, const struct task *t)
{
	return timeline_input_there(t) || !(t->record.flags & SVC_TASK_CAPTURED_GROUP) ||
	       sched->now - sched->drain_ns < DRAIN_AHEAD_NS;
}

bool nccl_runs(struct scheduler *sched)
{
	const struct comm *c;
	const struct task *t;
	DL_FOREACH2 (nccl_of(sched)->launched, c, next_launched)
		for (uint32_t k = 0; k < c->nranks; k++)
			DL_FOREACH (c->members[k].in_flight, t)
				if (is_awaited(sched, t))
					return true;
	return false;
}

void nccl_epoch_end(struct scheduler *sched, struct comm *c)
{
	c->moved_ns = sched->now;
	for (uint32_t k = 0; !is_suspended(c) && k < c->nranks; k++) {
		struct task *t;
		DL_FOREACH (c->members[k].in_flight, t)
			release_early(sched, t, &c->end);
	}
}

void nccl_dead(struct scheduler *sched, struct comm *c)
{
	c->dead = true; /* with other nodes, its end may take a moment */
	if (!c->ended)
		return;
	for (uint32_t k = 0; k < c->nranks; k++)
		while (c->members[k].in_flight)
			complete(sched, c->members[k].in_flight, late_status(c));
	if (c->launched)
		stop_watching(sched, c);
}

void nccl_release(struct scheduler *sched, struct comm *c)
{
	struct task *t;
	(void)sched;
	for (uint32_t k = 0; k < c->nranks; k++)
		DL_FOREACH (c->members[k].in_flight, t)
			timeline_release_input(t);
}
