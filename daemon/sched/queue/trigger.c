/* SPDX-License-Identifier: Apache-2.0 */
#include "trigger.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/hash.h"
#include "complete.h"
#include "order.h"
#include "proto/task.h"
#include "sched/base/sessions.h"
#include "sched/base/status.h"
#include "sched/base/supervisor.h"
#include "sched/base/task_state.h"
#include "sched/base/tasks.h"
#include "sched/base/timeline.h"

/* A validated operation. */
struct triggered {
	struct svc_record record;
	struct member *member;
	char *src, *dst;
};

struct trigger {
	UT_hash_handle hh; /* in its timeline, by number */
	uint32_t number;
	uint32_t n;
	bool kept; /* otherwise it runs once */
	struct triggered ops[];
};

static struct svc_timeline *words(const struct sched_session *s, uint32_t timeline)
{
	return &svc_timelines(s->ring)[timeline];
}

/* ---- Adding and removing ---- */

static struct trigger *find(const struct sched_session *s, uint32_t timeline, uint64_t number)
{
	struct trigger *t = NULL;
	const uint32_t key = (uint32_t)number;
	if (number <= SVC_TRIGGER_MAX)
		HASH_FIND(hh, s->lines[timeline].triggers, &key, sizeof(key), t);
	return t;
}

/* The word is checked until its member's epoch has ended, or must end because of the word. */
static void watch(struct scheduler *sched, struct sched_session *s, uint32_t timeline)
{
	if (!s->triggering)
		DL_APPEND2(sched->triggering, s, prev_triggering, next_triggering);
	s->triggering |= UINT64_C(1) << timeline;
}

static void unwatch(struct scheduler *sched, struct sched_session *s, uint32_t timeline)
{
	const uint64_t bit = UINT64_C(1) << timeline;
	if (s->triggering == bit)
		DL_DELETE2(sched->triggering, s, prev_triggering, next_triggering);
	s->triggering &= ~bit;
}

/* Adds to the number of triggered communicators on each of its local GPUs. */
static void count(struct scheduler *sched, const struct comm *c, int by)
{
	for (uint32_t k = 0; k < c->nranks; k++)
		if (c->members[k].device >= 0)
			sched->devices[c->members[k].device].triggering += (uint32_t)by;
}

static bool shares_gpus(const struct scheduler *sched, const struct comm *c)
{
	bool shares = false;
	for (uint32_t k = 0; k < c->nranks; k++)
		shares = shares || (c->members[k].device >= 0 &&
				    sched->devices[c->members[k].device].triggering > 1);
	return shares;
}

static void insert(struct scheduler *sched, const struct task *of, struct trigger *t)
{
	struct line *l = &of->session->lines[of->record.timeline];
	if (!l->triggers && !of->comm->triggering++)
		count(sched, of->comm, 1);
	l->comm = of->comm;
	l->member = of->member;
	HASH_ADD(hh, l->triggers, number, sizeof(t->number), t);
	watch(sched, of->session, of->record.timeline);
}

static void release(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
		    struct trigger *t)
{
	struct line *l = &s->lines[timeline];
	HASH_DELETE(hh, l->triggers, t);
	for (uint32_t i = 0; i < t->n; i++)
		sched_session_pin(s, &t->ops[i].record, -1);
	s->user->triggered -= t->n;
	free(t);
	if (!l->triggers && !--l->comm->triggering)
		count(sched, l->comm, -1);
}

/* Why the timeline has no room for n operations of the task's member; NULL: it has. */
static const char *refusal(const struct scheduler *sched, const struct task *t, uint32_t n,
			   int *result)
{
	const struct sched_session *s = t->session;
	const struct line *l = &s->lines[t->record.timeline];
	timeline_forget_owed(s, t->record.timeline);
	*result = NCCLSVC_INVALID_ARGUMENT;
	if (l->owed >= SVC_TRIGGER_DEAD || (l->comm && l->member != t->member))
		return "the timeline's triggers belonged to another communicator, or to an epoch "
		       "that "
		       "is over";
	*result = NCCLSVC_LIMIT;
	if (s->user->triggered + n > sched->config.user_tasks_max)
		return "too many operations of this user wait for streams to start them";
	*result = NCCLSVC_OK;
	return NULL;
}

