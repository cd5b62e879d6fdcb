/* SPDX-License-Identifier: Apache-2.0
 * Lists of communicators, their members and their plans. */
#include <stdio.h>
#include <string.h>

#include "base/siphash.h"
#include "channel/cluster.h"
#include "comm/comm_gpus.h"
#include "comm/peer/comm_peer.h"
#include "coord/plan.h"
#include "coord/rendezvous.h"
#include "gpu/gpu.h"
#include "list_parts.h"

/* If the epoch does not run, the rendezvous knows the members. */
static struct rendezvous_view look(struct server *s, const struct communicator *m)
{
	if (!epoch_runs(&m->life) && !m->start)
		return rendezvous_look(&s->comms.coord, m->id);
	return (struct rendezvous_view){.node = s->comms.coord.me};
}

static void describe(const struct server *s, const struct communicator *m,
		     const struct rendezvous_view *v, ncclsvc_member_info *i)
{
	if (m->members[i->rank].session)
		return;
	if (m->start) { /* all have joined, and the epoch is about to begin */
		i->state = NCCLSVC_MEMBER_JOINING;
		i->pid = m->start->members[i->rank].pid;
		i->elsewhere = m->start->members[i->rank].node + 1;
	} else {
		rendezvous_describe(&s->comms.coord, v, i);
	}
}

/* Communicators that gather on this node without a local member, from number g on. Numbers ascend.
 */
static const struct rendezvous *next_unstarted(const struct server *s, const struct rendezvous *g,
					       uint64_t number)
{
	while (g && (g->number < number || !g->held || g->running || comm_find(&s->comms, g->id)))
		g = g->hh.next;
	return g;
}

static const struct rendezvous *first_unstarted(const struct server *s, uint64_t number)
{
	return next_unstarted(s, s->comms.coord.rendezvous, number);
}

_Static_assert(sizeof(((struct refusal *)0)->text) == NCCLSVC_REFUSED_BYTES, "one text");

static uint32_t unstarted_state(const struct rendezvous *g)
{
	return g->joining < g->held ? NCCLSVC_COMM_BROKEN : NCCLSVC_COMM_FORMING;
}

static void show_refusal(const struct refusal *r, ncclsvc_comm_info *i)
{
	if (!r->pid)
		return;
	i->refused_rank = r->rank;
	i->refused_pid = r->pid;
	memcpy(i->refused, r->text, sizeof(i->refused));
}

/* A refused JOIN is shown while members wait for an epoch to begin. */
static void add_refusal(const struct refusal *r, ncclsvc_comm_info *i)
{
	if (i->state != NCCLSVC_COMM_READY && i->state != NCCLSVC_COMM_IDLE)
		show_refusal(r, i);
}

/* A refused operation is shown until the rank has submitted another one. */
static void add_refused_task(const struct communicator *m, ncclsvc_comm_info *i)
{
	const struct refusal *r = &m->refused_task;
	if (r->pid && load(&m->progress[r->rank].submitted) + peer_launched(m, (uint32_t)r->rank) ==
			      m->refused_seq)
		show_refusal(r, i);
}

bool list_may_name(const struct chunk *p, const struct communicator *m)
{
	bool may = session_allows(p->asker, &m->account->tenant);
	for (uint32_t k = 0; k < m->nranks && !may; k++)
		may = m->members[k].session &&
		      session_allows(p->asker, &m->members[k].session->account->tenant);
	return may;
}

/* In place of a label that the asker may not see. */
static void hide_label(uint32_t uid, char label[NCCLSVC_NAME_BYTES])
{
	snprintf(label, NCCLSVC_NAME_BYTES, "(user %u)", uid);
}

/* All nodes have that key, and no user has. */
static uint64_t cluster_comm(const struct server *s, const uint8_t *id)
{
	return s->cluster ? siphash(s->cluster->nodes[0].info.key, id, NCCLSVC_ID_BYTES) : 0;
}

/* They follow the slots. */
static uint64_t list_unstarted_comms(struct server *s, struct chunk *p, uint64_t from)
{
	const struct rendezvous *g = first_unstarted(s, from - SVC_COMMS_MAX);
	for (; g; g = next_unstarted(s, g->hh.next, 0)) {
		ncclsvc_comm_info *i = chunk_next(p, g->nranks);
		if (!i)
			return SVC_COMMS_MAX + g->number;
		*i = (ncclsvc_comm_info){
			.comm = g->number,
			.nranks = g->nranks,
			.joined = g->joining,
			.epoch = g->epoch,
			.state = unstarted_state(g),
			.uid = g->uid,
			.age_ns = since(p->reply.time_ns, g->since_ns),
			.cluster_comm = cluster_comm(s, g->id),
		};
		if (!session_allows_user(p->asker, g->uid)) {
			hide_label(g->uid, i->label);
			continue;
		}
		memcpy(i->id, g->id, sizeof(i->id));
		memcpy(i->label, g->label, sizeof(i->label));
		add_refusal(&g->refused, i);
	}
	return 0;
}

