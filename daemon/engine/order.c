/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose turn it is on a communicator, and which tasks meet.
 *
 * Each member has a queue. The tasks at its head (one, or those of one task group) have their turn:
 * they are posted, in order, and meet the other members' posted tasks: a collective when all
 * members have posted theirs, a Send when its Recv is posted. When all tasks of the head are over,
 * the next have their turn. Only `order_run_ready` moves a queue on, so nothing here recurses.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "names.h"
#include "state.h"
#include "task.h"

static struct member *member_of(const struct task *t)
{
	return &t->comm->members[t->rank];
}

static void update_blocked(struct member *m)
{
	bool blocked = m->posted && !m->running && !m->inputs && !m->ready;
	if (blocked == m->blocked)
		return;
	m->blocked = blocked;
	m->comm->blocked += blocked ? 1 : -1;
}

static void make_ready(struct engine *e, struct member *m)
{
	if (!m->ready) {
		m->ready = true;
		m->next_ready = NULL;
		*e->ready_end = m;
		e->ready_end = &m->next_ready;
	}
	update_blocked(m);
}

static uint32_t state_of(const struct task *t)
{
	if (t->ghost)
		return NCCLSVC_FAILED;
	if (t->waits_input)
		return NCCLSVC_WAITING_INPUT;
	if (t->place == RUNNING)
		return NCCLSVC_LAUNCHED;
	return t->place < AT_HEAD ? NCCLSVC_QUEUED : NCCLSVC_WAITING_PEERS;
}

/* Inspection learns of a change of state, if it knows the task at all. */
static void show_state(struct engine *e, const struct task *t)
{
	if (t->published)
		table_state(&e->table, t->slot, state_of(t), e->now);
}

static void pin(struct task *t, int by)
{
	const struct svc_record *r = &t->record;
	struct session *s = t->session;
	if (r->src_region && r->src_region < s->nregions)
		s->regions[r->src_region].pins += (uint32_t)by;
	if (r->dst_region && r->dst_region < s->nregions)
		s->regions[r->dst_region].pins += (uint32_t)by;
}

static void stop_input_wait(struct engine *e, struct task *t)
{
	DL_DELETE2(e->inputs, t, prev_input, next_input);
	t->waits_input = false;
	t->session->inputs--;
	member_of(t)->inputs--;
}

/* The task is over and its client knows: forget it. */
static void retire(struct engine *e, struct task *t)
{
	struct member *m = member_of(t);
	struct comm *c = t->comm;
	if (!t->ghost)
		pin(t, -1);
	if (t->waits_input)
		stop_input_wait(e, t);
	if (t->place == POSTED)
		m->posted--;
	if (t->place == RUNNING) {
		m->running--;
		c->running--;
	}
	if (t->place >= AT_HEAD)
		m->head_tasks--;
	if (m->collective == t)
		m->collective = NULL;
	deadlines_remove(&e->deadlines, &t->deadline);
	DL_DELETE(m->queue, t);
	c->pending--;
	atomic_store_explicit(&c->board[t->rank].completed, ++m->completed, memory_order_relaxed);
	/* A group's next collective may now be posted; an empty head makes room for the next. */
	if (!c->ended && m->queue)
		make_ready(e, m);
	else
		update_blocked(m);
	if (!m->queue)
		atomic_store_explicit(&c->board[t->rank].head_ns, 0, memory_order_relaxed);
	task_free(e, t);
}

/* Tells the client; the task stays as a ghost until its peers have met it. */
static void make_ghost(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	if (t->ghost)
		return;
	t->ghost = true;
	t->end = *st;
	complete_task(e, t, &t->end);
	pin(t, -1);
	if (t->waits_input) {
		stop_input_wait(e, t);
		make_ready(e, member_of(t));
	}
	deadlines_remove(&e->deadlines, &t->deadline);
	show_state(e, t);
}

/* Ends a task here and now, ghost or not. */
static void end_task(struct engine *e, struct task *t, const ncclsvc_status *st)
{
	ncclsvc_status copy = *st;
	if (!t->ghost)
		complete_task(e, t, &copy);
	retire(e, t);
}

static void name_ranks(const struct comm *c, ncclsvc_status *st, int32_t a, int32_t b)
{
	st->rank_a = a;
	st->pid_a = a >= 0 ? c->members[a].pid : 0;
	st->rank_b = b;
	st->pid_b = b >= 0 ? c->members[b].pid : 0;
}

static ncclsvc_status gone_status(const struct comm *c, int32_t rank)
{
	ncclsvc_status st = status_of(NCCLSVC_PEER_GONE);
	name_ranks(c, &st, rank, -1);
	return st;
}

/* ---- Collectives ---- */

