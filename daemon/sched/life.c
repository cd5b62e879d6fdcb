/* SPDX-License-Identifier: Apache-2.0
 * One task on its communicator: its turn, its end, and what inspection sees of it. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "names.h"
#include "set.h"
#include "task.h"

void order_make_ready(struct engine *e, struct member *m)
{
	if (!m->ready && !m->comm->ended) {
		struct user *u = m->user;
		m->ready = true;
		m->next_ready = NULL;
		*u->ready_end = m;
		u->ready_end = &m->next_ready;
		e->ready++;
		m->comm->pending++; /* so that it outlives the turn */
	}
	order_update_blocked(m);
}

/* For a launched task the GPU asks. */
static bool input_there(const struct task *t)
{
	const struct svc_record *r = &t->record;
	return !r->timeline ||
	       atomic_load_explicit(&svc_timelines(t->session->ring)[r->timeline].ready,
				    memory_order_relaxed) >= r->value;
}

static uint32_t state_of(const struct task *t)
{
	if (t->ghost)
		return NCCLSVC_FAILED;
	if (t->place == IN_PLAN)
		return NCCLSVC_WAITING_GROUP;
	if (t->waits_input || (t->flying && !input_there(t)))
		return NCCLSVC_WAITING_INPUT;
	if (t->place == RUNNING && !t->junction && (!t->meeting || t->flying))
		return NCCLSVC_LAUNCHED;
	return t->place < AT_HEAD ? NCCLSVC_QUEUED : NCCLSVC_WAITING_PEERS;
}

void order_show_published(struct engine *e, struct task *t)
{
	uint32_t state = state_of(t);
	if (state == t->shown)
		return;
	t->shown = (uint8_t)state;
	table_state(&e->table, t->slot, state, e->now);
}

void order_pin(struct task *t, int by)
{
	const struct svc_record *r = &t->record;
	struct session *s = t->session;
	/* Intake found them, or made them 0. */
	if (r->src_region)
		s->regions[r->src_region].pins += (uint32_t)by;
	if (r->dst_region)
		s->regions[r->dst_region].pins += (uint32_t)by;
}

void order_stop_input_wait(struct engine *e, struct task *t)
{
	DL_DELETE2(e->inputs, t, prev_input, next_input);
	e->ninputs--;
	t->waits_input = false;
	t->session->inputs--;
	member_of(t)->inputs--;
	e->gpu_inputs -= t->member->device >= 0;
}

/* What no simple task has part in. */
static void leave_all(struct engine *e, struct task *t)
{
	struct member *m = member_of(t);
	if (t->next_in_group)
		set_leave(e, t);
	if (t->waits_input)
		order_stop_input_wait(e, t);
	if (m->collective == t)
		m->collective = NULL;
	if (t->record.plan)
		plan_task_ended(t);
}

/* The task is over and its client knows: forget it. */
static void retire(struct engine *e, struct task *t)
{
	struct member *m = member_of(t);
	struct comm *c = t->comm;
	if (!t->ghost || t->flying)
		order_pin(t, -1);
	if (!t->simple)
		leave_all(e, t);
	decision_forget(e, t);
	if (t->place == POSTED)
		m->posted--;
	if (t->place == RUNNING) {
		m->running--;
		c->running--;
	}
	if (t->place == AT_HEAD)
		order_skip_unposted(t);
	if (t->place >= AT_HEAD && !t->flying)
		m->head_tasks--;
	deadlines_remove(&e->deadlines, &t->deadline);
	if (t->flying)
		DL_DELETE(m->flying, t);
	else if (t->place != IN_PLAN)
		DL_DELETE(m->queue, t);
	c->pending--;
	atomic_store_explicit(&m->board->completed, ++m->completed, memory_order_relaxed);
	order_update_blocked(m);
	/* An empty head makes room for the next; a group's next collective may now be posted; and
	 * perhaps nobody can go on any more. */
	if (!m->queue)
		atomic_store_explicit(&m->board->head_ns, 0, memory_order_relaxed);
	else if (!c->ended &&
		 (!m->head_tasks || !svc_op_is_p2p(t->record.op) || c->blocked == c->nranks))
		order_make_ready(e, m);
	task_free(e, t);
}

/* Tells the client; the task stays as a ghost until its peers have met it. */
void order_make_ghost(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	if (t->ghost)
		return;
	const ncclsvc_status *decided = decision_of(e, t);
	t->ghost = true;
	t->end = decided ? *decided : *st;
	decision_keep(e, t);
	t->end.done_ns = e->now;
	complete_task(e, t, &t->end);
	order_pin(t, -1);
	if (t->next_in_group)
		set_leave(e, t);
	if (t->waits_input) {
		order_stop_input_wait(e, t);
		order_make_ready(e, member_of(t));
	}
	deadlines_remove(&e->deadlines, &t->deadline);
	order_show_state(e, t);
}

/* Ends a task here and now, ghost or not. */
void order_end_task(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	if (!t->ghost)
		complete_task(e, t, st);
	retire(e, t);
}

void order_name_ranks(const struct comm *c, ncclsvc_status *st, int32_t a, int32_t b)
{
	st->rank_a = a;
	st->pid_a = a >= 0 ? c->members[a].pid : 0;
	st->rank_b = b;
	st->pid_b = b >= 0 ? c->members[b].pid : 0;
}

ncclsvc_status order_gone_status(const struct comm *c, int32_t rank)
{
	ncclsvc_status st = status_of(NCCLSVC_PEER_GONE);
	order_name_ranks(c, &st, rank, -1);
	return st;
}

void order_publish(struct engine *e, struct task *t)
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
		.state_ns = e->now,
	};
	t->published = true;
	t->shown = (uint8_t)entry.state;
	t->slot = table_put(&e->table, &entry);
	/* Without memory for its deadline, a task has none. */
	if (r->timeout_ns && !t->ghost)
		deadlines_add(&e->deadlines, &t->deadline, t->submitted_ns + r->timeout_ns);
}
