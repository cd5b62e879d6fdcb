/* SPDX-License-Identifier: Apache-2.0
 * The only module of the daemon that writes timelines, the words in a session's memory that
 * trainers' streams wait for. (The GPU writes `done`, too, after each of its tasks, in their
 * order.)
 *
 *   done only rises, and passes a task's value only when no operation that the stream waits for
 *   with it can still write to its memory. So the value of a task that fails before its launch is
 *   owed while others of its timeline are in flight, or earlier ones wait for the sequencer to
 *   launch them, and done is raised after the last of them; only a release (below) does not wait.
 *   If a captured task (proto/wire_task.h) fails, done is raised to a value that no stream takes
 *   back. done is raised once per task: when its client is told or, for a launched task, when it
 *   completes; if the GPU has written a smaller value meanwhile, done is raised again then. ready
 *   is raised only for a task whose trainer no longer does so. */
#ifndef SCHED_TIMELINE_H
#define SCHED_TIMELINE_H

#include "state.h"

/* Reserves the resources for a session's timelines. */
void timeline_reserve(struct sched_session *s);
/* If no task of it is in flight, or about to be, all that is owed has been raised, or the timeline
 * belongs to another stream by now. m: the member whose tasks use it; NULL: none. */
void timeline_forget_owed(const struct sched_session *s, const struct member *m, uint32_t timeline);
/* An event of a task with a timeline: it ... */
/* ... is put into its member's queue, or plan; */
void timeline_admitted(const struct task *t);
/* ... is launched on a GPU; */
void timeline_flies(const struct task *t);
/* ... has ended for its client (before its completion, if it is in flight and its epoch has ended);
 */
void timeline_ended(const struct task *t, bool well);
/* ... has completed on the GPU. */
void timeline_landed(const struct task *t);
/* A record that became no task; a stream may wait for it anyway. */
void timeline_refused(const struct sched_session *s, const struct svc_record *r);
/* No stream waits any more for tasks started by captured groups of the timeline
 * (captured_groups.h). */
void timeline_kill(const struct sched_session *s, uint32_t timeline);
/* Streams of the communicator no longer wait for tasks in flight, whatever state the GPUs are in.
 */
void timeline_release(struct comm *c);
/* Has its trainer's stream reached it? For a launched task, the GPU checks this. */
bool timeline_input_there(const struct task *t);
/* The client may reuse the timeline, if no member has captured groups on it and none of its tasks
 * runs. */
void timeline_let_go(struct sched_session *s, uint32_t timeline);
/* A task that a captured group has started has ended. */
void timeline_task_over(const struct task *t);
/* The GPU no longer waits for the task's input. */
void timeline_release_input(const struct task *t);

#endif