static bool is_in(uint32_t member_state)
{
	return member_state == NCCLSVC_MEMBER_JOINED || member_state == NCCLSVC_MEMBER_JOINING;
}

static void add_life(const struct epoch_life *e, uint64_t now, ncclsvc_comm_info *i)
{
	struct epoch_step steps[NCCLSVC_EPOCH_STEPS];
	i->epoch_state = e->state;
	i->epoch_state_ns = since(now, e->since_ns);
	i->epoch_faults = e->faults;
	i->epoch_step_count = epoch_last_steps(e, steps);
	for (uint32_t k = 0; k < i->epoch_step_count; k++)
		i->epoch_steps[k] = (ncclsvc_epoch_step){steps[k].to, steps[k].cause,
							 since(now, steps[k].at_ns)};
}

uint64_t list_comms(struct server *s, struct chunk *p, uint64_t from)
{
	for (uint64_t slot = from; slot < SVC_COMMS_MAX; slot++) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		ncclsvc_comm_info *i = m ? chunk_next(p, m->nranks) : NULL;
		if (!m)
			continue;
		if (!i)
			return slot;
		const struct rendezvous_view v = look(s, m);
		*i = (ncclsvc_comm_info){
			.comm = m->uid,
			.nranks = m->nranks,
			.epoch = m->epoch,
			.state = comm_state(m),
			.uid = m->account->tenant.uid,
			.age_ns = since(p->reply.time_ns, m->since_ns),
			.ask_node = v.node != s->comms.coord.me ? v.node + 1 : 0,
			.peer_bytes = peer_bytes(m),
			.peer_source = peer_source(m),
			.staged = peer_staged(m),
			.pending = peer_pending(m),
			.cluster_comm = cluster_comm(s, m->id),
			.admit = m->admit,
			.nccl = comm_nccl_state(m),
			.blocks = peer_blocks(m),
			.copy_engines = peer_uses_copy_engines(m),
		};
		for (uint32_t k = 0; k < m->nranks; k++) {
			ncclsvc_member_info member = {.rank = (int32_t)k,
						      .state = m->members[k].state};
			describe(s, m, &v, &member);
			i->joined += is_in(member.state);
			if (m->progress)
				i->pending += (uint32_t)(load(&m->progress[k].submitted) -
							 load(&m->progress[k].completed));
		}
		if (i->state == NCCLSVC_COMM_IDLE && v.rendezvous && v.rendezvous->held &&
		    !v.rendezvous->running)
			i->state = unstarted_state(v.rendezvous);
		memcpy(i->tenant, m->account->name, sizeof(i->tenant));
		add_life(&m->life, p->reply.time_ns, i);
		if (session_allows(p->asker, &m->account->tenant))
			memcpy(i->id, m->id, sizeof(i->id));
		if (!list_may_name(p, m)) {
			hide_label(m->account->tenant.uid, i->label);
			continue;
		}
		memcpy(i->label, m->label, sizeof(i->label));
		memcpy(i->job, m->job, sizeof(i->job));
		if (epoch_runs(&m->life))
			add_refused_task(m, i);
		else
			add_refusal(v.rendezvous ? &v.rendezvous->refused : &m->refused, i);
	}
	return list_unstarted_comms(s, p, from < SVC_COMMS_MAX ? SVC_COMMS_MAX : from);
}

uint64_t list_each_member(struct server *s, struct chunk *p, uint64_t from, list_member_fn *list)
{
	uint64_t k = (uint32_t)from;
	for (uint64_t slot = from >> 32; slot < SVC_COMMS_MAX; slot++, k = 0) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		for (; m && k < m->nranks; k++)
			if (!chunk_works(p, 1) || !list(s, p, m, (uint32_t)k))
				return at_rank(slot, k);
	}
	return 0;
}

/* The age of a member's oldest pending task, in a kernel or not; 0: none. */
static uint64_t oldest_age(const struct communicator *m, const ncclsvc_member_info *i, uint64_t now)
{
	const uint64_t began = waits_since(m, (uint32_t)i->rank, now);
	return began ? since(now, began) : 0;
}

/* Adds the request that the member waits in until all members have made it. */
static void add_request(const struct communicator *m, uint32_t k, uint64_t now,
			ncclsvc_member_info *i)
{
	uint64_t since_ns = 0;
	if (m->split && m->split[k].here) {
		i->request = NCCLSVC_REQUEST_SPLIT;
		since_ns = m->split[k].since_ns;
	} else if (m->commits && m->commits[k].here) {
		i->request = NCCLSVC_REQUEST_PLAN;
		since_ns = m->commits[k].since_ns;
	}
	const uint64_t ms = since_ns ? since(now, since_ns) / 1000000 : 0;
	i->request_ms = (uint32_t)(ms < UINT32_MAX ? ms : UINT32_MAX);
}

