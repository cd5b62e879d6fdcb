/* SPDX-License-Identifier: Apache-2.0
 * What this node tells those who decide for all nodes (coord/), on this node or another, and what
 * it is told: remote.c and remote_messages.c; remote_plan.c for plans. */
#ifndef COMM_REMOTE_H
#define COMM_REMOTE_H

#include "coord/messages.h"

struct communicator;
struct comms;

/* ---- remote.c ---- */

/* Sets s->coord up. s->cluster is there, if there are other nodes. */
void remote_start(struct comms *s);
/* No messages of this node to itself any more. */
void remote_close(struct comms *s);
void remote_free(struct comms *s);
/* To any node. This one handles it later, but before anything that comes after it. */
void remote_send(struct comms *s, uint32_t node, enum control_kind kind, const void *body,
		 size_t size);
/* Handles the messages that this node has sent to itself, for OWN_TURN_NS at most: to be called
 * before anything else is looked at. */
void remote_handle_own(struct comms *s);
/* A message came. */
void remote_handle(struct comms *s, uint32_t from, enum control_kind kind, const void *body,
		   size_t size);
void remote_node_lost(struct comms *s, uint32_t node);
/* Messages of other nodes about an epoch, kept until it is about to begin, or has begun, here. */
void remote_handle_unexpected(struct communicator *m);
void remote_forget_unexpected(struct communicator *m);
/* The last that this node has heard of, also if it has not begun here. */
uint32_t remote_last_epoch(const struct communicator *m);
/* This node's part of that communicator; NULL: it has none. */
struct communicator *remote_find(const struct comms *s, const uint8_t *id);
/* Tell the rendezvous and the nodes of the epoch what a member of this node does: it waits in JOIN,
 * or is in an epoch that runs or is about to. */
void remote_join(struct communicator *m, uint32_t rank);
/* m->refused was, by this node. */
void remote_refused(struct communicator *m, int result);
/* A member of this node (pid 0: it has gone) cannot join its part of a SPLIT, nor can the others
 * then. */
void remote_part_refused(struct comms *s, const struct control_part *part, uint32_t uid,
			 int32_t pid, int result, const char *text);
void remote_unjoin(struct communicator *m, uint32_t rank, uint32_t session, enum withdrawal why);
/* The epoch is over because of this rank (-1: none), or of that node (-1: none). */
void remote_break(struct communicator *m, int result, int32_t rank, int32_t node);
/* plan: the number of the one that it is through with; 0: it has left the epoch. */
void remote_left(struct communicator *m, uint32_t rank, uint32_t plan);
/* Names the epoch that runs. */
void remote_fill_epoch(struct control_epoch *of, const struct communicator *m);
/* A member of this node says that about a failure. */
void remote_describe(struct communicator *m, const struct control_description *d);
void remote_split(struct communicator *m, uint32_t rank);
/* The time is up of a SPLIT or a plan that this rank has asked for. */
void remote_late(struct communicator *m, uint32_t rank, uint32_t serial);
/* The epoch that m->start asks for cannot begin here, because of this rank (-1: none). all: or else
 * only the rendezvous is told. */
void remote_not_begun(struct communicator *m, int result, int32_t rank, bool all);
/* To the NCCL pool: it can begin, or (a result) not. again: it could before. */
void remote_nccl_ready(struct communicator *m, int result, int32_t rank, bool again);

/* ---- remote_plan.c ---- */

/* Sends this rank's plan, which m->forming has, to the coordinator. False: the coordinator takes no
 * more now, or there is no memory. */
bool remote_plan(struct communicator *m, uint32_t rank, uint32_t serial);

#endif
