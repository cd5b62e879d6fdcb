/* SPDX-License-Identifier: Apache-2.0
 * The memory of tasks, and those that inspection shows. */
#ifndef SCHED_TASKS_H
#define SCHED_TASKS_H

#include "state.h"

/* Makes the task visible to inspection, unless it ends soon; and shows all such tasks now. */
void tasks_publish_later(struct scheduler *sched, struct task *t);
void tasks_publish(struct scheduler *sched);
/* NULL: the user, or the table, has no room. */
struct task *task_alloc(struct scheduler *sched, struct sched_session *s);
void task_free(struct scheduler *sched, struct task *t);
/* Returns the task of that id, if inspection knows it; otherwise NULL. */
struct task *task_find(const struct scheduler *sched, uint64_t uid);
/* The status of a task without room: the limit of its user, or of the daemon. */
ncclsvc_status task_no_room(const struct scheduler *sched, const struct sched_session *s);
/* The mask of the buckets that find tasks by uid, for a table of that size. */
uint32_t tasks_published_mask(uint32_t tasks_max);

#endif
