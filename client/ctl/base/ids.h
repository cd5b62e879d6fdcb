/* SPDX-License-Identifier: Apache-2.0
 * Ids in a snapshot of several nodes. Each node counts its own communicators, tasks, plans,
 * failures, sessions and GPUs; in the snapshot, the id of another node's object contains the node.
 */
#ifndef CTL_IDS_H
#define CTL_IDS_H

#include "snapshot.h"

/* The id of a node's communicator, task, plan or failure. */
uint64_t ids_far(uint32_t node, uint64_t id);
/* A communicator, task, plan or failure of the snapshot: its node plus 1 (0: the asked daemon's),
 * and its number there. */
uint32_t ids_node(uint64_t id);
uint64_t ids_number(uint64_t id);
/* The id of the session at that index of session_names. */
uint32_t ids_far_session(size_t index);
/* A session of the snapshot; 0: it is the asked daemon's. */
uint32_t ids_session_node(const struct snapshot *s, uint32_t session);
uint32_t ids_session_number(const struct snapshot *s, uint32_t session);
/* The snapshot's number of a node's GPU. */
int32_t ids_device(uint32_t node, int32_t device);

#endif
