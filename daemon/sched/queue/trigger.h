/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks that a stream, such as a CUDA graph's, starts by writing a word in the session's memory,
 * since a graph's launch does not call the library (proto/wire_task.h). A trigger holds the
 * validated operations of a task group. Each time its number appears in its timeline's `ready`,
 * they become tasks at the end of their member's queue, as if the trainer had submitted them then.
 */
#ifndef SCHED_TRIGGER_H
#define SCHED_TRIGGER_H

#include "sched/base/state.h"

/* The task came by socket. It has ended, and is kept as an operation of its trigger. Not OK: it is
 * unchanged, and *text says why. */
int trigger_keep(struct scheduler *sched, struct task *t, const char **text);
/* The group of n tasks from the ring waits for the stream. Not OK: it is unchanged. */
int trigger_group(struct scheduler *sched, struct task *first, uint32_t n);
/* Checks the words. True: a task was submitted. */
bool triggers_poll(struct scheduler *sched);
void trigger_del(struct scheduler *sched, struct sched_session *s, uint32_t timeline,
		 uint64_t value);
/* The member takes no further part: its triggers are removed and their timelines are dead. end: the
 * status of tasks that were to run once. */
void triggers_end(struct scheduler *sched, struct sched_session *s, const struct member *m,
		  const ncclsvc_status *end);
/* Removes all of the session's triggers. */
void triggers_free(struct scheduler *sched, struct sched_session *s);

#endif
