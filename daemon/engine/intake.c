/* SPDX-License-Identifier: Apache-2.0
 * From a client's record to a task. A record is copied once and only the copy is trusted, after
 * every field has been checked. */
#include <string.h>
#include <utlist.h>

#include "names.h"
#include "state.h"
#include "task.h"

/* Records taken from one ring before the others get their turn. */
#define BATCH		  64
#define RECORDS_PER_CLOCK 8

/* Finds the communicator of a record. A client may submit before the engine has seen the command
 * that made its communicator; the command is in the queue by then. (What comes by socket is in it
 * itself.) */
static const struct handle *find_comm(struct engine *e, const struct session *s,
				      const struct task *t, int *result, const ncclsvc_status **end,
				      const char **text)
{
	const struct svc_record *r = &t->record;
	const struct handle *h = NULL;
	for (int tries = 0; tries < 2; tries++) {
		h = r->comm < s->nhandles ? &s->handles[r->comm] : NULL;
		if (h && h->comm && h->comm->epoch == r->epoch)
			return h;
		if (tries == 0 && !t->by_socket)
			engine_run_commands(e);
	}
	*text = "the communicator's epoch is over: rejoin it";
	if (!h || !h->known) {
		*result = NCCLSVC_NOT_FOUND;
		*text = "no such communicator in this session";
	} else if (h->end.result && h->ended == r->epoch) {
		*result = h->end.result;
		*end = &h->end;
	} else {
		*result = NCCLSVC_STALE_EPOCH;
	}
	return NULL;
}

/* As find_comm: the command that made the region may still be in the queue. */
static struct region *find_region(struct engine *e, struct task *t, uint32_t region)
{
	struct session *s = t->session;
	for (int tries = 0; tries < 2; tries++) {
		if (region && region < s->nregions && s->regions[region].base)
			return &s->regions[region];
		if (tries == 0 && !t->by_socket)
			engine_run_commands(e);
	}
	return NULL;
}

static bool locate(struct engine *e, struct task *t, int32_t device, uint32_t *region,
		   uint64_t offset, uint64_t bytes, char **at)
{
	static char nowhere[1];
	*at = nowhere;
	if (!bytes) {
		*region = 0; /* what is not used is not held */
		return true;
	}
	const struct region *g = find_region(e, t, *region);
	if (!g || g->device != device || offset > g->bytes || bytes > g->bytes - offset)
		return false;
	*at = g->base + offset;
	return true;
}

/* Where source and destination may meet: nowhere, or exactly as the operation works in place. */
static bool overlap_allowed(const struct task *t, uint64_t src_bytes, uint64_t dst_bytes)
{
	const struct svc_record *r = &t->record;
	if (!src_bytes || !dst_bytes || t->src + src_bytes <= t->dst ||
	    t->dst + dst_bytes <= t->src)
		return true;
	uint64_t own = (uint64_t)t->rank * r->count * svc_type_size(r->type);
	switch (r->op) {
	case NCCLSVC_ALL_GATHER:
	case NCCLSVC_GATHER:
		return t->src == t->dst + own;
	case NCCLSVC_REDUCE_SCATTER:
	case NCCLSVC_SCATTER:
		return t->dst == t->src + own;
	}
	return t->src == t->dst;
}

/* Another communicator may have got the same handle meanwhile, and the same memory. */
static bool is_still(const struct task *t, const struct comm *c, uint64_t uid)
{
	const struct handle *h = &t->session->handles[t->record.comm];
	return h->comm == c && c->uid == uid && c->epoch == t->record.epoch && h->rank == t->rank;
}

/* Afterwards, no more commands are run for the record. */
static bool epoch_runs(struct engine *e, const struct task *t, const struct comm *c, uint64_t uid)
{
	/* The command that brought its plan may still be in the queue. */
	if (t->record.plan && !t->by_socket && is_still(t, c, uid) && !plan_known(t, c))
		engine_run_commands(e);
	return is_still(t, c, uid);
}

/* A region may be gone with its GPU's worker, and the epoch, on other nodes, not yet. */
static bool is_ending(struct engine *e, const struct task *t, const struct comm *c, uint64_t uid,
		      const ncclsvc_status **end)
{
	if (!epoch_runs(e, t, c, uid) || !c->ending)
		return false;
	*end = &c->end;
	return true;
}

