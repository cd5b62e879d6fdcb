/* SPDX-License-Identifier: Apache-2.0
 * Handles reports about communicators from other nodes and from this node's scheduler. */
#ifndef COMM_NODE_REPORTS_H
#define COMM_NODE_REPORTS_H

#include "comm/communicator.h"
#include "coord/messages.h"

struct comms;

/* ---- coord.c ---- */

/* Initializes s->coord and s->callbacks. s->cluster must be set if there are other nodes. */
void remote_start(struct comms *s);

/* ---- messages.c ---- */

/* A message arrived. */
void remote_handle(struct comms *s, uint32_t from, enum control_kind kind, const void *body,
		   size_t size);
/* Handles a message to the members on this node, for remote_handle. */
void remote_deliver(struct comms *s, uint32_t from, enum control_kind kind, const void *body);
/* returns: its daemon has ended, or only the connection to it, so epochs may be continued. */
void remote_node_lost(struct comms *s, uint32_t node, bool returns);
/* One more node is reached, for which epochs may have waited. */
void remote_node_ready(struct comms *s);
/* Makes the scheduler's carrier reach the node; cluster_carried follows. */
void remote_carry(struct comms *s, uint32_t node, const void *address, size_t size, uint32_t here,
		  uint32_t there);
/* Does any communicator have members there, or gather there? */
bool remote_needs_node(const struct comms *s, uint32_t node);

/* ---- epochs.c: an epoch begins or ends, or a member has left ---- */

void comm_gathered(struct communicator *m, const struct control_start *start);
void comm_left_elsewhere(struct communicator *m, int32_t rank);
void comm_node_lost(struct communicator *m, uint32_t node, bool returns);
/* The scheduler reports that a member left, ahead of the other node's message. */
void comm_member_left(struct comms *s, uint32_t slot, uint32_t epoch, int32_t rank);
void comm_internode_failed(struct comms *s, uint32_t slot, uint32_t epoch, int result,
			   int32_t node);
/* A captured operation failed with this status, which ends the epoch. */
void comm_captured_group_failed(struct comms *s, uint32_t slot, const ncclsvc_status *st);
/* The table of transitions lacks this cause: ends the epoch, or fails the JOINs. */
void comm_not_in_table(struct communicator *m, ncclsvc_epoch_cause cause);

/* ---- nccl.c: NCCL communicators across nodes ---- */

void nodes_use(struct comms *s, uint32_t owner, const struct control_nccl_use *u);
/* nccl_pool_id follows, perhaps at once. */
void nodes_make_id(struct comms *s, const uint8_t *id, uint32_t epoch, int32_t device);
void nodes_drop(struct comms *s, const struct control_nccl_free *d);
/* The NCCL communicators that the lost node owned are gone. */
void nodes_pool_lost(struct comms *s, uint32_t node);

#endif
