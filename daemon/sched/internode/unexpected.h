/* SPDX-License-Identifier: Apache-2.0
 * What other nodes say of a communicator before its epoch has begun here. */
#ifndef SCHED_UNEXPECTED_H
#define SCHED_UNEXPECTED_H

#include "internode_comm.h"

/* False: out of memory; unexpected_finish frees. */
bool unexpected_init(struct engine *e);
/* For an epoch that this node has yet to begin. */
void unexpected_keep(struct engine *e, const struct internode_header *h, const char *body,
		     int node);
/* Will such an epoch begin here, as far as this node knows? Else it is over, or never began. */
bool unexpected_is_announced(const struct engine *e, uint64_t id);
/* The communicator in that slot is about to begin this epoch; 0: it is not, any more. Slot
 * UINT32_MAX: none here begins it. */
void unexpected_announce(struct engine *e, uint32_t slot, uint64_t id);
/* Takes what came before the epoch began, and gives it up if something of that is lost. */
void unexpected_deliver(struct engine *e, struct comm *c);
/* Others announce what that node has not. */
void unexpected_node_lost(struct engine *e, uint32_t node);
/* Something is kept: what nobody has announced in time goes. */
void unexpected_expire(struct engine *e);
void unexpected_finish(struct engine *e);

#endif
