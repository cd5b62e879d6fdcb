/* SPDX-License-Identifier: Apache-2.0
 * Groups and iterations: waiting for them, beginning the next iteration, and giving the plan up. */
#include <stdio.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "base/session_memory.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/failure.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "core/task_slot.h"
#include "member_plan.h"

#define COMPLETION_NS UINT64_C(5000000000) /* at the end, for tasks that already run */

/* ---- What is missing ---- */

/* The list was submitted, but its data was not. Locked. */
static ncclsvc_result list_timeout(const ncclsvc_plan *p, uint32_t slot, const char *what)
{
	char text[SLOT_TEXT];
	return error_set(NCCLSVC_TIMEOUT,
			 "%s: the %s waits for its shapes: rank %d has not submitted its side, or "
			 "this rank has not waited for the list's request",
			 what, slot_text(p, slot, text), p->tasks[slot].peer);
}

/* Returns TIMEOUT, and names the missing task of the groups up to this one. Locked. */
static ncclsvc_result plan_timeout(const ncclsvc_plan *p, uint32_t group, const char *what)
{
	char text[SLOT_TEXT];
	uint32_t n = 0, first = 0, list = p->ntasks;
	for (uint32_t i = 0; i < p->first[group + 1]; i++) {
		const bool taken = p->numbers[i] == PLAN_SLOT_TAKEN;
		if (taken && svc_plan_is_ahead(&p->tasks[i]))
			list = i < list ? i : list;
		else if ((taken || p->numbers[i] == PLAN_SLOT_FREE) && !n++)
			first = i;
	}
	if (!n && list < p->ntasks)
		return list_timeout(p, list, what);
	if (!n)
		return error_set(
			NCCLSVC_TIMEOUT,
			"%s: not over in time, although this rank has submitted all of it: it is "
			"still running, or other ranks have not submitted theirs",
			what);
	slot_text(p, first, text);
	if (n == 1)
		return error_set(NCCLSVC_TIMEOUT, "%s: this rank has not submitted the %s", what,
				 text);
	return error_set(NCCLSVC_TIMEOUT,
			 "%s: this rank has not submitted the %s and %u more tasks", what, text,
			 n - 1);
}

/* Waits a moment, or until another thread has changed something. Locked; yields. */
static void pause_for(ncclsvc_session *s, uint64_t deadline)
{
	const uint64_t slice = now_ns() + SLICE_NS;
	session_wait(s, deadline < slice ? deadline : slice);
	socket_pump(s);
	tasks_look(s);
}

/* ---- The launch ---- */

ncclsvc_result launch_wait(ncclsvc_plan *p, uint64_t deadline, const char *function)
{
	ncclsvc_result r = plan_live(p, function);
	while (!r && p->phase != PLAN_LAUNCHED) {
		if (now_ns() >= deadline) {
			r = error_set(NCCLSVC_TIMEOUT,
				      "%s: the plan was not launched within this wait's timeout",
				      function);
			break;
		}
		pause_for(p->session, deadline);
		r = plan_live(p, function);
	}
	return r;
}

static bool is_task(uint64_t number)
{
	return number != PLAN_SLOT_FREE && number != PLAN_SLOT_TAKEN;
}

/* ---- A group ---- */

static ncclsvc_result group_timeout(const ncclsvc_plan *p, uint32_t group)
{
	char what[48];
	snprintf(what, sizeof(what), "group %u of the plan", group);
	return plan_timeout(p, group, what);
}

ncclsvc_result group_wait(ncclsvc_plan *p, uint32_t own, bool own_only, uint64_t deadline)
{
	ncclsvc_session *s = p->session;
	const uint32_t group = p->tasks[own].group;
	const uint64_t iteration = p->base, number = p->numbers[own];
	ncclsvc_result r = NCCLSVC_OK;
	if (task_wait(s, number, deadline))
		return iteration == p->base ? group_timeout(p, group) : NCCLSVC_TIMEOUT;
	r = task_report(s, number);
	/* The group cannot have run before all of them were submitted. */
	for (uint32_t i = p->first[group]; !r && i < p->first[group + 1]; i++) {
		if (iteration != p->base) /* another thread has seen all of them end */
			break;
		if (!is_task(p->numbers[i]))
			continue;
		const uint64_t other = p->numbers[i];
		if (task_wait(s, other, deadline))
			return iteration == p->base ? group_timeout(p, group) : NCCLSVC_TIMEOUT;
		if (!own_only)
			r = task_report(s, other);
	}
	return r;
}

/* Finds a task's slot. False: the task is not of this iteration. */
static bool find_slot(const ncclsvc_plan *p, uint64_t task, uint32_t *index)
{
	const struct tasks *t = &p->session->tasks;
	const struct slot *slot = &t->slots[task & (t->entries - 1)];
	if (slot->number == task) {
		*index = slot->plan_slot - 1;
		return slot->plan_slot && *index < p->ntasks && p->numbers[*index] == task;
	}
	for (*index = 0; *index < p->ntasks; ++*index)
		if (p->numbers[*index] == task)
			return true;
	return false;
}

