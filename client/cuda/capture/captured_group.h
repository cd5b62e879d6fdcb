/* SPDX-License-Identifier: Apache-2.0
 * Operations in CUDA graphs that NCCL runs in the daemon's workers. The operations of one task
 * group on one communicator are a captured group, which the daemon keeps (proto/wire_task.h). A
 * graph node writes the group's number to a word that the daemon watches, waits until the GPU has
 * run the operations, and clears the word again. One timeline serves a member for a whole epoch,
 * because its graphs run one after the other (capture_graph.c). While such graphs exist, NCCL
 * operations submitted outside graphs go the same way, so that the streams determine the order of
 * all of them. */
#ifndef CLIENT_CUDA_CAPTURED_GROUP_H
#define CLIENT_CUDA_CAPTURED_GROUP_H

#include "capture.h"
#include "core/task_slot.h"

/* ---- captured_group.c: numbers, and what the daemon keeps ---- */

/* Groups the operations by communicator: those of one rank first, then those that no stream starts,
 * then all others. */
void captured_groups_sort(struct op *ops, unsigned n);
/* How many operations, starting with the first, are on the same communicator. */
static inline unsigned captured_group_run(const struct op *ops, unsigned n)
{
	unsigned k = 1;
	while (k < n && ops[k].comm == ops->comm)
		k++;
	return k;
}
/* Refuses operations that cannot be captured. Locked. */
ncclsvc_result captured_groups_check(ncclsvc_session *s, const struct op *ops, unsigned n);
/* Has the daemon keep the operations, whose buffers are known and whose communicators have been
 * opened for captures (capture_open). Each communicator's operations form one captured group.
 * Locked; yields. */
ncclsvc_result captured_groups_keep(ncclsvc_session *s, struct op *ops, unsigned n);
/* Takes back captured groups that no graph will contain. Keeps the last error. Locked; yields. */
void captured_groups_take_back(ncclsvc_session *s, const struct op *ops, unsigned n);
/* A user object's destructor, for a graph with the captured group: the driver calls it on its own
 * thread. */
void captured_group_gone(void *arg);
/* Prepares an operation outside graphs that its stream starts, or refuses it. Locked. */
ncclsvc_result captured_group_prepare(ncclsvc_session *s, struct op *op);
/* Numbers such operations of a group, which are sorted. Locked. */
void captured_groups_number(struct op *ops, unsigned n);
/* Whether operations on the member's communicator must be started by their streams, like those of
 * graphs: while such graphs exist, or such operations are pending. The answer is constant within a
 * submission (clock). c can be NULL. Also reports graphs that are gone to the daemon, like _sweep.
 * Locked. */
bool captured_groups_due(ncclsvc_session *s, struct capture *c, uint64_t clock);
void captured_groups_sweep(ncclsvc_session *s, struct capture *c);
/* The member takes no part any more, and the daemon has forgotten its captured groups. Locked. */
void captured_groups_forget(ncclsvc_session *s, struct capture *c);
/* Frees the captured groups together with c, and gives their timeline back. */
void captured_groups_free(struct capture *c);

/* After a restart of the daemon: makes the timeline's words show what the next daemon has to do,
 * and adds to *done what has run (proto/group/done.h). False: an operation is half done, or has
 * failed. c can be NULL. Locked. */
bool captured_groups_settle(const struct capture *c, uint64_t *done);
/* After that: whether the operation outside graphs with that number has run. */
bool captured_group_ran(const struct capture *c, uint64_t number);
/* Has the next daemon keep the captured groups, in the epoch that continues. The communicator has a
 * capture. Locked; yields. */
ncclsvc_result captured_groups_again(ncclsvc_session *s, const ncclsvc_comm *comm);
/* Its tasks outside graphs have been submitted, too: streams may start all of them. c can be NULL.
 * Locked. */
void captured_groups_go_on(const struct capture *c);

/* ---- captured_group_stream.c ---- */

/* A captured group's phases on a stream: the operations start; the stream waits for their end. */
enum captured_group_phase { CAPTURED_GROUP_START = 1, CAPTURED_GROUP_END = 2 };
/* Puts phases of the kept groups into the graph. Not locked. */
ncclsvc_result captured_groups_capture(const struct op *ops, unsigned n, unsigned phases);
/* Puts phases of these operations, which are in the ring, on their streams: both, in turn. Locked.
 */
ncclsvc_result captured_groups_launch(ncclsvc_session *s, const struct op *ops, unsigned n,
				      unsigned phases);
/* Makes later work on the stream wait for everything that captured groups have started so far.
 * Locked. */
ncclsvc_result captured_group_stream_wait(ncclsvc_session *s, CUstream handle,
					  const struct slot *slot);

#endif
