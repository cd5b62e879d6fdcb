/* SPDX-License-Identifier: Apache-2.0
 * Each member's progress in its plan, read while the scheduler runs. */
#include "plan.h"

#include <string.h>

#include "proto/task.h"

/* In the current iteration. */
struct progress {
	uint64_t iteration; /* from 0 */
	uint32_t enqueued, ended;
	uint32_t running; /* group */
};

/* The first group with tasks beyond the first `ended`. */
static uint32_t first_unfinished(const struct plan_member *m, uint32_t ended)
{
	uint32_t low = 0, high = m->ngroups;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (m->first[middle + 1] <= ended)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct progress progress_of(const struct plan_member *m)
{
	/* Read in this order, since a task is enqueued before it ends. */
	uint64_t ended = atomic_load_explicit(&m->ended, memory_order_acquire);
	uint64_t enqueued = atomic_load_explicit(&m->enqueued, memory_order_acquire);
	struct progress p = {0};
	if (!m->ntasks)
		return p;
	p.iteration = ended / m->ntasks;
	p.ended = (uint32_t)(ended % m->ntasks);
	uint64_t more = enqueued - p.iteration * m->ntasks;
	p.enqueued = more > m->ntasks ? m->ntasks : (uint32_t)more;
	p.running = first_unfinished(m, p.ended);
	return p;
}

static bool is_enqueued(const struct plan_member *m, const struct progress *p, uint32_t i)
{
	return atomic_load_explicit(&m->stamps[i], memory_order_relaxed) > p->iteration;
}

void plan_info(const struct plan *p, uint32_t rank, ncclsvc_plan_info *info)
{
	const struct plan_member *m = &p->members[rank];
	const struct progress at = progress_of(m);
	uint32_t group = m->ntasks ? at.running : m->ngroups;
	while (group < m->ngroups) {
		uint32_t i = m->first[group];
		while (i < m->first[group + 1] && is_enqueued(m, &at, i))
			i++;
		if (i < m->first[group + 1])
			break;
		group++;
	}
	info->plan = p->uid;
	info->groups = m->ngroups;
	info->tasks = m->ntasks;
	info->iterations = at.iteration;
	info->running = at.running;
	info->enqueued = at.enqueued;
	info->group = group;
	info->left = atomic_load_explicit(&m->left, memory_order_relaxed);
	if (group == m->ngroups)
		return;
	info->group_tasks = m->first[group + 1] - m->first[group];
	for (uint32_t i = m->first[group]; i < m->first[group + 1]; i++)
		info->group_enqueued += is_enqueued(m, &at, i);
}

bool plan_task_info(const struct plan *p, uint32_t rank, uint32_t i, ncclsvc_plan_task_info *info)
{
	const struct plan_member *m = &p->members[rank];
	if (i >= m->ntasks)
		return false;
	const struct svc_plan_task *t = &m->tasks[i];
	const struct progress at = progress_of(m);
	*info = (ncclsvc_plan_task_info){
		.plan = p->uid,
		.rank = (int32_t)rank,
		.peer = t->peer,
		.group = t->group,
		.task = i - m->first[t->group],
		.op = t->op,
		.type = t->type,
		.state = NCCLSVC_PLAN_MISSING,
		.ahead = svc_plan_is_ahead(t),
		.count = t->count,
	};
	memcpy(info->label, t->label, sizeof(info->label));
	if (t->group < at.running)
		info->state = NCCLSVC_PLAN_DONE;
	else if (is_enqueued(m, &at, i))
		info->state = NCCLSVC_PLAN_ENQUEUED;
	return true;
}
