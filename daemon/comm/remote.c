/* SPDX-License-Identifier: Apache-2.0
 * Messages from this node to the deciding components (coord/) on this or another node, and to the
 * other members' nodes. nodes/messages.c handles theirs. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/nofail.h"
#include "base/timings.h"
#include "comm.h"
#include "comms.h"
#include "consequences.h"
#include "coord/plan.h"
#include "coord/rendezvous.h"
#include "remote.h"

/* ---- Messages to this node itself ---- */

struct own_message {
	struct own_message *prev, *next;
	enum control_kind kind;
	size_t size;
	_Alignas(8) char body[];
};

void remote_handle_own(struct comms *s)
{
	const uint64_t until = clock_now() + OWN_TURN_NS;
	/* Messages that come meanwhile belong to this turn, too. */
	while (s->own_messages) {
		struct own_message *m = s->own_messages;
		if (clock_now() > until) {
			uv_async_send(&s->own);
			return;
		}
		DL_DELETE(s->own_messages, m);
		s->callbacks->own_message(s, s->coord.me, m->kind, m->body, m->size);
		free(m);
	}
}

static void on_own(uv_async_t *async)
{
	remote_handle_own(async->data);
}

/* To this node: handled soon, but not at once, since the sender may be in the middle of its work.
 */
static void send_own(struct comms *s, enum control_kind kind, const void *body, size_t size)
{
	struct own_message *m =
		nofail_malloc(sizeof(*m) + size, "a message of this node to itself");
	m->kind = kind;
	m->size = size;
	memcpy(m->body, body, size);
	DL_APPEND(s->own_messages, m);
	uv_async_send(&s->own);
}

void remote_send(struct comms *s, uint32_t node, enum control_kind kind, const void *body,
		 size_t size)
{
	if (s->loop->closing)
		return;
	if (node == s->coord.me)
		send_own(s, kind, body, size);
	else
		link_send(s->cluster, node, kind, body, size);
}

void remote_open(struct comms *s)
{
	s->own.data = s;
	uv_async_init(s->loop->uv, &s->own, on_own);
	s->loop->handles++;
}

static void on_own_closed(uv_handle_t *handle)
{
	struct comms *s = handle->data;
	s->loop->handles--;
}

void remote_close(struct comms *s)
{
	uv_close((uv_handle_t *)&s->own, on_own_closed);
}

void remote_free(struct comms *s)
{
	struct own_message *m, *next;
	DL_FOREACH_SAFE (s->own_messages, m, next)
		free(m);
	s->own_messages = NULL;
	coord_free(&s->coord);
}

/* ---- Messages from this node ---- */

static uint32_t rendezvous_of_comm(const struct communicator *m)
{
	return coord_rendezvous(&m->comms->coord, m->id);
}

static void tell_rendezvous(const struct communicator *m, enum control_kind kind, const void *body,
			    size_t size)
{
	remote_send(m->comms, rendezvous_of_comm(m), kind, body, size);
}

/* To all nodes of the epoch, including its coordinator's, and to the rendezvous. If all members
 * have left, tasks launched on GPUs still wait for the end. */
static void tell_epoch(struct communicator *m, enum control_kind kind, const void *body,
		       size_t size)
{
	struct comms *s = m->comms;
	const uint32_t others[] = {m->coordinator, rendezvous_of_comm(m)};
	bool notified[CLUSTER_NODES_MAX] = {false};
	bool here = false;
	for (uint32_t k = 0; k < m->nranks + 2; k++) {
		const uint32_t node =
			k < m->nranks ? m->begun->members[k].node : others[k - m->nranks];
		if (node == CLUSTER_NO_NODE)
			continue;
		if (node != s->coord.me && !notified[node])
			remote_send(s, node, kind, body, size);
		notified[node] = true;
		here |= k >= m->nranks && node == s->coord.me;
	}
	if (here)
		remote_send(s, s->coord.me, kind, body, size);
}

void remote_fill_epoch(struct control_epoch *of, const struct communicator *m)
{
	memcpy(of->id, m->id, sizeof(of->id));
	memcpy(of->label, m->label, sizeof(of->label));
	of->epoch = m->epoch;
	of->nranks = m->nranks;
}

/* The rendezvous, which would refuse the JOIN, is lost. */
static void refuse_lost(struct communicator *m, uint32_t node, const struct control_join *j)
{
	struct control_refuse r = {.rank = j->rank,
				   .session = j->session,
				   .request_id = j->request_id,
				   .result = j->resume == SVC_RESUME_COMM ? NCCLSVC_AGAIN
									  : NCCLSVC_PEER_GONE};
	memcpy(r.id, m->id, sizeof(r.id));
	coord_lost_text(&m->comms->coord, node, m->label, r.text);
	remote_send(m->comms, m->comms->coord.me, CONTROL_REFUSE, &r, sizeof(r));
}

