/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks that a stream starts by a word in the session's memory, as a CUDA graph does: nobody calls
 * the library when a graph is launched (proto/wire_task.h). A trigger holds the operations of a
 * task group, which have been checked. Each time its number stands in its timeline's `ready`, they
 * become tasks, at the end of their member's queue, as if the trainer had submitted them then. */
#ifndef SCHED_TRIGGER_H
#define SCHED_TRIGGER_H

#include "sched/state.h"

/* The task, which came by socket, is kept, and over: it is one of its trigger's operations. Not OK:
 * it is as it was, and *text says why. */
int trigger_keep(struct engine *e, struct task *t, const char **text);
/* The group of n tasks from the ring waits for the stream. Not OK: it is as it was. */
int trigger_group(struct engine *e, struct task *first, uint32_t n);
/* Looks at the words. True: something was submitted. */
bool triggers_poll(struct engine *e);
/* A task that a trigger has started is freed. */
void trigger_task_over(const struct task *t);
void trigger_del(struct engine *e, struct session *s, uint32_t timeline, uint64_t value);
/* The member takes no part any more: its triggers go, and the timelines are dead. end: what those
 * are told that were to run once. */
void triggers_end(struct engine *e, struct session *s, const struct member *m,
		  const ncclsvc_status *end);
/* With the session. */
void triggers_free(struct engine *e, struct session *s);

#endif
