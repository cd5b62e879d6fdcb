/* SPDX-License-Identifier: Apache-2.0
 * Submitting a planned task: it takes a place, and is an operation like any other from then on. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/submit.h"
#include "core/comm.h"
#include "core/op.h"
#include "core/session.h"
#include "core/thread.h"
#include "core/timeline.h"
#include "cuda/gpu.h"
#include "plan.h"
#include "proto/names.h"

/* The first of `alike` that is not before this kind. */
static uint32_t lower_bound(const ncclsvc_plan *p, const struct svc_plan_task *kind)
{
	uint32_t low = 0, high = p->ntasks;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (plan_compare_kinds(&p->tasks[p->alike[middle]], kind) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_kind(const ncclsvc_plan *p, uint32_t i, const struct svc_plan_task *kind)
{
	return i < p->ntasks && !plan_compare_kinds(&p->tasks[p->alike[i]], kind);
}

ncclsvc_result plan_take_place(ncclsvc_plan *p, const struct svc_plan_task *kind, uint32_t *place)
{
	char text[PLACE_TEXT];
	uint32_t begin = lower_bound(p, kind);
	if (!is_kind(p, begin, kind))
		return error_argument("%s is not planned", kind_text(kind, text));
	uint32_t i = begin + p->full[begin];
	while (is_kind(p, i, kind) && p->numbers[p->alike[i]] != PLACE_FREE)
		i++;
	p->full[begin] = i - begin;
	if (!is_kind(p, i, kind))
		return error_argument("%s: all %u tasks that are planned were submitted in this "
				      "iteration: ncclsvc_plan_reset begins the next",
				      kind_text(kind, text), i - begin);
	*place = p->alike[i];
	p->numbers[*place] = PLACE_TAKEN;
	return NCCLSVC_OK;
}

void plan_give_back(ncclsvc_plan *p, uint32_t place)
{
	uint32_t begin = lower_bound(p, &p->tasks[place]), i = begin;
	while (p->alike[i] != place)
		i++;
	if (p->full[begin] > i - begin)
		p->full[begin] = i - begin;
	p->numbers[place] = PLACE_FREE;
}

static ncclsvc_result check_size(const ncclsvc_plan *p, uint32_t place, size_t count,
				 ncclsvc_type type)
{
	char text[PLACE_TEXT];
	const struct svc_plan_task *t = &p->tasks[place];
	if (t->count == SVC_PLAN_ANY || (t->count == count && t->type == type))
		return NCCLSVC_OK;
	return error_argument("%s was planned with %llu %s: submitted are %zu %s",
			      place_text(p, place, text), (unsigned long long)t->count,
			      svc_type_name(t->type), count, svc_type_name(type));
}

/* Everything else that its group waits for, here, has been submitted. */
static bool completes(const ncclsvc_plan *p, uint32_t place)
{
	uint32_t group = p->tasks[place].group;
	return p->group == group && p->missing[group] == 1;
}

static void submitted(ncclsvc_plan *p, uint32_t place, uint64_t task)
{
	p->numbers[place] = task;
	p->nsubmitted++;
	p->missing[p->tasks[place].group]--;
	while (p->group < p->ngroups && !p->missing[p->group])
		p->group++;
	p->session->tasks.slots[task & (p->session->tasks.entries - 1)].place = place + 1;
	pthread_cond_broadcast(&p->session->changed); /* a reset may wait for it */
}

ncclsvc_result plan_submit_at(ncclsvc_plan *p, uint32_t place, struct op *op, uint64_t deadline)
{
	uint64_t number = 0;
	const uint64_t iteration = p->base;
	ncclsvc_task *task = op->task;
	op->record.flags |= SVC_TASK_PLAN;
	op->record.plan = p->handle;
	op->record.plan_group = p->tasks[place].group;
	op->record.plan_task = place - p->first[p->tasks[place].group];
	op->record.timeout_ns = p->comm->timeout_ns;
	op->planned = p->base + op->record.plan_group;
	op->detached = true;
	op->task = &number;
	ncclsvc_result r = NCCLSVC_OK;
	if (p->comm->device >= 0)
		r = plan_claims_precede(p, place, op->stream);
	if (!r && op->copied && p->comm->device >= 0)
		r = bounce_copy(p, place, op, deadline);
	if (!r)
		r = ops_submit(p->session, op, 1);
	op->task = task;
	if (op->entered && task)
		*task = number;
	/* Else the epoch ended meanwhile, and all has begun anew. */
	if (op->entered && iteration == p->base)
		submitted(p, place, number);
	return r;
}

/* What the thread has set. Locked. */
static ncclsvc_result prepare(const ncclsvc_plan *p, struct op *op)
{
	struct thread_state *t = thread_find(p->session);
	if (t && t->grouping)
		return error_argument("%s: a planned task cannot be in a task group of its own: "
				      "end the thread's group first",
				      svc_op_name(op->record.op));
	if (t && t->timeline && p->comm->device < 0) {
		op->record.flags |= SVC_TASK_TIMELINE;
		op->record.timeline = t->timeline->index;
		op->record.value = t->timeline_value;
	}
	ncclsvc_result r = op_check(op);
	return !r && p->comm->device >= 0 ? stream_choose(op, t) : r;
}

/* wait_ms: NULL does not wait. Locked; yields. */
static ncclsvc_result submit(ncclsvc_plan *p, struct op *op, size_t count, ncclsvc_type type,
			     const int *wait_ms, const char *function)
{
	uint32_t place = 0;
	const struct svc_plan_task kind = {.op = op->record.op, .peer = op->record.peer};
	ncclsvc_result r = plan_running(p, function);
	if (!r && p->busy)
		r = error_set(NCCLSVC_BUSY, "%s: another thread resets the plan", function);
	if (!r)
		r = plan_take_place(p, &kind, &place);
	if (r)
		return r;
	const uint64_t iteration = p->base;
	const uint64_t deadline = wait_ms ? deadline_in(*wait_ms) : NO_DEADLINE;
	op->copied = wait_ms && op->record.op == NCCLSVC_SEND && !completes(p, place);
	r = check_size(p, place, count, type);
	if (!r)
		r = prepare(p, op);
	if (!r)
		r = plan_submit_at(p, place, op, deadline);
	if (iteration != p->base)
		return r;
	if (!op->entered)
		plan_give_back(p, place);
	else if (!r && wait_ms && !op->copied)
		r = group_wait(p, place, deadline);
	return r;
}

/* What a call names: its operation, and the buffer that this has. */
static ncclsvc_result call(ncclsvc_plan *p, unsigned kind, const void *src, void *dst, size_t count,
			   ncclsvc_type type, int peer, const int *wait_ms, ncclsvc_task *task,
			   const char *function)
{
	struct op op = {.src = src, .dst = dst, .task = task};
	ncclsvc_result r = plan_lock(p, function);
	if (r)
		return r;
	op.comm = p->comm;
	op.record = (struct svc_record){
		.op = (uint8_t)kind,
		.type = type > UINT8_MAX ? UINT8_MAX : (uint8_t)type,
		.peer = peer,
		.count = count,
	};
	r = submit(p, &op, count, type, wait_ms, function);
	session_unlock(p->session);
	return r;
}

ncclsvc_result ncclsvc_plan_submit_send(ncclsvc_plan *plan, const void *sendbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task)
{
	return call(plan, NCCLSVC_SEND, sendbuf, NULL, count, type, peer, NULL, task,
		    "ncclsvc_plan_submit_send");
}

ncclsvc_result ncclsvc_plan_submit_recv(ncclsvc_plan *plan, void *recvbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task)
{
	return call(plan, NCCLSVC_RECV, NULL, recvbuf, count, type, peer, NULL, task,
		    "ncclsvc_plan_submit_recv");
}

ncclsvc_result ncclsvc_plan_submit_send_and_wait(ncclsvc_plan *plan, const void *sendbuf,
						 size_t count, ncclsvc_type type, int peer,
						 int timeout_ms)
{
	return call(plan, NCCLSVC_SEND, sendbuf, NULL, count, type, peer, &timeout_ms, NULL,
		    "ncclsvc_plan_submit_send_and_wait");
}

ncclsvc_result ncclsvc_plan_submit_recv_and_wait(ncclsvc_plan *plan, void *recvbuf, size_t count,
						 ncclsvc_type type, int peer, int timeout_ms)
{
	return call(plan, NCCLSVC_RECV, NULL, recvbuf, count, type, peer, &timeout_ms, NULL,
		    "ncclsvc_plan_submit_recv_and_wait");
}
