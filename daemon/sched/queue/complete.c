/* SPDX-License-Identifier: Apache-2.0
 * Reports to clients how their tasks ended: through the status slot and a wake-up, or in a message.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "base/fault.h"
#include "base/timings.h"
#include "complete.h"
#include "plan_slots.h"
#include "proto/fdio.h"
#include "proto/operation.h"
#include "recorder/recorder_ring.h"
#include "sched/base/sched_sessions.h"
#include "sched/base/state.h"
#include "sched/base/status.h"
#include "sched/base/supervisor.h"
#include "sched/base/timeline.h"

static bool region_failed(const struct task *t, uint32_t region)
{
	return region && fault_failed(t->session->regions[region].fault);
}

const ncclsvc_status *complete_ran(struct task *const *tasks, uint32_t n, ncclsvc_status *st)
{
	for (uint32_t k = 0; fault_any() && k < n; k++) {
		const struct task *t = tasks[k];
		if (!region_failed(t, t->record.src_region) &&
		    !region_failed(t, t->record.dst_region))
			continue;
		*st = status_of(NCCLSVC_PEER_GONE);
		st->rank_a = t->rank;
		st->pid_a = t->session->pid;
		st->ending = NCCLSVC_ENDED_DISCONNECTED; /* as its session will be */
		return st;
	}
	return &status_ok;
}

void complete_break_session(struct scheduler *sched, struct sched_session *s, int result,
			    const char *text)
{
	if (s->broken)
		return;
	s->broken = true;
	supervisor_event(sched, &(struct event){.kind = EVENT_SESSION_BROKEN,
						.session = s->slot,
						.broken = {result, text}});
}

/* Writes the whole slot except its number, which publishes it. */
static inline void publish_status(struct scheduler *sched, struct sched_session *s,
				  ncclsvc_status *slot, uint64_t number)
{
	svc_number_store(&slot->number, number);
	s->busy[number & (s->entries - 1)] = 0;
	if (!s->dirty) {
		s->dirty = true;
		s->next_dirty = sched->dirty;
		sched->dirty = s;
	}
	sched_session_active(sched, s); /* a client with an answer is likely to submit again soon */
}

static void write_status(struct scheduler *sched, struct sched_session *s, uint64_t number,
			 const ncclsvc_status *st)
{
	ncclsvc_status *slot = svc_status_slot(s->ring, s->entries, number);
	const size_t skip = sizeof(slot->number), size = st->result ? sizeof(*st) : SVC_HALF;
	memcpy((char *)slot + skip, (const char *)st + skip, size - skip);
	publish_status(sched, s, slot, number);
}

static void send_reply(struct scheduler *sched, struct sched_session *s, uint32_t request_id,
		       int result, const void *body, size_t size)
{
	struct {
		struct svc_header header;
		char body[sizeof(struct svc_error)];
	} m = {0};
	if (s->broken)
		return;
	m.header = (struct svc_header){
		.length = (uint32_t)(sizeof(m.header) + size),
		.opcode = SVC_SUBMIT | SVC_REPLY,
		.request_id = request_id,
		.result = result,
	};
	memcpy(m.body, body, size);
	int error = svc_send(s->fd, &m, m.header.length, NULL, 0, MSG_DONTWAIT);
	/* The limit of pending tasks fits the socket's buffer, so only a client that does not read
	 * fills it. */
	if (error == -EAGAIN)
		complete_break_session(sched, s, NCCLSVC_LIMIT,
				       "the client does not read its socket");
}

static inline void fill_times(const struct scheduler *sched, const struct task *t,
			      ncclsvc_status *st)
{
	st->submitted_ns = t->submitted_ns;
	st->started_ns = t->started_ns;
	st->done_ns = sched->now;
	st->epoch = t->record.epoch;
}

