/* SPDX-License-Identifier: Apache-2.0
 * Finds communicators: by id, and by a session's handle. */
#include "comm.h"
#include "comms.h"

struct communicator *comm_find(const struct comms *s, const uint8_t *id)
{
	struct communicator *m;
	HASH_FIND(hh, s->comms, id, NCCLSVC_ID_BYTES, m);
	return m;
}

static struct membership *find_handle(struct session *c, uint32_t handle)
{
	if (!handle || handle >= c->nmemberships || !c->memberships[handle].comm)
		return NULL;
	return &c->memberships[handle];
}

struct communicator *comm_of_handle(struct session *c, uint32_t handle, int32_t *rank)
{
	const struct membership *at = find_handle(c, handle);
	if (at)
		*rank = at->rank;
	return at ? at->comm : NULL;
}

bool comm_uses_gpus(const struct session *c)
{
	for (uint32_t i = 1; i < c->nmemberships; i++)
		if (c->memberships[i].comm && c->memberships[i].comm->cuda)
			return true;
	return false;
}
