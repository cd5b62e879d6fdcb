/* SPDX-License-Identifier: Apache-2.0
 * Unfinished tasks are copied out of the ring as soon as the daemon is gone. In host memory, the
 * members compare what has run (compare.c). On GPUs, the words of their timelines say it. */
#include "carry.h"

#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/session_memory.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "cuda/capture/captured_group.h"
#include "cuda/session_gpu.h"
#include "proto/group/done.h"
#include "proto/operation.h"

/* ---- Out of the ring ---- */

/* False: an earlier resumption, which failed, has copied them already. */
static bool tasks_in_ring(const ncclsvc_session *s)
{
	const struct tasks *t = &s->tasks;
	for (uint64_t n = tasks_first_pending(t); n < t->next; n++) {
		const struct slot *slot = task_slot(t, n);
		if (slot->number == n && slot->state == SLOT_PENDING && !slot->entry &&
		    !slot->kernel_seq)
			return false;
	}
	return true;
}

/* The program's number for the reduction, unless it has been destroyed. */
static void find_redop(const ncclsvc_comm *comm, struct carried *c)
{
	for (unsigned i = 0; comm && comm->redops && i < SVC_REDOPS_MADE; i++)
		if (comm->redops[i].made && comm->redops[i].number == c->record.redop)
			c->redop = (uint8_t)(SVC_REDOP_MADE + i);
	c->damaged |= !c->redop;
}

/* The task stays in the ring. */
static struct carried *copy_task(ncclsvc_session *s, const struct slot *slot)
{
	const struct connection *c = s->connection;
	const ncclsvc_status *st = svc_status_slot(c->ring, c->entries, slot->entry);
	struct carried *to = &s->carried[s->ncarried++];
	*to = (struct carried){.task = slot->number,
			       .record = *svc_record_slot(c->ring, c->entries, slot->entry),
			       .damaged = st->done_ns == SVC_STATUS_UNDER_WAY};
	if (!(to->record.flags & SVC_TASK_SECOND_HALF)) /* it is an earlier task's */
		memset((char *)&to->record + SVC_HALF, 0, sizeof(to->record) - SVC_HALF);
	return to;
}

static void carry_task(ncclsvc_session *s, struct slot *slot, uint32_t group)
{
	struct carried *to = copy_task(s, slot);
	to->group = group;
	slot->entry = 0;
	if (svc_op_reduces(to->record.op) && svc_redop_made(to->record.redop))
		find_redop(comm_by_key(s, slot->comm_key), to);
}

static ncclsvc_result carry_all(ncclsvc_session *s)
{
	const struct tasks *t = &s->tasks;
	const struct connection *c = s->connection;
	const uint64_t first = tasks_first_pending(t);
	uint32_t group = 0;
	free(s->carried);
	s->ncarried = 0;
	s->carried = calloc(t->next - first + 1, sizeof(*s->carried));
	if (!s->carried)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	for (uint64_t n = first; n < t->next; n++) {
		struct slot *slot = task_slot(t, n);
		if (slot->number != n || !slot->entry)
			continue;
		const struct svc_record *r = svc_record_slot(c->ring, c->entries, slot->entry);
		const bool more = r->flags & SVC_TASK_MORE;
		if (slot->state == SLOT_PENDING)
			carry_task(s, slot, group);
		group += !more;
	}
	return NCCLSVC_OK;
}

ncclsvc_result carry(ncclsvc_session *s)
{
	tasks_look(s);
	ncclsvc_result r = tasks_in_ring(s) ? carry_all(s) : NCCLSVC_OK;
	if (r)
		return r;
	if (s->plan_callbacks)
		s->plan_callbacks->away(s);
	s->tasks.entered = 0;
	ring_restart(s->connection);
	return NCCLSVC_OK;
}

