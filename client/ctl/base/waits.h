/* SPDX-License-Identifier: Apache-2.0
 * For which ranks of other nodes a task waits. Its own node names only the nodes; here the other
 * nodes' tasks tell. */
#ifndef CTL_WAITS_H
#define CTL_WAITS_H

#include "snapshot.h"

/* Puts, in all tasks, ranks in the place of nodes that have answered. Members are in order. */
void waits_resolve(struct snapshot *s);

#endif
