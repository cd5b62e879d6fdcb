/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_JOIN_H
#define CLIENT_COMM_JOIN_H

#include "core/call.h"

/* Rejoins the communicators that the current daemon does not know yet, except splits. Locked;
 * yields. */
ncclsvc_result comms_rejoin(ncclsvc_session *s, uint64_t deadline);
/* Joins the next epoch unless the current one is whole. beside: like `world` in group_join, or
 * NULL. Not locked. */
ncclsvc_result comm_renew(ncclsvc_comm *comm, int timeout_ms, const ncclsvc_comm *beside);

/* Joins a world's communicator in host memory: the one with this id, or (NULL) the daemon's.
 * PEER_GONE: another rank's process ended while it waited for the others. Not locked. */
ncclsvc_result world_join(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks, int rank,
			  int timeout_ms, ncclsvc_comm **comm);
/* Joins a communicator of some of the world's ranks. If the world's epoch ends, the wait ends with
 * the same reason, because the others may be dead or stuck elsewhere. Not locked. */
ncclsvc_result group_join(const ncclsvc_comm *world, const ncclsvc_unique_id *id, int nranks,
			  int rank, int device, int timeout_ms, ncclsvc_comm **comm);

/* Asks the daemon about its world. Not locked. */
ncclsvc_result world_ask(ncclsvc_session *s, struct svc_world_reply *reply);
/* The rank that `given` means in a world of this size; -1 stays -1. */
ncclsvc_result world_rank(int given, int ranks, int *rank);

#endif