void remote_join(struct communicator *m, uint32_t rank)
{
	const struct member *member = &m->members[rank];
	const uint32_t node = rendezvous_of_comm(m);
	struct control_join j = {
		.nranks = m->nranks,
		.rank = rank,
		.pid = member->pid,
		.uid = member->session->uid,
		.admit = m->admit,
		.session = member->session->id,
		.cuda = m->cuda,
		.device = member->device,
		.epoch = remote_last_epoch(m),
		.split = m->reply_opcode == SVC_SPLIT,
		.fail_fast = member->fail_fast,
		.request_id = member->request_id,
		.transport =
			m->comms->gpus->staging ? NCCLSVC_TRANSPORT_MPI : NCCLSVC_TRANSPORT_NCCL,
		.resume = member->resume,
		.lineage = member->lineage,
		.done = member->done,
		.survives = member->session->resumes,
	};
	memcpy(j.id, m->id, sizeof(j.id));
	memcpy(j.label, m->label, sizeof(j.label));
	if (m->comms->cluster)
		cluster_revive(m->comms->cluster, node);
	if (node == CLUSTER_NO_NODE || coord_is_gone(&m->comms->coord, node))
		refuse_lost(m, node, &j);
	else
		tell_rendezvous(m, CONTROL_JOIN, &j, sizeof(j));
}

void remote_had_left(struct comms *s, const uint8_t *id, uint32_t nranks, const struct session *c,
		     uint32_t lineage)
{
	struct control_join j = {.nranks = nranks,
				 .pid = c->pid,
				 .uid = c->uid,
				 .session = c->id,
				 .resume = SVC_RESUME_LEFT,
				 .lineage = lineage};
	const uint32_t node = coord_rendezvous(&s->coord, id);
	memcpy(j.id, id, sizeof(j.id));
	if (node != CLUSTER_NO_NODE && !coord_is_gone(&s->coord, node))
		remote_send(s, node, CONTROL_JOIN, &j, sizeof(j));
}

void remote_refused(struct communicator *m, int result, const char *text)
{
	struct control_refuse r = {
		.rank = (uint32_t)m->refused.rank, .result = result, .pid = m->refused.pid};
	memcpy(r.id, m->id, sizeof(r.id));
	snprintf(r.text, sizeof(r.text), "%s", text);
	tell_rendezvous(m, CONTROL_REFUSE, &r, sizeof(r));
}

void remote_subcomm_refused(struct comms *s, const struct control_subcomm *subcomm, uint32_t uid,
			    int32_t pid, int result, const char *text)
{
	struct control_refuse r = {.rank = subcomm->rank,
				   .result = result,
				   .pid = pid,
				   .nranks = subcomm->nranks,
				   .uid = uid,
				   .subcomm = true};
	memcpy(r.id, subcomm->id, sizeof(r.id));
	snprintf(r.text, sizeof(r.text), "%s", text);
	remote_send(s, coord_rendezvous(&s->coord, subcomm->id), CONTROL_REFUSE, &r, sizeof(r));
}

void remote_unjoin(struct communicator *m, uint32_t rank, uint32_t session, enum withdrawal why)
{
	struct control_withdraw w = {.rank = rank,
				     .session = session,
				     .request_id = m->members[rank].request_id,
				     .why = why};
	memcpy(w.id, m->id, sizeof(w.id));
	tell_rendezvous(m, CONTROL_WITHDRAW, &w, sizeof(w));
}

void remote_late(struct communicator *m, uint32_t rank, uint32_t request_id)
{
	struct control_withdraw w = {.epoch = m->epoch,
				     .rank = rank,
				     .session = m->members[rank].session->id,
				     .request_id = request_id,
				     .why = WITHDRAW_LATE};
	memcpy(w.id, m->id, sizeof(w.id));
	remote_send(m->comms, m->coordinator, CONTROL_WITHDRAW, &w, sizeof(w));
}

void remote_break(struct communicator *m, int result, int32_t rank, int32_t node)
{
	remote_break_with(m, &(ncclsvc_status){.result = result}, rank, node);
}

void remote_break_with(struct communicator *m, const ncclsvc_status *st, int32_t rank, int32_t node)
{
	const int result = st->result;
	struct control_break b = {
		.epoch = m->epoch,
		.result = result,
		.rank = rank,
		.pid = rank >= 0 ? m->members[rank].pid : 0,
		.node = node,
		.by = m->comms->coord.me,
		.ending = rank >= 0 ? m->members[rank].ending : (struct ending){0},
	};
	const struct failure *root =
		b.ending.follows ? failures_find(&m->comms->failures, m->failure) : NULL;
	const ncclsvc_status *first = consequences_first(m, root);
	if (first)
		b.first = *first;
	else if (st->result == NCCLSVC_MISMATCH)
		b.first = *st;
	memcpy(b.id, m->id, sizeof(b.id));
	tell_epoch(m, CONTROL_BREAK, &b, sizeof(b));
}

