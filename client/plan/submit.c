/* SPDX-License-Identifier: Apache-2.0
 * Submitting a planned task. Once it has a slot, it is an operation like any other. */

#include "comm/submit.h"
#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/refusal.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "core/thread.h"
#include "cuda/session_gpu.h"
#include "member_plan.h"
#include "proto/names.h"
#include "proto/task.h"

static ncclsvc_result check_size(const ncclsvc_plan *p, uint32_t slot, size_t count,
				 ncclsvc_type type)
{
	char text[SLOT_TEXT];
	const struct svc_plan_task *t = &p->tasks[slot];
	if (t->count == SVC_PLAN_ANY || (t->count == count && t->type == type))
		return NCCLSVC_OK;
	return error_argument("%s was planned with %llu %s, but submitted with %zu %s",
			      slot_text(p, slot, text), (unsigned long long)t->count,
			      svc_type_name(t->type), count, svc_type_name(type));
}

/* Whether this is the last task that this member's part of the group waits for. */
static bool completes(const ncclsvc_plan *p, uint32_t slot)
{
	uint32_t group = p->tasks[slot].group;
	return p->group == group && p->missing[group] == 1;
}

static void submitted(ncclsvc_plan *p, uint32_t slot, uint64_t task)
{
	p->numbers[slot] = task;
	p->nsubmitted++;
	p->missing[p->tasks[slot].group]--;
	while (p->group < p->ngroups && !p->missing[p->group])
		p->group++;
	p->session->tasks.slots[task & (p->session->tasks.entries - 1)].plan_slot = slot + 1;
	pthread_cond_broadcast(&p->session->changed); /* a reset may be waiting for it */
}

ncclsvc_result plan_slot_submit(ncclsvc_plan *p, uint32_t slot, struct op *op, uint64_t deadline)
{
	uint64_t number = 0;
	const uint64_t iteration = p->base;
	ncclsvc_task *task = op->task;
	op->record.flags |= SVC_TASK_PLAN;
	op->record.plan = p->handle;
	op->record.plan_group = p->tasks[slot].group;
	op->record.plan_task = slot - p->first[p->tasks[slot].group];
	op->record.timeout_ns = p->comm->timeout_ns;
	op->planned = p->base + op->record.plan_group;
	op->order = p->orders[slot];
	op->detached = true;
	op->task = &number;
	ncclsvc_result r = NCCLSVC_OK;
	if (p->comm->device >= 0)
		r = list_slots_precede(p, slot, op->stream);
	if (!r && op->copied && p->comm->device >= 0)
		r = bounce_copy(p, slot, op, deadline);
	if (!r)
		r = ops_submit(p->session, op, 1);
	op->task = task;
	if (op->entered && task)
		*task = number;
	/* If not, the epoch ended meanwhile, and everything has begun anew. */
	if (op->entered && iteration == p->base)
		submitted(p, slot, number);
	return r;
}

/* Applies what the thread has set. Locked. */
static ncclsvc_result prepare(const ncclsvc_plan *p, struct op *op)
{
	struct thread_state *t = thread_find(p->session);
	if (t && t->grouping)
		return error_argument("%s: a planned task cannot be in a task group of its own: "
				      "end the thread's group first",
				      svc_op_name(op->record.op));
	const ncclsvc_timeline *timeline =
		t ? atomic_load_explicit(&t->timeline, memory_order_relaxed) : NULL;
	if (timeline && p->comm->device < 0) {
		op->record.flags |= SVC_TASK_TIMELINE;
		op->record.timeline = timeline->index;
		op->record.value = t->timeline_value;
	}
	ncclsvc_result r = op_check(op);
	return !r && p->comm->device >= 0 ? stream_choose(op, t) : r;
}

/* Locked; yields. */
static ncclsvc_result submit(ncclsvc_plan *p, struct op *op, const ncclsvc_planned *x,
			     uint64_t deadline, const char *function)
{
	uint32_t slot = 0;
	const struct svc_plan_task kind = {.op = op->record.op, .peer = op->record.peer};
	const bool waits = x->flags & NCCLSVC_PLANNED_WAIT;
	ncclsvc_result r = plan_running(p, function);
	if (!r && p->busy)
		r = error_set(NCCLSVC_BUSY, "%s: another thread is resetting the plan", function);
	if (!r)
		r = plan_slot_take(p, &kind, x->group, &slot);
	if (r)
		return r;
	const uint64_t iteration = p->base;
	const bool returns = waits && !p->strict && x->op == NCCLSVC_SEND && !completes(p, slot);
	op->copied = returns && !(x->flags & NCCLSVC_PLANNED_STABLE);
	r = check_size(p, slot, x->count, x->type);
	if (!r)
		r = prepare(p, op);
	if (!r)
		r = plan_slot_submit(p, slot, op, deadline);
	if (iteration != p->base)
		return r;
	if (!op->entered)
		plan_slot_give_back(p, slot);
	else if (!r && waits && !returns)
		r = group_wait(p, slot, p->strict, deadline);
	return r;
}

