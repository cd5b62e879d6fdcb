/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of turns on a communicator, and which tasks match.
 *
 * Each member has a queue. The tasks at its head (one, or those of one task group) have their turn:
 * they are posted in order, and match the other members' posted tasks: a collective when all
 * members have posted theirs, a Send when its Recv is posted. When all tasks of the head have
 * ended, the next ones have their turn. Collectives that wait only for the sequencer's answer let
 * the next one join the head: all nodes request them in the same order, and so they are launched.
 * Only `order_move_ready` advances a queue, so nothing here recurses.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "match.h"
#include "order.h"
#include "proto/task.h"
#include "release.h"
#include "sched/base/epoch_memory.h"
#include "sched/base/status.h"
#include "sched/base/task_state.h"
#include "sched/base/tasks.h"
#include "sched/base/timeline.h"
#include "set.h"

#define INPUTS_PER_ROUND 256
#define HEAD_MAX	 16 /* single collectives in a head; a longer head gains nothing */

static bool input_ready(const struct task *t)
{
	if (!t->record.timeline || t->tombstone || t->comm->transport->flags & TRANSPORT_ON_STREAMS)
		return true;
	return atomic_load(&svc_timelines(t->session->ring)[t->record.timeline].ready) >=
	       t->record.value;
}

static void wait_for_input(struct scheduler *sched, struct task *t)
{
	t->waits_input = true;
	DL_APPEND2(sched->inputs, t, prev_input, next_input);
	sched->ninputs++;
	t->session->inputs++;
	member_of(t)->inputs++;
	sched->gpu_inputs += t->member->device >= 0;
	task_show(sched, t);
}

/* False: the task waits for its input. A waiting collective blocks later collectives but not
 * point-to-point tasks, and vice versa, since other members match each kind in the order of their
 * calls. */
static bool may_post(struct scheduler *sched, struct task *t)
{
	if (input_ready(t))
		return true;
	if (!t->waits_input)
		wait_for_input(sched, t);
	return false;
}

static void post(struct scheduler *sched, struct task *t)
{
	task_skip_unposted(t);
	sched->steps++;
	if (t->waits_input) {
		task_stop_input_wait(sched, t);
		task_show(sched, t);
	}
	if (svc_op_is_p2p(t->record.op))
		match_post_p2p(sched, t);
	else
		match_post_collective(sched, t);
}

/* Posts as much of the head as possible: all point-to-point tasks, but collectives one after the
 * other. */
static void post_head(struct scheduler *sched, struct member *m)
{
	const uint64_t enough = sched->steps + STEP_SLICE;
	struct task *t;
	while ((t = m->unposted[true]) && may_post(sched, t)) {
		if (sched->steps >= enough) {
			member_make_ready(sched, m);
			break;
		}
		post(sched, t);
	}
	t = m->unposted[false];
	if (t && may_post(sched, t) && !m->collective)
		post(sched, t);
}

/* Gives t its turn, or all of its group. */
static void add_to_head(struct scheduler *sched, struct member *m, struct task *t)
{
	const uint32_t group = t->group, before = m->head_tasks;
	do {
		struct task **unposted = &m->unposted[svc_op_is_p2p(t->record.op)];
		if (!*unposted)
			*unposted = t;
		t->stage = AT_HEAD;
		m->head_tasks++;
		task_show(sched, t);
		t = t->next;
	} while (t && group && t->group == group);
	sched->steps += m->head_tasks - before;
}

static bool is_single_collective(const struct task *t)
{
	return !t->group && !svc_op_is_p2p(t->record.op);
}

/* The next task to join the head; an empty head takes any task. NULL: none may join. */
static struct task *next_in_turn(const struct member *m)
{
	struct task *first = m->queue, *last = first;
	if (!m->head_tasks || !first)
		return first;
	if (m->head_tasks >= HEAD_MAX || !is_single_collective(first))
		return NULL;
	for (uint32_t i = 1; i < m->head_tasks; i++)
		last = last->next;
	return last->requested && last->next && is_single_collective(last->next) ? last->next
										 : NULL;
}

