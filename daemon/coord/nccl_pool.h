/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL communicators across nodes: one node, the lowest that lives, knows which there are, who
 * uses them, and which one an epoch gets. It decides alone, so no two epochs get the same one, and
 * all nodes get the same. Each member's node says when it is ready for an epoch; when all are, they
 * hear which communicator they use: an idle one, or a new one, with the id that rank 0's node has
 * made. A node gives its part back whole or broken; once broken, all parts are. So a part is never
 * used with parts of another one's. When that node dies, so do the communicators that it knew:
 * their numbers tell whose they were. */
#ifndef COORD_NCCL_POOL_H
#define COORD_NCCL_POOL_H

#include "coord.h"

uint32_t nccl_pool_of(const struct coord *c);
/* Which node gave this number? */
uint32_t nccl_pool_that_made(uint64_t serial);
void nccl_pool_ready(struct coord *c, uint32_t from, const struct control_nccl_ready *m);
void nccl_pool_id(struct coord *c, uint32_t from, const struct control_nccl_id *m);
void nccl_pool_give(struct coord *c, uint32_t from, const struct control_nccl_free *m);
void nccl_pool_node_lost(struct coord *c, uint32_t node);
/* Lets go what was idle for too long; returns the next deadline, 0 for none. */
uint64_t nccl_pool_expire(struct coord *c);
void nccl_pool_free(struct coord *c);

#endif
