/* SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadline_clock.h"
#include "base/session_memory.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "core/session_socket.h"
#include "cuda/session_gpu.h"
#include "proto/operation.h"

#define COMPARE_LOOK_MS 100

#define DAMAGED                                                                                    \
	"the daemon was killed while it worked in place on this operation's buffer, whose "        \
	"content is now undefined"

#define MISSED                                                                                     \
	"this operation had completed only on other nodes when a daemon or the connection to it "  \
	"was lost"

struct slot *carried_slot(const ncclsvc_session *s, const struct carried *c)
{
	struct slot *slot = task_slot(&s->tasks, c->task);
	return slot->number == c->task && slot->state == SLOT_PENDING ? slot : NULL;
}

/* The first message of each rank: how many lines its history has, whether it cannot continue, its
 * plan in force, how many plans it has committed, and whether it is committing another, and its
 * node's lowest rank. */
struct summary {
	uint64_t lines, spoilt, plan, plan_rests, plans, commits;
	int64_t node;
};

static uint16_t order_of(const struct carried *c, const struct slot *slot)
{
	const bool send = slot->op == NCCLSVC_SEND;
	if (slot->to < 0)
		return HISTORY_COLLECTIVES;
	if (c->record.plan)
		return send ? HISTORY_PLANNED_SENDS : HISTORY_PLANNED_RECVS;
	return send ? HISTORY_SENDS : HISTORY_RECVS;
}

/* The link to the SPLIT of this communicator that waits for an answer; NULL: there is none. */
static struct call **waiting_split(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	for (struct call **at = &s->calls; *at; at = &(*at)->next) {
		struct svc_split request;
		memcpy(&request, (*at)->request, sizeof(request));
		if ((*at)->opcode == SVC_SPLIT && request.comm == comm->handle)
			return at;
	}
	return NULL;
}

static bool waiting_commit(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	for (const struct call *c = s->calls; c; c = c->next) {
		struct svc_plan_commit request;
		memcpy(&request, c->request, sizeof(request));
		if (c->opcode == SVC_PLAN_COMMIT && request.comm == comm->handle)
			return true;
	}
	return false;
}

static bool add_splits(ncclsvc_session *s, const ncclsvc_comm *comm, struct history *h)
{
	const bool waits = waiting_split(s, comm);
	struct history_line line = {.order = HISTORY_SPLITS, .kind = HISTORY_SUBMITTED, .peer = -1};
	line.to = comm->splits + waits;
	if (!history_add(h, &line))
		return false;
	line.kind = HISTORY_PENDING;
	line.from = comm->splits;
	return !waits || history_add(h, &line);
}

static bool add_submitted(const ncclsvc_comm *comm, struct history *h)
{
	bool good = history_add(h, &(struct history_line){.order = HISTORY_COLLECTIVES,
							  .kind = HISTORY_SUBMITTED,
							  .peer = -1,
							  .to = comm->order});
	for (int k = 0; good && k < 4 * comm->nranks; k++) {
		const bool planned = k >= 2 * comm->nranks;
		const int first = planned ? HISTORY_PLANNED_SENDS : HISTORY_SENDS;
		if (comm->messages[k])
			good = history_add(
				h, &(struct history_line){.order = (uint16_t)(first + k % 2),
							  .kind = HISTORY_SUBMITTED,
							  .peer = k / 2 % comm->nranks,
							  .to = comm->messages[k]});
	}
	for (size_t i = 0; good && i < comm->ndamaged; i++)
		good = history_add(h, &(struct history_line){.kind = HISTORY_DAMAGED,
							     .peer = -1,
							     .from = comm->damaged[i]});
	return good;
}

