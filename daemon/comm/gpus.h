/* SPDX-License-Identifier: Apache-2.0
 * Communicators of GPUs (gpu.c), across nodes (nccl_nodes.c), and their members' reductions
 * (redop.c). */
#ifndef COMM_GPUS_H
#define COMM_GPUS_H

#include "communicator.h"
#include "gpu/nccl_comm.h"

struct control_nccl_free;
struct control_nccl_use;

/* gpu.c: the requirements of an epoch of m whose members are known. nnodes is 1. */
struct nccl_comm_want comm_want(struct communicator *m);
/* The GPU's worker is gone: if device memory is staged, ends the epochs with a member on that GPU.
 */
void comm_staged_worker_lost(struct comms *s, const struct gpu *g);
/* The rest are the gpu_callbacks of the same names. */
bool comm_nccl_broken(struct communicator *m, int result, int32_t rank);
void comm_nccl_dead(const struct communicator *m);
void comm_nccl_abort(const struct communicator *m);
void comm_nccl_release(const struct communicator *m);
uint64_t comm_left_until(const struct communicator *m);

/* nccl_nodes.c: parts of NCCL communicators across nodes. */
bool nodes_across(const struct communicator *m);
/* The number of nodes with members of it. */
uint32_t nodes_of(const struct communicator *m);
/* This node is ready for the epoch of m->start; nodes_use follows. */
void nodes_want(struct communicator *m);
/* This node is not ready any more. */
void nodes_withdraw(struct communicator *m, int result, int32_t rank);
void nodes_use(struct comms *s, const struct control_nccl_use *u);
/* nccl_pool_id follows, perhaps at once. */
void nodes_make_id(struct comms *s, const uint8_t *id, uint32_t epoch, int32_t device);
void nodes_drop(struct comms *s, const struct control_nccl_free *d);
/* The NCCL communicators that the lost node owned are gone. */
void nodes_pool_lost(struct comms *s, uint32_t node);

/* redop.c: reductions that members create. */
void comm_redop_add(struct comms *s, struct client *c, uint32_t serial,
		    const struct svc_redop_add *r);
void comm_redop_del(struct comms *s, struct client *c, uint32_t serial,
		    const struct svc_redop_del *r);

#endif
