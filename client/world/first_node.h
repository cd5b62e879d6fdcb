/* SPDX-License-Identifier: Apache-2.0
 * The daemon where the ranks of a job gather, if each node has a daemon of its own. */
#ifndef CLIENT_WORLD_FIRST_NODE_H
#define CLIENT_WORLD_FIRST_NODE_H

#include "base/api.h"

#define RENDEZVOUS_VARIABLE "NCCLSVC_RENDEZVOUS" /* HOST[:PORT] */

/* Writes into a job's id the daemon where its ranks gather: the one that RENDEZVOUS_VARIABLE names,
 * or else that of the launcher's first node. Does nothing if the job has one node, or if mpirun
 * started the daemons together, or if they serve only their own nodes. Blocks while the name is
 * resolved; the resolver limits that time. All ranks must find the same address. */
ncclsvc_result rendezvous_of_job(ncclsvc_session *session, const ncclsvc_world_sizes *sizes,
				 ncclsvc_unique_id *id);

#endif
