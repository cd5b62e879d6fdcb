/* SPDX-License-Identifier: Apache-2.0
 * Replaces daemon/sched's scheduler. It executes no tasks, but reports what the supervisor waits
 * for: ended epochs, plans that no member holds, and NCCL communicators that may be created. */
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/nodes/node_reports.h"
#include "comm/requests.h"
#include "coord/plan.h"
#include "sched/api/command.h"
#include "simulation.h"

struct running {
	struct running *prev, *next;
	uint32_t slot, epoch;
	bool across, ends, hangs; /* hangs: until its work on GPUs is aborted */
	struct plan *plan;
	uint32_t left; /* local members that the plan has lost */
};

struct pending_creation {
	struct pending_creation *prev, *next;
	struct creation *creation;
};

static struct running *find(struct scheduler *x, uint32_t slot)
{
	struct running *r;
	DL_SEARCH_SCALAR(x->running, r, slot, slot);
	return r;
}

static struct comms *comms_of(const struct scheduler *x)
{
	return &nodes[x->node].comms;
}

struct note {
	struct scheduler *scheduler;
	uint32_t slot, epoch, asker, request_id;
	uint64_t number;
	struct plan *plan;
};

static void later(struct scheduler *x, uint64_t from, uint64_t to, void (*f)(void *arg),
		  struct note note)
{
	struct note *n = malloc(sizeof(*n));
	if (!n)
		abort();
	*n = note;
	n->scheduler = x;
	at(clock_now() + between(from, to), (int)x->node, f, n);
}

/* ---- Plans ---- */

static void on_plan_gone(void *arg)
{
	const struct note *n = arg;
	plan_gone(comms_of(n->scheduler), n->plan);
}

static void on_dropped(void *arg)
{
	const struct note *n = arg;
	plan_dropped(comms_of(n->scheduler), n->asker, n->request_id);
}

static void let_plan_go(struct scheduler *x, struct running *r)
{
	if (r->plan)
		later(x, 0, 0, on_plan_gone, (struct note){.plan = r->plan});
	r->plan = NULL;
}

static void drop_plan(struct scheduler *x, const struct command *c)
{
	struct running *r = find(x, c->plan.comm);
	if (c->plan.asker)
		later(x, 1000, MS, on_dropped,
		      (struct note){.asker = c->plan.asker, .request_id = c->plan.request_id});
	if (!r || !r->plan || c->plan.number != r->plan->number)
		return;
	const struct communicator *m = comms_of(x)->comm_by_slot[r->slot];
	if (m->members[c->plan.rank].session && ++r->left == r->plan->nheld)
		let_plan_go(x, r);
}

/* ---- Epochs ---- */

static void on_gone(void *arg)
{
	const struct note *n = arg;
	struct running *r = find(n->scheduler, n->slot);
	if (!r || r->epoch != n->epoch)
		return;
	if (r->plan)
		plan_gone(comms_of(n->scheduler), r->plan);
	trace((int)n->scheduler->node, "the scheduler is done with epoch %u of slot %u", r->epoch,
	      r->slot);
	DL_DELETE(n->scheduler->running, r);
	free(r);
	comm_epoch_gone(comms_of(n->scheduler), n->slot);
}

static void on_dirty(void *arg)
{
	const struct note *n = arg;
	const struct running *r = find(n->scheduler, n->slot);
	if (r && r->epoch == n->epoch)
		comm_epoch_dirty(comms_of(n->scheduler), n->slot);
}

static void start(struct scheduler *x, const struct command *c)
{
	struct running *r = calloc(1, sizeof(*r));
	if (!r)
		abort();
	if (find(x, c->epoch_start.comm))
		fail("node %u starts an epoch before the last one has ended", x->node);
	check_start(x->node, c);
	r->slot = c->epoch_start.comm;
	r->epoch = c->epoch_start.epoch;
	r->across = c->epoch_start.internode_id;
	r->hangs = c->epoch_start.transport == TRANSPORT_NCCL && chance(15);
	DL_APPEND(x->running, r);
	free(c->epoch_start.members);
}

