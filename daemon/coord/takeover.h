/* SPDX-License-Identifier: Apache-2.0
 * After the loss of a node, another node becomes the rendezvous of its communicators. It holds back
 * JOINs until each surviving node has registered its members of running epochs, so that no newcomer
 * takes a rank that a healthy member holds. Private to coord. */
#ifndef COORD_TAKEOVER_H
#define COORD_TAKEOVER_H

#include "coord.h"

/* Handles the JOIN, or holds it back. */
void takeover_join(struct coord *c, uint32_t from, const struct control_join *m);
void takeover_withdrawn(struct coord *c, uint32_t from, const struct control_withdraw *m);
void takeover_node_lost(struct coord *c, uint32_t node);
uint64_t takeover_expire(struct coord *c);
void takeover_free(struct coord *c);

#endif
