/* SPDX-License-Identifier: Apache-2.0
 * A world whose size comes with the job, not from the daemon. */
#ifndef CLIENT_WORLD_JOB_H
#define CLIENT_WORLD_JOB_H

#include "base/api.h"

/* What the options and the launcher say of the job, and the id of its world. Of the daemon it asks
 * at most whether it has other nodes. The options' world is not 0. */
ncclsvc_result job_of(ncclsvc_session *session, const ncclsvc_world_options *o,
		      ncclsvc_world_sizes *sizes, int *rank, ncclsvc_unique_id *id);

#endif