/* What few records can do wrong. */
static __attribute__((noinline)) int check_more(struct engine *e, const struct task *t,
						const struct comm *c, uint64_t src_bytes,
						uint64_t dst_bytes, const char **text)
{
	const struct svc_record *r = &t->record;
	int result;
	if (!overlap_allowed(t, src_bytes, dst_bytes)) {
		*text = "source and destination overlap, and not as the operation works in place";
		return NCCLSVC_INVALID_ARGUMENT;
	}
	if (c->cuda && r->op == NCCLSVC_ALL_TO_ALL && src_bytes && t->src == t->dst) {
		*text = "NCCL does not do AllToAll in place";
		return NCCLSVC_UNSUPPORTED;
	}
	if (!c->cuda && svc_op_reduces(r->op) && svc_redop_made(r->redop)) {
		*text = c->staged ? "premulsum is made by NCCL, and this daemon's transport is mpi"
				  : "premulsum is made on communicators of GPUs only";
		return NCCLSVC_UNSUPPORTED;
	}
	if (!c->cuda && r->type >= NCCLSVC_FLOAT8E4M3 && svc_op_reduces(r->op)) {
		*text = c->staged ? "float8 is reduced by NCCL, and this daemon's transport is mpi"
				  : "float8 is reduced on GPUs only";
		return NCCLSVC_UNSUPPORTED;
	}
	if (r->timeline && !t->session->ring) {
		*text = "timelines need an attached ring";
		return NCCLSVC_INVALID_ARGUMENT;
	}
	if (r->plan && (result = plan_check(t, c, text)))
		return result;
	/* While draining, only tasks that others already wait for are let in. */
	if (e->draining && !c->pending) {
		*text = "the daemon is shutting down";
		return NCCLSVC_DRAINING;
	}
	return NCCLSVC_OK;
}

/* *end: how the epoch ended that it is too late for, if it is that. */
static int check(struct engine *e, struct session *s, struct task *t, const ncclsvc_status **end,
		 const char **text)
{
	static char sentence[SVC_TEXT_BYTES];
	uint64_t src_bytes, dst_bytes;
	int result;
	struct svc_record *r = &t->record;
	const struct handle *h = find_comm(e, s, t, &result, end, text);
	if (!h)
		return result;
	struct comm *c = h->comm;
	const uint64_t uid = c->uid;
	t->rank = h->rank;
	t->member = &c->members[t->rank];
	const int32_t device = t->member->device;
	if ((t->by_socket && (result = svc_record_check_half(r, sentence))) ||
	    (result =
		     svc_record_measure(r, c->nranks, t->rank, &src_bytes, &dst_bytes, sentence))) {
		*text = sentence;
		return result;
	}
	if (!locate(e, t, device, &r->src_region, r->src_offset, src_bytes, &t->src)) {
		if (is_ending(e, t, c, uid, end))
			return c->end.result;
		*text = "the source does not lie within a region of this session on the "
			"communicator's device";
		return NCCLSVC_INVALID_ARGUMENT;
	}
	if (!locate(e, t, device, &r->dst_region, r->dst_offset, dst_bytes, &t->dst)) {
		if (is_ending(e, t, c, uid, end))
			return c->end.result;
		*text = "the destination does not lie within a region of this session on the "
			"communicator's device";
		return NCCLSVC_INVALID_ARGUMENT;
	}
	/* Commands that were run for a region or a plan may have ended the epoch. */
	if (!epoch_runs(e, t, c, uid)) {
		*text = "the communicator's epoch is over: rejoin it";
		return NCCLSVC_STALE_EPOCH;
	}
	t->simple = svc_op_is_p2p(r->op) && !(r->flags & SVC_TASK_SECOND_HALF) && !t->by_socket &&
		    device < 0;
	/* It has one buffer, and nothing else that could be wrong. */
	if (!t->simple || e->draining) {
		result = check_more(e, t, c, src_bytes, dst_bytes, text);
		if (result)
			return result;
	}
	t->comm = c;
	return NCCLSVC_OK;
}

/* The group is refused as a whole, for the reason of its first bad record. */
static void refuse_group(struct engine *e, struct session *s, const ncclsvc_status *why)
{
	struct task *t, *next;
	DL_FOREACH_SAFE (s->group, t, next) {
		DL_DELETE(s->group, t);
		complete_task(e, t, why);
		task_free(e, t);
	}
	s->group_tasks = 0;
	s->group_end.result = NCCLSVC_OK;
}

void intake_drop_group(struct engine *e, struct session *s)
{
	ncclsvc_status st = status_of(NCCLSVC_CANCELLED);
	refuse_group(e, s, &st);
}

static void close_group(struct engine *e, struct session *s)
{
	struct task *first = s->group;
	uint32_t n = s->group_tasks;
	if (s->group_end.result) {
		refuse_group(e, s, &s->group_end);
		return;
	}
	uint32_t id = n > 1 ? ++e->groups : 0;
	bool straight = true;
	struct task *t;
	DL_FOREACH (first, t) {
		t->group = id;
		straight = straight && t->simple && t->member == first->member;
	}
	if (n > 1 && e->cuda)
		device_link_group(first);
	s->group = NULL;
	s->group_tasks = 0;
	if (straight && straight_may(first))
		straight_post(e, first, n);
	else
		order_enqueue(e, first, n);
}

/* NULL, and why, if there are too many. */
static struct task *admit(struct engine *e, struct session *s, bool by_socket, const char **text)
{
	struct task *t = NULL;
	if (s->group_tasks >= SVC_GROUP_TASKS)
		*text = "the task group is too large";
	else if (by_socket && s->socket_tasks >= SVC_SOCKET_TASKS)
		*text = "too many tasks are pending by socket";
	else if (s->tasks >= 2 * (s->entries + SVC_SOCKET_TASKS))
		*text = "too many tasks that ended early wait for their peers";
	else if (!(t = task_alloc(e, s)))
		*text = "the daemon's task table is full (tasks_max)";
	return t;
}

