/* SPDX-License-Identifier: Apache-2.0
 * Slots that lists of tensors take early and fill later. */
#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "member_plan.h"

#define LIST_OF_PLAN "a list of the plan"
#define SPREAD	     UINT64_C(0x9e3779b97f4a7c15) /* odd, so that different numbers stay different */

/* OK: the slot is still valid. Locked. */
static ncclsvc_result check(const struct list_slot *c)
{
	const ncclsvc_plan *p = c->plan;
	if (!p)
		return error_set(NCCLSVC_CANCELLED,
				 "the plan of the list was terminated before the list's data was "
				 "submitted");
	ncclsvc_result r = plan_running(p, LIST_OF_PLAN);
	if (!r && p->busy)
		r = error_set(NCCLSVC_BUSY, LIST_OF_PLAN ": another thread is resetting the plan");
	if (!r && c->iteration != p->base)
		r = error_set(NCCLSVC_STALE_EPOCH,
			      LIST_OF_PLAN ": its epoch ended, and the plan was committed again");
	return r;
}

/* Locked. */
static void drop(struct list_slot *c)
{
	ncclsvc_plan *p = c->plan;
	if (!p)
		return;
	if (c->iteration == p->base && p->numbers[c->index] == PLAN_SLOT_TAKEN)
		plan_slot_give_back(p, c->index);
	list_slot_unlink(c);
}

/* Locked. */
static ncclsvc_result take(ncclsvc_plan *p, const ncclsvc_comm *comm,
			   const struct svc_plan_task *task, uint32_t *slot, const char *function)
{
	char text[SLOT_TEXT];
	ncclsvc_result r = plan_running(p, function);
	if (!r && p->busy)
		r = error_set(NCCLSVC_BUSY, "%s: another thread is resetting the plan", function);
	if (!r && p->comm != comm)
		r = error_argument("%s: the lists and the plan belong to different communicators",
				   function);
	if (!r)
		r = plan_slot_take(p, task, NCCLSVC_PLAN_FIRST, slot);
	if (r || p->tasks[*slot].agreement == task->agreement)
		return r;
	plan_slot_give_back(p, *slot);
	return error_argument("%s: the %s was planned with %s", function, slot_text(p, *slot, text),
			      svc_plan_is_ahead(task)
				      ? "a different number of tensors, or other types"
				      : "tensors of different types or shapes");
}

ncclsvc_result list_slot_take(ncclsvc_plan *p, struct list_slot *c, const ncclsvc_comm *comm,
			      const struct svc_plan_task *task, const void *stream,
			      const char *function)
{
	uint32_t slot = 0;
	ncclsvc_result r = plan_lock(p, function);
	if (r)
		return r;
	r = take(p, comm, task, &slot, function);
	if (!r) {
		*c = (struct list_slot){p->session, p->list_slots, p, slot, p->base, stream};
		p->list_slots = c;
	}
	plan_unlock(p);
	return r;
}

void list_slot_drop(struct list_slot *c)
{
	if (!c->session)
		return;
	session_lock(c->session);
	drop(c);
	session_unlock(c->session);
}

/* Locked. */
static bool group_is_taken(const ncclsvc_plan *p, uint32_t group)
{
	for (uint32_t i = p->first[group]; i < p->first[group + 1]; i++)
		if (svc_plan_is_ahead(&p->tasks[i]) && p->numbers[i] == PLAN_SLOT_FREE)
			return false;
	return true;
}

ncclsvc_result list_slot_turn(const struct list_slot *c)
{
	session_lock(c->session);
	ncclsvc_result r = check(c);
	if (r == NCCLSVC_BUSY)
		r = NCCLSVC_IN_PROGRESS;
	if (!r) {
		const uint32_t group = c->plan->tasks[c->index].group;
		const bool due = c->plan->group == group && group_is_taken(c->plan, group);
		r = due ? NCCLSVC_OK : NCCLSVC_IN_PROGRESS;
	}
	session_unlock(c->session);
	return r;
}

uint32_t list_slot_group(const struct list_slot *c)
{
	session_lock(c->session);
	const uint32_t group = c->plan ? c->plan->tasks[c->index].group : 0;
	session_unlock(c->session);
	return group;
}

uint64_t list_slot_number(const struct list_slot *c)
{
	uint64_t number = 0;
	session_lock(c->session);
	const ncclsvc_plan *p = c->plan;
	if (p) {
		const struct svc_plan_task *t = &p->tasks[c->index];
		uint64_t nth = 0; /* counts such lists between the two ranks */
		for (uint32_t i = 0; i < c->index; i++)
			nth += svc_plan_is_ahead(&p->tasks[i]) && p->tasks[i].op == t->op &&
			       p->tasks[i].peer == t->peer;
		number = ((p->uid * SPREAD) ^ p->iteration) * SPREAD ^ nth;
	}
	session_unlock(c->session);
	return number;
}

ncclsvc_result list_slot_submit(struct list_slot *c, struct op *op)
{
	session_lock(c->session);
	ncclsvc_result r = check(c);
	if (r == NCCLSVC_BUSY)
		r = NCCLSVC_AGAIN;
	if (!r) {
		ncclsvc_plan *p = c->plan;
		p->calls++;
		r = plan_slot_submit(p, c->index, op, NO_DEADLINE);
		p->calls--;
	}
	if (op->entered && c->plan)
		list_slot_unlink(c);
	session_unlock(c->session);
	return r;
}
