/* SPDX-License-Identifier: Apache-2.0
 * Messages from this node to the deciding components (coord/) on this or another node, and to the
 * other members' nodes. nodes/ handles those that come. */
#ifndef COMM_REMOTE_H
#define COMM_REMOTE_H

#include "coord/messages.h"

struct communicator;
struct comms;

/* ---- remote.c ---- */

/* Messages from this node to itself: starts, and stops. */
void remote_open(struct comms *s);
void remote_close(struct comms *s);
void remote_free(struct comms *s);
/* Sends to any node. This node handles its own message later, but before anything that comes after
 * it. */
void remote_send(struct comms *s, uint32_t node, enum control_kind kind, const void *body,
		 size_t size);
/* Handles the messages that this node has sent to itself, for OWN_TURN_NS at most. Call it before
 * handling other input. */
void remote_handle_own(struct comms *s);
/* Tell the rendezvous and the epoch's nodes what a local member does: it waits in JOIN, or is in an
 * epoch that runs or is about to begin. */
void remote_join(struct communicator *m, uint32_t rank);
/* This node has suspended the epoch, because of that node. */
void remote_suspend(struct communicator *m, int32_t rank, int32_t node);
/* Tells the rendezvous that a process of this node has left that lineage of a communicator. */
void remote_had_left(struct comms *s, const uint8_t *id, uint32_t nranks, const struct session *c,
		     uint32_t lineage);
/* This node has refused the JOIN of m->refused, for that reason. */
void remote_refused(struct communicator *m, int result, const char *text);
/* A local member (pid 0: it is gone) cannot join its part of a SPLIT, so the others cannot either.
 */
void remote_subcomm_refused(struct comms *s, const struct control_subcomm *subcomm, uint32_t uid,
			    int32_t pid, int result, const char *text);
void remote_unjoin(struct communicator *m, uint32_t rank, uint32_t session, enum withdrawal why);
/* The epoch has ended because of this rank (-1: none) or that node (-1: none). */
void remote_break(struct communicator *m, int result, int32_t rank, int32_t node);
/* Likewise, with all of the status. */
void remote_break_with(struct communicator *m, const ncclsvc_status *st, int32_t rank,
		       int32_t node);
/* plan: the number of the plan that it has finished with; 0: it has left the epoch. */
void remote_left(struct communicator *m, uint32_t rank, uint32_t plan);
/* The name of the running epoch. */
void remote_fill_epoch(struct control_epoch *of, const struct communicator *m);
/* A member of this node says that about a failure. */
void remote_describe(struct communicator *m, const struct control_description *d);
void remote_split(struct communicator *m, uint32_t rank);
/* The deadline has passed of a SPLIT or plan that this rank has requested. */
void remote_late(struct communicator *m, uint32_t rank, uint32_t request_id);
/* The epoch that m->start asks for cannot begin here because of this rank (-1: none), or because
 * its node is lost (-1: it is not). all: tell all nodes, not only the rendezvous. */
void remote_not_begun(struct communicator *m, int result, int32_t rank, int32_t lost, bool all);
/* Tells the NCCL pool that the epoch can begin or, with a result, cannot. again: it could before.
 */
void remote_nccl_ready(struct communicator *m, int result, int32_t rank, bool again);
/* Sends this rank's plan, from m->forming, to the coordinator. False: the coordinator accepts no
 * more now, or there is no memory. */
bool remote_plan(struct communicator *m, uint32_t rank, uint32_t request_id);

/* ---- unexpected.c ---- */

/* Keeps a message about an epoch or plan that has not begun here. False: it is not such a one. */
bool remote_take_unexpected(struct comms *s, uint32_t from, enum control_kind kind,
			    const void *body, size_t size);
/* Other nodes' messages about an epoch, kept until the epoch begins, or is about to, on this node.
 */
void remote_handle_unexpected(struct communicator *m);
void remote_forget_unexpected(struct communicator *m);
/* The last epoch that this node knows of, even if it has not begun here. */
uint32_t remote_last_epoch(const struct communicator *m);

/* ---- end.c ---- */

/* A member's node (-1: unknown) lacks a daemon, or cannot be reached. The members continue the
 * epoch when they can; rank: one of that node, or -1. False: they cannot, so the epoch has to
 * end. */
bool comm_suspend(struct communicator *m, int32_t rank, int32_t node);
/* The scheduler holds the tasks of a suspended epoch: its members continue it from now on. */
void comm_tell_suspended(struct communicator *m);
/* This daemon is about to end: suspends all epochs across nodes. False: there are none. */
bool comm_suspend_all(struct comms *s);

#endif