/* Ends the current collective on every member that has posted it. */
static void end_collective(struct engine *e, struct comm *c, const ncclsvc_status *st)
{
	c->haunted = false;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t = c->collective[k];
		c->collective[k] = NULL;
		if (t)
			end_task(e, t, st);
	}
	c->collective_here = 0;
	c->collectives++;
}

/* Two members whose records differ: of the majority's and of the minority's side. */
static bool find_mismatch(const struct comm *c, ncclsvc_status *st)
{
	uint64_t a = 0, b = 0;
	const struct svc_record *first = &c->collective[0]->record;
	for (uint32_t k = 1; k < c->nranks; k++) {
		unsigned field = svc_record_differs(first, &c->collective[k]->record, &a, &b);
		if (!field)
			continue;
		uint32_t like_first = 0;
		int32_t one = 0, other = (int32_t)k;
		for (uint32_t i = 0; i < c->nranks; i++)
			like_first += !svc_record_differs(first, &c->collective[i]->record, &a, &b);
		if (like_first * 2 < c->nranks) {
			one = (int32_t)k;
			other = 0;
		}
		*st = status_of(NCCLSVC_MISMATCH);
		st->field = svc_record_differs(&c->collective[one]->record,
					       &c->collective[other]->record, &st->value_a,
					       &st->value_b);
		name_ranks(c, st, one, other);
		return true;
	}
	return false;
}

static void set_running(struct task *t)
{
	struct member *m = member_of(t);
	m->posted--;
	m->running++;
	t->comm->running++;
	t->place = RUNNING;
	update_blocked(m);
}

static void meet_collective(struct engine *e, struct comm *c)
{
	ncclsvc_status st;
	if (c->haunted) {
		st = c->haunted_by;
		end_collective(e, c, &st);
		return;
	}
	if (find_mismatch(c, &st)) {
		end_collective(e, c, &st);
		return;
	}
	struct work *w = work_create(c, c->nranks);
	if (!w) {
		st = status_of(NCCLSVC_NO_MEMORY);
		end_collective(e, c, &st);
		return;
	}
	for (uint32_t k = 0; k < c->nranks; k++) {
		w->tasks[k] = c->collective[k];
		c->collective[k] = NULL;
		c->members[k].collective = NULL;
		set_running(w->tasks[k]);
	}
	c->collective_here = 0;
	c->collectives++;
	work_start(e, w);
}

/* Everybody who has posted the current collective learns now that it cannot run. */
static void haunt_collective(struct engine *e, struct comm *c, const ncclsvc_status *st)
{
	c->haunted = true;
	c->haunted_by = *st;
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->collective[k])
			make_ghost(e, c->collective[k], st);
}

static int32_t a_gone_rank(const struct comm *c)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].gone)
			return (int32_t)k;
	return -1;
}

static void post_collective(struct engine *e, struct task *t)
{
	struct comm *c = t->comm;
	struct member *m = member_of(t);
	if (c->gone) {
		ncclsvc_status st = gone_status(c, a_gone_rank(c));
		end_task(e, t, &st);
		return;
	}
	t->place = POSTED;
	m->posted++;
	m->collective = t;
	c->collective[t->rank] = t;
	c->collective_here++;
	_Atomic uint64_t *collectives = &c->board[t->rank].collectives;
	atomic_store_explicit(collectives, c->collectives + 1, memory_order_relaxed);
	if (t->ghost || c->haunted) {
		ncclsvc_status st = c->haunted ? c->haunted_by : t->end;
		haunt_collective(e, c, &st);
	}
	if (c->collective_here == c->nranks)
		meet_collective(e, c);
}

/* ---- Point-to-point ---- */

static struct task *find_peer(const struct task *t)
{
	const struct member *peer = &t->comm->members[t->record.peer];
	unsigned want = t->record.op == NCCLSVC_SEND ? NCCLSVC_RECV : NCCLSVC_SEND;
	struct task *u;
	DL_FOREACH (peer->queue, u) {
		if (u->place < AT_HEAD)
			return NULL; /* the head ends here */
		if (u->place == POSTED && u->record.op == want && u->record.peer == t->rank)
			return u;
	}
	return NULL;
}

static void end_pair(struct engine *e, struct task *a, struct task *b, const ncclsvc_status *st)
{
	end_task(e, a, st);
	end_task(e, b, st);
}

static void meet_pair(struct engine *e, struct task *t, struct task *u)
{
	struct task *send = t->record.op == NCCLSVC_SEND ? t : u, *recv = send == t ? u : t;
	ncclsvc_status st = status_of(NCCLSVC_MISMATCH);
	if (t->ghost || u->ghost) {
		st = t->ghost ? t->end : u->end;
		end_pair(e, send, recv, &st);
		return;
	}
	st.field = svc_record_differs(&send->record, &recv->record, &st.value_a, &st.value_b);
	if (st.field) {
		name_ranks(t->comm, &st, send->rank, recv->rank);
		end_pair(e, send, recv, &st);
		return;
	}
	struct work *w = work_create(t->comm, 2);
	if (!w) {
		st = status_of(NCCLSVC_NO_MEMORY);
		end_pair(e, send, recv, &st);
		return;
	}
	w->tasks[0] = send;
	w->tasks[1] = recv;
	set_running(send);
	set_running(recv);
	work_start(e, w);
}

