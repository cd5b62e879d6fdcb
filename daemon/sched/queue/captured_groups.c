/* SPDX-License-Identifier: Apache-2.0 */
#include "captured_groups.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/hash.h"
#include "complete.h"
#include "order.h"
#include "proto/task.h"
#include "sched/base/sched_sessions.h"
#include "sched/base/status.h"
#include "sched/base/supervisor.h"
#include "sched/base/task_state.h"
#include "sched/base/tasks.h"
#include "sched/base/timeline.h"

/* A validated operation. */
struct captured_op {
	struct svc_record record;
	struct member *member;
	char *src, *dst;
};

struct captured_group {
	UT_hash_handle hh; /* in its timeline, by number */
	uint32_t number;
	uint32_t n;
	bool kept; /* otherwise it runs once */
	struct captured_op ops[];
};

static struct svc_timeline *words(const struct sched_session *s, uint32_t timeline)
{
	return &svc_timelines(s->ring)[timeline];
}

/* ---- Adding and removing ---- */

static struct captured_group *find(const struct sched_session *s, uint32_t timeline,
				   uint64_t number)
{
	struct captured_group *t = NULL;
	const uint32_t key = (uint32_t)number;
	if (number <= SVC_CAPTURED_GROUP_MAX)
		HASH_FIND(hh, s->lines[timeline].captured_groups, &key, sizeof(key), t);
	return t;
}

/* The word is checked until its member's epoch has ended, or must end because of the word. */
static void watch(struct scheduler *sched, struct sched_session *s, uint32_t timeline)
{
	if (!s->captured_timelines)
		DL_APPEND2(sched->captured_sessions, s, prev_captured, next_captured);
	s->captured_timelines |= UINT64_C(1) << timeline;
}

static void unwatch(struct scheduler *sched, struct sched_session *s, uint32_t timeline)
{
	const uint64_t bit = UINT64_C(1) << timeline;
	if (s->captured_timelines == bit)
		DL_DELETE2(sched->captured_sessions, s, prev_captured, next_captured);
	s->captured_timelines &= ~bit;
}

/* Adds to the number of captured communicators on each of its local GPUs. */
static void count(struct scheduler *sched, const struct comm *c, int by)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].device >= 0)
			sched->devices[c->members[k].device].captured_comms += (uint32_t)by;
}

static bool shares_gpus(const struct scheduler *sched, const struct comm *c)
{
	bool shares = false;
	for (uint32_t k = 0; k < c->nranks; k++)
		shares = shares || (c->members[k].device >= 0 &&
				    sched->devices[c->members[k].device].captured_comms > 1);
	return shares;
}

static void insert(struct scheduler *sched, const struct task *of, struct captured_group *t)
{
	struct line *l = &of->session->lines[of->record.timeline];
	if (!l->captured_groups && !of->comm->captured_timelines++)
		count(sched, of->comm, 1);
	if (!l->comm) {
		l->launched =
			(uint32_t)atomic_load(&words(of->session, of->record.timeline)->launched);
		l->newest = 0;
	}
	l->comm = of->comm;
	l->member = of->member;
	HASH_ADD(hh, l->captured_groups, number, sizeof(t->number), t);
	watch(sched, of->session, of->record.timeline);
}

static void release(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
		    struct captured_group *t)
{
	struct line *l = &s->lines[timeline];
	HASH_DELETE(hh, l->captured_groups, t);
	for (uint32_t i = 0; i < t->n; i++)
		sched_session_pin(s, &t->ops[i].record, -1);
	s->user->captured_ops -= t->n;
	free(t);
	if (!l->captured_groups && !--l->comm->captured_timelines)
		count(sched, l->comm, -1);
}