ncclsvc_result carry_begin(ncclsvc_session *s)
{
	free(s->carried);
	s->ncarried = 0;
	s->carried = calloc(s->tasks.entries, sizeof(*s->carried));
	return s->carried ? NCCLSVC_OK : error_set(NCCLSVC_NO_MEMORY, "out of memory");
}

/* The communicator was suspended before, and what is left of its tasks is copied again. */
static void uncarry(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	size_t n = 0;
	for (size_t i = 0; i < s->ncarried; i++) {
		const struct slot *slot = carried_slot(s, &s->carried[i]);
		if (slot && slot->comm_key != comm->key)
			s->carried[n++] = s->carried[i];
	}
	s->ncarried = n;
}

void carry_held(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	const struct tasks *t = &s->tasks;
	bool bad = false;
	tasks_look(s);
	uncarry(s, comm);
	for (uint64_t n = tasks_first_pending(t); n < t->next; n++) {
		const struct slot *slot = task_slot(t, n);
		if (slot->number == n && slot->state == SLOT_PENDING && slot->entry &&
		    slot->comm_key == comm->key && !ring_ended(s->connection, slot->entry, &bad)) {
			struct carried *c = copy_task(s, slot);
			c->held = true;
			/* The daemon would give the reduction another number. */
			c->damaged |=
				svc_op_reduces(c->record.op) && svc_redop_made(c->record.redop);
		}
	}
}

/* ---- What has run on GPUs ---- */

static struct svc_timeline *words_of(const ncclsvc_session *s, const struct slot *slot)
{
	return &svc_timelines(s->connection->ring)[slot->timeline];
}

static bool is_captured(const struct carried *c)
{
	return c->record.flags & SVC_TASK_CAPTURED_GROUP;
}

static void look(ncclsvc_session *s, struct carried *c, struct slot *slot, const ncclsvc_comm *comm)
{
	const struct svc_timeline *t = words_of(s, slot);
	const bool ran =
		is_captured(c) ? comm->capture && captured_group_ran(comm->capture, c->record.value)
			       : atomic_load(&t->done) >= c->record.value;
	if (!ran) {
		c->damaged |= !is_captured(c) && atomic_load(&t->launched) >= c->record.value;
		return;
	}
	slot->status = (ncclsvc_status){
		.rank_a = -1, .rank_b = -1, .done_ns = now_ns(), .epoch = slot->epoch};
	task_arrive(s, slot, "");
}

void carried_look(ncclsvc_session *s)
{
	uint64_t done = 0;
	for (const ncclsvc_comm *c = s->comms; c; c = c->next)
		captured_groups_settle(c->capture, &done);
	for (size_t i = 0; i < s->ncarried; i++) {
		struct slot *slot = carried_slot(s, &s->carried[i]);
		const ncclsvc_comm *comm = slot ? comm_by_key(s, slot->comm_key) : NULL;
		if (comm && comm->device >= 0 && slot->timeline)
			look(s, &s->carried[i], slot, comm);
	}
}

static uint64_t done_of(const ncclsvc_comm *comm, const struct slot *slot)
{
	if (slot->to < 0)
		return done_by_all(DONE_COLLECTIVES, comm->rank, comm->nranks);
	return slot->op == NCCLSVC_SEND ? done_message(comm->rank, slot->to)
					: -done_message(slot->to, comm->rank);
}

/* The word (group/done.h) of all submitted operations, except those that captured timelines count.
 */
static uint64_t submitted(const ncclsvc_comm *comm)
{
	uint64_t sum = comm->order * done_by_all(DONE_COLLECTIVES, comm->rank, comm->nranks) +
		       comm->splits * done_by_all(DONE_SPLITS, comm->rank, comm->nranks);
	for (int k = 0; k < comm->nranks; k++)
		sum += comm->messages[2 * k] * done_message(comm->rank, k) -
		       comm->messages[2 * k + 1] * done_message(k, comm->rank);
	return sum;
}

