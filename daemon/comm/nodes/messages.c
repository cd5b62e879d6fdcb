/* SPDX-License-Identifier: Apache-2.0
 * Handles messages from the deciding components (coord/) and from the other members' nodes. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/nofail.h"
#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/comms.h"
#include "comm/remote.h"
#include "comm/requests.h"
#include "coord/rendezvous.h"
#include "describe.h"
#include "node_reports.h"
#include "proto/names.h"

static void on_refuse(struct comms *s, const struct control_refuse *r)
{
	struct communicator *m = comm_find(s, r->id);
	if (!m || r->rank >= m->nranks)
		return;
	struct member *member = &m->members[r->rank];
	const bool starts = comm_is_still_there(m, r->rank);
	if (member->state != NCCLSVC_MEMBER_JOINING || !member->session ||
	    member->session->id != r->session || member->request_id != r->request_id)
		return;
	comm_refuse_join(m, r->rank, r->result, r->text);
	if (starts)
		comm_left_while_joining(s, m, (int32_t)r->rank);
}

/* A JOIN of this node waits for it. */
static bool is_awaited(const struct communicator *m, const struct control_start *start)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_joins_in(m, start, k))
			return true;
	return false;
}

/* Another member's node has already reported it. */
static bool is_known(const struct comms *s, const struct control_start *start)
{
	const struct communicator *m = comm_find(s, start->id);
	if (!m || m->nranks != start->nranks)
		return false;
	if (m->start && m->start->epoch == start->epoch)
		return true;
	return m->epoch == start->epoch && epoch_lives(&m->life) && !is_awaited(m, start);
}

/* The others must not wait. */
static void tell_over(struct comms *s, const struct control_start *start, bool forgotten)
{
	struct control_break b = {
		.epoch = start->epoch, .result = NCCLSVC_STALE_EPOCH, .rank = -1, .node = -1};
	comm_name_epoch(s, UINT32_MAX, start->internode_id);
	memcpy(b.id, start->id, sizeof(b.id));
	for (uint32_t k = start->nranks; forgotten && k-- > 0;) {
		if (start->members[k].node != s->coord.me)
			continue;
		b.result = NCCLSVC_PEER_GONE;
		b.rank = (int32_t)k;
		b.pid = start->members[k].pid;
	}
	const uint32_t first = coord_rendezvous(&s->coord, start->id);
	bool notified[CLUSTER_NODES_MAX] = {false};
	for (uint32_t k = 0; k <= start->nranks; k++) {
		const uint32_t node = k < start->nranks ? start->members[k].node : first;
		if (node != CLUSTER_NO_NODE && !notified[node])
			remote_send(s, node, CONTROL_BREAK, &b, sizeof(b));
		notified[node == CLUSTER_NO_NODE ? s->coord.me : node] = true;
	}
}

static void on_start(struct comms *s, const struct control_start *start)
{
	struct communicator *m = comm_find(s, start->id);
	if (!m || m->nranks != start->nranks)
		tell_over(s, start, true); /* its last member here is gone */
	else if (start->epoch > m->epoch || is_awaited(m, start))
		comm_gathered(m, start);
	else
		tell_over(s, start, false); /* a later one has begun here */
}

/* A node that lost this one reports it as gone. From here, the reporter is the lost node. */
static struct control_break seen_from_here(const struct communicator *m,
					   const struct control_break *received)
{
	struct control_break b = *received;
	if (b.node < 0 || (uint32_t)b.node != m->comms->coord.me)
		return b;
	b.node = b.rank = -1;
	for (uint32_t k = m->nranks; k-- > 0;)
		if (m->members[k].node == (int32_t)b.by)
			b.rank = (int32_t)k;
	if (b.rank >= 0)
		b.node = (int32_t)b.by;
	return b;
}

/* A newcomer takes the place of a node that the rendezvous has lost. This one may still reach it.
 */
static void pass_on_break(struct comms *s, const struct communicator *m,
			  const struct control_break *b)
{
	const bool runs = epoch_runs(&m->life) && m->epoch == b->epoch;
	const bool begins = m->start && m->start->epoch == b->epoch;
	if (b->renewed && b->node >= 0 && (uint32_t)b->node != s->coord.me && (runs || begins))
		remote_send(s, (uint32_t)b->node, CONTROL_BREAK, b, sizeof(*b));
}

