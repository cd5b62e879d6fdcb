/* SPDX-License-Identifier: Apache-2.0
 * What this node tells a communicator's home, and what the other nodes tell this one: remote.c, and
 * remote_plan.c for plans. */
#ifndef COMM_REMOTE_H
#define COMM_REMOTE_H

#include "channel/link.h"

struct communicator;

/* ---- remote.c ---- */

/* A message came, of the right length at least. */
void remote_handle(struct cluster *c, uint32_t from, enum control_kind kind, const void *body,
		   size_t size);
void remote_node_lost(struct cluster *c, uint32_t node);
/* This node's part of that communicator; NULL: it has none. */
struct communicator *remote_find(struct cluster *c, const uint8_t *id);
/* To the home, and to the nodes of the epoch: what a member of this node does. */
void remote_join(struct communicator *m, uint32_t rank);
/* m->refused was, by this node. */
void remote_refused(struct communicator *m, int result);
void remote_unjoin(struct communicator *m, uint32_t rank, uint32_t session, bool late);
/* The epoch is over because of this rank (-1: none), or of that node (-1: none). */
void remote_break(struct communicator *m, int result, int32_t rank, int32_t node);
void remote_left(struct communicator *m, int32_t rank);
void remote_split(struct communicator *m, uint32_t rank, bool late);
/* The epoch that m->start asks for cannot begin here, because of this rank (-1: none). all: or else
 * only its home is told. */
void remote_not_begun(struct communicator *m, int result, int32_t rank, bool all);
/* To the registrar: it can begin, or (a result) not. again: it could before. */
void remote_nccl_ready(struct communicator *m, int result, int32_t rank, bool again);

/* ---- remote_plan.c ---- */

/* This rank's plan, which m->forming has. False: its home does not take so much now, or there is no
 * memory. */
bool remote_plan(struct communicator *m, uint32_t rank);
void remote_plan_late(struct communicator *m, uint32_t rank);
/* It is through with the plan of that number. */
void remote_plan_left(struct communicator *m, uint32_t rank, uint32_t number);
/* Of CONTROL_PLAN and what follows it: has the body the length that it should have? */
bool remote_plan_fits(enum control_kind kind, const void *body, size_t size);
void remote_plan_handle(struct cluster *c, uint32_t from, enum control_kind kind, const void *body);

#endif