const char *carried_nccl(const ncclsvc_session *s, const ncclsvc_comm *comm, uint64_t *done)
{
	const uint64_t plan = plan_in_force(s, comm);
	*done = submitted(comm) + plan * done_by_all(DONE_PLAN, comm->rank, comm->nranks);
	if (comm->spoilt)
		return "an operation had failed";
	if (plan == PLAN_ODD)
		return PLANS_DIFFER;
	if (carried_plan_is_over(s, comm))
		return "operations of a plan that is over were pending";
	if (comm->peer && !comm->peer_bytes)
		return "it was being joined";
	for (size_t i = 0; i < s->ncarried; i++) {
		const struct carried *c = &s->carried[i];
		const struct slot *slot = carried_slot(s, c);
		if (!slot || slot->comm_key != comm->key)
			continue;
		if (c->damaged || !slot->timeline)
			return "an operation on NCCL was half done, or its reduction had been "
			       "destroyed";
		if (!is_captured(c))
			*done -= done_of(comm, slot);
	}
	if (!captured_groups_settle(comm->capture, done))
		return "an operation of a CUDA graph was half done on NCCL, or had failed";
	return NULL;
}

/* ---- To the next daemon ---- */

static void fail(ncclsvc_session *s, const ncclsvc_comm *comm, struct slot *slot)
{
	const bool on_stream = slot->timeline && s->timelines[slot->timeline] &&
			       s->timelines[slot->timeline]->of_stream;
	const char *why = !comm		 ? "the communicator was left"
			  : comm->why[0] ? comm->why
					 : "the communicator had ended";
	task_arrive_failed(s, slot, comm && comm->broken ? comm->broken : NCCLSVC_CANCELLED, why);
	if (on_stream)
		timeline_raise(&words_of(s, slot)->done, slot->timeline_value);
}

/* The next daemon has its own numbers for reductions. If the program has just destroyed this one,
 * the daemon refuses the task. */
static void number_redop(const ncclsvc_comm *comm, struct carried *c)
{
	const struct made_redop *at = c->redop ? comm_redop(comm, c->redop) : NULL;
	if (c->redop)
		c->record.redop = (uint8_t)(at && at->number ? at->number : UINT8_MAX);
}

void carried_release(ncclsvc_session *s)
{
	for (size_t i = 0; i < s->ncarried; i++) {
		struct slot *slot = carried_slot(s, &s->carried[i]);
		const ncclsvc_comm *comm = slot ? comm_by_key(s, slot->comm_key) : NULL;
		if (comm && comm->held)
			slot->epoch = comm->epoch;
	}
	s->ncarried = 0;
	call_forget(s, SVC_RESUME, &(struct svc_resume){.kind = SVC_RESUME_TASKS});
}

/* Tasks that were one group become one group again. */
void carried_submit(ncclsvc_session *s)
{
	size_t last = SIZE_MAX; /* the previous task, which is not published yet */
	uint64_t entry = 0;
	for (size_t i = 0; i < s->ncarried; i++) {
		struct carried *c = &s->carried[i];
		struct slot *slot = carried_slot(s, c);
		const ncclsvc_comm *comm = slot ? comm_by_key(s, slot->comm_key) : NULL;
		if (slot && (!comm || comm->broken || !comm->handle)) {
			fail(s, comm, slot);
			continue;
		}
		if (!slot)
			continue;
		slot->epoch = c->record.epoch = comm->epoch;
		c->record.flags &= (uint8_t)~SVC_TASK_MORE;
		number_redop(comm, c);
		if (last != SIZE_MAX) {
			if (s->carried[last].group == c->group)
				s->carried[last].record.flags |= SVC_TASK_MORE;
			ring_publish(s->connection, entry, &s->carried[last].record);
		}
		slot->entry = ++entry;
		last = i;
	}
	if (last != SIZE_MAX)
		ring_publish(s->connection, entry, &s->carried[last].record);
	s->tasks.entered = entry;
	s->ncarried = 0;
	ring_doorbell(s->connection);
}
