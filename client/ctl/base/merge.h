/* SPDX-License-Identifier: Apache-2.0
 * The lists of several nodes as one snapshot. What a node says of its own members, tasks and
 * sessions replaces what the others know of them; a communicator of several nodes has the number
 * that the asked daemon, or else the first node, gives it. What is another node's alone gets a
 * number that names the node, too. */
#ifndef CTL_MERGE_H
#define CTL_MERGE_H

#include "snapshot.h"

/* s has the asked daemon's lists, or nothing; far[i] has those of s->nodes[i], or none. */
void merge_nodes(struct snapshot *s, struct snapshot *far);

#endif
