/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_JOIN_H
#define CLIENT_COMM_JOIN_H

#include "core/call.h"

/* Rejoins those that the present daemon does not know yet, but for splits. Locked; yields. */
ncclsvc_result comms_rejoin(ncclsvc_session *s, uint64_t deadline);
/* Joins the next epoch, unless the present one is whole. Not locked. */
ncclsvc_result comm_renew(ncclsvc_comm *comm, int timeout_ms);
/* ncclsvc_comm_split in two steps: between them the parent may be left, which ends the split. */
struct splitting {
	ncclsvc_session *session;
	ncclsvc_comm *comm;
	struct call call;
	uint64_t deadline;
};
/* On OK, split_finish must follow, and split stay where it is. */
ncclsvc_result split_begin(ncclsvc_comm *parent, int colour, int key, int timeout_ms,
			   struct splitting *split);
ncclsvc_result split_finish(struct splitting *split, ncclsvc_comm **newcomm);

#endif
