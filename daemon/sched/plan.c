/* SPDX-License-Identifier: Apache-2.0
 *
 * Planned tasks. A member's planned tasks may come in any order; each is held in its slot until its
 * group, and all groups before it, are whole. Then the group enters the member's queue, in plan
 * order, as an ordinary task group. A task that fails while it is held stays in its slot as a
 * tombstone, so that the group can still become whole.
 */
#include "coord/plan.h"

#include <utlist.h>

#include "complete.h"
#include "internode/node_match.h"
#include "names.h"
#include "plan.h"
#include "set.h"

_Static_assert(PLAN_NUMBER_MAX <= UINT64_MAX >> PLAN_SHIFT, "a key has room for a plan's number");

static uint32_t tasks_of(const struct plan_member *m, uint32_t group)
{
	return m->first[group + 1] - m->first[group];
}

/* An empty group is always whole. */
static void skip_empty(struct plan_member *m)
{
	while (m->group < m->ngroups && !m->missing[m->group])
		m->group++;
}

void plan_add(struct engine *e, struct comm *c, struct plan *p)
{
	plan_end(e, c);
	c->plan = p;
	node_match_plan_begins(c);
	for (uint32_t k = 0; k < p->nranks; k++)
		skip_empty(&p->members[k]);
}

/* ---- Incoming tasks ---- */

bool plan_known(const struct task *t, const struct comm *c)
{
	const struct plan_member *m = c->plan ? &c->plan->members[t->rank] : NULL;
	return m && m->handle == t->record.plan && !m->left;
}

int plan_check(const struct task *t, const struct comm *c, const char **text)
{
	const struct svc_record *r = &t->record;
	*text = NULL;
	if (!plan_known(t, c)) {
		*text = "no such plan on this communicator, or it was terminated";
		return NCCLSVC_NOT_FOUND;
	}
	const struct plan_member *m = &c->plan->members[t->rank];
	if (t->session->group || t->session->group_end.result)
		*text = "a planned task cannot also be in a task group";
	else if (r->plan_group >= m->ngroups || r->plan_task >= tasks_of(m, r->plan_group))
		*text = "the plan has no such group, or its group no such task";
	if (*text)
		return NCCLSVC_INVALID_ARGUMENT;
	const uint32_t i = m->first[r->plan_group] + r->plan_task;
	const struct svc_plan_task *due = &m->tasks[i];
	if (due->op != r->op || due->peer != r->peer)
		*text = "the plan has another operation or peer in this slot";
	else if (!due->agreement != !r->agreement || due->tag != r->tag)
		*text = "the slot and the task differ: only one is a list of tensors, or their "
			"tags differ";
	else if (svc_record_refuses(r))
		*text = NULL; /* its size has no meaning */
	else if (due->count != SVC_PLAN_ANY && (due->count != r->count || due->type != r->type))
		*text = "the plan has another count or type in this slot";
	else if (m->slots[i].iteration == m->iteration)
		*text = "the task of this slot was already submitted in this iteration";
	return *text ? NCCLSVC_INVALID_ARGUMENT : NCCLSVC_OK;
}

const char *plan_label(const struct task *t)
{
	const struct svc_record *r = &t->record;
	const struct plan_member *m =
		plan_known(t, t->comm) ? &t->comm->plan->members[t->rank] : NULL;
	if (!m || r->plan_group >= m->ngroups || r->plan_task >= tasks_of(m, r->plan_group))
		return NULL;
	const char *label = m->tasks[m->first[r->plan_group] + r->plan_task].label;
	return label[0] ? label : NULL;
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

static void link_group(struct engine *e, struct task *first)
{
	struct task *t;
	const uint32_t id = ++e->groups;
	DL_FOREACH (first, t)
		t->group = id;
	if (!(first->comm->transport->flags & TRANSPORT_GROUPS))
		return;
	level_values(first);
	set_link(first);
	DL_FOREACH (first, t)
		if (t->tombstone && t->next_in_group)
			set_leave(e, t);
}

static void release_group(struct engine *e, struct plan_member *m)
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
		link_group(e, first);
	for (t = first; t; t = next) {
		next = t->next;
		order_append(e, t);
	}
}

static void next_iteration(struct plan_member *m)
{
	for (uint32_t g = 0; g < m->ngroups; g++)
		m->missing[g] = tasks_of(m, g);
	m->group = 0;
	m->iteration++;
	skip_empty(m);
}

void plan_hold(struct engine *e, struct task *t)
{
	struct plan_member *m = &t->comm->plan->members[t->rank];
	const uint32_t group = t->record.plan_group, i = m->first[group] + t->record.plan_task;
	m->slots[i] = (struct plan_slot){t, m->iteration};
	m->held++;
	atomic_store_explicit(&m->stamps[i], m->iteration, memory_order_relaxed);
	table_count(&m->enqueued, 1);
	t->place = IN_PLAN;
	order_admit(e, t);
	if (--m->missing[group] || group != m->group)
		return;
	while (m->group < m->ngroups && !m->missing[m->group]) {
		release_group(e, m);
		m->group++;
	}
	if (m->group == m->ngroups)
		next_iteration(m);
}

