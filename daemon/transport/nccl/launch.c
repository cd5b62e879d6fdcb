/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks of GPUs. They meet as all others do; then, instead of being run here, they are launched: a
 * record for each goes to the worker of its member's GPU. The engine is the one sequencer of a
 * node, so every worker launches what it shares with others in the same order.
 *
 * What a member submitted as one task group is launched as one ncclGroup. So what has met waits
 * until all that hangs together with it through groups has met too: nothing is launched that would
 * wait on a GPU for somebody who has not come.
 *
 * A launched task leaves its member's queue, which goes on at once: the GPU keeps the order. How
 * far it has come it writes into the lane's counter: landing.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "device.h"
#include "sched/device.h"
#include "sched/order.h"
#include "worker/queue.h"

/* Of one member. A launch blocks its worker when the driver's queues are full, and then nothing
 * could be broken off any more. */
#define FLYING_MAX 64

struct lane_progress *device_progress(const struct engine *e, const struct member *m)
{
	return &e->devices[m->device].queue->lanes[m->comm->lane];
}

int device_start_member(struct engine *e, struct member *m)
{
	struct session *s = m->session;
	if (!s->lines && !(s->lines = calloc(SVC_TIMELINES, sizeof(*s->lines))))
		return -ENOMEM;
	m->lane_seq = atomic_load(&device_progress(e, m)->completed);
	return 0;
}

/* ---- Meeting ---- */

enum begun device_meet_across(struct engine *e, struct comm *c, struct task *const *tasks,
			      uint32_t ntasks, const struct crossing *at)
{
	struct meeting *m = calloc(1, sizeof(*m) + ntasks * sizeof(m->tasks[0]));
	if (!m)
		return BEGUN_NO_MEMORY;
	m->comm = c;
	m->at = *at;
	m->ntasks = ntasks;
	for (uint32_t i = 0; i < ntasks; i++) {
		m->tasks[i] = tasks[i];
		tasks[i]->meeting = m;
		if (at->span) /* it cannot be taken back alone */
			deadlines_remove(&e->deadlines, &tasks[i]->deadline);
	}
	DL_APPEND(e->met, m);
	e->met_new = true;
	return BEGUN_RUNNING;
}

enum begun device_meet(struct engine *e, struct comm *c, struct task *const *tasks, uint32_t ntasks)
{
	return device_meet_across(e, c, tasks, ntasks, &(struct crossing){0});
}

void device_link_group(struct task *first)
{
	struct task *t, *begin = NULL, *last = NULL;
	DL_FOREACH (first, t) {
		if (!t->comm->cuda)
			continue;
		if (last)
			last->next_in_group = t;
		else
			begin = t;
		last = t;
	}
	if (last != begin)
		last->next_in_group = begin;
}

void device_leave_group(struct engine *e, struct task *t)
{
	struct task *before = t->next_in_group;
	while (before->next_in_group != t)
		before = before->next_in_group;
	before->next_in_group = t->next_in_group == before ? NULL : t->next_in_group;
	t->next_in_group = NULL;
	e->met_new = true; /* the rest may be complete without it */
}

/* ---- Launching ---- */

/* False: t is of what this pass could not launch. */
static bool push(struct engine *e, struct task *t)
{
	if (t->visit == e->visit)
		return true;
	if (t->visit >= e->pass)
		return false;
	t->visit = e->visit;
	e->visited[e->nvisited++] = t;
	return true;
}

/* Collects everything that must be launched with t. False: some of it has not met. */
static bool collect(struct engine *e, struct task *t)
{
	e->visit++;
	e->nvisited = 0;
	bool good = push(e, t);
	for (uint32_t i = 0; good && i < e->nvisited; i++) {
		const struct task *at = e->visited[i];
		if (!at->meeting)
			return false;
		if (at->next_in_group)
			good = push(e, at->next_in_group);
		for (uint32_t k = 0; good && k < at->meeting->ntasks; k++)
			good = push(e, at->meeting->tasks[k]);
	}
	return good;
}