static ncclsvc_result call(ncclsvc_plan *p, const ncclsvc_planned *x, int timeout_ms,
			   ncclsvc_task *task, const char *function)
{
	const bool waits = x->flags & NCCLSVC_PLANNED_WAIT;
	const uint64_t deadline = waits ? deadline_in(timeout_ms) : NO_DEADLINE;
	struct op op = {.src = x->sendbuf, .dst = x->recvbuf, .task = task};
	ncclsvc_result r = plan_lock(p, function);
	if (r)
		return r;
	if (waits && p->phase != PLAN_LAUNCHED)
		r = launch_wait(p, deadline, function);
	op.comm = p->comm;
	op.record = (struct svc_record){
		.op = (uint8_t)x->op,
		.type = x->type > UINT8_MAX ? UINT8_MAX : (uint8_t)x->type,
		.peer = x->peer,
		.count = x->count,
	};
	if (!r)
		r = submit(p, &op, x, deadline, function);
	if (r && p->comm) /* NULL: it was left meanwhile */
		refusal_tell(&op);
	plan_unlock(p);
	return r;
}

ncclsvc_result ncclsvc_plan_submit(ncclsvc_plan *plan, const ncclsvc_planned *planned,
				   int timeout_ms, ncclsvc_task *task)
{
	const unsigned known = NCCLSVC_PLANNED_WAIT | NCCLSVC_PLANNED_STABLE;
	if (task)
		*task = 0;
	if (!planned)
		return error_argument("ncclsvc_plan_submit: the task is NULL");
	if (planned->size < sizeof(*planned))
		return error_argument("ncclsvc_plan_submit: its size is %zu: set it to "
				      "sizeof(ncclsvc_planned), at least %zu",
				      planned->size, sizeof(*planned));
	if (planned->flags & ~known)
		return error_argument(
			"ncclsvc_plan_submit: the flags are %#x, but only %#x are defined",
			planned->flags, known);
	if (!svc_op_is_p2p((unsigned)planned->op))
		return error_argument("ncclsvc_plan_submit: the operation is %d: use NCCLSVC_SEND "
				      "or NCCLSVC_RECV",
				      (int)planned->op);
	if (planned->op == NCCLSVC_SEND ? planned->recvbuf != NULL : planned->sendbuf != NULL)
		return error_argument("ncclsvc_plan_submit: a %s has no %s: leave it NULL",
				      svc_op_name(planned->op),
				      planned->op == NCCLSVC_SEND ? "recvbuf" : "sendbuf");
	return call(plan, planned, timeout_ms, task, "ncclsvc_plan_submit");
}

/* ---- Shorthands ---- */

static ncclsvc_planned send_of(const void *buf, size_t count, ncclsvc_type type, int peer,
			       unsigned flags)
{
	return (ncclsvc_planned){.op = NCCLSVC_SEND,
				 .type = type,
				 .sendbuf = buf,
				 .count = count,
				 .peer = peer,
				 .group = NCCLSVC_PLAN_FIRST,
				 .flags = flags};
}

static ncclsvc_planned recv_of(void *buf, size_t count, ncclsvc_type type, int peer, unsigned flags)
{
	return (ncclsvc_planned){.op = NCCLSVC_RECV,
				 .type = type,
				 .recvbuf = buf,
				 .count = count,
				 .peer = peer,
				 .group = NCCLSVC_PLAN_FIRST,
				 .flags = flags};
}

ncclsvc_result ncclsvc_plan_submit_send(ncclsvc_plan *plan, const void *sendbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task)
{
	const ncclsvc_planned x = send_of(sendbuf, count, type, peer, 0);
	return call(plan, &x, 0, task, "ncclsvc_plan_submit_send");
}

ncclsvc_result ncclsvc_plan_submit_recv(ncclsvc_plan *plan, void *recvbuf, size_t count,
					ncclsvc_type type, int peer, ncclsvc_task *task)
{
	const ncclsvc_planned x = recv_of(recvbuf, count, type, peer, 0);
	return call(plan, &x, 0, task, "ncclsvc_plan_submit_recv");
}

ncclsvc_result ncclsvc_plan_submit_send_and_wait(ncclsvc_plan *plan, const void *sendbuf,
						 size_t count, ncclsvc_type type, int peer,
						 int timeout_ms)
{
	const ncclsvc_planned x = send_of(sendbuf, count, type, peer, NCCLSVC_PLANNED_WAIT);
	return call(plan, &x, timeout_ms, NULL, "ncclsvc_plan_submit_send_and_wait");
}

ncclsvc_result ncclsvc_plan_submit_recv_and_wait(ncclsvc_plan *plan, void *recvbuf, size_t count,
						 ncclsvc_type type, int peer, int timeout_ms)
{
	const ncclsvc_planned x = recv_of(recvbuf, count, type, peer, NCCLSVC_PLANNED_WAIT);
	return call(plan, &x, timeout_ms, NULL, "ncclsvc_plan_submit_recv_and_wait");
}
