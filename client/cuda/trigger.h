/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations in CUDA graphs that NCCL runs in the daemon's workers. The daemon keeps them (a
 * trigger, proto/wire_task.h); a node of the graph writes the trigger's number to a word that the
 * daemon watches, waits until the GPU has run them, and takes the word for that back. One timeline
 * serves a member's part of an epoch, for its graphs come one after the other (peer_capture.c). As
 * long as such graphs live, what the program submits outside of them for NCCL goes the same way:
 * so the streams say in which order all of it comes. */
#ifndef CLIENT_CUDA_TRIGGER_H
#define CLIENT_CUDA_TRIGGER_H

#include "peer.h"

/* Some graph that has them can still be launched. */
static inline bool triggers_live(const struct peer *p)
{
	return __atomic_load_n(&p->ntriggers, __ATOMIC_ACQUIRE) !=
	       __atomic_load_n(&p->triggers_gone, __ATOMIC_ACQUIRE);
}
/* Brings those of each communicator together: of one rank, that no stream starts, all others. */
void triggers_sort(struct op *ops, unsigned n);
/* The daemon is to keep the operations, whose buffers are known, and of which graphs will have
 * those of each communicator as one trigger. Locked; yields. */
ncclsvc_result triggers_keep(ncclsvc_session *s, struct op *ops, unsigned n);
/* No graph will have what was kept. Keeps the last error. Locked; yields. */
void triggers_take_back(ncclsvc_session *s, const struct op *ops, unsigned n);
/* The parts of a trigger on a stream: its operations start; the stream waits for their end. */
enum trigger_part { TRIGGER_START = 1, TRIGGER_END = 2 };
/* Puts parts of what is kept into the graph. Not locked. */
ncclsvc_result triggers_capture(const struct op *ops, unsigned n, unsigned parts);
/* Refuses an operation that is in no graph and that its stream is to start, or prepares it. Locked.
 */
ncclsvc_result trigger_prepare(ncclsvc_session *s, struct op *op);
/* Numbers such operations of a group, which are sorted. Locked. */
void triggers_number(struct op *ops, unsigned n);
/* They are in the ring: puts parts for them on their streams. Both parts are due, in turn. Locked.
 */
ncclsvc_result triggers_launch(ncclsvc_session *s, const struct op *ops, unsigned n,
			       unsigned parts);
/* Later work on the stream waits for all that triggers have started so far. Locked. */
ncclsvc_result trigger_stream_wait(ncclsvc_session *s, CUstream handle, const struct slot *slot);
/* Are operations on the member's communicator to be started by their streams, as those of graphs
 * are? Yes as long as such graphs live, or such operations are pending; the answer is one for all
 * of a submission (clock). p can be NULL. Tells the daemon of graphs that are gone, as _sweep.
 * Locked. */
bool triggers_due(ncclsvc_session *s, struct peer *p, uint64_t clock);
void triggers_sweep(ncclsvc_session *s, struct peer *p);
/* The member takes no part any more, and the daemon has forgotten its triggers. Locked. */
void triggers_forget(ncclsvc_session *s, struct peer *p);
/* With p. */
void triggers_free(struct peer *p);

#endif