/* Why the timeline has no room for n operations of the task's member; NULL: it has. */
static const char *refusal(const struct scheduler *sched, const struct task *t, uint32_t n,
			   int *result)
{
	const struct sched_session *s = t->session;
	const struct line *l = &s->lines[t->record.timeline];
	timeline_forget_owed(s, t->member, t->record.timeline);
	*result = NCCLSVC_INVALID_ARGUMENT;
	if (l->owed >= SVC_CAPTURED_GROUP_DEAD || (l->comm && l->member != t->member))
		return "the timeline's captured groups belonged to another communicator, or to an "
		       "epoch that is over";
	*result = NCCLSVC_LIMIT;
	if (s->user->captured_ops + n > sched->config.user_tasks_max)
		return "too many operations of this user wait for streams to start them";
	*result = NCCLSVC_OK;
	return NULL;
}

static void append(struct captured_group *group, const struct task *t)
{
	group->ops[group->n++] = (struct captured_op){t->record, t->member, t->src, t->dst};
	t->session->user->captured_ops++;
	sched_session_pin(t->session, &t->record, 1);
}

/* Creates a captured group with the task's number, with room for n more operations than `old`,
 * which it replaces. NULL: no memory. */
static struct captured_group *make_group(struct scheduler *sched, const struct task *of,
					 struct captured_group *old, uint32_t n)
{
	const uint32_t had = old ? old->n : 0;
	struct captured_group *t = malloc(sizeof(*t) + (had + n) * sizeof(t->ops[0]));
	if (!t)
		return NULL;
	t->number = (uint32_t)of->record.value;
	t->n = had;
	t->kept = of->by_socket;
	if (old) {
		struct line *l = &of->session->lines[of->record.timeline];
		memcpy(t->ops, old->ops, had * sizeof(t->ops[0]));
		HASH_DELETE(hh, l->captured_groups, old);
		HASH_ADD(hh, l->captured_groups, number, sizeof(t->number), t);
		free(old);
	} else {
		insert(sched, of, t);
	}
	return t;
}

int captured_group_keep(struct scheduler *sched, struct task *t, const char **text)
{
	struct sched_session *s = t->session;
	int result;
	*text = refusal(sched, t, 1, &result);
	if (result) {
		timeline_let_go(s, t->record.timeline);
		return result;
	}
	struct captured_group *old = find(s, t->record.timeline, t->record.value);
	*text = "another captured group has this number, or the group is too large";
	if (old && (!old->kept || old->ops[0].member != t->member || old->n == SVC_GROUP_TASKS))
		return NCCLSVC_INVALID_ARGUMENT;
	struct captured_group *group = make_group(sched, t, old, 1);
	*text = "out of memory";
	if (!group)
		return NCCLSVC_NO_MEMORY;
	append(group, t);
	t->record.timeline = 0; /* nothing waits for the end of a kept task */
	complete_task(sched, t, &status_ok);
	task_free(sched, t);
	return NCCLSVC_OK;
}

/* All of one member, timeline and number. */
static bool is_one(const struct task *first)
{
	const struct svc_record *a = &first->record;
	const struct task *t;
	DL_FOREACH (first, t) {
		const struct svc_record *b = &t->record;
		if (!(b->flags & SVC_TASK_CAPTURED_GROUP) || t->member != first->member ||
		    b->timeline != a->timeline || b->value != a->value)
			return false;
	}
	return true;
}

int captured_group_hold(struct scheduler *sched, struct task *first, uint32_t n)
{
	struct sched_session *s = first->session;
	struct task *t, *next;
	int result;
	if (!is_one(first) || find(s, first->record.timeline, first->record.value))
		return NCCLSVC_INVALID_ARGUMENT;
	if (refusal(sched, first, n, &result))
		return result;
	struct captured_group *group = make_group(sched, first, NULL, n);
	if (!group)
		return NCCLSVC_NO_MEMORY;
	DL_FOREACH_SAFE (first, t, next) {
		append(group, t);
		DL_DELETE(first, t);
		task_free(sched, t);
	}
	return NCCLSVC_OK;
}

