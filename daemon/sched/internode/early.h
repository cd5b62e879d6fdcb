/* SPDX-License-Identifier: Apache-2.0
 * What other nodes say of a communicator before its epoch has begun here. */
#ifndef SCHED_EARLY_H
#define SCHED_EARLY_H

#include "internode_comm.h"

/* False: out of memory; early_finish frees. */
bool early_init(struct engine *e);
/* For an epoch that this node has yet to begin. */
void early_keep(struct engine *e, const struct internode_header *h, const char *body, int node);
/* Will such an epoch begin here, as far as this node knows? Else it is over, or never began. */
bool early_is_expected(const struct engine *e, uint64_t id);
/* The communicator in that slot is about to begin this epoch; 0: it is not, any more. Slot
 * UINT32_MAX: none here begins it. */
void early_announce(struct engine *e, uint32_t slot, uint64_t id);
/* Takes what came before the epoch began, and gives it up if something of that is lost. */
void early_deliver(struct engine *e, struct comm *c);
/* Others announce what that node has not. */
void early_node_lost(struct engine *e, uint32_t node);
/* Something is kept: what nobody has announced in time goes. */
void early_expire(struct engine *e);
void early_finish(struct engine *e);

#endif