static void post_p2p(struct engine *e, struct task *t)
{
	struct comm *c = t->comm;
	if (c->members[t->record.peer].gone) {
		ncclsvc_status st = gone_status(c, t->record.peer);
		end_task(e, t, &st);
		return;
	}
	t->place = POSTED;
	member_of(t)->posted++;
	struct task *u = find_peer(t);
	if (u)
		meet_pair(e, t, u);
}

/* ---- Turns ---- */

static bool input_ready(const struct task *t)
{
	if (!t->record.timeline || t->ghost)
		return true;
	return atomic_load(&svc_timelines(t->session->ring)[t->record.timeline].ready) >=
	       t->record.value;
}

static void wait_for_input(struct engine *e, struct task *t)
{
	t->waits_input = true;
	DL_APPEND2(e->inputs, t, prev_input, next_input);
	t->session->inputs++;
	member_of(t)->inputs++;
	show_state(e, t);
}

static void post(struct engine *e, struct task *t)
{
	if (t->waits_input) {
		stop_input_wait(e, t);
		show_state(e, t);
	}
	if (svc_op_is_p2p(t->record.op))
		post_p2p(e, t);
	else if (!member_of(t)->collective)
		post_collective(e, t);
}

/* Posts what can be posted of the head: point-to-point tasks all, collectives one after the other.
 */
static void post_head(struct engine *e, struct member *m)
{
	struct task *t = m->queue, *next, *after;
	for (; t && t->place >= AT_HEAD; t = next) {
		next = t->next;
		after = next ? next->next : NULL;
		if (t->place != AT_HEAD)
			continue;
		if (input_ready(t))
			post(e, t);
		else if (!t->waits_input)
			wait_for_input(e, t);
		/* A Send to oneself may have met, and ended, the very next task. */
		if (next && !next->uid)
			next = after;
	}
}

static void next_head(struct engine *e, struct member *m)
{
	struct task *t = m->queue;
	if (!t)
		return;
	uint32_t group = t->group;
	do {
		t->place = AT_HEAD;
		m->head_tasks++;
		show_state(e, t);
		t = t->next;
	} while (t && group && t->group == group);
}

/* Every member has its turn, all is posted, and nothing meets: nobody can ever go on. */
static void end_deadlock(struct engine *e, struct comm *c)
{
	ncclsvc_status st = status_of(NCCLSVC_MISMATCH);
	struct task *one = NULL, *other = NULL, *t;
	for (uint32_t k = 0; k < c->nranks && !other; k++) {
		struct task *head = c->members[k].queue;
		if (!one)
			one = head;
		else if (head->record.op != one->record.op &&
			 !(svc_op_is_p2p(head->record.op) && svc_op_is_p2p(one->record.op)))
			other = head;
	}
	st.field = other ? NCCLSVC_FIELD_OP : NCCLSVC_FIELD_ORDER;
	if (!other)
		other = c->members[one->record.peer].queue;
	st.value_a = one->record.op;
	st.value_b = other->record.op;
	name_ranks(c, &st, one->rank, other->rank);
	if (c->collective_here)
		end_collective(e, c, &st);
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		while (m->head_tasks) {
			t = m->queue;
			end_task(e, t, &st);
		}
	}
}

void order_run_ready(struct engine *e)
{
	while (e->ready) {
		struct member *m = e->ready;
		struct comm *c = m->comm;
		e->ready = m->next_ready;
		if (!e->ready)
			e->ready_end = &e->ready;
		m->ready = false;
		if (!m->head_tasks) {
			next_head(e, m);
			if (m->queue)
				atomic_store_explicit(&c->board[m - c->members].head_ns,
						      m->queue->submitted_ns, memory_order_relaxed);
		}
		post_head(e, m);
		update_blocked(m);
		if (c->blocked == c->nranks)
			end_deadlock(e, c);
	}
}

void order_check_inputs(struct engine *e)
{
	struct task *t, *next;
	for (t = e->inputs; t; t = next) {
		next = t->next_input;
		if (input_ready(t))
			make_ready(e, member_of(t));
	}
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
	table_put(&e->table, t->slot, &entry);
}

