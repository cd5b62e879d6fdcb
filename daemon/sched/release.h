/* SPDX-License-Identifier: Apache-2.0
 *
 * The one module that ends tasks which fail, and releases the streams that wait for them. All
 * others say what has happened; release.c finds which tasks fail by it, decision.c the status that
 * they get, and timeline.c what their streams see. The deadlines are those of base/timings.h.
 *
 *   - A task's deadline passes (release_overdue), or it is cancelled (commands.c). If it waits, it
 *     ends at once; of a collective, with all members. Once its node has said READY to others, it
 *     ends when they have answered, or NODE_ANSWER later, with its epoch.
 *   - Records disagree (match.c, node_match.c), or all members wait (order.c, deadlock.c). What
 * matched ends before anything runs.
 *   - A member leaves (release_member), or leaves its plan (plan.c). Its own tasks end at once, and
 *     so do those that wait for them.
 *   - An epoch ends (release_epoch): a process, worker or node is lost, or an operation failed on
 *     its way. What waits ends at once; with members on other nodes, when these have ended it, too,
 *     or EPOCH_OVER or EPOCH_CLOSE later. What runs on the host is broken off and ends when that is
 *     done; between nodes, EPOCH_DRAIN later. What was launched on GPUs ends for its clients at
 *     once. Its memory and its streams follow when it lands, or when the workers have aborted it.
 *   - GPUs do neither. The streams go on STREAM_RELEASE after the last task has landed: the memory
 *     may still be written to, but no stream hangs. The supervisor lets workers abort after
 *     EPOCH_LAND; raises the inputs that GPUs wait for after half of worker_seconds; and kills
 *     workers that have not answered within worker_seconds.
 *   - A session ends. The inputs of what it has launched are raised, again at each INPUTS_LOOK.
 *   - A record is refused (ingest.c). Its stream goes on behind what it has launched.
 *   - The supervisor is lost. Its workers release all streams: worker/worker.c.
 *
 * What holds:
 *
 *   - The client of a task is told once, and before this process lets its stream go on.
 *   - All members of a collective get one status, the first (decision.c).
 *   - A task that has failed stays in its queue as a tombstone until it has matched the tasks of
 * the other members, so that what follows matches what it is meant for.
 *   - A task that runs, or waits for other nodes, is not ended by a deadline or a cancellation: its
 *     operation is asked to fail, and ends it.
 *   - Nothing is allocated.
 */
#ifndef SCHED_RELEASE_H
#define SCHED_RELEASE_H

#include "state.h"

/* ---- release.c ---- */

/* The task is over, well or not, and forgotten; its client is told, unless it is a tombstone. */
void release_end(struct engine *e, struct task *t, const ncclsvc_status *st);
/* Its client is told that it has failed; the task stays as a tombstone until its peers have matched
 * it, or, on a GPU, until it has landed. */
void release_early(struct engine *e, struct task *t, const ncclsvc_status *st);
/* A task is to fail, if it does not run yet: now for its client, and for the other members now or
 * when they match it. */
void release_fail(struct engine *e, struct task *t, const ncclsvc_status *why);
/* The current collective cannot run: members that have posted it learn of it now, the others
 * when they post it. */
void release_collective(struct engine *e, struct comm *c, const ncclsvc_status *st);
/* Tasks whose deadline has passed fail: some of them. */
void release_overdue(struct engine *e);
/* The epoch, or one member of it, is over; end: what its tasks are told. False: there is more to
 * do; to be called again. */
bool release_epoch(struct engine *e, struct comm *c, const ncclsvc_status *end);
bool release_member(struct engine *e, struct comm *c, int32_t rank);

/* ---- decision.c ---- */

/* The status that a collective in a queue already has on some member; NULL: it is open. */
const ncclsvc_status *decision_of(struct engine *e, const struct task *t);
/* The same of the communicator's current collective. */
const ncclsvc_status *decision_current(struct engine *e, struct comm *c);
/* t has become a tombstone: its end is that of its collective. */
void decision_keep(struct engine *e, struct task *t);
/* t is over. */
void decision_forget(struct engine *e, struct task *t);

#endif
