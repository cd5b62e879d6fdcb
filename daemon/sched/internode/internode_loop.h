/* SPDX-License-Identifier: Apache-2.0
 * Communicators on several nodes: messages that come in, and the end of epochs. */
#ifndef SCHED_INTERNODE_LOOP_H
#define SCHED_INTERNODE_LOOP_H

#include "internode_comm.h"
#include "sched/base/nodes.h"

/* False: out of memory; internode_comm_finish_all frees. */
bool internode_comm_init_all(struct scheduler *sched);
/* Tells the other nodes. release_epoch follows when they have sent OVER, too. False: no others. */
bool internode_comm_begin_end(struct scheduler *sched, struct comm *c, const ncclsvc_status *end);
/* Handles a message from that node. */
void internode_comm_dispatch(struct scheduler *sched, const struct internode_header *h,
			     const char *body, int node);
/* Makes progress everywhere. True if anything happened. */
bool internode_comm_poll(struct scheduler *sched);
/* The node can be reached at that address from now on. Tells the supervisor. */
void internode_comm_carry(struct scheduler *sched, const struct command *c);
/* The node is lost; sends to it and receives from it never end. */
void internode_comm_node_lost(struct scheduler *sched, uint32_t node);
/* This daemon shuts down. Other nodes may still need its part in an epoch that is suspended. */
bool internode_comm_ends(struct scheduler *sched);
/* How long a loop without work may sleep. */
uint64_t internode_comm_sleep_ns(struct scheduler *sched);
void internode_comm_finish_all(struct scheduler *sched);

#endif
