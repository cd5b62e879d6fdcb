/* SPDX-License-Identifier: Apache-2.0
 * The handles by which sessions name communicators; a handle comes with the rank that its session
 * holds. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "comms.h"
#include "peer/comm_peer.h"
#include "peer/share_log.h"

static bool has_entry(struct session *c, uint32_t i)
{
	if (i < c->nmemberships)
		return true;
	uint32_t n = c->nmemberships ? c->nmemberships * 2 : 4;
	while (n <= i && n < SVC_SESSION_COMMS)
		n *= 2;
	if (n > SVC_SESSION_COMMS)
		n = SVC_SESSION_COMMS;
	if (i >= n)
		return false;
	struct membership *p = realloc(c->memberships, n * sizeof(*p));
	if (!p)
		return false;
	memset(p + c->nmemberships, 0, (n - c->nmemberships) * sizeof(*p));
	c->memberships = p;
	c->nmemberships = n;
	return true;
}

uint32_t comm_claim_handle(struct session *c, struct communicator *m, int32_t rank, uint32_t handle)
{
	if (!handle || !has_entry(c, handle) || c->memberships[handle].comm)
		return 0;
	c->memberships[handle] = (struct membership){.comm = m, .rank = rank};
	if (!c->process.watched)
		session_watch_process(c);
	c->comms++;
	return handle;
}

uint32_t comm_new_handle(struct session *c, struct communicator *m, int32_t rank)
{
	uint32_t i = 1;
	while (i < c->nmemberships && c->memberships[i].comm)
		i++;
	return comm_claim_handle(c, m, rank, i);
}

void comm_vacate(struct communicator *m, struct member *member, uint32_t state)
{
	struct session *c = member->session;
	peer_staging_drop(member);
	c->memberships[member->handle] = (struct membership){0};
	c->comms--;
	m->occupied--;
	member->session = NULL;
	member->suspended = false;
	if (m->split)
		m->split[member - m->members].here = false;
	member->state = state;
	shares_left(m);
	comm_join_deadline(m->comms, member, 0);
	member->overdue = false;
}
