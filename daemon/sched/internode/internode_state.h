/* SPDX-License-Identifier: Apache-2.0
 * This node's state for all communicators on several nodes. */
#ifndef SCHED_INTERNODE_STATE_H
#define SCHED_INTERNODE_STATE_H

#include <stdbool.h>
#include <stdint.h>

struct internode_comm;
struct internode_packet;
struct node_match;

struct internode_state {
	struct internode_comm *comms; /* by id */
	uint32_t flights;	      /* sends and receives in progress */
	uint32_t ops;		      /* that move bytes between nodes */
	uint32_t committed;	      /* tasks that wait for other nodes */
	uint64_t message_ns;	      /* when another node's last message came */
	uint64_t polled_ns;	      /* when messages were last polled */
	uint64_t deadlock_ns;	      /* when to check for deadlocks */
	struct node_match *asked;
	struct node_match *late; /* their votes wait to be passed on: disseminate.c */
	struct internode_comm *endings;
	/* Messages not sent yet, this node's own too: for each node one packet, or more if they do
	 * not fit; and each node's newest. */
	struct internode_packet *open, **newest; /* [nodes] */
	struct internode_packet *sending;	 /* the carrier has them */
	bool *lost;				 /* [nodes] */
	uint32_t *need_us; /* [nodes]: suspended epochs that the node has not finished yet */
};

#endif
