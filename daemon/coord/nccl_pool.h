/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL communicators across nodes. Those whose list of GPUs begins with one of this node are
 * this node's to give: it knows which there are, who uses them, and which one an epoch gets. It
 * decides alone, so no two epochs get the same one, and all nodes get the same. Each member's node
 * says when it is ready for an epoch; when all are, they hear which communicator they use: an idle
 * one, or a new one, with an id that this node has made. A node gives its part back whole or
 * broken; once broken, all parts are. So a part is never used with parts of another one's. When the
 * node dies, so do its GPU's communicators: their numbers tell whose they were.
 */
#ifndef COORD_NCCL_POOL_H
#define COORD_NCCL_POOL_H

#include "coord.h"

/* The node that has made the one of that number, and gives it to epochs. */
uint32_t nccl_pool_that_made(uint64_t serial);
void nccl_pool_ready(struct coord *c, uint32_t from, const struct control_nccl_ready *m);
/* What ops->make_nccl_id was to make; or why there is none. */
void nccl_pool_id(struct coord *c, const uint8_t *id, uint32_t epoch, int result,
		  const uint8_t unique[NCCLSVC_ID_BYTES]);
/* False: this node has none of that number to give, or not any more: its part goes. */
bool nccl_pool_give(struct coord *c, uint32_t from, const struct control_nccl_free *m);
/* The epoch is over before it has begun. */
void nccl_pool_broken(struct coord *c, const struct control_break *m);
void nccl_pool_node_lost(struct coord *c, uint32_t node);
/* Lets go what was idle for too long; returns the next deadline, 0 for none. */
uint64_t nccl_pool_expire(struct coord *c);
void nccl_pool_free(struct coord *c);

#endif
