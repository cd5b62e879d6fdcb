/* SPDX-License-Identifier: Apache-2.0 */
#include "timeline.h"

#include <stdlib.h>
#include <utlist.h>

#include "base/nofail.h"

void timeline_reserve(struct sched_session *s)
{
	if (!s->lines)
		s->lines = nofail_calloc(SVC_TIMELINES, sizeof(*s->lines), "timelines");
}

static void raise(_Atomic uint64_t *word, uint64_t value)
{
	if (atomic_load(word) < value)
		atomic_store(word, value);
}

static _Atomic uint64_t *done_of(const struct sched_session *s, uint32_t timeline)
{
	return &svc_timelines(s->ring)[timeline].done;
}

/* Does a requested task (but not `but`) of the timeline have a smaller value? It may be launched at
 * any time, and before all others of the member. */
static bool awaits_launch(const struct member *m, uint32_t timeline, uint64_t value,
			  const struct task *but)
{
	const struct task *t = m ? m->queue : NULL;
	for (; t && t->stage >= AT_HEAD && !t->group; t = t->next)
		if (t != but && t->requested && t->record.timeline == timeline &&
		    t->record.value < value)
			return true;
	return false;
}

void timeline_forget_owed(const struct sched_session *s, const struct member *m, uint32_t timeline)
{
	struct line *l = &s->lines[timeline];
	if (!l->in_flight && atomic_load(done_of(s, timeline)) < l->owed &&
	    !awaits_launch(m, timeline, l->owed, NULL))
		l->owed = 0;
}

/* How a task of a timeline has ended, or a record that became none. */
struct ending {
	const struct member *member; /* whose it was; NULL: not known */
	const struct task *task;     /* NULL: the record became no task */
	bool flew;		     /* it has completed on the GPU */
	bool at_once;		     /* do not wait for tasks that have not */
};

/* Raises done to the value and to all that is owed: at once, or when no task of the timeline is in
 * flight, or about to be. */
static void owe(const struct sched_session *s, uint32_t timeline, uint64_t value,
		const struct ending *e)
{
	struct line *l = s->lines ? &s->lines[timeline] : NULL;
	if (l && l->owed < value)
		l->owed = value;
	if (!l || e->at_once ||
	    (!l->in_flight && !awaits_launch(e->member, timeline, l->owed, e->task)))
		raise(done_of(s, timeline), l ? l->owed : value);
}

/* A task of the timeline has ended. */
static void end(const struct sched_session *s, const struct svc_record *r, const struct ending *e)
{
	const bool captured = r->flags & SVC_TASK_CAPTURED_GROUP;
	if (s->lines && !e->flew)
		timeline_forget_owed(s, e->member, r->timeline);
	owe(s, r->timeline, captured ? SVC_CAPTURED_GROUP_DEAD : r->value, e);
	/* Later tasks in flight have greater values, and may wait for this one's stream. */
	if (e->flew && !captured)
		raise(done_of(s, r->timeline), r->value);
}

/* Likewise for a staged task, or a record that became no task (but is NULL). Tasks of one group end
 * in any order, even while they run on after their epoch's end; done never passes one that has not
 * ended. */
static void end_staged(const struct sched_session *s, const struct svc_record *r,
		       const struct member *m, const struct task *but)
{
	struct line *l = &s->lines[r->timeline];
	const struct task *t, *first = NULL;
	if (l->owed < r->value)
		l->owed = r->value;
	uint64_t up_to = l->owed;
	DL_FOREACH (m->queue, t) {
		/* Values rise in queue order, except within a planned group. */
		if (first && (t->group != first->group || !t->record.plan))
			break;
		if (t == but || t->tombstone || t->record.timeline != r->timeline)
			continue;
		if (t->record.value <= up_to)
			up_to = t->record.value - 1;
		first = first ? first : t;
	}
	raise(done_of(s, r->timeline), up_to);
}

/* Is its memory a GPU's, without its tasks being work of its streams? */
static bool is_staged(const struct member *m)
{
	return m->device >= 0 && !(m->comm->transport->flags & TRANSPORT_ON_STREAMS);
}

