/* SPDX-License-Identifier: Apache-2.0
 * GPU memory and communicators through the protocol, without the library. */
#ifndef ATTACK_GPUS_H
#define ATTACK_GPUS_H

#include "conn.h"
#include "proto/abi/peer_abi.h"

#define GPUS	 2
#define GPU_PAGE (UINT64_C(2) << 20) /* the driver's allocation granularity */

/* Allocates and registers memory of whole pages, which the process frees once it is registered.
 * Returns the region, or 0 if refused, and the answer says why. */
uint32_t gpu_memory(struct conn *c, int device, uint64_t bytes, struct answer *answer);
bool gpu_forget(struct conn *c, uint32_t region);

/* Joins conns[i] as rank i, on device i, of a new communicator. staging: their regions, or NULL.
 * False: refused. */
bool gpu_join(struct conn *conns, const uint32_t *staging, struct rank ranks[GPUS]);

/* All members' control blocks of a communicator with staging memory, or NULL. */
struct peer_control *gpu_controls(const struct rank *rank);
void gpu_controls_close(struct peer_control *controls);

/* A kernel of a Recv and a Send that waits for the other rank: writes to the rank's control block
 * what the library and the kernel would. */
void gpu_kernel_waits(struct peer_control *controls, int rank);

#endif
