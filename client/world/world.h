/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_WORLD_H
#define CLIENT_WORLD_H

#include "base/error.h"

struct ncclsvc_world {
	ncclsvc_session *session;
	ncclsvc_world_sizes sizes;
	ncclsvc_layout layout;
	int device;		 /* of this process; NCCLSVC_DEVICE_HOST */
	ncclsvc_result unusable; /* not OK: the GPU, and why */
	char why[LOST_TEXT];
	bool has_base;
	ncclsvc_unique_id base; /* of which the groups' ids are made */
	ncclsvc_comm *host;	/* the daemon's world */
	ncclsvc_comm *alone;	/* every group that has but this rank */
	ncclsvc_comm *comms[NCCLSVC_GROUP_TYPES];
};

/* claims.c: all ranks tell each other on the host's communicator what they take the world to be,
 * and the id that its groups' are made of: a survivor's, if there is one. MISMATCH on all ranks
 * alike. */
ncclsvc_result claims_compare(ncclsvc_world *w, int timeout_ms);

#endif