void captured_group_delete(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
			   uint64_t value)
{
	if (!s->lines || timeline >= SVC_TIMELINES)
		return;
	struct captured_group *t = find(s, timeline, value);
	if (t && t->kept)
		release(sched, s, timeline, t);
}

/* ---- The end of an epoch ---- */

/* Tasks that run once are reported to their client. */
static void refuse_once(struct scheduler *sched, struct sched_session *s,
			const struct captured_group *t, const ncclsvc_status *end)
{
	for (uint32_t i = 0; !t->kept && i < t->n; i++) {
		sched->live--;
		complete_refused(sched, s, &t->ops[i].record, 0, false, end, "");
	}
}

void captured_groups_end(struct scheduler *sched, struct sched_session *s, const struct member *m,
			 const ncclsvc_status *end)
{
	for (uint32_t i = 0; s->lines && i < SVC_TIMELINES; i++) {
		struct line *l = &s->lines[i];
		if (!l->comm || l->member != m)
			continue;
		timeline_kill(s, i);
		while (l->captured_groups) {
			refuse_once(sched, s, l->captured_groups, end);
			release(sched, s, i, l->captured_groups);
		}
		unwatch(sched, s, i);
		l->comm = NULL;
		l->ahead = 0;
		timeline_let_go(s, i);
	}
}

void captured_groups_drop(struct scheduler *sched, struct sched_session *s)
{
	for (uint32_t i = 0; s->lines && i < SVC_TIMELINES; i++) {
		while (s->lines[i].captured_groups) {
			const struct captured_group *t = s->lines[i].captured_groups;
			sched->live -= t->kept ? 0 : t->n;
			release(sched, s, i, s->lines[i].captured_groups);
		}
		if (s->captured_timelines >> i & 1)
			unwatch(sched, s, i);
	}
}

/* ---- Starting ---- */

static struct task *make(struct scheduler *sched, struct sched_session *s,
			 const struct captured_op *op)
{
	struct task *t = task_alloc(sched, s);
	if (!t)
		return NULL;
	t->record = op->record;
	t->request_id = 0;
	t->rank = (int32_t)(op->member - op->member->comm->members);
	t->member = op->member;
	t->comm = op->member->comm;
	t->src = op->src;
	t->dst = op->dst;
	t->captured = true;
	s->lines[op->record.timeline].captured_tasks++;
	return t;
}

static void free_all(struct scheduler *sched, struct task *first)
{
	struct task *t, *next;
	DL_FOREACH_SAFE (first, t, next) {
		DL_DELETE(first, t);
		task_free(sched, t);
	}
}

/* NULL: there is no room for this many tasks, as *why says. */
static struct task *make_all(struct scheduler *sched, struct sched_session *s,
			     const struct captured_group *group, ncclsvc_status *why)
{
	struct task *first = NULL;
	for (uint32_t i = 0; i < group->n; i++) {
		struct task *t = make(sched, s, &group->ops[i]);
		if (!t) {
			*why = task_no_room(sched, s);
			free_all(sched, first);
			return NULL;
		}
		DL_APPEND(first, t);
	}
	return first;
}

static bool start(struct scheduler *sched, struct sched_session *s,
		  const struct captured_group *group, ncclsvc_status *why)
{
	sched->steps += STEP_RECORD;
	struct task *first = make_all(sched, s, group, why);
	if (!first)
		return false;
	if (group->kept) {
		sched->live += group->n;
		table_count(&s->counts->submitted, group->n);
	}
	sched->captured_ns = sched->now;
	sched->steps += group->n * STEP_RECORD;
	order_group(sched, first, group->n);
	return true;
}

/* The next operation of the graph may be launched ahead, and wait for its input on the GPU. But
 * streams can share a queue of the GPU, so a waiting operation may block work that its input
 * depends on, unless this is the only such communicator on the GPUs. */