/* With it goes the group that it belongs to. t is NULL if it was not even admitted. */
static void refuse(struct engine *e, struct session *s, struct task *t,
		   const struct svc_record *record, uint32_t serial, bool by_socket,
		   const ncclsvc_status *why, const char *text)
{
	bool more = record->flags & SVC_TASK_MORE;
	complete_refused(e, s, record, serial, by_socket, why, text);
	if (t)
		task_free(e, t);
	if ((more || s->group) && !s->group_end.result)
		s->group_end = *why;
	if (!more)
		refuse_group(e, s, &s->group_end);
}

static void refuse_unadmitted(struct engine *e, struct session *s, const struct svc_record *record,
			      uint32_t serial, bool by_socket, const char *text)
{
	ncclsvc_status why = status_of(NCCLSVC_LIMIT);
	refuse(e, s, NULL, record, serial, by_socket, &why, text);
}

/* t->record is a copy. */
static void take(struct engine *e, struct session *s, struct task *t)
{
	const char *text = "";
	const ncclsvc_status *end = NULL;
	/* Commands that run meanwhile must see that it is there. */
	e->live++;
	int result = check(e, s, t, &end, &text);
	if (!result && s->leaving) /* nobody would close its group */
		result = NCCLSVC_CANCELLED;
	if (result) {
		ncclsvc_status why = end ? *end : status_of(result);
		e->live--;
		s->socket_tasks -= t->by_socket;
		refuse(e, s, t, &t->record, t->serial, t->by_socket, &why, text);
		return;
	}
	if (t->record.plan) {
		plan_hold(e, t);
		return;
	}
	DL_APPEND(s->group, t);
	s->group_tasks++;
	if (!(t->record.flags & SVC_TASK_MORE))
		close_group(e, s);
}

/* From a ring, whose number has been looked at. */
static void read_record(struct svc_record *record, const struct svc_record *slot, uint64_t number)
{
	memcpy(record, slot, SVC_HALF);
	record->number = number;
	/* The copy's flags: the slot's may change meanwhile. */
	if (record->flags & SVC_TASK_SECOND_HALF)
		memcpy((char *)record + SVC_HALF, (const char *)slot + SVC_HALF, SVC_HALF);
	else
		memset((char *)record + SVC_HALF, 0, SVC_HALF);
}

static void take_slot(struct engine *e, struct session *s, const struct svc_record *slot,
		      uint64_t number)
{
	const char *text;
	table_count(&s->counts->submitted, 1);
	struct task *t = admit(e, s, false, &text);
	if (!t) {
		struct svc_record record;
		read_record(&record, slot, number);
		refuse_unadmitted(e, s, &record, 0, false, text);
		return;
	}
	read_record(&t->record, slot, number);
	t->serial = 0;
	take(e, s, t);
}

/* Neither the next record nor the slot's last one. */
static void break_ring(struct engine *e, struct session *s, uint64_t number)
{
	complete_break_session(e, s, NCCLSVC_PROTOCOL,
			       number == s->next
				       ? "a ring slot was used again before its task had ended"
				       : "a record in the ring has a number that cannot be");
}

bool intake_ring(struct engine *e, struct session *s)
{
	const uint32_t entries = s->entries;
	int taken = 0;
	/* Of a group, the second record is on its way with the first. */
	__builtin_prefetch(svc_record_slot(s->ring, entries, s->next + 1));
	for (; taken < BATCH && !s->broken; taken++) {
		const uint64_t next = s->next;
		const struct svc_record *slot = svc_record_slot(s->ring, entries, next);
		uint8_t *busy = &s->busy[next & (entries - 1)];
		uint64_t number = svc_number_load(&slot->number);
		if (number != next) {
			if (number != (next > entries ? next - entries : 0))
				break_ring(e, s, number);
			break;
		}
		if (*busy) {
			break_ring(e, s, number);
			break;
		}
		/* The time is the round's, but for those that come behind many others. */
		if (taken % RECORDS_PER_CLOCK == RECORDS_PER_CLOCK - 1)
			e->now = engine_clock();
		*busy = 1;
		s->next = next + 1;
		__builtin_prefetch(svc_record_slot(s->ring, entries, next + 2));
		take_slot(e, s, slot, number);
	}
	if (taken)
		s->active_ns = e->now;
	return taken > 0;
}

void intake_all(struct engine *e, struct session *s)
{
	for (uint32_t taken = 0; s->ring && taken < s->entries; taken += BATCH)
		if (!intake_ring(e, s))
			return;
}

void intake_socket(struct engine *e, struct session *s, uint32_t serial,
		   const struct svc_record *record)
{
	const char *text;
	table_count(&s->counts->submitted, 1);
	struct task *t = admit(e, s, true, &text);
	if (!t) {
		refuse_unadmitted(e, s, record, serial, true, text);
		return;
	}
	t->record = *record;
	t->serial = serial;
	t->by_socket = true;
	s->socket_tasks++;
	take(e, s, t);
}