/* ---- Ending ---- */

static struct plan_member *member_plan(const struct task *t)
{
	struct plan *p = t->comm->plan;
	return p && t->record.plan && p->members[t->rank].handle == t->record.plan
		       ? &p->members[t->rank]
		       : NULL;
}

void plan_task_ended(struct task *t)
{
	struct plan_member *m = member_plan(t);
	if (!m)
		return;
	table_count(&m->ended, 1);
	if (t->place != IN_PLAN)
		return;
	m->slots[m->first[t->record.plan_group] + t->record.plan_task].task = NULL;
	m->held--;
}

uint32_t plan_number(const struct task *t)
{
	return member_plan(t) ? t->comm->plan->number : 0;
}

bool plan_clear(struct engine *e, const struct comm *c, int32_t rank, const ncclsvc_status *st,
		uint64_t enough)
{
	const struct plan_member *m = c->plan ? &c->plan->members[rank] : NULL;
	for (uint32_t i = 0; m && m->held && i < m->ntasks; i++) {
		if (!m->slots[i].task)
			continue;
		e->steps += STEP_END;
		release_end(e, m->slots[i].task, st);
		if (e->steps >= enough)
			return false;
	}
	return true;
}

bool plan_held(const struct member *m, uint32_t place, struct task **t)
{
	const struct plan *p = m->comm->plan;
	const struct plan_member *pm = p ? &p->members[m - m->comm->members] : NULL;
	if (!pm || !pm->held || place >= pm->ntasks)
		return false;
	*t = pm->slots[place].task;
	return true;
}

void plan_end(struct engine *e, struct comm *c)
{
	if (!c->plan)
		return;
	engine_event(e, &(struct event){.kind = EVENT_PLAN_GONE, .plan = c->plan});
	c->plan = NULL;
}

bool plan_peer_left(const struct task *t)
{
	return member_plan(t) && t->comm->plan->members[t->record.peer].left;
}

ncclsvc_status plan_left_status(const struct comm *c, int32_t rank)
{
	ncclsvc_status st = status_of(NCCLSVC_CANCELLED);
	st.field = NCCLSVC_FIELD_PLAN;
	order_name_ranks(c, &st, rank, -1);
	return st;
}

void plan_member_left(struct engine *e, struct comm *c, int32_t rank, const ncclsvc_status *st)
{
	struct plan *p = c->plan;
	if (!p || p->members[rank].left)
		return;
	p->members[rank].left = true;
	for (uint32_t k = 0; k < p->nranks; k++) {
		const struct plan_member *m = &p->members[k];
		for (uint32_t i = 0; m->held && i < m->ntasks; i++)
			if (m->slots[i].task && m->tasks[i].peer == rank)
				release_fail(e, m->slots[i].task, st);
	}
	if (p->members[rank].handle && ++p->nleft == p->nheld)
		plan_end(e, c);
}

/* Ends its own tasks that have not matched, and the others' tasks that would have matched them. If
 * a task waits for another node, that node decides. */
static void end_queued(struct engine *e, struct comm *c, int32_t rank, const ncclsvc_status *own,
		       const ncclsvc_status *others)
{
	struct task *t, *next;
	for (uint32_t k = 0; k < c->nranks; k++)
		DL_FOREACH_SAFE (c->members[k].queue, t, next) {
			if (!member_plan(t))
				continue;
			if (t->node_match && t->rank == rank)
				node_match_ask(e, t, own);
			if (t->place == RUNNING)
				continue;
			if (t->rank == rank)
				release_end(e, t, own);
			else if (t->place == POSTED && t->record.peer == rank)
				release_end(e, t, others);
		}
}

static void drop(struct engine *e, struct comm *c, int32_t rank, uint32_t number)
{
	const ncclsvc_status st = plan_left_status(c, rank);
	const bool here = c->plan && c->plan->number == number;
	if (here && c->plan->members[rank].handle) {
		plan_clear(e, c, rank, &st, UINT64_MAX);
		end_queued(e, c, rank, &st, &st);
	}
	if (c->here < c->nranks && number && c->members[rank].session) {
		c->members[rank].plan_left = number;
		node_match_plan_left(e, c, rank);
	}
	if (here)
		plan_member_left(e, c, rank, &st);
}

void plan_drop(struct engine *e, const struct command *cmd)
{
	struct comm *c = e->comms[cmd->plan.comm];
	if (c)
		drop(e, c, cmd->plan.rank, cmd->plan.number);
	if (cmd->plan.asker)
		engine_event(e, &(struct event){.kind = EVENT_PLAN_DROPPED,
						.dropped = {cmd->plan.asker, cmd->plan.serial}});
}
