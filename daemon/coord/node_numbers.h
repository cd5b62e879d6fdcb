/* SPDX-License-Identifier: Apache-2.0
 * Where messages name nodes. Each daemon has numbers of its own for the others (channel/nodes.c).
 */
#ifndef COORD_NODE_NUMBERS_H
#define COORD_NODE_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

/* Calls visit for each number of a node in the message, which need not be valid: it may change the
 * number. */
void messages_visit_nodes(unsigned kind, void *body, size_t size,
			  void (*visit)(void *arg, uint32_t *node), void *arg);

#endif
