/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks that a stream, such as a CUDA graph's, starts by writing a word in the session's memory,
 * since a graph's launch does not call the library (proto/wire_task.h). A captured group holds the
 * validated operations of a task group. Each time its number appears in its timeline's `ready`,
 * they become tasks at the end of their member's queue, as if the trainer had submitted them then.
 */
#ifndef SCHED_CAPTURED_GROUPS_H
#define SCHED_CAPTURED_GROUPS_H

#include "sched/base/state.h"

/* Keeps a task that came by socket as an operation of its captured group. The task has ended then.
 * Not OK: the task is unchanged, and *text says why. */
int captured_group_keep(struct scheduler *sched, struct task *t, const char **text);
/* Makes the group of n tasks from the ring wait for the stream. Not OK: the group is unchanged. */
int captured_group_hold(struct scheduler *sched, struct task *first, uint32_t n);
/* Checks the words. True: a task was submitted. */
bool captured_groups_poll(struct scheduler *sched);
void captured_group_delete(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
			   uint64_t value);
/* The member takes no further part: its captured groups are removed and their timelines are dead.
 * end: the status of tasks that were to run once. */
void captured_groups_end(struct scheduler *sched, struct sched_session *s, const struct member *m,
			 const ncclsvc_status *end);
/* Removes all of the session's captured groups. */
void captured_groups_drop(struct scheduler *sched, struct sched_session *s);

#endif
