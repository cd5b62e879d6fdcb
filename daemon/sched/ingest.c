/* SPDX-License-Identifier: Apache-2.0
 * Turns clients' records into tasks. A record is copied once, and only the copy is trusted, after
 * every field has been checked. */
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "ingest.h"
#include "proto/names.h"
#include "proto/task.h"
#include "sched/base/held.h"
#include "sched/base/status.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/queue/captured_groups.h"
#include "sched/queue/complete.h"
#include "sched/queue/order.h"
#include "sched/queue/plan_slots.h"
#include "sched/queue/planned_tasks.h"

/* Records taken from one ring before other rings get their turn. */
#define BATCH		  64
#define RECORDS_PER_CLOCK 8

/* A client may submit before the scheduler has run the command that created its communicator,
 * region or plan. That command is queued by then, so a record that names an unknown object waits
 * once, in its ring, for all queued commands. (Records that come by socket are in the queue
 * themselves.)
 */
static bool wait_for_commands(struct scheduler *sched, const struct task *t)
{
	struct sched_session *s = t->session;
	if (t->by_socket || s->waited == t->record.number)
		return false;
	s->waited = t->record.number;
	s->after = atomic_load(&sched->commands_queued);
	return s->after > sched->commands_run;
}

static const struct handle *find_comm(const struct sched_session *s, const struct task *t,
				      int *result, const ncclsvc_status **end, const char **text)
{
	const struct svc_record *r = &t->record;
	const struct handle *h = r->comm < s->nhandles ? &s->handles[r->comm] : NULL;
	if (h && h->comm && h->comm->epoch == r->epoch)
		return h;
	*text = "the communicator's epoch is over: rejoin it";
	if (!h || !h->known) {
		*result = NCCLSVC_NOT_FOUND;
		*text = "no such communicator in this session";
	} else if (h->suspended && h->ended == r->epoch) { /* a task by socket, see check */
		*result = NCCLSVC_AGAIN;
		*text = "the epoch is suspended";
	} else if (h->end.result && h->ended == r->epoch) {
		*result = h->end.result;
		*end = &h->end;
	} else {
		*result = NCCLSVC_STALE_EPOCH;
	}
	return NULL;
}

/* An epoch without an NCCL communicator accepts memory that no worker has imported, since its tasks
 * wait for the workers anyway. */
static bool is_there(const struct region *g, const struct comm *c)
{
	return g->base && (!g->absent || c->comm_slot == EPOCH_WITHOUT_NCCL);
}

static bool locate(const struct task *t, const struct comm *c, uint32_t *region, uint64_t offset,
		   uint64_t bytes, char **at)
{
	static char nowhere[1];
	const struct sched_session *s = t->session;
	*at = nowhere;
	if (!bytes) {
		*region = 0; /* an unused region is not pinned */
		return true;
	}
	if (!*region || *region >= s->nregions)
		return false;
	const struct region *g = &s->regions[*region];
	if (!is_there(g, c) || g->device != t->member->device || offset > g->bytes ||
	    bytes > g->bytes - offset)
		return false;
	*at = g->base + offset;
	return true;
}

/* Where source and destination may overlap: nowhere, or exactly as the operation works in place. */
static bool overlap_allowed(const struct task *t, uint64_t src_bytes, uint64_t dst_bytes)
{
	const struct svc_record *r = &t->record;
	if (!src_bytes || !dst_bytes || t->src + src_bytes <= t->dst ||
	    t->dst + dst_bytes <= t->src)
		return true;
	return svc_task_in_place(r, (uint32_t)t->rank, (uintptr_t)t->src, (uintptr_t)t->dst);
}

/* Checks that few records can fail. */
static __attribute__((noinline)) int check_more(struct scheduler *sched, const struct task *t,
						const struct comm *c, uint64_t src_bytes,
						uint64_t dst_bytes, const char **text)
{
	const struct svc_record *r = &t->record;
	int result;
	if (!overlap_allowed(t, src_bytes, dst_bytes)) {
		*text = "source and destination overlap, but not as for an in-place operation";
		return NCCLSVC_INVALID_ARGUMENT;
	}
	const bool limited =
		svc_op_reduces(r->op) && !(c->transport->flags & TRANSPORT_REDUCES_ALL);
	const bool on_gpu = t->member->device >= 0;
	if (limited && svc_redop_made(r->redop)) {
		*text = on_gpu ? "premulsum needs NCCL, but this daemon's transport is mpi"
			       : "premulsum needs a communicator of GPUs";
		return NCCLSVC_UNSUPPORTED;
	}
	if (limited && r->type >= NCCLSVC_FLOAT8E4M3) {
		*text = on_gpu ? "reducing float8 needs NCCL, but this daemon's transport is mpi"
			       : "float8 is reduced on GPUs only";
		return NCCLSVC_UNSUPPORTED;
	}
	if (r->timeline && !t->session->ring) {
		*text = "timelines need an attached ring";
		return NCCLSVC_INVALID_ARGUMENT;
	}
	if (r->flags & SVC_TASK_CAPTURED_GROUP && !(c->transport->flags & TRANSPORT_ON_STREAMS)) {
		*text = on_gpu ? "streams can only start tasks with NCCL, but this daemon's "
				 "transport is mpi"
			       : "streams can only start tasks on communicators of GPUs";
		return NCCLSVC_UNSUPPORTED;
	}
	if (r->plan && (result = plan_check(t, c, text)))
		return result;
	/* While draining, only tasks that other tasks already wait for are accepted. */
	if (sched->draining && !c->pending) {
		*text = "the daemon is shutting down";
		return NCCLSVC_DRAINING;
	}
	return NCCLSVC_OK;
}

