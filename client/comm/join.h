/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_JOIN_H
#define CLIENT_COMM_JOIN_H

#include "core/call.h"

/* Rejoins those that the present daemon does not know yet, but for splits. Locked; yields. */
ncclsvc_result comms_rejoin(ncclsvc_session *s, uint64_t deadline);
/* Joins the next epoch, unless the present one is whole. Not locked. */
ncclsvc_result comm_renew(ncclsvc_comm *comm, int timeout_ms);

/* Asks the daemon about its world. Not locked. */
ncclsvc_result world_ask(ncclsvc_session *s, struct svc_world_reply *reply);
/* The rank that is meant by `given`, in a world of so many: -1 stays. */
ncclsvc_result world_rank(int given, int ranks, int *rank);

#endif