/* The library is not told this; it learns that the epoch has ended. */
static void report_captured(struct scheduler *sched, const struct comm *c,
			    const struct svc_record *r, int32_t rank, uint64_t seq,
			    const ncclsvc_status *st)
{
	struct event event = {.kind = EVENT_CAPTURED_GROUP_FAILED,
			      .tasks = {c->slot, rank, r->op, seq, *st}};
	event.tasks.status.epoch = r->epoch;
	supervisor_event(sched, &event);
}

/* A member that ends an epoch with nothing pending does no harm, unless another member then submits
 * a task: the supervisor is told of each session's first. */
static void report_too_late(struct scheduler *sched, struct sched_session *s, uint32_t handle,
			    uint32_t epoch, uint32_t op)
{
	struct handle *h = &s->handles[handle];
	if (h->too_late_reported || h->ended != epoch || h->end.result != NCCLSVC_PEER_GONE)
		return;
	h->too_late_reported = true;
	supervisor_event(sched, &(struct event){.kind = EVENT_TASK_TOO_LATE,
						.session = s->slot,
						.too_late = {handle, epoch, op}});
}

/* Reports a failure to the supervisor, not every task that it ends. The end of an epoch comes from
 * the supervisor itself, and a member's own end is no failure. */
static void report(struct scheduler *sched, const struct task *t, const ncclsvc_status *st)
{
	struct comm *c = t->comm;
	if (c && c->ended)
		report_too_late(sched, t->session, t->record.comm, c->epoch, t->record.op);
	if (!c || c->ended || c->ending || (st->result == NCCLSVC_CANCELLED && !st->pid_a))
		return;
	if (t->record.flags & SVC_TASK_CAPTURED_GROUP)
		report_captured(sched, c, &t->record, t->rank, t->seq, st);
	if (!reported_first(&c->failures, sched->now, st->result))
		return;
	supervisor_event(sched,
			 &(struct event){.kind = EVENT_TASKS_FAILED,
					 .tasks = {c->slot, t->rank, t->record.op, t->seq, *st}});
}

/* A deadline's status so far names the late rank only by its number. */
static void name_late_rank(const struct comm *c, ncclsvc_status *st)
{
	if (!c || st->result != NCCLSVC_TIMEOUT || !st->missing_count)
		return;
	st->rank_b = st->missing[0];
	st->pid_b = c->members[st->rank_b].pid;
}

/* Records the task in the flight recorder when it is over. */
static inline void record(const struct scheduler *sched, const struct task *t, int result)
{
	const struct svc_record *r = &t->record;
	if (!t->comm || !t->member->recording) /* its epoch ended before its group was whole */
		return;
	const bool refused = result && t->stage == IN_GROUP; /* it has no number yet */
	recorder_put(t->member->recording, &(struct recorded){
						   .join = t->member->join,
						   .op = r->op,
						   .type = r->type,
						   .result = (int8_t)result,
						   .state = result ? NCCLSVC_FAILED : NCCLSVC_DONE,
						   .seq = refused    ? t->member->submitted
							  : r->graph ? r->graph_place
								     : t->seq,
						   .count = r->count,
						   .submitted_ns = t->submitted_ns,
						   .matched_ns = t->matched_ns,
						   .started_ns = t->started_ns,
						   .done_ns = sched->now,
						   .graph = r->graph,
						   .collective = (uint32_t)t->nth,
						   .peer = r->peer,
						   .label = r->plan ? plan_label(t) : NULL,
					   });
}

/* It has not become a task. */
static void record_refused(const struct scheduler *sched, const struct member *m,
			   const struct svc_record *r, int result)
{
	if (m->recording)
		recorder_put(m->recording, &(struct recorded){.join = m->join,
							      .op = r->op,
							      .type = r->type,
							      .result = (int8_t)result,
							      .state = NCCLSVC_FAILED,
							      .seq = m->submitted,
							      .count = r->count,
							      .submitted_ns = sched->now,
							      .done_ns = sched->now,
							      .graph = r->graph,
							      .collective = (uint32_t)m->nth,
							      .peer = -1});
}