static bool list_one_member(struct server *s, struct chunk *p, const struct communicator *m,
			    uint32_t k)
{
	const struct member *member = &m->members[k];
	ncclsvc_member_info *i = chunk_next(p, 1);
	if (!i)
		return false;
	*i = (ncclsvc_member_info){
		.comm = m->uid,
		.rank = (int32_t)k,
		.state = member->state,
		.session = member->session ? member->session->id : 0,
		.pid = member->pid,
		.epoch = m->epoch,
		.device = member->device,
		.elsewhere = member->session ? 0 : (uint32_t)(member->node + 1),
		.transport =
			m->cuda && s->gpus.staging ? NCCLSVC_TRANSPORT_MPI : NCCLSVC_TRANSPORT_NCCL,
	};
	if (member->state == NCCLSVC_MEMBER_JOINING)
		i->waiting_ns = since(p->reply.time_ns, member->since_ns);
	add_request(m, k, p->reply.time_ns, i);
	const struct rendezvous_view v = look(s, m);
	describe(s, m, &v, i);
	if (!m->progress)
		return true;
	i->completed = load(&m->progress[k].completed);
	i->submitted = load(&m->progress[k].submitted);
	const uint64_t age = oldest_age(m, i, p->reply.time_ns);
	if (age)
		i->waiting_ns = age;
	return true;
}

static uint64_t list_unstarted_members(const struct server *s, struct chunk *p, uint64_t from)
{
	uint64_t k = (uint32_t)from;
	const struct rendezvous *g = first_unstarted(s, (from >> 32) - SVC_COMMS_MAX);
	for (; g; g = next_unstarted(s, g->hh.next, 0), k = 0) {
		const struct rendezvous_view v = {s->comms.coord.me, g};
		for (; k < g->nranks; k++) {
			ncclsvc_member_info *i = chunk_next(p, 1);
			if (!i)
				return at_rank(SVC_COMMS_MAX + g->number, k);
			*i = (ncclsvc_member_info){.comm = g->number,
						   .rank = (int32_t)k,
						   .epoch = g->epoch,
						   .device = SVC_DEVICE_HOST};
			rendezvous_describe(&s->comms.coord, &v, i);
		}
	}
	return 0;
}

uint64_t list_members(struct server *s, struct chunk *p, uint64_t from)
{
	const uint64_t unstarted = at_rank(SVC_COMMS_MAX, 0);
	uint64_t next = list_each_member(s, p, from, list_one_member);
	return next ? next : list_unstarted_members(s, p, from < unstarted ? unstarted : from);
}

static bool list_one_plan(struct server *s, struct chunk *p, const struct communicator *m,
			  uint32_t k)
{
	const struct member *member = &m->members[k];
	(void)s;
	if (!m->plan || !m->plan->members[k].handle)
		return true;
	ncclsvc_plan_info *i = chunk_next(p, m->plan->members[k].ntasks / 16 + 1);
	if (!i)
		return false;
	*i = (ncclsvc_plan_info){
		.comm = m->uid,
		.rank = (int32_t)k,
		.pid = member->pid,
		.session = member->session ? member->session->id : 0,
		.epoch = m->epoch,
		.age_ns = since(p->reply.time_ns, m->plan->since_ns),
	};
	plan_info(m->plan, k, i);
	return true;
}

uint64_t list_plans(struct server *s, struct chunk *p, uint64_t from)
{
	return list_each_member(s, p, from, list_one_plan);
}

/* The position: communicator, rank, task. */
uint64_t list_plan_tasks(struct server *s, struct chunk *p, uint64_t from)
{
	ncclsvc_plan_task_info info;
	uint64_t k = from >> 32 & UINT16_MAX, i = (uint32_t)from;
	for (uint64_t slot = from >> 48; slot < SVC_COMMS_MAX; slot++, k = i = 0) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		const bool may_name = m && m->plan && list_may_name(p, m);
		for (; m && m->plan && k < m->nranks; k++, i = 0) {
			if (!chunk_works(p, 1))
				return slot << 48 | k << 32 | i;
			for (; plan_task_info(m->plan, (uint32_t)k, (uint32_t)i, &info); i++) {
				ncclsvc_plan_task_info *next = chunk_next(p, 1);
				if (!next)
					return slot << 48 | k << 32 | i;
				*next = info;
				if (!may_name)
					memset(next->label, 0, sizeof(next->label));
			}
		}
	}
	return 0;
}