void order_enqueue(struct engine *e, struct task *first, uint32_t n)
{
	struct task *t = first, *next;
	for (uint32_t i = 0; i < n; i++, t = next) {
		struct comm *c = t->comm;
		struct member *m = member_of(t);
		next = t->next;
		t->place = IN_QUEUE;
		t->seq = m->submitted++;
		atomic_store_explicit(&c->board[t->rank].submitted, m->submitted,
				      memory_order_relaxed);
		DL_APPEND(m->queue, t);
		c->pending++;
		pin(t, 1);
		engine_publish_later(e, t);
		if (t->record.timeout_ns)
			/* Without memory for its deadline, a task has none. */
			deadlines_add(&e->deadlines, &t->deadline, e->now + t->record.timeout_ns);
		if (!m->head_tasks)
			make_ready(e, m);
	}
}

void order_finish(struct engine *e, struct work *w)
{
	for (uint32_t k = 0; k < w->ntasks; k++) {
		ncclsvc_status st = status_of(NCCLSVC_OK);
		end_task(e, w->tasks[k], &st);
	}
	struct comm *c = w->comm;
	work_free(w);
	if (c->ended && !c->pending)
		order_free_comm(e, c);
}

/* ---- Endings ---- */

void order_fail(struct engine *e, struct task *t, ncclsvc_status *st)
{
	struct comm *c = t->comm;
	if (t->place == RUNNING || t->ghost)
		return;
	if (c->collective[t->rank] == t) {
		haunt_collective(e, c, st);
		return;
	}
	make_ghost(e, t, st);
}

/* Fills in whom the task waits for. */
static void name_missing(const struct task *t, ncclsvc_status *st)
{
	const struct comm *c = t->comm;
	const struct member *m = member_of(t);
	const struct task *head = t->place < AT_HEAD ? m->queue : t;
	if (head->waits_input || head->place == RUNNING)
		return;
	if (svc_op_is_p2p(head->record.op)) {
		st->missing[st->missing_count++] = head->record.peer;
		return;
	}
	for (uint32_t k = 0; k < c->nranks; k++) {
		if (c->collective[k])
			continue;
		if (st->missing_count < NCCLSVC_MISSING_SHOWN)
			st->missing[st->missing_count] = (int32_t)k;
		st->missing_count++;
	}
}

void order_expire(struct engine *e)
{
	struct deadline *d;
	while ((d = deadlines_first(&e->deadlines)) && d->at_ns <= e->now) {
		struct task *t = (struct task *)((char *)d - offsetof(struct task, deadline));
		deadlines_remove(&e->deadlines, d);
		ncclsvc_status st = status_of(NCCLSVC_TIMEOUT);
		name_ranks(t->comm, &st, t->rank, -1);
		name_missing(t, &st);
		order_fail(e, t, &st);
	}
}

/* Ends all tasks of a member that do not run. */
static void clear_member(struct engine *e, struct member *m, const ncclsvc_status *st)
{
	struct task *t, *next;
	struct comm *c = m->comm;
	DL_FOREACH (m->session->group, t) {
		if (t->comm != c || t->rank != m - c->members)
			continue;
		t->comm = NULL;
		m->session->group_error = st->result;
	}
	DL_FOREACH_SAFE (m->queue, t, next) {
		if (t->place == RUNNING)
			continue;
		if (c->collective[t->rank] == t) {
			c->collective[t->rank] = NULL;
			c->collective_here--;
		}
		end_task(e, t, st);
	}
}

void order_end_epoch(struct engine *e, struct comm *c, int result, int32_t rank, int32_t pid)
{
	ncclsvc_status st = status_of(result);
	st.rank_a = rank;
	st.pid_a = pid;
	c->ended = true;
	c->haunted = false;
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		if (m->gone)
			continue;
		clear_member(e, m, &st);
		m->session->handles[m->handle].comm = NULL;
	}
	if (!c->pending)
		order_free_comm(e, c);
}

void order_member_left(struct engine *e, struct comm *c, int32_t rank)
{
	struct member *m = &c->members[rank];
	ncclsvc_status own = status_of(NCCLSVC_CANCELLED);
	ncclsvc_status st = gone_status(c, rank);
	if (m->gone)
		return;
	clear_member(e, m, &own);
	m->session->handles[m->handle] = (struct handle){0};
	m->session = NULL;
	m->gone = true;
	c->gone++;
	if (c->collective_here)
		end_collective(e, c, &st);
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct task *t, *next;
		DL_FOREACH_SAFE (c->members[k].queue, t, next) {
			if (t->place == POSTED && svc_op_is_p2p(t->record.op) &&
			    t->record.peer == rank)
				end_task(e, t, &st);
		}
	}
}

void order_free_comm(struct engine *e, struct comm *c)
{
	engine_event(e, &(struct event){.kind = EVENT_EPOCH_GONE, .epoch = {c->slot}});
	e->comms[c->slot] = NULL;
	free(c->members);
	free(c->collective);
	free(c->spare);
	free(c);
}
