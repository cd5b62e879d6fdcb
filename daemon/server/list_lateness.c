/* SPDX-License-Identifier: Apache-2.0
 * How late the members of this node come to their collectives. */
#include "account/lateness.h"
#include "comm/peer/comm_peer.h"
#include "list_parts.h"

#define HALVES_READ 16 /* as many entries of other tables take as long */

static bool list_one_lateness(struct server *s, struct chunk *p, const struct communicator *m,
			      uint32_t k)
{
	const struct member *member = &m->members[k];
	ncclsvc_lateness_info info = {
		.comm = m->uid,
		.rank = (int32_t)k,
		.pid = member->pid,
		.epoch = m->epoch,
		.node = s->comms.coord.me,
		.nranks = m->nranks,
	};
	if (m->nranks < 2 || !m->lateness || !comm_takes_part(member) ||
	    !session_allows(p->asker, &m->account->tenant))
		return true;
	if (!chunk_works(p, HALVES_READ))
		return false;
	info.session = member->session->id;
	const uint64_t now = p->reply.time_ns, posted = load(&m->progress[k].collectives);
	const bool any_late = lateness_read(m->lateness, k, posted, now, &info);
	if (!peer_lateness_read(m, k, now, &info) && !any_late)
		return true;
	ncclsvc_lateness_info *i = chunk_next(p, 1);
	if (i)
		*i = info;
	return i;
}

uint64_t list_lateness(struct server *s, struct chunk *p, uint64_t from)
{
	return list_each_member(s, p, from, list_one_lateness);
}
