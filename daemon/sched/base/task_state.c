/* SPDX-License-Identifier: Apache-2.0
 * One task on its communicator: its turn, its end, and its state in inspection. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "pending.h"
#include "proto/names.h"
#include "proto/task.h"
#include "task_state.h"
#include "timeline.h"

void member_make_ready(struct scheduler *sched, struct member *m)
{
	if (!m->ready && !m->comm->ended) {
		struct user *u = m->user;
		m->ready = true;
		m->next_ready = NULL;
		*u->ready_end = m;
		u->ready_end = &m->next_ready;
		sched->ready++;
		m->comm->pending++; /* keeps it alive during the turn */
	}
	member_update_blocked(m);
}

static uint32_t state_of(const struct task *t)
{
	if (t->tombstone)
		return NCCLSVC_FAILED;
	if (t->stage == IN_PLAN)
		return NCCLSVC_WAITING_GROUP;
	const bool early = t->in_flight || t->record.flags & SVC_TASK_CAPTURED_GROUP;
	if (t->waits_input || (early && !timeline_input_there(t)))
		return NCCLSVC_WAITING_INPUT;
	if (t->stage == RUNNING && !t->node_match && (!t->match || t->in_flight))
		return NCCLSVC_LAUNCHED;
	return t->stage < AT_HEAD ? NCCLSVC_QUEUED : NCCLSVC_WAITING_PEERS;
}

void task_show_as(struct scheduler *sched, struct task *t, uint32_t state)
{
	if (state == t->shown)
		return;
	t->shown = (uint8_t)state;
	table_state(&sched->table, t->slot, state, sched->now);
	pending_show(t, state);
}

void task_show_published(struct scheduler *sched, struct task *t)
{
	task_show_as(sched, t, state_of(t));
}

void task_pin(struct task *t, int by)
{
	sched_session_pin(t->session, &t->record, by);
}

void task_stop_input_wait(struct scheduler *sched, struct task *t)
{
	DL_DELETE2(sched->inputs, t, prev_input, next_input);
	sched->ninputs--;
	t->waits_input = false;
	t->session->inputs--;
	member_of(t)->inputs--;
	sched->gpu_inputs -= t->member->device >= 0;
}

void task_publish(struct scheduler *sched, struct task *t)
{
	const struct svc_record *r = &t->record;
	struct table_entry entry = {
		.uid = t->uid,
		.comm_uid = t->comm->uid,
		.seq = t->seq,
		.count = r->op == NCCLSVC_BARRIER ? 0 : r->count,
		.bytes = svc_task_bytes(r, t->comm->nranks),
		.submitted_ns = t->submitted_ns,
		.comm = t->comm->slot,
		.rank = t->rank,
		.peer = svc_op_has_root(r->op) || svc_op_is_p2p(r->op) ? r->peer : -1,
		.pid = t->session->pid,
		.session = t->session->id,
		.epoch = t->comm->epoch,
		.nranks = t->comm->nranks,
		.group = t->group,
		.op = r->op,
		.type = r->op == NCCLSVC_BARRIER ? UINT8_MAX : r->type,
		.redop = svc_op_reduces(r->op) ? r->redop : UINT8_MAX,
		.state = state_of(t),
		.state_ns = sched->now,
		.graph = r->graph,
		.graph_place = r->graph_place,
		.plan = r->plan,
		.plan_group = r->plan_group,
		.plan_task = r->plan_task,
		.collective = t->stage == IN_PLAN || svc_op_is_p2p(r->op) ? 0 : (uint32_t)t->nth,
	};
	t->published = true;
	t->shown = (uint8_t)entry.state;
	t->slot = table_put(&sched->table, &entry);
	pending_show(t, entry.state);
	/* If there is no memory for its deadline, the task has none. */
	if (r->timeout_ns && !t->tombstone)
		deadlines_add(&sched->deadlines, &t->deadline, t->submitted_ns + r->timeout_ns);
}

/* ---- Posted Sends and Recvs ---- */

static struct task **offers(struct member *m, unsigned op, int32_t peer)
{
	return &m->offers[op == NCCLSVC_SEND][(uint32_t)peer % OFFERS];
}

void task_offer(struct task *t)
{
	struct task **list = offers(t->member, t->record.op, t->record.peer);
	DL_APPEND2(*list, t, prev_offer, next_offer);
}

void task_withdraw(struct task *t)
{
	if (!t->prev_offer)
		return;
	struct task **list = offers(t->member, t->record.op, t->record.peer);
	DL_DELETE2(*list, t, prev_offer, next_offer);
	t->prev_offer = NULL;
}

struct task *task_find_peer(struct scheduler *sched, const struct task *t)
{
	struct member *peer = &t->comm->members[t->record.peer];
	const unsigned want =
		NCCLSVC_SEND + NCCLSVC_RECV - t->record.op; /* the opposite operation */
	struct task *u = *offers(peer, want, t->rank);
	for (; u && u->record.peer != t->rank; u = u->next_offer)
		sched->steps++;
	return u;
}
