/* SPDX-License-Identifier: Apache-2.0
 * The one place where the daemon writes timelines, the words in a session's memory that trainers'
 * streams wait for. (The GPU writes `done` too, behind each of its tasks, in their order.)
 *
 *   done is raised, never set back, and passes a task's value only once nothing that the stream
 *   waits for with it can still write to its memory. So the value of a task that fails before it is
 *   launched is owed while others of its timeline are in flight, and raised behind the last of
 * them; only a release (below) does not wait for them. Of triggered tasks (proto/wire_task.h), a
 * failure raises it to what no stream takes back. done is raised once for a task: when its
 * client is told, or, of a task that was launched, when it lands. A smaller value that the GPU
 * wrote meanwhile is raised again then. ready is raised only of a task whose trainer does not do it
 * any more. */
#ifndef SCHED_TIMELINE_H
#define SCHED_TIMELINE_H

#include "sched/state.h"

/* What the timelines of a session need from now on is reserved. */
void timeline_reserve(struct session *s);
/* While nothing of it flies, all that is owed has been raised, or it is another stream's by now. */
void timeline_forget_owed(const struct session *s, uint32_t timeline);
/* The task has a timeline, and ... */
/* ... is launched on a GPU; */
void timeline_flies(const struct task *t);
/* ... its client is told how it ended (before it lands, if it flies and its epoch is over); */
void timeline_told(const struct task *t, bool well);
/* ... the GPU is through with it. */
void timeline_landed(const struct task *t);
/* A record that became no task: a stream may wait for it all the same. */
void timeline_refused(const struct session *s, const struct svc_record *r);
/* No stream waits any more for what triggers of the timeline start (trigger.h). */
void timeline_kill(const struct session *s, uint32_t timeline);
/* Streams of the communicator do not wait for what flies any more, whatever the GPUs are in. */
void timeline_release(struct comm *c);
/* Has its trainer's stream come to it? For a launched task the GPU asks. */
bool timeline_input_there(const struct task *t);
/* The GPU does not wait for the task's input any more. */
void timeline_release_input(const struct task *t);

#endif
