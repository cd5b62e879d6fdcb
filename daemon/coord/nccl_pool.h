/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL communicators across nodes. This node owns those whose list of GPUs begins with one of
 * its own: it knows them and their users, and assigns them to epochs. As the only one to decide, it
 * never gives one communicator to two epochs, and gives all nodes of an epoch the same one. Each
 * member's node says when it is ready for an epoch; when all are, it tells them which communicator
 * to use: an idle one, or a new one with an id from this node. A node returns its part intact or
 * broken; one broken part breaks all of them. So parts of different communicators are never
 * combined. When the owning node dies, the communicators of its GPU die, too.
 */
#ifndef COORD_NCCL_POOL_H
#define COORD_NCCL_POOL_H

#include "coord.h"

void nccl_pool_ready(struct coord *c, uint32_t from, const struct control_nccl_ready *m);
/* The result of ops->make_nccl_id, or why it failed. */
void nccl_pool_id(struct coord *c, const uint8_t *id, uint32_t epoch, int result,
		  const uint8_t unique[NCCLSVC_ID_BYTES]);
/* False: this node has no such communicator to give, or not any more: its part goes. */
bool nccl_pool_give(struct coord *c, uint32_t from, const struct control_nccl_free *m);
/* The epoch has ended before it began. */
void nccl_pool_broken(struct coord *c, const struct control_break *m);
void nccl_pool_node_lost(struct coord *c, uint32_t node);
/* Frees communicators that were idle too long; returns the next deadline, 0 for none. */
uint64_t nccl_pool_expire(struct coord *c);
void nccl_pool_free(struct coord *c);

#endif
