/* SPDX-License-Identifier: Apache-2.0
 *
 * Planned tasks. A member's planned tasks may come in any order; each is held in its slot until its
 * group, and all groups before it, are whole. Then the group enters the member's queue, in plan
 * order, as an ordinary task group. A task that fails while it is held stays in its slot as a
 * tombstone, so that the group can still become whole.
 */
#include "coord/plan.h"

#include <utlist.h>

#include "coord/vote.h"
#include "order.h"
#include "plan_slots.h"
#include "planned_tasks.h"
#include "release.h"
#include "sched/base/nodes.h"
#include "sched/base/supervisor.h"
#include "set.h"

_Static_assert(PLAN_NUMBER_MAX <= UINT64_MAX >> PLAN_SHIFT, "a key has room for a plan's number");

/* An empty group is always whole. */
static void skip_empty(struct plan_member *m)
{
	while (m->group < m->ngroups && !m->missing[m->group])
		m->group++;
}

/* ---- Starting groups ---- */

/* A timeline's values rise in order; those of a group come and end together, in any order. */
static void level_values(struct task *first)
{
	uint64_t highest[SVC_TIMELINES] = {0};
	struct task *t;
	DL_FOREACH (first, t)
		if (t->record.value > highest[t->record.timeline])
			highest[t->record.timeline] = t->record.value;
	DL_FOREACH (first, t)
		if (t->record.timeline)
			t->record.value = highest[t->record.timeline];
}

static void link_group(struct scheduler *sched, struct task *first)
{
	struct task *t;
	const uint32_t id = ++sched->groups;
	DL_FOREACH (first, t)
		t->group = id;
	if (!(first->comm->transport->flags & TRANSPORT_GROUPS))
		return;
	level_values(first);
	set_link(first);
	DL_FOREACH (first, t)
		if (t->tombstone && t->next_in_group)
			set_leave(sched, t);
}

static void release_group(struct scheduler *sched, struct plan_member *m)
{
	struct task *first = NULL, *t, *next;
	for (uint32_t i = m->first[m->group]; i < m->first[m->group + 1]; i++) {
		t = m->slots[i].task;
		if (!t)
			continue;
		m->slots[i].task = NULL;
		m->held--;
		DL_APPEND(first, t);
	}
	if (first && first->next)
		link_group(sched, first);
	for (t = first; t; t = next) {
		next = t->next;
		order_append(sched, t);
	}
}

static void next_iteration(struct plan_member *m)
{
	for (uint32_t g = 0; g < m->ngroups; g++)
		m->missing[g] = plan_tasks_of(m, g);
	m->group = 0;
	m->iteration++;
	skip_empty(m);
}

/* The previous daemon has run some tasks of this iteration. */
static void skip_done(struct plan_member *m)
{
	for (uint32_t i = 0; i < m->ntasks; i++) {
		if (!m->tasks[i].done)
			continue;
		m->slots[i].iteration = m->iteration;
		m->missing[m->tasks[i].group]--;
		table_count(&m->enqueued, 1);
		table_count(&m->ended, 1);
		atomic_store_explicit(&m->stamps[i], m->iteration, memory_order_relaxed);
	}
	skip_empty(m);
	if (m->ntasks && m->group == m->ngroups)
		next_iteration(m);
}

void plan_add(struct scheduler *sched, struct comm *c, struct plan *p)
{
	plan_end(sched, c);
	c->plan = p;
	if (c->internode)
		sched->nodes->plan_begins(c);
	for (uint32_t k = 0; k < p->nranks; k++)
		skip_done(&p->members[k]);
}

void plan_hold(struct scheduler *sched, struct task *t)
{
	struct plan_member *m = &t->comm->plan->members[t->rank];
	const uint32_t group = t->record.plan_group, i = m->first[group] + t->record.plan_task;
	m->slots[i] = (struct plan_slot){t, m->iteration};
	m->held++;
	atomic_store_explicit(&m->stamps[i], m->iteration, memory_order_relaxed);
	table_count(&m->enqueued, 1);
	t->stage = IN_PLAN;
	order_admit(sched, t);
	if (--m->missing[group] || group != m->group)
		return;
	while (m->group < m->ngroups && !m->missing[m->group]) {
		release_group(sched, m);
		m->group++;
	}
	if (m->group == m->ngroups)
		next_iteration(m);
}

/* ---- Ending ---- */

bool plan_clear(struct scheduler *sched, const struct comm *c, int32_t rank,
		const ncclsvc_status *st, uint64_t enough)
{
	const struct plan_member *m = c->plan ? &c->plan->members[rank] : NULL;
	for (uint32_t i = 0; m && m->held && i < m->ntasks; i++) {
		if (!m->slots[i].task)
			continue;
		sched->steps += STEP_END;
		release_end(sched, m->slots[i].task, st);
		if (sched->steps >= enough)
			return false;
	}
	return true;
}

void plan_member_left(struct scheduler *sched, struct comm *c, int32_t rank,
		      const ncclsvc_status *st)
{
	struct plan *p = c->plan;
	if (!p || p->members[rank].left)
		return;
	p->members[rank].left = true;
	for (uint32_t k = 0; k < p->nranks; k++) {
		const struct plan_member *m = &p->members[k];
		for (uint32_t i = 0; m->held && i < m->ntasks; i++)
			if (m->slots[i].task && m->tasks[i].peer == rank)
				release_fail(sched, m->slots[i].task, st);
	}
	if (p->members[rank].handle && ++p->nleft == p->nheld)
		plan_end(sched, c);
}

/* Ends its own tasks that have not matched, and the others' tasks that would have matched them. If
 * a task waits for another node, that node decides. */
static void end_queued(struct scheduler *sched, struct comm *c, int32_t rank,
		       const ncclsvc_status *own, const ncclsvc_status *others)
{
	struct task *t, *next;
	for (uint32_t k = 0; k < c->nranks; k++)
		DL_FOREACH_SAFE (c->members[k].queue, t, next) {
			if (!plan_of(t))
				continue;
			if (t->node_match && t->rank == rank)
				sched->nodes->ask(sched, t, own);
			if (t->stage == RUNNING)
				continue;
			if (t->rank == rank)
				release_end(sched, t, own);
			else if (t->stage == POSTED && t->record.peer == rank)
				release_end(sched, t, others);
		}
}

static void drop(struct scheduler *sched, struct comm *c, int32_t rank, uint32_t number)
{
	const ncclsvc_status st = plan_left_status(c, rank);
	const bool here = c->plan && c->plan->number == number;
	if (here && c->plan->members[rank].handle) {
		plan_clear(sched, c, rank, &st, UINT64_MAX);
		end_queued(sched, c, rank, &st, &st);
	}
	if (c->here < c->nranks && number && c->members[rank].session) {
		c->members[rank].plan_left = number;
		sched->nodes->plan_left(sched, c, rank);
	}
	if (here)
		plan_member_left(sched, c, rank, &st);
}

void plan_drop(struct scheduler *sched, const struct command *cmd)
{
	struct comm *c = sched->comms[cmd->plan.comm];
	if (c)
		drop(sched, c, cmd->plan.rank, cmd->plan.number);
	if (cmd->plan.asker)
		supervisor_event(
			sched, &(struct event){.kind = EVENT_PLAN_DROPPED,
					       .dropped = {cmd->plan.asker, cmd->plan.request_id}});
}
