/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_WORLD_H
#define CLIENT_WORLD_H

#include "base/error.h"

struct ncclsvc_world {
	ncclsvc_session *session;
	ncclsvc_world_sizes sizes;
	ncclsvc_layout layout;
	int device;		 /* of this process, or NCCLSVC_DEVICE_HOST */
	ncclsvc_result unusable; /* not OK: the GPU cannot be used, and this is why */
	char why[LOST_TEXT];
	bool has_base;
	ncclsvc_unique_id base; /* the groups' ids are derived from it */
	ncclsvc_comm *host;	/* the daemon's world */
	ncclsvc_comm *alone;	/* stands for every group that has only this rank */
	ncclsvc_comm *comms[NCCLSVC_GROUP_TYPES];
};

/* ---- proposals.c ---- */

/* Sets the timeout of operations on the host's communicator. Returns the previous timeout. */
uint64_t world_set_timeout(ncclsvc_world *w, uint64_t timeout_ns);
/* All ranks exchange, on the host's communicator, their views of the world and the
 * id from which its groups' ids are derived: a survivor's, if there is one. A MISMATCH is returned
 * on all ranks. */
ncclsvc_result proposals_compare(ncclsvc_world *w, int timeout_ms);

#endif