/* Captured groups report their refusals themselves. */
static void send_refusal(struct scheduler *sched, const struct handle *h,
			 const struct svc_record *r, int result, const char *text)
{
	struct comm *c = h->comm;
	if (c->ending || result == NCCLSVC_DRAINING || r->flags & SVC_TASK_CAPTURED_GROUP ||
	    !reported_first(&c->refusals, sched->now, result))
		return;
	struct event event = {.kind = EVENT_TASK_REFUSED,
			      .refused = {.comm = c->slot,
					  .epoch = c->epoch,
					  .rank = h->rank,
					  .op = r->op,
					  .seq = c->members[h->rank].submitted,
					  .result = result}};
	snprintf(event.refused.text, sizeof(event.refused.text), "%s", text);
	supervisor_event(sched, &event);
}

/* Tells the flight recorder and the supervisor of a refused submission. */
static void note_refused(struct scheduler *sched, struct sched_session *s,
			 const struct svc_record *r, int result, const char *text)
{
	const struct handle *h = r->comm < s->nhandles ? &s->handles[r->comm] : NULL;
	if (!h || !svc_op_known(r->op))
		return;
	if (!h->comm)
		report_too_late(sched, s, r->comm, r->epoch, r->op);
	if (!h->comm || h->comm->epoch != r->epoch)
		return;
	record_refused(sched, &h->comm->members[h->rank], r, result);
	send_refusal(sched, h, r, result, text);
}

static void tell(struct scheduler *sched, struct task *t, const ncclsvc_status *how)
{
	struct sched_session *s = t->session;
	ncclsvc_status st = *how;
	name_late_rank(t->comm, &st);
	st.number = t->record.number;
	fill_times(sched, t, &st);
	if (st.result) /* first, because the process may end as soon as it knows the result */
		report(sched, t, &st);
	if (t->by_socket) {
		struct svc_submit_reply reply = {st};
		s->socket_tasks--;
		send_reply(sched, s, t->request_id, st.result, &reply, sizeof(reply));
	} else if (t->record.number) { /* otherwise a captured group keeps it */
		write_status(sched, s, t->record.number, &st);
	}
	if (st.result) {
		table_count(&sched->table.failed, 1);
		table_count(&s->counts->failed, 1);
	}
}

/* While the daemon shuts down, the failure is only its own: the next daemon gets the task again. */
static bool survives(const struct sched_session *s, int result)
{
	return result && s->left;
}

/* For tasks by socket, on a stream, or with a result other than success. */
static __attribute__((noinline)) void complete_in_full(struct scheduler *sched, struct task *t,
						       const ncclsvc_status *how)
{
	if (survives(t->session, how->result))
		return;
	tell(sched, t, how);
	if (t->record.timeline)
		timeline_ended(t, !how->result);
}

/* A task by socket is part of continuing an epoch: its client begins again. */
static __attribute__((noinline)) void hold(struct scheduler *sched, struct task *t)
{
	struct sched_session *s = t->session;
	struct svc_submit_reply reply = {.status = {.result = NCCLSVC_AGAIN}};
	sched->live--;
	if (t->by_socket) {
		s->socket_tasks--;
		table_count(&s->counts->completed, 1);
		send_reply(sched, s, t->request_id, NCCLSVC_AGAIN, &reply, sizeof(reply));
	} else if (t->record.number) {
		table_count(&s->counts->submitted, -1); /* it will be counted again */
		held_keep(s, &t->record);
	}
}

void complete_task(struct scheduler *sched, struct task *t, const ncclsvc_status *how)
{
	struct sched_session *s = t->session;
	if (how->result == EPOCH_SUSPENDED) {
		hold(sched, t);
		return;
	}
	table_count(&sched->table.completed, 1);
	table_count(&s->counts->completed, 1);
	sched->live--;
	record(sched, t, how->result);
	if (t->by_socket || t->record.timeline || how->result) {
		complete_in_full(sched, t, how);
		return;
	}
	/* Writes directly to its cache line in the ring, and reads nothing from it. */
	const uint64_t number = t->record.number;
	ncclsvc_status *slot = svc_status_slot(s->ring, s->entries, number);
	const size_t skip = sizeof(slot->number);
	memcpy((char *)slot + skip, (const char *)how + skip, SVC_HALF - skip);
	fill_times(sched, t, slot);
	publish_status(sched, s, slot, number);
}