static void on_break(struct comms *s, uint32_t from, const struct control_break *received)
{
	char text[SVC_TEXT_BYTES];
	struct communicator *m = comm_find(s, received->id);
	if (!m || received->rank >= (int32_t)m->nranks || received->node >= (int32_t)s->coord.n)
		return;
	const struct control_break seen = seen_from_here(m, received), *b = &seen;
	pass_on_break(s, m, received);
	/* It may come before the epoch has begun here: then the epoch ends as soon as it has begun.
	 */
	if (m->start && m->start->epoch == b->epoch && m->cuda && comm_across_nodes(m)) {
		snprintf(text, sizeof(text), "the epoch could not begin on node %u (%s): %s", from,
			 coord_host(&s->coord, from), svc_result_name(b->result));
		if (b->result == NCCLSVC_PEER_GONE && b->node < 0 && comm_can_wait(m))
			comm_join_again(m, -1, false);
		else
			comm_not_begun(m, NCCLSVC_CAUSE_START_FAILED,
				       m->start->lineage & SVC_LINEAGE_RESUMED ? NCCLSVC_AGAIN
									       : b->result,
				       text);
	} else if (m->start && m->start->epoch == b->epoch) {
		if (!m->start_is_over)
			m->start_break = *b;
		m->start_is_over = true;
	} else if (m->epoch == b->epoch) {
		comm_broken_elsewhere(m, b);
	}
}

static void on_left(struct comms *s, const struct control_left *l)
{
	struct communicator *m = comm_find(s, l->id);
	if (!m || m->epoch != l->epoch || l->rank >= m->nranks)
		return;
	if (l->plan)
		plan_left_elsewhere(m, l->rank, l->plan);
	else
		comm_left_elsewhere(m, (int32_t)l->rank);
}

static void on_description(const struct comms *s, const struct control_description *d)
{
	struct communicator *m = comm_find(s, d->id);
	if (m && m->epoch == d->epoch && d->rank < m->nranks)
		description_keep(m, d);
}

static void on_split_result(struct comms *s, struct communicator *m, const struct control_result *v)
{
	const bool current = m && m->split_seq == v->seq && (v->result || v->count == m->nranks);
	if (current) {
		m->split_seq++;
		m->split_lost = false;
	}
	if (current && v->result)
		comm_split_refused(m, v->result, v->text);
	else if (!v->result)
		comm_split_subcomms(s, current ? m : NULL, v);
}

static void on_result(struct comms *s, const struct control_result *v)
{
	struct communicator *m = comm_find(s, v->id);
	if (m && m->epoch != v->epoch)
		m = NULL;
	if (v->asked == SVC_SPLIT) {
		on_split_result(s, m, v);
	} else if (m && epoch_runs(&m->life)) {
		plan_result(m, v);
		remote_handle_unexpected(m); /* members that have finished with the plan */
	}
}

/* The rendezvous resends START after it has lost a member's node, which may have missed START. */
static void pass_on(struct comms *s, const struct control_start *start)
{
	const struct communicator *m = comm_find(s, start->id);
	const struct control_start *own = NULL;
	if (m->start && m->start->epoch == start->epoch)
		own = m->start;
	else if (epoch_runs(&m->life))
		own = m->begun;
	if (own && start->lost >= 0 && (uint32_t)start->lost < s->coord.n)
		remote_send(s, (uint32_t)start->lost, CONTROL_START, own,
			    sizeof(*own) + own->nranks * sizeof(own->members[0]));
}

void remote_handle(struct comms *s, uint32_t from, enum control_kind kind, const void *body,
		   size_t size)
{
	if (s->loop->closing)
		return;
	if (!coord_fits(&s->coord, kind, body, size)) {
		log_warning("ignored an unknown message of node %u (%s): its daemon's version may "
			    "differ "
			    "from this one's",
			    from, coord_host(&s->coord, from));
		return;
	}
	if (kind == CONTROL_START && is_known(s, body)) {
		pass_on(s, body);
		return;
	}
	if (remote_take_unexpected(s, from, kind, body, size) ||
	    coord_handle(&s->coord, from, kind, body))
		return;
	remote_deliver(s, from, kind, body);
}

void remote_deliver(struct comms *s, uint32_t from, enum control_kind kind, const void *body)
{
	switch (kind) {
	case CONTROL_BEAT:
		s->cluster->nodes[from].left = ((const struct control_beat *)body)->last;
		break;
	case CONTROL_REFUSE:
		on_refuse(s, body);
		break;
	case CONTROL_START:
		on_start(s, body);
		break;
	case CONTROL_BREAK:
		on_break(s, from, body);
		break;
	case CONTROL_LEFT:
		on_left(s, body);
		break;
	case CONTROL_DESCRIPTION:
		on_description(s, body);
		break;
	case CONTROL_RESULT:
		on_result(s, body);
		break;
	case CONTROL_NCCL_USE:
		nodes_use(s, from, body);
		break;
	case CONTROL_NCCL_FREE:
		nodes_drop(s, body);
		break;
	default:
		break;
	}
}

