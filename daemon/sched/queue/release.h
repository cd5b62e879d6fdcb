/* SPDX-License-Identifier: Apache-2.0
 *
 * The only module that ends failing tasks and releases the streams that wait for them. Other
 * modules report events; release.c determines which tasks fail, decision.c their status, and
 * timeline.c what their streams see. base/timings.h has the deadlines.
 *
 *   - A task's deadline passes (release_overdue), or it is cancelled (commands.c). A waiting task
 *     ends at once; a collective does so on all members. If its node has voted READY, it ends when
 *     the other nodes have answered, or NODE_ANSWER later, with its epoch.
 *   - Records disagree (match.c, node_match.c), or all members wait (order.c, deadlock.c). The
 *     matched tasks end before anything runs.
 *   - A member leaves (release_member), or leaves its plan (planned_tasks.c). Its own tasks end at
 *     once, and so do the tasks that wait for them.
 *   - An epoch ends (release_epoch): a process, worker or node is lost, or an operation failed
 *     while running. Waiting tasks end at once; with members on other nodes, when these have ended
 *     the epoch, too, or EPOCH_OVER or EPOCH_CLOSE later. Tasks running on the host are aborted;
 *     between nodes, EPOCH_DRAIN later. Tasks launched on GPUs end for their clients at once. Their
 *     memory and streams are released when they complete, or when the workers have aborted them.
 *   - If GPUs do neither, the streams continue STREAM_RELEASE after the last completion: the memory
 *     may still be written to, but no stream hangs. The supervisor makes workers abort after
 *     EPOCH_LAND, raises the inputs that GPUs wait for after half of worker_seconds, and kills
 *     workers that have not answered within worker_seconds.
 *   - A session ends. The inputs of its launched tasks are raised, repeatedly every INPUTS_LOOK.
 *   - A record is refused (ingest.c). Its stream continues after the stream's launched tasks.
 *   - The supervisor is lost. Its workers release all streams: worker/worker.c.
 *
 * Invariants:
 *
 *   - A task's client is told once, before this process releases its stream.
 *   - All members of a collective get the same status, the first one (decision.c).
 *   - A task that has failed stays in its queue as a tombstone until it has matched the tasks of
 *     the other members, so that later tasks match their intended counterparts.
 *   - A deadline or cancellation does not end a task that runs or waits for other nodes: its
 *     operation is asked to fail, and ends the task.
 *   - No memory is allocated.
 */
#ifndef SCHED_RELEASE_H
#define SCHED_RELEASE_H

#include "sched/base/state.h"

/* ---- release_task.c ---- */

/* The task has ended, successfully or not, and is freed; its client is told, unless it is a
 * tombstone. */
void release_end(struct scheduler *sched, struct task *t, const ncclsvc_status *st);
/* Tells its client that it has failed; the task stays as a tombstone until the other members' tasks
 * have matched it or, on a GPU, until it has completed. */
void release_early(struct scheduler *sched, struct task *t, const ncclsvc_status *st);
/* Fails a task that does not run yet: at once for its client, and for the other members at once or
 * when they match it. */
void release_fail(struct scheduler *sched, struct task *t, const ncclsvc_status *why);
/* The current collective cannot run: members that have posted it are told now, the others when they
 * post it. */
void release_collective(struct scheduler *sched, struct comm *c, const ncclsvc_status *st);
/* A matched task that is not launched: its member has left, or the epoch has ended. Ends it and the
 * tasks it matched; for operations known to other nodes, the communicator ends the tasks. False:
 * other nodes may launch it, which one member cannot take back. */
bool release_set(struct scheduler *sched, struct task *t, const ncclsvc_status *st);

/* ---- release.c ---- */

/* Fails tasks whose deadline has passed, some per call. */
void release_overdue(struct scheduler *sched);
/* The epoch, or one member's part of it, has ended; end: its tasks' status. False: there is more to
 * do; call again. */
bool release_epoch(struct scheduler *sched, struct comm *c, const ncclsvc_status *end);
bool release_member(struct scheduler *sched, struct comm *c, int32_t rank);

/* ---- decision.c ---- */

/* The status that a queued collective already has on some member; NULL: it is open. */
const ncclsvc_status *decision_of(struct scheduler *sched, const struct task *t);
/* Likewise for the communicator's current collective. */
const ncclsvc_status *decision_current(struct scheduler *sched, struct comm *c);
/* t has become a tombstone; its status is that of its collective. */
void decision_keep(struct scheduler *sched, struct task *t);
/* t has ended. */
void decision_forget(struct scheduler *sched, struct task *t);

#endif
