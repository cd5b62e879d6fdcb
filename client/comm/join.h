/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_JOIN_H
#define CLIENT_COMM_JOIN_H

#include "core/call.h"

/* Rejoins those that the present daemon does not know yet, but for splits. Locked; yields. */
ncclsvc_result comms_rejoin(ncclsvc_session *s, uint64_t deadline);
/* Joins the next epoch, unless the present one is whole. beside: as world in group_join, or NULL.
 * Not locked. */
ncclsvc_result comm_renew(ncclsvc_comm *comm, int timeout_ms, const ncclsvc_comm *beside);

/* Joins a world's communicator, in host memory: that of an id, or (NULL) the daemon's. PEER_GONE:
 * the process of another rank ended while it waited for the others. Not locked. */
ncclsvc_result world_join(ncclsvc_session *s, const ncclsvc_unique_id *id, int nranks, int rank,
			  int timeout_ms, ncclsvc_comm **comm);
/* Joins a communicator of some of the world's ranks. When the world's epoch ends, so does the wait,
 * with the reason: the others may be stuck elsewhere, or dead. Not locked. */
ncclsvc_result group_join(const ncclsvc_comm *world, const ncclsvc_unique_id *id, int nranks,
			  int rank, int device, int timeout_ms, ncclsvc_comm **comm);

/* Asks the daemon about its world. Not locked. */
ncclsvc_result world_ask(ncclsvc_session *s, struct svc_world_reply *reply);
/* The rank that is meant by `given`, in a world of so many: -1 stays. */
ncclsvc_result world_rank(int given, int ranks, int *rank);

#endif
