/* SPDX-License-Identifier: Apache-2.0
 * A plan's slots, and the task that is, or belongs, in each. */
#include "plan_slots.h"

#include "proto/names.h"
#include "proto/task.h"
#include "sched/base/status.h"
#include "sched/base/supervisor.h"

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
	else if (r->plan_group >= m->ngroups || r->plan_task >= plan_tasks_of(m, r->plan_group))
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
	if (!m || r->plan_group >= m->ngroups || r->plan_task >= plan_tasks_of(m, r->plan_group))
		return NULL;
	const char *label = m->tasks[m->first[r->plan_group] + r->plan_task].label;
	return label[0] ? label : NULL;
}

struct plan_member *plan_of(const struct task *t)
{
	struct plan *p = t->comm->plan;
	return p && t->record.plan && p->members[t->rank].handle == t->record.plan
		       ? &p->members[t->rank]
		       : NULL;
}

void plan_task_ended(struct task *t)
{
	struct plan_member *m = plan_of(t);
	if (!m)
		return;
	table_count(&m->ended, 1);
	if (t->stage != IN_PLAN)
		return;
	m->slots[m->first[t->record.plan_group] + t->record.plan_task].task = NULL;
	m->held--;
}

uint32_t plan_number(const struct task *t)
{
	return plan_of(t) ? t->comm->plan->number : 0;
}

bool plan_held(const struct member *m, uint32_t slot, struct task **t)
{
	const struct plan *p = m->comm->plan;
	const struct plan_member *pm = p ? &p->members[m - m->comm->members] : NULL;
	if (!pm || !pm->held || slot >= pm->ntasks)
		return false;
	*t = pm->slots[slot].task;
	return true;
}

void plan_end(struct scheduler *sched, struct comm *c)
{
	if (!c->plan)
		return;
	supervisor_event(sched, &(struct event){.kind = EVENT_PLAN_GONE, .plan = c->plan});
	c->plan = NULL;
}

bool plan_peer_left(const struct task *t)
{
	return plan_of(t) && t->comm->plan->members[t->record.peer].left;
}

ncclsvc_status plan_left_status(const struct comm *c, int32_t rank)
{
	ncclsvc_status st = status_of(NCCLSVC_CANCELLED);
	st.field = NCCLSVC_FIELD_PLAN;
	status_name_ranks(c, &st, rank, -1);
	return st;
}
