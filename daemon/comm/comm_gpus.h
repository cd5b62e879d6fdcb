/* SPDX-License-Identifier: Apache-2.0
 * Communicators of GPUs (gpu.c), the use of NCCL in their epochs (nccl/nccl_use.c), and their
 * members' reductions (redop.c). */
#ifndef COMM_GPUS_H
#define COMM_GPUS_H

#include "communicator.h"
#include "gpu/nccl_comm.h"

/* gpu.c: the requirements of an epoch of m whose members are known. nnodes is 1. */
struct nccl_comm_want comm_want(struct communicator *m);
/* The GPU's worker is gone: if device memory is staged, ends the epochs with a member on that GPU.
 */
void comm_staged_worker_lost(struct comms *s, const struct gpu *g);
/* The rest are the gpu_callbacks of the same names. */
void comm_nccl_unused(struct communicator *m);
bool comm_nccl_broken(struct communicator *m, int result, int32_t rank);
void comm_nccl_dead(const struct communicator *m);
void comm_nccl_abort(const struct communicator *m);
void comm_nccl_release(const struct communicator *m);
uint64_t comm_left_until(const struct communicator *m);

/* Can the epoch that is about to begin run its operations in kernels, and so begin without workers?
 */
bool comm_needs_no_nccl(struct comms *s, const struct communicator *m);
/* Does the epoch that is about to begin have members on other nodes? */
bool comm_across_nodes(const struct communicator *m);
/* This node is ready for the epoch of m->start; CONTROL_NCCL_USE follows. */
void comm_pool_ready(struct communicator *m);
/* This node is not ready any more. */
void comm_pool_withdraw(struct communicator *m, int result, int32_t rank);

/* nccl/nccl_use.c: gives m an NCCL communicator, if its running epoch wants one and workers are
 * ready.
 */
void comm_try_give(struct comms *s, struct communicator *m);
uint32_t comm_nccl_state(const struct communicator *m); /* ncclsvc_comm_nccl */
/* Its running epoch gets none. */
void comm_nccl_not_given(struct communicator *m, int result, const char *why);

/* redop.c: reductions that members create. */
void comm_redop_add(struct comms *s, struct session *c, uint32_t request_id,
		    const struct svc_redop_add *r);
/* m has an NCCL communicator: asks for the reductions that waited for it. */
void comm_redops_add(struct communicator *m);
/* The epoch is over, or the daemon ends. */
void comm_redops_refuse(struct communicator *m);
void comm_redops_free_all(struct comms *s);
void comm_redop_del(struct comms *s, struct session *c, uint32_t request_id,
		    const struct svc_redop_del *r);

#endif
