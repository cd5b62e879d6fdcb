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

struct task *task_alloc(struct engine *e, struct session *s)
{
	struct task *t = e->free;
	if (s->user->tasks >= e->config.user_tasks_max)
		return NULL;
	if (t)
		e->free = t->next;
	else if (e->fresh < e->table.size)
		t = &e->tasks[e->fresh++];
	else
		return NULL;
	memset(t, 0, offsetof(struct task, uid));
	t->uid = ++e->uids;
	t->session = s;
	t->submitted_ns = e->now;
	s->tasks++;
	s->user->tasks++;
	table_count(&e->table.pending, 1);
	return t;
}

static struct task **published_place(const struct engine *e, uint64_t uid)
{
	return &e->published[uid & e->published_mask];
}

struct task *task_find(const struct engine *e, uint64_t uid)
{
	struct task *t = *published_place(e, uid);
	while (t && t->uid != uid)
		t = t->next_published;
	return t;
}

static void publish_task(struct engine *e, struct task *t)
{
	struct task **at = published_place(e, t->uid);
	t->next_published = *at;
	*at = t;
	order_publish(e, t);
}

static void unpublish_task(struct engine *e, struct task *t)
{
	struct task **at = published_place(e, t->uid);
	while (*at != t)
		at = &(*at)->next_published;
	*at = t->next_published;
	pending_hide(t);
	table_clear(&e->table, t->slot);
}

void task_free(struct engine *e, struct task *t)
{
	t->session->tasks--;
	t->session->user->tasks--;
	if (t->triggered)
		timeline_task_over(t);
	if (t->published)
		unpublish_task(e, t);
	t->uid = 0;
	t->next = e->free;
	e->free = t;
	table_count(&e->table.pending, -1);
}

/* Most tasks end at once, so only waiting tasks are shown, and have a deadline. */
void engine_publish(struct engine *e)
{
	for (uint32_t i = 0; i < e->nunpublished; i++) {
		struct task *t = e->unpublished[i].task;
		if (t->uid == e->unpublished[i].uid && t->comm && !t->published)
			publish_task(e, t);
	}
	e->nunpublished = 0;
}

void engine_publish_later(struct engine *e, struct task *t)
{
	const uint32_t room = sizeof(e->unpublished) / sizeof(e->unpublished[0]);
	if (e->nunpublished == room)
		engine_publish(e);
	e->unpublished[e->nunpublished].task = t;
	e->unpublished[e->nunpublished++].uid = t->uid;
}

uint32_t tasks_published_mask(uint32_t tasks_max)
{
	uint32_t mask = 0;
	while (mask + 1 < tasks_max)
		mask = 2 * mask + 1;
	return mask;
}

static const struct user *with_most_tasks(const struct engine *e)
{
	const struct user *u, *most = e->users;
	DL_FOREACH (e->users, u)
		if (u->tasks > most->tasks)
			most = u;
	return most;
}

ncclsvc_status task_no_room(const struct engine *e, const struct session *s)
{
	ncclsvc_status why = status_of(NCCLSVC_LIMIT);
	const bool own = s->user->tasks >= e->config.user_tasks_max;
	const struct user *u = own ? s->user : with_most_tasks(e);
	why.field = own ? NCCLSVC_FIELD_USER_TASKS : NCCLSVC_FIELD_TASKS;
	why.value_a = u->uid;
	why.value_b = u->tasks;
	return why;
}
