/* SPDX-License-Identifier: Apache-2.0
 * Memory and communicators of GPUs, by the protocol alone: no process of this program uses CUDA. */
#ifndef ATTACK_GPUS_H
#define ATTACK_GPUS_H

#include "conn.h"
#include "proto/abi/peer.h"

#define GPUS	 2
#define GPU_PAGE (UINT64_C(2) << 20) /* what the driver rounds memory up to */

/* The region, or 0: refused, and the answer says why. fd: for the memory's descriptor, which is the
 * caller's then, or NULL. */
uint32_t gpu_lend(struct conn *c, int device, uint64_t bytes, int *fd, struct answer *answer);
/* The same of memory whose descriptor this is. */
uint32_t gpu_import(struct conn *c, int device, uint64_t bytes, int fd, struct answer *answer);
bool gpu_forget(struct conn *c, uint32_t region);

/* Joins conns[i] as rank i, on device i, of a new communicator. staging: their regions, or NULL.
 * False: refused. */
bool gpu_join(struct conn *conns, const uint32_t *staging, struct rank ranks[GPUS]);

/* All members' pages of a communicator that has staging memory, or NULL. */
struct peer_page *gpu_pages(const struct rank *rank);
void gpu_pages_close(struct peer_page *pages);

/* A kernel of a Recv and a Send that waits for the other rank: what the library and the kernel
 * write into the rank's page. */
void gpu_kernel_waits(struct peer_page *pages, int rank);

#endif