/* Asks once, and before the task is matched, so that the workers also know the timeline that its
 * stream waits for. */
static __attribute__((noinline)) void want_nccl(struct scheduler *sched, struct comm *c)
{
	if (c->nccl_wanted || c->ending || c->ended)
		return;
	c->nccl_wanted = true;
	supervisor_event(sched, &(struct event){.kind = EVENT_NCCL_WANTED,
						.nccl = {.comm = c->slot, .epoch = c->epoch}});
}

/* *end: how the epoch ended, if the task is too late for it. */
static int check(struct scheduler *sched, struct sched_session *s, struct task *t,
		 const ncclsvc_status **end, const char **text)
{
	static char sentence[SVC_TEXT_BYTES];
	uint64_t src_bytes, dst_bytes;
	int result;
	struct svc_record *r = &t->record;
	if (held_waits(s, r) && !s->taking_held && !t->by_socket)
		return EPOCH_SUSPENDED;
	const struct handle *h = find_comm(s, t, &result, end, text);
	if (!h)
		return result;
	struct comm *c = h->comm;
	t->rank = h->rank;
	t->member = &c->members[t->rank];
	const int32_t device = t->member->device;
	if (c->shared_gpu) {
		*text = "two ranks of this communicator use one GPU; this operation needs NCCL, "
			"which takes one rank per GPU: give each rank its own GPU";
		return NCCLSVC_UNSUPPORTED;
	}
	if ((t->by_socket && (result = svc_record_check_half(r, sentence))) ||
	    (result =
		     svc_record_measure(r, c->nranks, t->rank, &src_bytes, &dst_bytes, sentence))) {
		*text = sentence;
		return result;
	}
	const bool src_there = locate(t, c, &r->src_region, r->src_offset, src_bytes, &t->src);
	if (!src_there || !locate(t, c, &r->dst_region, r->dst_offset, dst_bytes, &t->dst)) {
		/* A region may be gone with its GPU's worker before the epoch has ended on other
		 * nodes. */
		if (c->ending) {
			*end = &c->end;
			return c->end.result;
		}
		*text = src_there ? "the destination is not within a region of this session on the "
				    "communicator's device"
				  : "the source is not within a region of this session on the "
				    "communicator's device";
		return NCCLSVC_INVALID_ARGUMENT;
	}
	t->simple = svc_op_is_p2p(r->op) && !(r->flags & SVC_TASK_SECOND_HALF) && !t->by_socket &&
		    device < 0;
	/* It has one buffer, and nothing else to check. */
	if (!t->simple || sched->draining) {
		result = check_more(sched, t, c, src_bytes, dst_bytes, text);
		if (result)
			return result;
	}
	t->comm = c;
	if (c->comm_slot == EPOCH_WITHOUT_NCCL)
		want_nccl(sched, c);
	return NCCLSVC_OK;
}

/* Refuses the group as a whole, for the reason of its first bad record. */
static void refuse_group(struct scheduler *sched, struct sched_session *s,
			 const ncclsvc_status *why)
{
	struct task *t, *next;
	DL_FOREACH_SAFE (s->group, t, next) {
		DL_DELETE(s->group, t);
		complete_task(sched, t, why);
		task_free(sched, t);
	}
	s->group_tasks = 0;
	s->group_end.result = NCCLSVC_OK;
}

void ingest_drop_group(struct scheduler *sched, struct sched_session *s)
{
	ncclsvc_status st = status_of(NCCLSVC_CANCELLED);
	refuse_group(sched, s, &st);
}

static void close_group(struct scheduler *sched, struct sched_session *s)
{
	struct task *first = s->group;
	const uint32_t n = s->group_tasks;
	const bool captured = first->record.flags & SVC_TASK_CAPTURED_GROUP;
	if (!s->group_end.result && captured)
		s->group_end = status_of(captured_group_hold(sched, first, n));
	if (s->group_end.result) {
		refuse_group(sched, s, &s->group_end);
		return;
	}
	s->group = NULL;
	s->group_tasks = 0;
	if (!captured)
		order_group(sched, first, n);
}