static bool add_pending(const ncclsvc_session *s, const ncclsvc_comm *comm, struct history *h)
{
	bool good = true;
	for (size_t i = 0; good && i < s->ncarried; i++) {
		const struct slot *slot = carried_slot(s, &s->carried[i]);
		if (!slot || slot->comm_key != comm->key)
			continue;
		struct history_line line = {.order = order_of(&s->carried[i], slot),
					    .kind = HISTORY_PENDING,
					    .peer = slot->to,
					    .from = slot->order,
					    .to = slot->order + 1};
		good = history_add(h, &line);
		line.kind = HISTORY_DAMAGED;
		if (good && s->carried[i].damaged)
			good = history_add(h, &line);
	}
	return good && (!s->plan_callbacks || s->plan_callbacks->history(s, comm, h));
}

uint64_t plan_in_force(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	return s->plan_callbacks ? s->plan_callbacks->in_force(s, comm) : 0;
}

static bool plan_rests(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	return !s->plan_callbacks || s->plan_callbacks->rests(s, comm);
}

bool carried_plan_is_over(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	for (size_t i = 0; i < s->ncarried; i++) {
		const struct slot *slot = carried_slot(s, &s->carried[i]);
		const uint32_t plan = s->carried[i].record.plan;
		if (slot && slot->comm_key == comm->key && plan &&
		    !s->plan_callbacks->continues(s, comm, plan))
			return true;
	}
	return false;
}

/* Why the communicator cannot be continued; SPOILT_NOT: it can. */
enum spoilt { SPOILT_NOT, SPOILT_FAILED, SPOILT_PLAN };

static enum spoilt spoilt_of(const ncclsvc_session *s, const ncclsvc_comm *comm)
{
	if (comm->spoilt)
		return SPOILT_FAILED;
	return carried_plan_is_over(s, comm) ? SPOILT_PLAN : SPOILT_NOT;
}

void exchange_fail(struct exchange *x, ncclsvc_result result, const char *why)
{
	if (x->result)
		return;
	x->result = result;
	snprintf(x->comm->why, sizeof(x->comm->why), "%s", why);
}

/* Begins an AllGather of `bytes` bytes of each rank: its own, and zeros. Locked; yields. */
static ncclsvc_result begin_gather(ncclsvc_session *s, struct exchange *x, const void *own,
				   size_t own_bytes, size_t bytes, uint64_t deadline)
{
	const uint64_t now = now_ns();
	const size_t at = (size_t)x->comm->rank * bytes;
	x->bytes = bytes;
	ncclsvc_result r = staging_get(s, bytes * (size_t)x->comm->nranks, &x->chunk);
	if (r)
		return r;
	memset(x->chunk->base + at, 0, bytes);
	memcpy(x->chunk->base + at, own, own_bytes);
	const struct svc_record record = {.comm = x->comm->handle,
					  .epoch = x->comm->epoch,
					  .op = NCCLSVC_ALL_GATHER,
					  .type = NCCLSVC_UINT8,
					  .peer = -1,
					  .count = bytes,
					  .src_region = x->chunk->region,
					  .src_offset = at,
					  .dst_region = x->chunk->region,
					  .timeout_ns = deadline > now ? deadline - now : 1};
	x->call = (struct call){0};
	r = call_begin(s, &x->call, SVC_SUBMIT, &record, -1, deadline);
	x->begun = !r;
	return r;
}

/* Locked; yields. */
static void finish_gather(ncclsvc_session *s, struct exchange *x)
{
	x->begun = false;
	const ncclsvc_result r = call_finish(s, &x->call, x->deadline + JOIN_GRACE_NS);
	if (r == NCCLSVC_AGAIN)
		x->phase = EXCHANGE_SUSPENDED;
	else if (r && s->away != AWAY_GONE)
		exchange_fail(x, r == NCCLSVC_TIMEOUT ? NCCLSVC_PEER_GONE : r,
			      "the members did not compare their operations in time, or one of "
			      "them ended");
}

static void drop_chunk(ncclsvc_session *s, struct exchange *x)
{
	if (x->chunk)
		staging_put(s, x->chunk);
	x->chunk = NULL;
}