static void append(struct trigger *trigger, const struct task *t)
{
	trigger->ops[trigger->n++] = (struct triggered){t->record, t->member, t->src, t->dst};
	t->session->user->triggered++;
	sched_session_pin(t->session, &t->record, 1);
}

/* Creates a trigger with the task's number, with room for n more operations than `old`, which it
 * replaces. NULL: no memory. */
static struct trigger *make_trigger(struct scheduler *sched, const struct task *of,
				    struct trigger *old, uint32_t n)
{
	const uint32_t had = old ? old->n : 0;
	struct trigger *t = malloc(sizeof(*t) + (had + n) * sizeof(t->ops[0]));
	if (!t)
		return NULL;
	t->number = (uint32_t)of->record.value;
	t->n = had;
	t->kept = of->by_socket;
	if (old) {
		struct line *l = &of->session->lines[of->record.timeline];
		memcpy(t->ops, old->ops, had * sizeof(t->ops[0]));
		HASH_DELETE(hh, l->triggers, old);
		HASH_ADD(hh, l->triggers, number, sizeof(t->number), t);
		free(old);
	} else {
		insert(sched, of, t);
	}
	return t;
}

int trigger_keep(struct scheduler *sched, struct task *t, const char **text)
{
	struct sched_session *s = t->session;
	int result;
	*text = refusal(sched, t, 1, &result);
	if (result) {
		timeline_let_go(s, t->record.timeline);
		return result;
	}
	struct trigger *old = find(s, t->record.timeline, t->record.value);
	*text = "another group has the trigger's number, or the group is too large";
	if (old && (!old->kept || old->ops[0].member != t->member || old->n == SVC_GROUP_TASKS))
		return NCCLSVC_INVALID_ARGUMENT;
	struct trigger *trigger = make_trigger(sched, t, old, 1);
	*text = "out of memory";
	if (!trigger)
		return NCCLSVC_NO_MEMORY;
	append(trigger, t);
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
		if (!(b->flags & SVC_TASK_TRIGGER) || t->member != first->member ||
		    b->timeline != a->timeline || b->value != a->value)
			return false;
	}
	return true;
}

int trigger_group(struct scheduler *sched, struct task *first, uint32_t n)
{
	struct sched_session *s = first->session;
	struct task *t, *next;
	int result;
	if (!is_one(first) || find(s, first->record.timeline, first->record.value))
		return NCCLSVC_INVALID_ARGUMENT;
	if (refusal(sched, first, n, &result))
		return result;
	struct trigger *trigger = make_trigger(sched, first, NULL, n);
	if (!trigger)
		return NCCLSVC_NO_MEMORY;
	DL_FOREACH_SAFE (first, t, next) {
		append(trigger, t);
		DL_DELETE(first, t);
		task_free(sched, t);
	}
	return NCCLSVC_OK;
}

void trigger_del(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
		 uint64_t value)
{
	if (!s->lines || timeline >= SVC_TIMELINES)
		return;
	struct trigger *t = find(s, timeline, value);
	if (t && t->kept)
		release(sched, s, timeline, t);
}

/* ---- The end of an epoch ---- */

/* Tasks that run once are reported to their client. */
static void refuse_once(struct scheduler *sched, struct sched_session *s, const struct trigger *t,
			const ncclsvc_status *end)
{
	for (uint32_t i = 0; !t->kept && i < t->n; i++) {
		sched->live--;
		complete_refused(sched, s, &t->ops[i].record, 0, false, end, "");
	}
}

void triggers_end(struct scheduler *sched, struct sched_session *s, const struct member *m,
		  const ncclsvc_status *end)
{
	for (uint32_t i = 0; s->lines && i < SVC_TIMELINES; i++) {
		struct line *l = &s->lines[i];
		if (!l->comm || l->member != m)
			continue;
		timeline_kill(s, i);
		while (l->triggers) {
			refuse_once(sched, s, l->triggers, end);
			release(sched, s, i, l->triggers);
		}
		unwatch(sched, s, i);
		l->comm = NULL;
		l->ahead = 0;
		timeline_let_go(s, i);
	}
}