/* Why the session may have no more tasks; NULL: it may. */
static inline const char *too_many(const struct sched_session *s, bool by_socket)
{
	if (s->group_tasks >= SVC_GROUP_TASKS)
		return "the task group is too large";
	if (by_socket && s->socket_tasks >= SVC_SOCKET_TASKS)
		return "too many tasks are pending by socket";
	if (s->tasks >= 2 * (s->entries + SVC_SOCKET_TASKS))
		return "too many tasks that ended early wait for their peers";
	return NULL;
}

static inline struct task *admit(struct scheduler *sched, struct sched_session *s, bool by_socket)
{
	return too_many(s, by_socket) ? NULL : task_alloc(sched, s);
}

/* Refuses its group with it. t is NULL if it was not even admitted. */
static void refuse(struct scheduler *sched, struct sched_session *s, struct task *t,
		   const struct svc_record *record, uint32_t request_id, bool by_socket,
		   const ncclsvc_status *why, const char *text)
{
	bool more = record->flags & SVC_TASK_MORE;
	complete_refused(sched, s, record, request_id, by_socket, why, text);
	if (t)
		task_free(sched, t);
	if ((more || s->group) && !s->group_end.result)
		s->group_end = *why;
	if (!more)
		refuse_group(sched, s, &s->group_end);
}

static __attribute__((noinline)) void refuse_unadmitted(struct scheduler *sched,
							struct sched_session *s,
							const struct svc_record *record,
							uint32_t request_id, bool by_socket)
{
	char sentence[SVC_TEXT_BYTES];
	ncclsvc_status why = status_of(NCCLSVC_LIMIT);
	const char *text = too_many(s, by_socket);
	table_count(&s->counts->submitted, 1);
	if (!text) {
		why = task_no_room(sched, s);
		text = svc_status_reason(&why, sentence, sizeof(sentence));
	}
	refuse(sched, s, NULL, record, request_id, by_socket, &why, text);
}

static bool is_kept(const struct task *t)
{
	return t->by_socket && t->record.flags & SVC_TASK_CAPTURED_GROUP;
}

/* It is not part of an open group. */
static void refuse_kept(struct scheduler *sched, struct sched_session *s, struct task *t,
			const ncclsvc_status *why, const char *text)
{
	complete_refused(sched, s, &t->record, t->request_id, true, why, text);
	task_free(sched, t);
}

static void keep(struct scheduler *sched, struct sched_session *s, struct task *t)
{
	const char *text;
	const int result = captured_group_keep(sched, t, &text);
	if (!result)
		return;
	const ncclsvc_status why = status_of(result);
	sched->live--;
	s->socket_tasks--;
	refuse_kept(sched, s, t, &why, text);
}

/* t->record is a copy. False: it waits for commands, as if it had not been read. */
static bool take(struct scheduler *sched, struct sched_session *s, struct task *t)
{
	const char *text = "";
	const ncclsvc_status *end = NULL;
	int result = check(sched, s, t, &end, &text);
	if (result && wait_for_commands(sched, t)) {
		task_free(sched, t);
		return false;
	}
	table_count(&s->counts->submitted, 1);
	if (result) {
		ncclsvc_status why = end ? *end : status_of(result);
		s->socket_tasks -= t->by_socket;
		if (is_kept(t))
			refuse_kept(sched, s, t, &why, text);
		else
			refuse(sched, s, t, &t->record, t->request_id, t->by_socket, &why, text);
		return true;
	}
	sched->live++;
	if (is_kept(t)) {
		keep(sched, s, t);
		return true;
	}
	if (t->record.plan) {
		plan_hold(sched, t);
		return true;
	}
	if (s->group && (s->group->record.flags ^ t->record.flags) & SVC_TASK_CAPTURED_GROUP &&
	    !s->group_end.result)
		s->group_end = status_of(NCCLSVC_INVALID_ARGUMENT);
	DL_APPEND(s->group, t);
	s->group_tasks++;
	if (!(t->record.flags & SVC_TASK_MORE))
		close_group(sched, s);
	return true;
}

/* From a ring, with a valid number. */
static void read_record(struct svc_record *record, const struct svc_record *slot, uint64_t number)
{
	memcpy(record, slot, SVC_HALF);
	record->number = number;
	/* Uses the copy's flags, since the slot's may change meanwhile. */
	if (record->flags & SVC_TASK_SECOND_HALF)
		memcpy((char *)record + SVC_HALF, (const char *)slot + SVC_HALF, SVC_HALF);
	else
		memset((char *)record + SVC_HALF, 0, SVC_HALF);
}

