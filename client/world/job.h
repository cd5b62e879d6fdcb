/* SPDX-License-Identifier: Apache-2.0
 * A world whose size comes from the job, not from the daemon. */
#ifndef CLIENT_WORLD_JOB_H
#define CLIENT_WORLD_JOB_H

#include "base/api.h"

/* The same for the same bytes and start, on all machines. */
uint64_t job_hash(const void *bytes, size_t n, uint64_t start);

/* The job as the options and the launcher describe it, and the id of its world, which does not say
 * where its ranks gather (first_node.h). Asks the daemon only about nodes. The options' world must
 * not be 0. */
ncclsvc_result job_of(ncclsvc_session *session, const ncclsvc_world_options *o,
		      ncclsvc_world_sizes *sizes, int *rank, ncclsvc_unique_id *id);

#endif