void triggers_free(struct scheduler *sched, struct sched_session *s)
{
	for (uint32_t i = 0; s->lines && i < SVC_TIMELINES; i++) {
		while (s->lines[i].triggers) {
			const struct trigger *t = s->lines[i].triggers;
			sched->live -= t->kept ? 0 : t->n;
			release(sched, s, i, s->lines[i].triggers);
		}
		if (s->triggering >> i & 1)
			unwatch(sched, s, i);
	}
}

/* ---- Starting ---- */

static struct task *make(struct scheduler *sched, struct sched_session *s,
			 const struct triggered *op)
{
	struct task *t = task_alloc(sched, s);
	if (!t)
		return NULL;
	t->record = op->record;
	t->serial = 0;
	t->rank = (int32_t)(op->member - op->member->comm->members);
	t->member = op->member;
	t->comm = op->member->comm;
	t->src = op->src;
	t->dst = op->dst;
	t->triggered = true;
	s->lines[op->record.timeline].triggered++;
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
			     const struct trigger *trigger, ncclsvc_status *why)
{
	struct task *first = NULL;
	for (uint32_t i = 0; i < trigger->n; i++) {
		struct task *t = make(sched, s, &trigger->ops[i]);
		if (!t) {
			*why = task_no_room(sched, s);
			free_all(sched, first);
			return NULL;
		}
		DL_APPEND(first, t);
	}
	return first;
}

static bool start(struct scheduler *sched, struct sched_session *s, const struct trigger *trigger,
		  ncclsvc_status *why)
{
	sched->steps += STEP_RECORD;
	struct task *first = make_all(sched, s, trigger, why);
	if (!first)
		return false;
	if (trigger->kept) {
		sched->live += trigger->n;
		table_count(&s->counts->submitted, trigger->n);
	}
	sched->triggered_ns = sched->now;
	sched->steps += trigger->n * STEP_RECORD;
	order_group(sched, first, trigger->n);
	return true;
}

/* The next operation of the graph may be launched ahead, and wait for its input on the GPU. But
 * streams can share a queue of the GPU, so a waiting operation may block work that its input
 * depends on, unless this is the only such communicator on the GPUs. */
static void start_ahead(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
			uint64_t value)
{
	struct line *l = &s->lines[timeline];
	const struct trigger *t = find(s, timeline, value);
	ncclsvc_status why;
	if (!t || !t->kept || shares_gpus(sched, l->comm))
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
	struct event event = {.kind = EVENT_TRIGGER_FAILED,
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

/* The stream has reached the trigger of that number. A task launched ahead may have run before its
 * own number was seen, as a later number shows, and its graph may be gone by then. */
static void arrive(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
		   uint64_t value)
{
	struct line *l = &s->lines[timeline];
	struct trigger *t = find(s, timeline, value);
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

static bool look(struct scheduler *sched, struct sched_session *s, uint32_t timeline)
{
	struct line *l = &s->lines[timeline];
	_Atomic uint64_t *ready = &words(s, timeline)->ready;
	const uint64_t value = atomic_load_explicit(ready, memory_order_acquire);
	uint64_t seen = value;
	if (!value)
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
	atomic_compare_exchange_strong(ready, &seen, 0);
	arrive(sched, s, timeline, value);
	l->seen = 0;
	return true;
}

bool triggers_poll(struct scheduler *sched)
{
	bool any = false;
	struct sched_session *s, *next;
	DL_FOREACH_SAFE2 (sched->triggering, s, next, next_triggering) {
		/* One group per session and round, so that others have their turn. */
		bool one = false;
		for (uint64_t lines = s->triggering; lines && !one; lines &= lines - 1)
			one = look(sched, s, (uint32_t)__builtin_ctzll(lines));
		any |= one;
	}
	return any;
}
