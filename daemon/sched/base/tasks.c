/* SPDX-License-Identifier: Apache-2.0
 * The memory of tasks, and those that inspection shows. */
#include "tasks.h"

#include <string.h>
#include <utlist.h>

#include "pending.h"
#include "status.h"
#include "task_state.h"
#include "timeline.h"

/* ---- Memory ---- */

struct task *task_alloc(struct scheduler *sched, struct sched_session *s)
{
	struct task *t = sched->free;
	if (s->user->tasks >= sched->config.user_tasks_max)
		return NULL;
	if (t)
		sched->free = t->next;
	else if (sched->fresh < sched->table.size)
		t = &sched->tasks[sched->fresh++];
	else
		return NULL;
	memset(t, 0, offsetof(struct task, uid));
	t->uid = ++sched->uids;
	t->session = s;
	t->submitted_ns = sched->now;
	s->tasks++;
	s->user->tasks++;
	table_count(&sched->table.pending, 1);
	return t;
}

static struct task **bucket_of(const struct scheduler *sched, uint64_t uid)
{
	return &sched->published[uid & sched->published_mask];
}

struct task *task_find(const struct scheduler *sched, uint64_t uid)
{
	struct task *t = *bucket_of(sched, uid);
	while (t && t->uid != uid)
		t = t->next_published;
	return t;
}

static void publish_task(struct scheduler *sched, struct task *t)
{
	struct task **at = bucket_of(sched, t->uid);
	t->next_published = *at;
	*at = t;
	task_publish(sched, t);
}

static void unpublish_task(struct scheduler *sched, struct task *t)
{
	struct task **at = bucket_of(sched, t->uid);
	while (*at != t)
		at = &(*at)->next_published;
	*at = t->next_published;
	pending_hide(t);
	table_clear(&sched->table, t->slot);
}

void task_free(struct scheduler *sched, struct task *t)
{
	t->session->tasks--;
	t->session->user->tasks--;
	if (t->captured)
		timeline_task_over(t);
	if (t->published)
		unpublish_task(sched, t);
	t->uid = 0;
	t->next = sched->free;
	sched->free = t;
	table_count(&sched->table.pending, -1);
}

/* Most tasks end at once, so only waiting tasks are shown, and have a deadline. */
void tasks_publish(struct scheduler *sched)
{
	for (uint32_t i = 0; i < sched->nunpublished; i++) {
		struct task *t = sched->unpublished[i].task;
		if (t->uid == sched->unpublished[i].uid && t->comm && !t->published)
			publish_task(sched, t);
	}
	sched->nunpublished = 0;
}

void tasks_publish_later(struct scheduler *sched, struct task *t)
{
	const uint32_t room = sizeof(sched->unpublished) / sizeof(sched->unpublished[0]);
	if (sched->nunpublished == room)
		tasks_publish(sched);
	sched->unpublished[sched->nunpublished].task = t;
	sched->unpublished[sched->nunpublished++].uid = t->uid;
}

uint32_t tasks_published_mask(uint32_t tasks_max)
{
	uint32_t mask = 0;
	while (mask + 1 < tasks_max)
		mask = 2 * mask + 1;
	return mask;
}

static const struct user *with_most_tasks(const struct scheduler *sched)
{
	const struct user *u, *most = sched->users;
	DL_FOREACH (sched->users, u)
		if (u->tasks > most->tasks)
			most = u;
	return most;
}

ncclsvc_status task_no_room(const struct scheduler *sched, const struct sched_session *s)
{
	ncclsvc_status why = status_of(NCCLSVC_LIMIT);
	const bool own = s->user->tasks >= sched->config.user_tasks_max;
	const struct user *u = own ? s->user : with_most_tasks(sched);
	why.field = own ? NCCLSVC_FIELD_USER_TASKS : NCCLSVC_FIELD_TASKS;
	why.value_a = u->uid;
	why.value_b = u->tasks;
	return why;
}