static void start_ahead(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
			uint64_t value)
{
	struct line *l = &s->lines[timeline];
	const struct captured_group *t = find(s, timeline, value);
	ncclsvc_status why;
	if (!t || !t->kept || s->left || shares_gpus(sched, l->comm))
		return;
	l->ahead = value;
	if (!start(sched, s, t, &why))
		l->ahead = 0;
}

/* An operation started by a stream does not run. Its epoch must end for that, and the word is not
 * checked again. */
static void fail(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
		 const ncclsvc_status *why)
{
	const struct comm *c = s->lines[timeline].comm;
	struct event event = {.kind = EVENT_CAPTURED_GROUP_FAILED,
			      .tasks = {.comm = c->slot, .status = *why}};
	event.tasks.status.epoch = c->epoch;
	supervisor_event(sched, &event);
	unwatch(sched, s, timeline);
}

/* Streams have reached some of them, which inspection shows. */
static void show_all(struct scheduler *sched, const struct member *m)
{
	struct task *t;
	DL_FOREACH (m->queue, t)
		task_show(sched, t);
	DL_FOREACH (m->in_flight, t)
		task_show(sched, t);
}

/* The stream has reached the captured group of that number. A task launched ahead may have run
 * before its own number was seen, as a later number shows, and its graph may be gone by then. */
static void arrive(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
		   uint64_t value)
{
	struct line *l = &s->lines[timeline];
	struct captured_group *t = find(s, timeline, value);
	const bool started = l->ahead == value;
	ncclsvc_status why = status_of(NCCLSVC_PROTOCOL); /* no existing graph has it */
	if (!t && !started) {
		fail(sched, s, timeline, &why);
		return;
	}
	l->ahead = 0;
	l->arrived_ns = sched->now;
	if (started)
		show_all(sched, l->member);
	if (!t)
		return;
	if (!started && !start(sched, s, t, &why))
		fail(sched, s, timeline, &why);
	else if (t->kept)
		start_ahead(sched, s, timeline, value + 1);
	else
		release(sched, s, timeline, t);
}

/* For the next daemon: which group's number has been taken, and which launch runs it. */
static void note_taken(struct svc_timeline *t, const struct line *l, uint64_t value)
{
	const bool is_launched = l->ahead == value && l->newest == value;
	atomic_store(&t->taken_launch, l->launched + !is_launched);
	atomic_store(&t->taken, (uint32_t)value);
}

static bool look(struct scheduler *sched, struct sched_session *s, uint32_t timeline)
{
	struct line *l = &s->lines[timeline];
	_Atomic uint64_t *ready = &words(s, timeline)->ready;
	const uint64_t value = atomic_load_explicit(ready, memory_order_acquire);
	uint64_t seen = value;
	if (!value || s->left ||
	    atomic_load(&words(s, timeline)->captured_groups) == SVC_CAPTURED_PARTLY)
		return false;
	/* Deletions that the trainer sent before it launched the graph are queued. */
	if (!l->seen)
		l->seen = atomic_load(&sched->commands_queued) + 1;
	if (l->seen - 1 > sched->commands_run)
		return false;
	/* Tasks that the trainer submitted before it launched the graph come first. */
	if (!sched_session_ring_empty(s) || s->group) {
		sched_session_active(sched, s);
		return false;
	}
	/* The stream writes the next number when these have run, which may be now for tasks
	 * launched ahead. */
	note_taken(words(s, timeline), l, value);
	atomic_compare_exchange_strong(ready, &seen, 0);
	arrive(sched, s, timeline, value);
	l->seen = 0;
	return true;
}

bool captured_groups_poll(struct scheduler *sched)
{
	bool any = false;
	struct sched_session *s, *next;
	DL_FOREACH_SAFE2 (sched->captured_sessions, s, next, next_captured) {
		/* One group per session and round, so that others have their turn. */
		bool one = false;
		for (uint64_t lines = s->captured_timelines; lines && !one; lines &= lines - 1)
			one = look(sched, s, (uint32_t)__builtin_ctzll(lines));
		any |= one;
	}
	return any;
}