/* False: it must be taken later. */
static inline bool take_slot(struct scheduler *sched, struct sched_session *s,
			     const struct svc_record *slot, uint64_t number)
{
	struct task *t = admit(sched, s, false);
	if (!t) {
		struct svc_record record;
		read_record(&record, slot, number);
		refuse_unadmitted(sched, s, &record, 0, false);
		return true;
	}
	read_record(&t->record, slot, number);
	t->request_id = 0;
	return take(sched, s, t);
}

/* Neither the number of the next record nor of the slot's previous one. */
static void break_ring(struct scheduler *sched, struct sched_session *s, uint64_t number)
{
	complete_break_session(sched, s, NCCLSVC_PROTOCOL,
			       number == s->next
				       ? "a ring slot was reused before its task had ended"
				       : "a record in the ring has an invalid number");
}

uint32_t ingest_ring(struct scheduler *sched, struct sched_session *s)
{
	const uint32_t entries = s->entries;
	const uint64_t enough = sched->steps + STEP_SLICE;
	uint32_t taken = 0;
	if (s->after > sched->commands_run || s->left)
		return 0;
	/* In a group, prefetches the second record with the first. */
	__builtin_prefetch(svc_record_slot(s->ring, entries, s->next + 1));
	for (; taken < BATCH && sched->steps < enough && !s->broken; taken++) {
		const uint64_t next = s->next;
		const struct svc_record *slot = svc_record_slot(s->ring, entries, next);
		uint8_t *busy = &s->busy[next & (entries - 1)];
		uint64_t number = svc_number_load(&slot->number);
		if (number != next) {
			if (number != svc_number_before(entries, next))
				break_ring(sched, s, number);
			break;
		}
		if (*busy) {
			break_ring(sched, s, number);
			break;
		}
		/* Records use the round's time; after many records the clock is read again. */
		if (taken % RECORDS_PER_CLOCK == RECORDS_PER_CLOCK - 1)
			sched->now = clock_now();
		*busy = 1;
		s->next = next + 1;
		__builtin_prefetch(svc_record_slot(s->ring, entries, next + 2));
		if (!take_slot(sched, s, slot, number)) {
			*busy = 0;
			s->next = next;
			break;
		}
	}
	sched->steps += taken * STEP_RECORD;
	if (taken)
		s->active_ns = sched->now;
	return taken;
}

/* ---- Tasks of suspended epochs ---- */

static bool may_take(const struct sched_session *s, const struct held *h)
{
	return h->record.comm < s->nhandles && !s->handles[h->record.comm].suspended;
}

static void take_held(struct scheduler *sched, struct sched_session *s, struct held *h)
{
	const struct held *next = h->hh.next;
	struct svc_record record = h->record;
	const struct comm *c = s->handles[record.comm].comm;
	if (!next || next->record.number != record.number + 1 || !may_take(s, next))
		record.flags &= (uint8_t)~SVC_TASK_MORE;
	record.epoch = c ? c->epoch : record.epoch;
	held_free(s, h);
	struct task *t = admit(sched, s, false);
	if (!t) {
		refuse_unadmitted(sched, s, &record, 0, false);
		return;
	}
	t->record = record;
	t->request_id = 0;
	take(sched, s, t);
}

bool ingest_held(struct scheduler *sched, struct sched_session *s)
{
	/* The ring's next group is not whole yet. */
	struct task *group = s->group;
	const uint32_t group_tasks = s->group_tasks;
	const ncclsvc_status group_end = s->group_end;
	const uint64_t enough = sched->steps + STEP_SLICE;
	struct held *h, *next;
	s->group = NULL;
	s->group_tasks = 0;
	s->group_end.result = NCCLSVC_OK;
	for (uint32_t i = 0; i < s->nhandles; i++)
		s->handles[i].suspended &= !s->handles[i].comm;
	s->taking_held = true;
	held_sort(s);
	HASH_ITER (hh, s->held, h, next) {
		if (sched->steps >= enough && !s->group)
			break;
		if (!may_take(s, h))
			continue;
		take_held(sched, s, h);
		sched->steps += STEP_RECORD;
	}
	s->taking_held = false;
	s->group = group;
	s->group_tasks = group_tasks;
	s->group_end = group_end;
	return !h;
}

void ingest_socket(struct scheduler *sched, struct sched_session *s, uint32_t request_id,
		   const struct svc_record *record)
{
	struct task *t = admit(sched, s, true);
	if (!t) {
		refuse_unadmitted(sched, s, record, request_id, true);
		return;
	}
	t->record = *record;
	t->request_id = request_id;
	t->by_socket = true;
	s->socket_tasks++;
	take(sched, s, t);
}