static void begin(ncclsvc_session *s, struct exchange *x, const void *own, size_t own_bytes,
		  size_t bytes)
{
	if (begin_gather(s, x, own, own_bytes, bytes, x->deadline) && s->away != AWAY_GONE)
		exchange_fail(x, NCCLSVC_DAEMON_LOST,
			      "the session has no memory to compare operations");
}

static void begin_summaries(ncclsvc_session *s, struct exchange *x)
{
	const struct summary own = {.lines = x->own.n,
				    .spoilt = spoilt_of(s, x->comm),
				    .plan = plan_in_force(s, x->comm),
				    .plan_rests = plan_rests(s, x->comm),
				    .plans = x->comm->plans,
				    .commits = waiting_commit(s, x->comm),
				    .node = x->comm->first_here};
	x->phase = EXCHANGE_SUMMARIES;
	begin(s, x, &own, sizeof(own), sizeof(own));
}

static void begin_lines(ncclsvc_session *s, struct exchange *x)
{
	const uint64_t own_plan = plan_in_force(s, x->comm);
	bool same = true, all_rest = true;
	uint64_t most = 0, plans = 0, waiting = UINT64_MAX;
	x->phase = EXCHANGE_LINES;
	x->nodes = calloc((size_t)x->comm->nranks, sizeof(*x->nodes));
	if (!x->nodes)
		exchange_fail(x, NCCLSVC_NO_MEMORY, "out of memory");
	for (int k = 0; k < x->comm->nranks; k++) {
		struct summary of;
		memcpy(&of, x->chunk->base + (size_t)k * sizeof(of), sizeof(of));
		most = of.lines > most ? of.lines : most;
		same &= of.plan != PLAN_ODD && of.plan == own_plan;
		all_rest &= of.plan_rests != 0;
		plans = of.plans > plans ? of.plans : plans;
		if (of.commits)
			waiting = of.plans < waiting ? of.plans : waiting;
		if (x->nodes)
			x->nodes[k] = (int32_t)of.node;
		if (!of.spoilt)
			continue;
		char why[SVC_TEXT_BYTES];
		snprintf(why, sizeof(why),
			 of.spoilt == SPOILT_FAILED
				 ? "rank %d has a failed operation in this epoch"
				 : "rank %d has operations of a plan that is over",
			 k);
		exchange_fail(x, NCCLSVC_DAEMON_LOST, why);
	}
	/* A plan was committed on some ranks only, if another rank still waits for that. */
	if ((!same && !all_rest) || waiting < plans)
		exchange_fail(x, NCCLSVC_DAEMON_LOST, PLANS_DIFFER);
	else if (!same && s->plan_callbacks)
		s->plan_callbacks->drop(s, x->comm);
	drop_chunk(s, x);
	if (most < x->own.n || most > HISTORY_LINES_MAX)
		exchange_fail(x, NCCLSVC_PROTOCOL, "the members' operation histories are invalid");
	if (!x->result)
		begin(s, x, x->own.lines, x->own.n * sizeof(struct history_line),
		      most * sizeof(struct history_line));
}

void exchange_begin(ncclsvc_session *s, struct exchange *x)
{
	x->deadline = exchange_deadline(s);
	if (!add_submitted(x->comm, &x->own) || !add_splits(s, x->comm, &x->own) ||
	    !add_pending(s, x->comm, &x->own))
		exchange_fail(x, NCCLSVC_NO_MEMORY, "out of memory");
	else
		begin_summaries(s, x);
}

void exchange_step(ncclsvc_session *s, struct exchange *x)
{
	if (!x->begun || (!x->call.done && now_ns() < x->deadline + JOIN_GRACE_NS))
		return;
	finish_gather(s, x);
	if (x->result || x->phase == EXCHANGE_SUSPENDED || s->away == AWAY_GONE || s->lost)
		return;
	if (x->phase == EXCHANGE_SUMMARIES)
		begin_lines(s, x);
	else
		x->phase = EXCHANGE_COMPARED;
}

