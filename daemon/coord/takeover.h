/* SPDX-License-Identifier: Apache-2.0
 * After the loss of a node, another one is the rendezvous of its communicators: coord's own header.
 * The new rendezvous keeps JOINs back until each living node has registered its members of the
 * epochs that run, so that no newcomer takes a rank that a healthy member holds. */
#ifndef COORD_TAKEOVER_H
#define COORD_TAKEOVER_H

#include "coord.h"

/* Handles the JOIN, or keeps it back. */
void takeover_join(struct coord *c, uint32_t from, const struct control_join *m);
void takeover_withdrawn(struct coord *c, uint32_t from, const struct control_withdraw *m);
void takeover_node_lost(struct coord *c, uint32_t node);
uint64_t takeover_expire(struct coord *c);
void takeover_free(struct coord *c);

#endif