static void end(struct scheduler *x, const struct command *c)
{
	struct running *r = find(x, c->epoch_end.comm);
	if (!r || r->ends) {
		fail("node %u ends an epoch that does not run", x->node);
		return;
	}
	const struct note note = {.slot = r->slot, .epoch = r->epoch};
	const bool cuda = comms_of(x)->comm_by_slot[r->slot]->nccl_comm;
	r->ends = true;
	if (cuda && r->across && chance(10))
		later(x, 0, 50 * MS, on_dirty, note);
	if (!r->hangs)
		later(x, 1000, chance(80) ? 10 * MS : S, on_gone, note);
}

/* Ends a hanging epoch after the abort of its work on GPUs. */
static void be_dead(struct scheduler *x, uint32_t slot)
{
	struct running *r = find(x, slot);
	if (!r || !r->hangs || !r->ends)
		return;
	r->hangs = false;
	later(x, 1000, MS, on_gone, (struct note){.slot = slot, .epoch = r->epoch});
}

void scheduler_fail_one(struct scheduler *x)
{
	struct running *r;
	DL_FOREACH (x->running, r) {
		if (!r->across || r->ends || chance(50))
			continue;
		trace((int)x->node, "the scheduler fails epoch %u of slot %u", r->epoch, r->slot);
		comm_internode_failed(comms_of(x), r->slot, r->epoch, NCCLSVC_TIMEOUT, -1);
		return;
	}
}

/* ---- NCCL's communicators ---- */

static void on_turn(void *arg)
{
	const struct note *n = arg;
	struct pending_creation *p;
	DL_FOREACH (n->scheduler->creations, p)
		if (p->creation->number == n->number)
			break;
	if (!p)
		return;
	DL_DELETE(n->scheduler->creations, p);
	for (uint32_t i = 0; i < p->creation->nparts; i++) {
		struct gpu *g = &nodes[n->scheduler->node].gpu[p->creation->parts[i].device];
		if (g->generation == p->creation->parts[i].generation)
			worker_launch_init(g, n->number);
	}
	free(p->creation);
	free(p);
}

static void make(struct scheduler *x, struct creation *k)
{
	struct pending_creation *p = malloc(sizeof(*p));
	if (!p)
		abort();
	p->creation = k;
	check_creation(x->node, k);
	DL_APPEND(x->creations, p);
	later(x, 1000, chance(80) ? MS : 200 * MS, on_turn, (struct note){.number = k->number});
}

static void make_not(struct scheduler *x, uint64_t number)
{
	struct pending_creation *p, *next;
	DL_FOREACH_SAFE (x->creations, p, next) {
		if (p->creation->number != number)
			continue;
		DL_DELETE(x->creations, p);
		free(p->creation);
		free(p);
	}
}

/* ---- Commands ---- */

void scheduler_command(struct scheduler *x, const struct command *c)
{
	struct running *r;
	switch (c->kind) {
	case COMMAND_EPOCH_START:
		start(x, c);
		break;
	case COMMAND_EPOCH_END:
		end(x, c);
		break;
	case COMMAND_EPOCH_DEAD:
		be_dead(x, c->epoch_end.comm);
		break;
	case COMMAND_PLAN_ADD:
		check_plan(x->node, comms_of(x)->comm_by_slot[c->plan.comm], c->plan.plan);
		r = find(x, c->plan.comm);
		if (!r || r->plan) {
			fail("node %u: a plan without an epoch, or beside another plan", x->node);
			break;
		}
		r->plan = c->plan.plan;
		r->left = 0;
		break;
	case COMMAND_PLAN_DROP:
		drop_plan(x, c);
		break;
	case COMMAND_MAKE:
		make(x, c->creation);
		break;
	case COMMAND_MAKE_NOT:
		make_not(x, c->creation_number);
		break;
	default: /* commands that only tasks need */
		break;
	}
}

/* There are no tasks to list. */
const struct task_table *scheduler_table(const struct scheduler *x)
{
	(void)x;
	abort();
}

void scheduler_begin(struct scheduler *x, uint32_t node)
{
	*x = (struct scheduler){.node = node};
}

void scheduler_end(struct scheduler *x)
{
	struct running *r, *next;
	struct pending_creation *p, *after;
	DL_FOREACH_SAFE (x->running, r, next)
		free(r);
	DL_FOREACH_SAFE (x->creations, p, after) {
		free(p->creation);
		free(p);
	}
	x->running = NULL;
	x->creations = NULL;
}