void timeline_admitted(const struct task *t)
{
	if (t->session->lines && !is_staged(t->member))
		timeline_forget_owed(t->session, t->member, t->record.timeline);
}

void timeline_flies(const struct task *t)
{
	t->session->lines[t->record.timeline].in_flight++;
}

void timeline_ended(const struct task *t, bool well)
{
	if (well && t->record.flags & SVC_TASK_CAPTURED_GROUP)
		return; /* the GPU has written it, and the stream may have reset it */
	if (t->comm && is_staged(t->member))
		end_staged(t->session, &t->record, t->member, t);
	else if (t->session->ring && !(t->in_flight && t->tombstone))
		end(t->session, &t->record,
		    &(struct ending){.member = t->member, .task = t, .flew = t->in_flight});
}

void timeline_landed(const struct task *t)
{
	t->session->lines[t->record.timeline].in_flight--;
	if (t->session->left)
		return;
	/* The GPU may just have written a smaller value than its stream was told. */
	if (t->tombstone || (t->record.flags & SVC_TASK_CAPTURED_GROUP &&
			     t->session->lines[t->record.timeline].owed >= SVC_CAPTURED_GROUP_DEAD))
		end(t->session, &t->record,
		    &(struct ending){.member = t->member,
				     .task = t,
				     .flew = true,
				     .at_once = t->comm->released});
}

/* The member that submitted the record; NULL: its communicator does not exist. */
static const struct member *member_of_record(const struct sched_session *s,
					     const struct svc_record *r)
{
	const struct handle *h = r->comm < s->nhandles ? &s->handles[r->comm] : NULL;
	return h && h->comm ? &h->comm->members[h->rank] : NULL;
}

void timeline_refused(const struct sched_session *s, const struct svc_record *r)
{
	if (!(r->flags & SVC_TASK_TIMELINE) || r->timeline >= SVC_TIMELINES)
		return;
	const struct member *m = member_of_record(s, r);
	if (m && is_staged(m))
		end_staged(s, r, m, NULL);
	else
		end(s, r, &(struct ending){.member = m});
}

void timeline_kill(const struct sched_session *s, uint32_t timeline)
{
	if (!s->left)
		owe(s, timeline, SVC_CAPTURED_GROUP_DEAD, &(struct ending){0});
}

void timeline_release(struct comm *c)
{
	const struct task *t;
	c->released = true;
	for (uint32_t k = 0; k < c->nranks; k++)
		DL_FOREACH (c->members[k].in_flight, t)
			if (t->record.timeline && !t->session->left)
				end(t->session, &t->record,
				    &(struct ending){.member = t->member,
						     .task = t,
						     .flew = true,
						     .at_once = true});
}

bool timeline_input_there(const struct task *t)
{
	const struct svc_record *r = &t->record;
	if (r->flags & SVC_TASK_CAPTURED_GROUP)
		return t->session->lines[r->timeline].ahead != r->value;
	return !r->timeline ||
	       atomic_load_explicit(&svc_timelines(t->session->ring)[r->timeline].ready,
				    memory_order_relaxed) >= r->value;
}

void timeline_release_input(const struct task *t)
{
	const struct svc_record *r = &t->record;
	if (!r->timeline || t->session->left)
		return;
	struct svc_timeline *words = &svc_timelines(t->session->ring)[r->timeline];
	if (r->flags & SVC_TASK_CAPTURED_GROUP)
		atomic_store(&words->go, 1);
	else
		raise(&words->ready, r->value);
}

/* The client may reuse the timeline: no member has captured groups on it, and none of its tasks
 * runs. */
void timeline_let_go(struct sched_session *s, uint32_t timeline)
{
	struct line *l = &s->lines[timeline];
	if (l->comm || l->captured_tasks || l->in_flight || s->left)
		return;
	l->seen = 0;
	atomic_store(&svc_timelines(s->ring)[timeline].captured_groups, 0);
}

void timeline_task_over(const struct task *t)
{
	t->session->lines[t->record.timeline].captured_tasks--;
	timeline_let_go(t->session, t->record.timeline);
}
