/* SPDX-License-Identifier: Apache-2.0
 * SPLIT: all members name a colour and a key; those of one colour get a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/timings.h"
#include "channel/cluster.h"
#include "comm.h"
#include "comms.h"
#include "coord/messages.h"
#include "coord/rendezvous.h"
#include "peer/comm_peer.h"
#include "proto/names.h"
#include "remote.h"
#include "requests.h"

void comm_split(struct session *c, uint32_t request_id, const struct svc_split *r)
{
	struct communicator *m = NULL;
	if (r->comm && r->comm < c->nmemberships)
		m = c->memberships[r->comm].comm;
	if (!m) {
		session_error(c, SVC_SPLIT, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", r->comm);
		return;
	}
	int32_t rank = c->memberships[r->comm].rank;
	if (m->members[rank].suspended) /* it will send it again */
		return;
	if (r->reserved_byte || r->reserved[0] || r->reserved[1] || r->blocks > PEER_BLOCKS ||
	    r->timeout_ns > SVC_TIMEOUT_MAX_NS) {
		session_error(c, SVC_SPLIT, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the timeout or the number of blocks is out of range, or a reserved "
			      "field is not zero");
		return;
	}
	if (!svc_label_ok(r->label, sizeof(r->label))) {
		session_error(c, SVC_SPLIT, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "the label is not printable ASCII of at most 47 characters");
		return;
	}
	if (!peer_staging_fits(c, SVC_SPLIT, request_id, m->members[rank].device, r->staging))
		return;
	/* In the running epoch, the rank may be on another node. */
	if (!comm_is_whole(m) || !comm_takes_part(&m->members[rank])) {
		session_error(c, SVC_SPLIT, request_id, NCCLSVC_STALE_EPOCH,
			      "communicator %s lacks members: rejoin it first", m->label);
		return;
	}
	if (m->split_lost) {
		session_error(
			c, SVC_SPLIT, request_id, NCCLSVC_BUSY,
			"the nodes have not yet agreed how the previous split ended: try again");
		return;
	}
	if (!m->split)
		m->split = calloc(m->nranks, sizeof(*m->split));
	if (!m->split) {
		session_error(c, SVC_SPLIT, request_id, NCCLSVC_NO_MEMORY, "out of memory");
		return;
	}
	if (m->split[rank].here) {
		session_error(c, SVC_SPLIT, request_id, NCCLSVC_BUSY,
			      "rank %d has already requested this split", rank);
		return;
	}
	if (r->staging)
		c->out_of_reach = r->out_of_reach;
	m->split[rank] = (struct split_request){
		.here = true,
		.colour = r->colour,
		.key = r->key,
		.staging = r->staging,
		.blocks = r->blocks,
		.request_id = request_id,
		.deadline_ns = r->timeout_ns ? clock_now() + r->timeout_ns : 0,
		.since_ns = clock_now(),
	};
	memcpy(m->split[rank].label, r->label, sizeof(r->label));
	if (r->timeout_ns)
		comm_deadline(m, m->split[rank].deadline_ns);
	remote_split(m, (uint32_t)rank);
}

/* ---- The result ---- */

/* Notes the nodes of the subcommunicators' other members, which may be lost before the
 * subcommunicators begin. */
static void note_nodes(struct comms *s, const struct control_result *p)
{
	for (uint32_t k = 0; k < p->count; k++) {
		const struct control_subcomm_of *other = &p->subcomms[k];
		struct communicator *subcomm =
			other->node != s->coord.me ? comm_find(s, other->subcomm.id) : NULL;
		if (subcomm && other->subcomm.rank < subcomm->nranks)
			subcomm->members[other->subcomm.rank].node = (int32_t)other->node;
	}
}

static bool lacks_node(const struct comms *s, const struct control_result *p)
{
	for (uint32_t k = 0; k < p->count; k++)
		if (coord_is_gone(&s->coord, p->subcomms[k].node))
			return true;
	return false;
}

/* Is a member of the subcommunicator on a node that is gone? */
static bool subcomm_lacks_node(const struct comms *s, const struct control_result *p,
			       const struct control_subcomm *subcomm)
{
	for (uint32_t k = 0; k < p->count; k++)
		if (!memcmp(p->subcomms[k].subcomm.id, subcomm->id, sizeof(subcomm->id)) &&
		    coord_is_gone(&s->coord, p->subcomms[k].node))
			return true;
	return false;
}

/* If its users give no label, the subcommunicator's label is the parent's, shortened to leave room
 * for the number of the split in its epoch and the colour. */
static void name_subcomm(struct communicator *subcomm, const struct communicator *m,
			 const struct session *c, const struct split_request *r)
{
	char which[NCCLSVC_NAME_BYTES], text[2 * NCCLSVC_NAME_BYTES];
	const int n =
		snprintf(which, sizeof(which), "/split %u colour %d", m->split_seq, r->colour);
	snprintf(text, sizeof(text), "%.*s%s", (int)sizeof(subcomm->label) - 1 - n, m->label,
		 which);
	if (!subcomm->occupied)
		svc_label_copy(subcomm->label, sizeof(subcomm->label), text);
	comm_name(subcomm, c, r->label);
}