/* Every member has its turn, all tasks are posted, and none matches: no member can ever continue.
 */
static void end_deadlock(struct scheduler *sched, struct comm *c)
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
		other = svc_op_is_p2p(one->record.op) ? c->members[one->record.peer].queue : one;
	st.value_a = one->record.op;
	st.value_b = other->record.op;
	status_name_ranks(c, &st, one->rank, other->rank);
	if (c->collective_here)
		match_end_collective(sched, c, &st);
	for (uint32_t k = 0; k < c->nranks; k++) {
		struct member *m = &c->members[k];
		while (m->head_tasks) {
			t = m->queue;
			release_end(sched, t, &st);
		}
	}
}

static void move_queue(struct scheduler *sched, struct member *m)
{
	struct comm *c = m->comm;
	struct task *next = next_in_turn(m);
	if (next)
		add_to_head(sched, m, next);
	if (m->queue)
		atomic_store_explicit(&m->progress->head_ns, m->queue->submitted_ns,
				      memory_order_relaxed);
	post_head(sched, m);
	member_update_blocked(m);
	if (c->blocked == c->nranks)
		end_deadlock(sched, c);
}

static void take_turn(struct scheduler *sched, struct user *u)
{
	struct member *m = u->ready;
	struct comm *c = m->comm;
	u->ready = m->next_ready;
	if (!u->ready)
		u->ready_end = &u->ready;
	m->ready = false;
	sched->ready--;
	sched->turns++;
	c->pending--;
	if (!c->ended)
		move_queue(sched, m);
	else if (!c->pending && !c->launched)
		comm_gone(sched, c);
}

/* Users take turns, with one member each. */
void order_move_ready(struct scheduler *sched, uint64_t enough)
{
	struct user *u = sched->turn;
	while (sched->ready && sched->steps < enough) {
		u = u && u->next ? u->next : sched->users;
		if (!u->ready)
			continue;
		take_turn(sched, u);
	}
	sched->turn = u;
}

void order_check_inputs(struct scheduler *sched)
{
	uint32_t n = sched->ninputs < INPUTS_PER_ROUND ? sched->ninputs : INPUTS_PER_ROUND;
	sched->inputs_due -= sched->inputs_due < n ? sched->inputs_due : n;
	while (n--) {
		struct task *t = sched->inputs;
		DL_DELETE2(sched->inputs, t, prev_input, next_input);
		DL_APPEND2(sched->inputs, t, prev_input, next_input);
		if (input_ready(t))
			member_make_ready(sched, member_of(t));
	}
}

void order_admit(struct scheduler *sched, struct task *t)
{
	struct member *m = member_of(t);
	t->seq = m->submitted++;
	atomic_store_explicit(&m->progress->submitted, m->submitted, memory_order_relaxed);
	t->comm->pending++;
	if (t->record.timeline)
		timeline_admitted(t);
	task_pin(t, 1);
	tasks_publish_later(sched, t);
}

void order_append(struct scheduler *sched, struct task *t)
{
	struct member *m = member_of(t);
	t->stage = IN_QUEUE;
	if (!svc_op_is_p2p(t->record.op))
		t->nth = m->nth++;
	DL_APPEND(m->queue, t);
	task_show(sched, t);
	if (next_in_turn(m) == t)
		member_make_ready(sched, m);
}

void order_group(struct scheduler *sched, struct task *first, uint32_t n)
{
	const uint32_t id = n > 1 ? ++sched->groups : 0;
	struct task *t, *next;
	DL_FOREACH (first, t)
		t->group = id;
	if (n > 1)
		set_link(first);
	for (t = first; n--; t = next) {
		next = t->next;
		order_admit(sched, t);
		order_append(sched, t);
	}
}
