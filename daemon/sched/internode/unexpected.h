/* SPDX-License-Identifier: Apache-2.0
 * Messages of other nodes about a communicator whose epoch has not begun on this node. */
#ifndef SCHED_UNEXPECTED_H
#define SCHED_UNEXPECTED_H

#include "internode_comm.h"

/* False: out of memory; unexpected_finish frees. */
bool unexpected_init(struct scheduler *sched);
/* Keeps a message for an epoch that has not begun on this node. */
void unexpected_keep(struct scheduler *sched, const struct internode_header *h, const char *body,
		     int node);
/* Will this epoch begin here, as far as this node knows? Otherwise it has ended, or never began. */
bool unexpected_is_announced(const struct scheduler *sched, uint64_t id);
/* The communicator in that slot is about to begin this epoch; 0: not any more. Slot UINT32_MAX: no
 * communicator of this node begins it. */
void unexpected_announce(struct scheduler *sched, uint32_t slot, uint64_t id);
/* Takes the messages that came before the epoch began; fails the epoch if any was lost. */
void unexpected_deliver(struct scheduler *sched, struct comm *c);
/* Drops the messages whose epoch was not announced in time. */
void unexpected_expire(struct scheduler *sched);
void unexpected_finish(struct scheduler *sched);

#endif