uint64_t exchange_deadline(const ncclsvc_session *s)
{
	return deadline_in(s->reattach_ms) + (uint64_t)s->reattach_ms * 1000000;
}

void exchange_reset(ncclsvc_session *s, struct exchange *x)
{
	if (x->begun)
		call_finish(s, &x->call, now_ns());
	drop_chunk(s, x);
	free(x->own.lines);
	free(x->nodes);
	*x = (struct exchange){.comm = x->comm};
}

static struct histories histories_of(const struct exchange *x)
{
	return (struct histories){.lines = (const struct history_line *)x->chunk->base,
				  .nodes = x->nodes,
				  .nranks = (uint32_t)x->comm->nranks,
				  .room = x->bytes / sizeof(struct history_line)};
}

/* ---- What becomes of the tasks ---- */

/* False: out of memory. */
static bool keep_damaged(ncclsvc_comm *comm, uint64_t number)
{
	uint64_t *grown = realloc(comm->damaged, (comm->ndamaged + 1) * sizeof(*grown));
	if (!grown)
		return false;
	comm->damaged = grown;
	comm->damaged[comm->ndamaged++] = number;
	return true;
}

/* Tells the daemon what becomes of a task that it holds, and waits until the task has ended in the
 * ring. Locked; yields. */
static void take_back(ncclsvc_session *s, struct slot *slot, const struct svc_resume *what)
{
	const uint64_t entry = slot->entry, deadline = deadline_in(REQUEST_MS);
	bool bad = false;
	slot->entry = 0; /* nobody else looks at it */
	call_forget(s, SVC_RESUME, what);
	while (s->away == AWAY_RESUMING && !s->lost && !ring_ended(s->connection, entry, &bad) &&
	       now_ns() < deadline)
		socket_step(s, deadline_in(1));
	slot->entry = entry;
}

void exchange_drop_held(ncclsvc_session *s, const ncclsvc_comm *comm)
{
	const struct svc_resume not = {.kind = SVC_RESUME_NOT, .number = comm->handle};
	for (size_t i = 0; i < s->ncarried && comm->why[0]; i++) {
		struct slot *slot = carried_slot(s, &s->carried[i]);
		if (!slot || slot->comm_key != comm->key)
			continue;
		take_back(s, slot, &not );
		slot->status =
			comm->end; /* which says what was lost; the text, why that is final */
		slot->status.epoch = slot->epoch;
		slot->status.done_ns = now_ns();
		task_arrive(s, slot, comm->why);
	}
	call_forget(s, SVC_RESUME, &not );
}

static void end_task(ncclsvc_session *s, ncclsvc_comm *comm, const struct carried *c,
		     struct slot *slot, enum history_verdict verdict)
{
	if (c->held)
		take_back(s, slot,
			  &(struct svc_resume){.kind = SVC_RESUME_TASK,
					       .number = verdict != HISTORY_DONE,
					       .done = slot->entry});
	if (verdict == HISTORY_DONE) {
		slot->status = (ncclsvc_status){
			.rank_a = -1, .rank_b = -1, .done_ns = now_ns(), .epoch = slot->epoch};
		task_arrive(s, slot, "");
		return;
	}
	const bool spoilt = comm->spoilt || (slot->to < 0 && !keep_damaged(comm, slot->order));
	task_arrive_failed(s, slot, NCCLSVC_DAEMON_LOST,
			   verdict == HISTORY_LOST ? DAMAGED : MISSED);
	comm->spoilt = spoilt; /* this failure alone does not spoil it: all members know of it */
}

static bool sends_only(const ncclsvc_comm *comm, const struct slot *slot, const struct carried *c)
{
	if (slot->to >= 0)
		return slot->op == NCCLSVC_SEND;
	return !(svc_operation(c->record.op)->kind & SVC_OP_HAS_DATA) ||
	       !svc_op_receives(c->record.op, c->record.peer, (uint32_t)comm->rank);
}