/* All members' nodes join as soon as the result reaches them. Between standalone daemons, it can be
 * lost with a connection between two other nodes. */
static uint64_t join_deadline(const struct comms *s, const struct split_request *r)
{
	const uint64_t at = clock_now() + SPLIT_JOIN_NS;
	const bool waits = !s->cluster || cluster_is_together(s->cluster);
	return waits || (r->deadline_ns && r->deadline_ns < at) ? r->deadline_ns : at;
}

/* Takes one member's slot in its subcommunicator, and joins it. Returns a result, with a sentence.
 */
static int join_subcomm(struct comms *s, struct communicator *m, uint32_t rank,
			const struct split_request *r, const struct control_result *all, bool lacks,
			char *text)
{
	const struct control_subcomm *p = &all->subcomms[rank].subcomm;
	struct communicator *subcomm = comm_find(s, p->id);
	if (lacks && subcomm_lacks_node(s, all, p)) {
		snprintf(text, SVC_TEXT_BYTES,
			 "a member's node was lost before the split was done");
		return NCCLSVC_PEER_GONE;
	}
	int result;
	if (!subcomm && !(subcomm = comm_create(s, p->id, p->nranks, m->account, &result, text)))
		return result;
	subcomm->admit = m->admit;
	if (subcomm->nranks != p->nranks) {
		snprintf(text, SVC_TEXT_BYTES, "another communicator has the subcommunicator's id");
		return NCCLSVC_LIMIT;
	}
	const struct member *from = &m->members[rank];
	uint32_t handle = comm_new_handle(from->session, subcomm, (int32_t)p->rank);
	if (!handle) {
		snprintf(text, SVC_TEXT_BYTES, "a session has at most %d communicators",
			 SVC_SESSION_COMMS - 1);
		comm_event(subcomm, NCCLSVC_CAUSE_START_FAILED);
		return NCCLSVC_LIMIT;
	}
	name_subcomm(subcomm, m, from->session, r);
	subcomm->cuda = m->cuda;
	subcomm->reply_opcode = SVC_SPLIT;
	subcomm->coordinator = m->coordinator;
	subcomm->members[p->rank] = (struct member){
		.state = NCCLSVC_MEMBER_JOINING,
		.session = from->session,
		.handle = handle,
		.request_id = r->request_id,
		.since_ns = clock_now(),
		.pid = from->pid,
		.device = from->device,
		.staging_fd = -1,
		.controls_fd = -1,
		.node = -1,
		.fresh = true,
	};
	comm_join_deadline(s, &subcomm->members[p->rank], join_deadline(s, r));
	peer_staging_take(&subcomm->members[p->rank], r->staging, r->blocks);
	subcomm->occupied++;
	subcomm->joining++;
	comm_event(subcomm, NCCLSVC_CAUSE_JOINED);
	remote_join(subcomm, p->rank);
	return NCCLSVC_OK;
}

/* The request of rank k of m, a member of this node. */
static void split_one(struct comms *s, struct communicator *m, uint32_t k,
		      const struct split_request *r, const struct control_result *p, bool lacks)
{
	const struct control_subcomm *subcomm = &p->subcomms[k].subcomm;
	const struct svc_join_reply none = {0};
	struct session *c = m->members[k].session;
	char text[SVC_TEXT_BYTES];
	if (!subcomm->nranks) {
		session_reply(c, SVC_SPLIT, r->request_id, &none, sizeof(none), NULL, 0);
		return;
	}
	const int result = join_subcomm(s, m, k, r, p, lacks, text);
	if (!result)
		return;
	remote_subcomm_refused(s, subcomm, m->account->tenant.uid, m->members[k].pid, result, text);
	if (result == NCCLSVC_PEER_GONE && !epoch_runs(&m->life))
		return; /* suspended: the member will send it again */
	session_error(c, SVC_SPLIT, r->request_id, result, "%s", text);
}

/* One by one, since a failed answer may end its session, and with it other members. */
void comm_split_subcomms(struct comms *s, struct communicator *m, const struct control_result *p)
{
	struct split_request *split = m ? m->split : NULL;
	const bool lacks = lacks_node(s, p);
	/* Without the communicator, its user is unknown, too: (uid_t)-1 is no user. */
	const uint32_t uid = m ? m->account->tenant.uid : UINT32_MAX;
	if (m)
		m->split = NULL;
	for (uint32_t k = 0; k < p->count; k++) {
		if (p->subcomms[k].node != s->coord.me)
			continue;
		if (split && split[k].here && m->members[k].session)
			split_one(s, m, k, &split[k], p, lacks);
		else if (p->subcomms[k].subcomm.nranks)
			remote_subcomm_refused(s, &p->subcomms[k].subcomm, uid, 0,
					       NCCLSVC_PEER_GONE,
					       "a member left or died before the split was done");
	}
	note_nodes(s, p);
	free(split);
}

bool comm_splits_under_way(const struct comms *s, const struct account *of)
{
	const struct communicator *m = s->comms;
	while (m && !(m->joining && m->reply_opcode == SVC_SPLIT && (!of || m->account == of)))
		m = m->hh.next;
	return m || (!of && rendezvous_splits(&s->coord));
}
