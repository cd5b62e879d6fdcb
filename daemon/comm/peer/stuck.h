/* SPDX-License-Identifier: Apache-2.0
 * Kernels that wait in vain for other ranks, as the members' control blocks show them. */
#ifndef COMM_PEER_STUCK_H
#define COMM_PEER_STUCK_H

#include <stdatomic.h>

#include "look.h"
#include "sched/api/scheduler.h"

/* The first kernel that waits in vain; result 0: none does. Reads the looks' histories. */
struct peer_stuck stuck_find(const struct communicator *m, struct look *looks, uint64_t now);
bool stuck_is_same(const struct peer_stuck *a, const struct peer_stuck *b);
/* Has the other rank submitted everything that this one waits for? */
bool stuck_other_entered(const struct peer_stuck *stuck, const struct look *looks);

/* The rank's first task of the kind on NCCL, as its slot in the task table + 1. 0: none. */
static inline uint32_t stuck_pending(const struct communicator *m, uint32_t rank, uint32_t kind)
{
	return atomic_load_explicit(&m->pending[rank].first[kind], memory_order_acquire);
}

static inline unsigned peer_dir_op(uint32_t peer_dir)
{
	return peer_dir < PEER_RANKS ? NCCLSVC_SEND : NCCLSVC_RECV;
}

#endif