ncclsvc_result ncclsvc_plan_wait(ncclsvc_plan *p, ncclsvc_task task, int timeout_ms)
{
	uint32_t slot;
	uint64_t deadline = deadline_in(timeout_ms);
	ncclsvc_result r = plan_lock(p, "ncclsvc_plan_wait");
	if (r)
		return r;
	bool here = p->numbers && task && is_task(task) && find_slot(p, task, &slot);
	if (here)
		r = group_wait(p, slot, false, deadline);
	ncclsvc_session *s = p->session;
	plan_unlock(p);
	return here ? r : ncclsvc_wait(s, task, timeout_ms);
}

/* Like group_wait, but does not wait. Locked. */
static ncclsvc_result group_test(ncclsvc_plan *p, uint32_t own)
{
	ncclsvc_session *s = p->session;
	const uint32_t group = p->tasks[own].group;
	const uint64_t iteration = p->base;
	for (uint32_t n = 0; n <= p->first[group + 1] - p->first[group]; n++) {
		uint32_t i = n ? p->first[group] + n - 1 : own;
		if (iteration != p->base)
			break;
		if (!is_task(p->numbers[i]))
			return NCCLSVC_IN_PROGRESS;
		const uint64_t number = p->numbers[i];
		if (!task_over(s, number))
			return NCCLSVC_IN_PROGRESS;
		ncclsvc_result r = task_report(s, number);
		if (r)
			return r;
	}
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_plan_test(ncclsvc_plan *p, ncclsvc_task task)
{
	uint32_t slot;
	ncclsvc_result r = plan_lock(p, "ncclsvc_plan_test");
	if (r)
		return r;
	bool here = p->numbers && task && is_task(task) && find_slot(p, task, &slot);
	if (here)
		r = group_test(p, slot);
	ncclsvc_session *s = p->session;
	plan_unlock(p);
	return here ? r : ncclsvc_test(s, task);
}

/* ---- An iteration ---- */

/* Returns the iteration's first failure not yet handled, and reports all. Locked. */
static ncclsvc_result iteration_report(const ncclsvc_plan *p)
{
	ncclsvc_session *s = p->session;
	struct error first = {0};
	for (uint32_t i = 0; s->tasks.nfailures != p->failures && i < p->ntasks; i++) {
		if (!is_task(p->numbers[i]))
			continue;
		struct failure *f = failure_find(&s->tasks, p->numbers[i]);
		if (!f || f->handled)
			continue;
		if (task_report(s, p->numbers[i]) && !first.status.result)
			error_keep(&first);
	}
	return first.status.result ? error_again(&first) : NCCLSVC_OK;
}

/* Waits until other threads have submitted everything, or one has begun the next iteration. Locked;
 * yields. */
static ncclsvc_result wait_submitted(ncclsvc_plan *p, uint64_t iteration, uint64_t deadline)
{
	ncclsvc_session *s = p->session;
	while (p->base == iteration && p->nsubmitted < p->ntasks) {
		ncclsvc_result r = plan_live(p, "ncclsvc_plan_reset");
		if (r)
			return r;
		if (now_ns() >= deadline)
			return plan_timeout(p, p->ngroups - 1, "this iteration of the plan");
		pause_for(s, deadline);
	}
	return NCCLSVC_OK;
}

/* Waits until all have ended, or another thread has seen that and begun the next iteration. Locked;
 * yields. */
static ncclsvc_result wait_iteration(ncclsvc_plan *p, uint64_t iteration, uint64_t deadline)
{
	ncclsvc_result r = wait_submitted(p, iteration, deadline);
	for (uint32_t i = 0; !r && p->base == iteration && i < p->ntasks; i++)
		if (task_wait(p->session, p->numbers[i], deadline) && p->base == iteration)
			r = plan_timeout(p, p->ngroups - 1, "this iteration of the plan");
	return r;
}

/* Whether the iteration was completely submitted and is over without a failure. Locked. */
static bool went_well(const ncclsvc_plan *p)
{
	ncclsvc_session *s = p->session;
	bool well = p->ntasks && p->nsubmitted == p->ntasks;
	for (uint32_t i = 0; well && i < p->ntasks; i++)
		well = task_over(s, p->numbers[i]) && !failure_find(&s->tasks, p->numbers[i]);
	return well;
}

ncclsvc_result ncclsvc_plan_reset(ncclsvc_plan *p, int timeout_ms)
{
	uint64_t deadline = deadline_in(timeout_ms);
	ncclsvc_result r = plan_lock(p, "ncclsvc_plan_reset");
	if (r)
		return r;
	socket_pump(p->session); /* this may report that the epoch is over */
	if (p->phase != PLAN_LAUNCHED)
		r = error_argument("ncclsvc_plan_reset: the plan has not been launched");
	else if (p->busy)
		r = error_set(NCCLSVC_BUSY,
			      "ncclsvc_plan_reset: another thread is resetting the plan");
	/* A faster member may have left since. */
	if (!r && !went_well(p))
		r = plan_live(p, "ncclsvc_plan_reset");
	if (!r && plan_stale(p)) {
		p->iterations += went_well(p); /* before a restart of the daemon */
		r = plan_commit(p, deadline);
	} else if (!r && (p->nsubmitted || list_slots_held(p))) {
		/* Other threads may still submit, so `busy` is not set. */
		const uint64_t iteration = p->base;
		r = wait_iteration(p, iteration, deadline);
		if (!r && iteration == p->base) {
			r = iteration_report(p);
			r = r ? r : plan_usable(p, "ncclsvc_plan_reset");
			if (p->comm && !p->over) {
				plan_begin_iteration(p);
				p->iterations++;
				p->iteration++;
			}
		}
	} else if (!r && !p->ntasks) {
		p->iterations++;
	}
	plan_unlock(p);
	return r;
}

/* ---- The end ---- */

/* Waits for the groups that were completely submitted. Locked; yields. */
static ncclsvc_result wait_whole_groups(ncclsvc_plan *p, uint64_t deadline)
{
	for (uint32_t g = 0; g < p->group; g++)
		for (uint32_t i = p->first[g]; i < p->first[g + 1]; i++)
			if (task_wait(p->session, p->numbers[i], deadline))
				return group_timeout(p, g);
	return NCCLSVC_OK;
}

/* All its tasks have ended or will soon; drops their results. Locked; yields. */
static void let_land(ncclsvc_plan *p)
{
	uint64_t deadline = now_ns() + COMPLETION_NS;
	for (uint32_t i = 0; i < p->ntasks; i++) {
		if (!is_task(p->numbers[i]))
			continue;
		task_wait(p->session, p->numbers[i], deadline);
		struct failure *f = failure_find(&p->session->tasks, p->numbers[i]);
		if (f)
			f->handled = true;
	}
}

/* Locked; yields. */
static ncclsvc_result give_up(ncclsvc_plan *p, uint64_t deadline)
{
	ncclsvc_session *s = p->session;
	struct call call = {0};
	struct error why;
	bool alive = p->phase >= PLAN_COMMITTED && !s->lost && !plan_stale(p) && !p->comm->broken;
	ncclsvc_result r = NCCLSVC_OK;
	if (alive && p->phase == PLAN_LAUNCHED)
		r = wait_whole_groups(p, deadline);
	if (!r && p->phase == PLAN_LAUNCHED)
		r = iteration_report(p);
	error_keep(&why);
	if (alive && !s->lost && p->comm)
		call_run(s, &call, SVC_PLAN_DROP,
			 &(struct svc_plan_drop){p->comm->handle, p->handle}, -1,
			 deadline_in(REQUEST_MS));
	if (p->phase == PLAN_LAUNCHED)
		let_land(p);
	return r ? error_again(&why) : NCCLSVC_OK;
}

/* Frees plans that are over. Freeing GPU memory waits for all of the process's streams there, and
 * while tasks are pending, one of them may wait for a peer. Such a plan stays until the next plan
 * ends or the session does; so does one that other threads' calls still use. Locked; yields. */
static void free_over(ncclsvc_session *s)
{
	ncclsvc_plan **at = &s->plans;
	tasks_look(s);
	const bool idle = s->tasks.oldest == s->tasks.next;
	while (*at) {
		ncclsvc_plan *p = *at;
		if (!p->over || p->calls || (p->bounces && !idle)) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		plan_free(p);
	}
}

ncclsvc_result ncclsvc_plan_terminate(ncclsvc_plan *p, int timeout_ms)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (!p)
		return NCCLSVC_OK;
	uint64_t deadline = deadline_in(timeout_ms);
	ncclsvc_session *s = p->session;
	session_lock(s);
	p->calls++;
	session_back(s);
	p->over = true;
	pthread_cond_broadcast(&s->changed); /* threads may be waiting for the launch */
	list_slots_forget(p);
	const bool fresh = plan_is_fresh(p);
	if (p->comm && fresh)
		plan_give_back(p);
	if (p->comm)
		r = give_up(p, deadline);
	/* After a restart of the daemon, the others could assume that the rest has run. */
	if (p->comm && p->counts == p->comm->counts && !fresh && !went_well(p))
		p->comm->spoilt = true;
	p->comm = NULL;
	p->calls--;
	free_over(s);
	session_unlock(s);
	return r;
}