bool device_may_fail(struct engine *e, struct task *t)
{
	if (!t->meeting || t->flying || t->meeting->at.span || t->meeting->wish)
		return false;
	e->pass = e->visit + 1;
	return !collect(e, t);
}

/* What is behind must not overtake it, on its communicator: it may need its result. */
static void hold(struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++)
		e->visited[i]->comm->held = e->launch_round;
}

static bool any_held(const struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++)
		if (e->visited[i]->comm->held == e->launch_round)
			return true;
	return false;
}

/* A group that alone is larger than the limit goes when nothing else flies. */
static bool airborne_full(struct engine *e)
{
	bool full = false;
	for (uint32_t i = 0; i < e->nvisited; i++) {
		struct member *m = e->visited[i]->member;
		if (m->nflying >= FLYING_MAX)
			full = m->full = true;
	}
	return full;
}

enum room { ROOM_YES, ROOM_LATER, ROOM_NEVER };

/* For all that is to be launched together. *devices: bits of theirs. */
static enum room room_for(struct engine *e, uint32_t *devices)
{
	enum room room = ROOM_YES;
	*devices = 0;
	for (uint32_t i = 0; i < e->nvisited; i++) {
		e->devices[e->visited[i]->member->device].wanted++;
		*devices |= 1u << e->visited[i]->member->device;
	}
	for (uint32_t i = 0; i < ENGINE_DEVICES; i++) {
		struct device *d = &e->devices[i];
		if (!d->wanted)
			continue;
		if (d->wanted > WORKER_LAUNCHES)
			room = ROOM_NEVER;
		else if (room == ROOM_YES && !device_room(d, d->wanted))
			room = ROOM_LATER;
		d->wanted = 0;
	}
	return room;
}

struct launch *device_next_launch(struct engine *e, struct member *m)
{
	struct launch *l = device_next_slot(&e->devices[m->device]);
	*l = (struct launch){.lane = m->comm->lane, .seq = ++m->lane_seq};
	return l;
}

static struct launch *write_launch(struct engine *e, struct task *t)
{
	const struct svc_record *r = &t->record;
	struct launch *l = device_next_launch(e, t->member);
	t->lane_seq = l->seq;
	l->src = (uint64_t)(uintptr_t)t->src;
	l->dst = (uint64_t)(uintptr_t)t->dst;
	l->count = r->count;
	l->value = r->value;
	l->task = t->uid;
	l->session = t->session->slot;
	l->timeline = r->timeline;
	l->peer = r->peer;
	l->op = r->op;
	l->type = r->type;
	l->redop = r->redop;
	l->src_window = t->src_window;
	l->dst_window = t->dst_window;
	l->flags = LAUNCH_MORE;
	return l;
}

void device_watch(struct engine *e, struct comm *c)
{
	if (c->launched)
		return;
	c->launched = true;
	DL_APPEND2(e->launched, c, prev_launched, next_launched);
}

/* From the member's queue to what is under way. */
static void fly(struct engine *e, struct task *t)
{
	struct member *m = t->member;
	struct comm *c = t->comm;
	DL_DELETE(m->queue, t);
	m->head_tasks--;
	DL_APPEND(m->flying, t);
	m->nflying++;
	deadlines_remove(&e->deadlines, &t->deadline);
	t->flying = true;
	t->started_ns = e->now;
	if (t->record.timeline) {
		complete_line_rests(t->session, t->record.timeline);
		t->session->lines[t->record.timeline].flying++;
	}
	device_watch(e, c);
	order_show_state(e, t);
	if (m->queue)
		order_make_ready(e, m);
}

/* One member's group, or its only task: one ncclGroup on each of its GPUs. */
static void launch_bundle(struct engine *e, struct task *any)
{
	struct task *first = any, *t = any;
	while (t->next_in_group && (t = t->next_in_group) != any)
		if (t->uid < first->uid)
			first = t;
	t = first;
	do {
		struct launch *last = NULL;
		const int32_t device = t->member->device;
		for (struct task *u = t; u;
		     u = u->next_in_group == first ? NULL : u->next_in_group) {
			if (u->flying || u->member->device != device)
				continue;
			last = write_launch(e, u);
			fly(e, u);
		}
		if (last)
			last->flags = 0;
		t = t->next_in_group;
	} while (t && t != first);
}