/* Members of other nodes may not know of an epoch that this node has begun, or is about to. */
static void tell_start(struct comms *s, const struct communicator *m,
		       const struct control_start *start)
{
	const size_t size = sizeof(*start) + m->nranks * sizeof(start->members[0]);
	bool notified[CLUSTER_NODES_MAX] = {false};
	for (uint32_t k = 0; k < m->nranks; k++) {
		const uint32_t node = start->members[k].node;
		const bool left = start == m->begun && m->members[k].node < 0;
		if (left || node == s->coord.me || notified[node])
			continue;
		remote_send(s, node, CONTROL_START, start, size);
		notified[node] = true;
	}
}

/* The answer to JOINs that wait at a node whose daemon has ended (returns), or cannot be reached.
 * Libraries that wait for it try again. */
static int result_of(const struct communicator *m, bool returns)
{
	for (uint32_t k = 0; k < m->nranks; k++) {
		const struct member *member = &m->members[k];
		if (member->state != NCCLSVC_MEMBER_JOINING || !comm_alive(member))
			continue;
		if (member->resume == SVC_RESUME_COMM)
			return NCCLSVC_AGAIN;
		returns = returns && member->session->resumes && comm_can_wait(m);
	}
	return returns ? NCCLSVC_AGAIN : NCCLSVC_PEER_GONE;
}

/* JOINs that wait at the lost rendezvous fail. If it has told only some members' nodes of an
 * epoch, the others learn of it here, and answer if their members have given up. */
static void rendezvous_lost(struct comms *s, struct communicator *m, uint32_t lost, bool returns)
{
	char text[SVC_TEXT_BYTES];
	if (!cluster_gathers(s->cluster, lost, m->id))
		return;
	if (m->start)
		tell_start(s, m, m->start);
	else if (epoch_runs(&m->life))
		tell_start(s, m, m->begun);
	if (!m->joining)
		return;
	coord_lost_text(&s->coord, lost, m->label, text);
	const int result = result_of(m, returns);
	if (!m->start)
		comm_fail_joins(s, m, result, -1, text);
	for (uint32_t k = 0; m->start && k < m->nranks; k++)
		if (comm_alive(&m->members[k]) && m->members[k].state == NCCLSVC_MEMBER_JOINING &&
		    !comm_is_still_there(m, k))
			comm_refuse_join(m, k, result, text); /* JOIN is later than START */
}

void remote_node_lost(struct comms *s, uint32_t node, bool returns)
{
	struct communicator *m, *next;
	scheduler_command(s->scheduler,
			  &(struct command){.kind = COMMAND_NODE_LOST, .node = {node}});
	coord_node_lost(&s->coord, node);
	nodes_pool_lost(s, node);
	HASH_ITER (hh, s->comms, m, next) {
		comm_node_lost(m, node, returns);
		rendezvous_lost(s, m, node, returns);
	}
}

void remote_node_ready(struct comms *s)
{
	struct communicator *m, *next;
	HASH_ITER (hh, s->comms, m, next)
		if (m->start)
			comm_try_start(s, m);
}

void remote_carry(struct comms *s, uint32_t node, const void *address, size_t size, uint32_t here,
		  uint32_t there)
{
	struct command cmd = {.kind = COMMAND_NODE_CARRY,
			      .carry = {.node = node, .here = here, .there = there, .bytes = size}};
	cmd.carry.address = nofail_malloc(size + 1, "a node's address");
	memcpy(cmd.carry.address, address, size);
	scheduler_command(s->scheduler, &cmd);
}

static bool start_names(const struct control_start *start, uint32_t node)
{
	for (uint32_t k = 0; start && k < start->nranks; k++)
		if (start->members[k].node == node)
			return true;
	return false;
}

bool remote_needs_node(const struct comms *s, uint32_t node)
{
	const struct communicator *m, *next;
	HASH_ITER (hh, s->comms, m, next) {
		const bool held = epoch_held(&m->life) || epoch_lives(&m->life);
		if (m->joining && cluster_gathers(s->cluster, node, m->id))
			return true;
		if (start_names(m->start, node) || (held && start_names(m->begun, node)))
			return true;
	}
	return rendezvous_has_member_on(&s->coord, node);
}
