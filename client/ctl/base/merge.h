/* SPDX-License-Identifier: Apache-2.0
 * The parts of several nodes as one snapshot. What a node says of its own members, tasks and
 * sessions replaces what the others know of them; a communicator of several nodes has the number
 * that the asked daemon, or else the first node, gives it. What is another node's alone gets a
 * number that names the node, too. */
#ifndef CTL_MERGE_H
#define CTL_MERGE_H

#include "snapshot.h"

/* s has the asked daemon's part, or nothing; far[i] is the part of s->nodes[i], or empty. */
void merge_nodes(struct snapshot *s, struct snapshot *far);

/* A communicator, task, plan or failure of the snapshot: its node plus 1 (0: the asked daemon's),
 * and its number there. */
uint32_t merge_node_of(uint64_t id);
uint64_t merge_number_of(uint64_t id);
/* A session of the snapshot; 0: it is the asked daemon's. */
uint32_t merge_session_node(const struct snapshot *s, uint32_t session);
uint32_t merge_session_number(const struct snapshot *s, uint32_t session);
/* The snapshot's number of a node's GPU. */
int32_t merge_device(uint32_t node, int32_t device);

#endif