void call_answer(struct call **at, int result)
{
	struct call *c = *at;
	*at = c->next;
	c->done = true;
	c->result = result;
}

/* The killed daemon has answered a SPLIT on some ranks, and nobody knows the others' colours. */
static void settle_split(ncclsvc_session *s, ncclsvc_comm *comm, const struct histories *all)
{
	struct call **at = waiting_split(s, comm);
	if (!at || history_judge(all, (uint32_t)comm->rank, HISTORY_SPLITS, -1, comm->splits,
				 true) != HISTORY_DONE)
		return;
	comm->splits++;
	snprintf((*at)->text, sizeof((*at)->text),
		 "the daemon was killed after it had answered this split on some ranks only");
	call_answer(at, NCCLSVC_DAEMON_LOST);
}

void exchange_settle(ncclsvc_session *s, struct exchange *x)
{
	const struct histories all = histories_of(x);
	const uint32_t rank = (uint32_t)x->comm->rank;
	if (!history_fits(&all, rank)) {
		exchange_fail(x, NCCLSVC_PEER_GONE,
			      "another process has taken the rank of a member");
		return;
	}
	settle_split(s, x->comm, &all);
	for (size_t i = 0; i < s->ncarried; i++) {
		struct slot *slot = carried_slot(s, &s->carried[i]);
		if (!slot || slot->comm_key != x->comm->key)
			continue;
		const enum history_verdict verdict =
			history_judge(&all, rank, order_of(&s->carried[i], slot), slot->to,
				      slot->order, sends_only(x->comm, slot, &s->carried[i]));
		if (verdict != HISTORY_REPEAT)
			end_task(s, x->comm, &s->carried[i], slot, verdict);
	}
}

void comm_leave_behind(ncclsvc_session *s, ncclsvc_comm *comm, ncclsvc_result result)
{
	if (comm->handle)
		call_forget(s, SVC_LEAVE, &(struct svc_leave){.comm = comm->handle});
	comm->handle = 0;
	if (comm->peer && s->kernel_callbacks)
		s->kernel_callbacks->break_off(comm->peer);
	gpu_comm_release(s, comm);
	if (comm->broken)
		return;
	comm->broken = result;
	comm->broken_ns = now_ns();
	comm->broken_reported = comm->end_reported = false;
	comm->end = (ncclsvc_status){.result = result, .rank_a = -1, .rank_b = -1};
}

ncclsvc_result comm_compare(ncclsvc_comm *comm)
{
	ncclsvc_session *s = comm->session;
	struct exchange x = {.comm = comm};
	ncclsvc_result r = NCCLSVC_OK;
	session_lock(s);
	const uint32_t resumptions = s->resumptions;
	if (comm->resuming && !comm->broken && comm->device < 0) { /* kernels compare nothing */
		exchange_begin(s, &x);
		while (!x.result && x.phase < EXCHANGE_COMPARED && !s->lost &&
		       s->away != AWAY_GONE) {
			socket_step(s, deadline_in(COMPARE_LOOK_MS));
			exchange_step(s, &x);
		}
		if (x.begun) /* the session is away: the watcher answers the call */
			finish_gather(s, &x);
		if (x.phase == EXCHANGE_SUSPENDED) { /* the watcher compares again */
			while (!comm->suspended && !s->away && !s->lost)
				socket_step(s, deadline_in(COMPARE_LOOK_MS));
			r = session_back(s);
		} else if (!s->lost && (s->away || resumptions != s->resumptions)) {
			x.result = r = session_back(s);
			comm->why[0] = '\0';
		} else if (s->lost) {
			r = error_set(NCCLSVC_DAEMON_LOST, "%s", s->lost_text);
		} else if (!x.result) {
			exchange_settle(s, &x);
		}
		if (!r && x.result) {
			comm_leave_behind(s, comm, x.result);
			r = comm_end(comm);
		}
		exchange_reset(s, &x);
	}
	comm->resuming = false;
	session_unlock(s);
	return r;
}