void remote_suspend(struct communicator *m, int32_t rank, int32_t node)
{
	struct control_break b = {.epoch = m->epoch,
				  .result = NCCLSVC_PEER_GONE,
				  .rank = rank,
				  .pid = rank >= 0 ? m->members[rank].pid : 0,
				  .node = node,
				  .by = m->comms->coord.me,
				  .suspends = true};
	memcpy(b.id, m->id, sizeof(b.id));
	tell_epoch(m, CONTROL_BREAK, &b, sizeof(b));
}

void remote_not_begun(struct communicator *m, int result, int32_t rank, int32_t lost, bool all)
{
	struct comms *s = m->comms;
	const uint32_t first = rendezvous_of_comm(m), me = s->coord.me;
	bool notified[CLUSTER_NODES_MAX] = {false};
	struct control_break b = {
		.epoch = m->start->epoch,
		.result = result,
		.rank = rank,
		.pid = rank >= 0 ? m->members[rank].pid : 0,
		.node = lost,
		.by = me,
		.suspends = lost >= 0 && m->start->lineage,
	};
	memcpy(b.id, m->id, sizeof(b.id));
	notified[me] = notified[first == CLUSTER_NO_NODE ? me : first] = true;
	remote_send(s, first, CONTROL_BREAK, &b, sizeof(b));
	if (first != me && m->start->members[0].node == me) /* this node has the coordinator */
		remote_send(s, me, CONTROL_BREAK, &b, sizeof(b));
	for (uint32_t k = 0; all && k < m->nranks; k++) {
		const uint32_t node = m->start->members[k].node;
		if (!notified[node])
			remote_send(s, node, CONTROL_BREAK, &b, sizeof(b));
		notified[node] = true;
	}
}

void remote_nccl_ready(struct communicator *m, int result, int32_t rank, bool again)
{
	/* The others wait for it, so it must not fail for lack of memory. */
	static _Alignas(8) char room[sizeof(struct control_nccl_ready) +
				     SVC_HOST_RANKS_MAX * sizeof(struct control_gpu)];
	const size_t size =
		sizeof(struct control_nccl_ready) + m->nranks * sizeof(struct control_gpu);
	struct control_nccl_ready *r = (void *)room;
	*r = (struct control_nccl_ready){0};
	memcpy(r->id, m->id, sizeof(r->id));
	r->epoch = m->start->epoch;
	r->nranks = m->nranks;
	r->result = result;
	r->rank = rank;
	r->again = again;
	for (uint32_t k = 0; k < m->nranks; k++)
		r->gpus[k] = (struct control_gpu){m->start->members[k].node,
						  m->start->members[k].device};
	remote_send(m->comms, m->start->members[0].node, CONTROL_NCCL_READY, r, size);
}

void remote_left(struct communicator *m, uint32_t rank, uint32_t plan)
{
	struct control_left l = {
		.epoch = m->epoch, .rank = rank, .pid = m->members[rank].pid, .plan = plan};
	memcpy(l.id, m->id, sizeof(l.id));
	tell_epoch(m, CONTROL_LEFT, &l, sizeof(l));
}

void remote_describe(struct communicator *m, const struct control_description *d)
{
	tell_epoch(m, CONTROL_DESCRIPTION, d, sizeof(*d));
}

void remote_split(struct communicator *m, uint32_t rank)
{
	struct control_split split = {.seq = m->split_seq,
				      .rank = rank,
				      .request_id = m->split[rank].request_id,
				      .colour = m->split[rank].colour,
				      .key = m->split[rank].key};
	remote_fill_epoch(&split.of, m);
	remote_send(m->comms, m->coordinator, CONTROL_SPLIT, &split, sizeof(split));
}

bool remote_plan(struct communicator *m, uint32_t rank, uint32_t request_id)
{
	struct comms *s = m->comms;
	const struct plan_member *pm = &m->forming->members[rank];
	const uint32_t node = m->coordinator;
	struct control_plan *p =
		node != s->coord.me && link_is_full(s->cluster, node)
			? NULL
			: calloc(1, sizeof(*p) + CONTROL_PLAN_CHUNK * sizeof(p->chunk[0]));
	if (!p)
		return false;
	remote_fill_epoch(&p->of, m);
	p->cuda = m->cuda;
	p->seq = m->plan_seq;
	p->rank = rank;
	p->request_id = request_id;
	p->groups = pm->ngroups;
	p->tasks = pm->ntasks;
	do {
		const uint32_t left = p->tasks - p->at;
		p->count = left < CONTROL_PLAN_CHUNK ? left : CONTROL_PLAN_CHUNK;
		memcpy(p->chunk, pm->tasks + p->at, p->count * sizeof(p->chunk[0]));
		remote_send(s, node, CONTROL_PLAN, p, sizeof(*p) + p->count * sizeof(p->chunk[0]));
		p->at += p->count;
	} while (p->at < p->tasks);
	free(p);
	return true;
}