static void forget_meeting(struct engine *e, struct meeting *m)
{
	DL_DELETE(e->met, m);
	free(m);
}

/* What hung together does so no more. */
static void part_visited(struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++) {
		struct task *t = e->visited[i];
		struct meeting *m = t->meeting;
		t->next_in_group = NULL;
		if (!m)
			continue;
		for (uint32_t k = 0; k < m->ntasks; k++)
			m->tasks[k]->meeting = NULL;
		forget_meeting(e, m);
	}
}

static void launch_visited(struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++) {
		const struct meeting *m = e->visited[i]->meeting;
		if (m && m->tasks[0] == e->visited[i])
			window_choose(e, m->comm, m->tasks, m->ntasks);
	}
	for (uint32_t i = 0; i < e->nvisited; i++)
		if (!e->visited[i]->flying)
			launch_bundle(e, e->visited[i]);
	part_visited(e);
}

/* No queue would ever hold them, and whatever came behind would wait for ever. */
static void refuse_visited(struct engine *e)
{
	ncclsvc_status st = status_of(NCCLSVC_LIMIT);
	part_visited(e);
	for (uint32_t i = 0; i < e->nvisited; i++)
		order_end_task(e, e->visited[i], &st);
}

static bool crosses(const struct engine *e)
{
	for (uint32_t i = 0; i < e->nvisited; i++)
		if (e->visited[i]->meeting->at.span)
			return true;
	return false;
}

/* What other nodes launch too, in the order that all of them were told: nobody overtakes, and
 * nobody waits for what may only come behind it. The workers take what is in their queues. */
static void launch_ordered(struct engine *e)
{
	struct meeting *m;
	const struct making *k;
	uint32_t devices;
	while (sequence_next(e, &m, &k)) {
		bool room;
		e->pass = e->visit + 1;
		/* It was whole when it was wished for. Were it not, the other nodes launch it without
		 * this one, and its epochs end. */
		if (m && !collect(e, m->tasks[0])) {
			sequence_void(e, m->wish);
			continue;
		}
		room = m ? room_for(e, &devices) == ROOM_YES : making_launch(e, k);
		if (!room) {
			e->met_new = true;
			return;
		}
		if (m)
			launch_visited(e);
		sequence_launched(e);
	}
}

void device_launch(struct engine *e)
{
	struct meeting *m, *next;
	uint32_t devices, full = 0; /* bits */
	e->met_new = false;
	e->launch_round++;
	makings_launch(e);
	launch_ordered(e);
	e->pass = e->visit + 1;
	for (m = e->met; m; m = next) {
		next = m->next;
		if (m->comm->held == e->launch_round || m->wish)
			continue;
		bool whole = m->tasks[0]->visit < e->pass && collect(e, m->tasks[0]);
		/* Other meetings go with it. */
		while (next && whole && next->tasks[0]->visit == e->visit)
			next = next->next;
		if (!whole)
			continue;
		if (any_held(e) || airborne_full(e)) {
			hold(e); /* until some have landed */
			continue;
		}
		if (crosses(e)) {
			sequence_wish(e, room_for(e, &devices) != ROOM_NEVER);
			continue;
		}
		enum room room = room_for(e, &devices);
		/* Nobody overtakes on a device; on others, nobody is held up. */
		if (room == ROOM_YES && devices & full)
			room = ROOM_LATER;
		if (room == ROOM_YES) {
			launch_visited(e);
		} else if (room == ROOM_NEVER) {
			refuse_visited(e);
		} else {
			full |= devices;
			e->met_new = true;
		}
	}
	launch_ordered(e); /* the sequencer may be this engine */
	device_ring(e);
}

void device_land(struct engine *e, struct member *m)
{
	m->nflying--;
	if (m->full && m->nflying <= FLYING_MAX / 2) {
		m->full = false;
		e->met_new = true;
	}
}