void complete_refused(struct scheduler *sched, struct sched_session *s,
		      const struct svc_record *record, uint32_t request_id, bool by_socket,
		      const ncclsvc_status *why, const char *text)
{
	if (survives(s, why->result))
		return;
	if (why->result == EPOCH_SUSPENDED) {
		table_count(&s->counts->submitted, -1);
		held_keep(s, record);
		return;
	}
	table_count(&sched->table.failed, 1);
	table_count(&sched->table.completed, 1);
	table_count(&s->counts->failed, 1);
	table_count(&s->counts->completed, 1);
	note_refused(sched, s, record, why->result, text);
	if (by_socket) {
		struct svc_error error = {.version_min = SVC_PROTOCOL_MIN,
					  .version_max = SVC_PROTOCOL_MAX};
		snprintf(error.text, sizeof(error.text), "%s", text);
		send_reply(sched, s, request_id, why->result, &error, sizeof(error));
		return;
	}
	ncclsvc_status st = *why;
	st.submitted_ns = st.done_ns = sched->now;
	write_status(sched, s, record->number, &st);
	timeline_refused(s, record); /* even so, a stream may wait for it */
	const struct handle *h = record->comm < s->nhandles ? &s->handles[record->comm] : NULL;
	if (record->flags & SVC_TASK_CAPTURED_GROUP && h && h->comm &&
	    h->comm->transport->flags & TRANSPORT_ON_STREAMS)
		report_captured(sched, h->comm, record, h->rank, 0, &st);
}

void complete_held(struct scheduler *sched, struct sched_session *s, struct held *h,
		   const ncclsvc_status *how)
{
	const struct svc_record *record = &h->record;
	ncclsvc_status st = *how;
	st.submitted_ns = st.done_ns = sched->now;
	st.epoch = record->epoch;
	table_count(&sched->table.completed, 1);
	table_count(&s->counts->submitted, 1);
	table_count(&s->counts->completed, 1);
	if (st.result) {
		table_count(&sched->table.failed, 1);
		table_count(&s->counts->failed, 1);
	}
	write_status(sched, s, record->number, &st);
	timeline_refused(s, record);
	held_free(s, h);
}

void complete_drop_held(struct scheduler *sched, struct sched_session *s, uint32_t handle)
{
	struct held *h, *next;
	if (handle >= s->nhandles)
		return;
	const ncclsvc_status end = s->handles[handle].end.result ? s->handles[handle].end
								 : status_of(NCCLSVC_CANCELLED);
	HASH_ITER (hh, s->held, h, next)
		if (h->record.comm == handle)
			complete_held(sched, s, h, &end);
	s->handles[handle].suspended = false;
}

/* The caller's fence is between the statuses and this check, as the client's is between its request
 * for a wake-up and its last check of the status: so one of the two sees the other. */
static void wake(struct sched_session *s)
{
	struct svc_ring *ring = s->ring;
	if (atomic_load_explicit(&ring->waiters, memory_order_relaxed)) {
		atomic_fetch_add(&ring->wake, 1);
		syscall(SYS_futex, &ring->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
	if (atomic_load_explicit(&ring->armed, memory_order_relaxed) &&
	    atomic_exchange(&ring->armed, 0)) {
		ssize_t n = send(s->completion, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		(void)n; /* if the buffer is full, the client's end is readable anyway */
	}
}

void complete_flush(struct scheduler *sched)
{
	/* A single fence for all, which waits until the statuses are visible. */
	if (sched->dirty)
		atomic_thread_fence(memory_order_seq_cst);
	while (sched->dirty) {
		struct sched_session *s = sched->dirty;
		sched->dirty = s->next_dirty;
		s->dirty = false;
		wake(s);
	}
}
