/* SPDX-License-Identifier: Apache-2.0
 * An epoch starts when all ranks have joined, the last epoch is gone and, on GPUs, their workers
 * and NCCL are ready. */
#include <stdlib.h>
#include <string.h>

#include "account/lateness.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/loop.h"
#include "base/nofail.h"
#include "comm.h"
#include "comm_gpus.h"
#include "comms.h"
#include "gpu/gpu.h"
#include "gpu/nccl_comm.h"
#include "peer/comm_peer.h"
#include "peer/shared_gpu.h"
#include "peer/sleep.h"
#include "record/record.h"
#include "remote.h"
#include "requests.h"

static void note_lineage(struct communicator *m)
{
	m->lineage = m->start->lineage;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct session *c = m->members[k].session;
		if (c && !m->lineage)
			c->resumes = false; /* its library comes to the same conclusion */
		m->members[k].resume = 0;
	}
}

static int32_t first_on_node_of(const struct control_start *start, uint32_t rank)
{
	uint32_t k = 0;
	while (start->members[k].node != start->members[rank].node)
		k++;
	return (int32_t)k;
}

static void reply_joined(struct communicator *m, uint32_t rank, unsigned opcode)
{
	struct member *member = &m->members[rank];
	struct svc_join_reply r = {
		.comm_uid = m->uid,
		.comm = member->handle,
		.epoch = m->epoch,
		.nranks = (int32_t)m->nranks,
		.rank = (int32_t)rank,
	};
	memcpy(r.id, m->id, sizeof(r.id));
	memcpy(r.label, m->label, sizeof(r.label));
	r.peer_bytes = peer_bytes(m);
	r.lineage = member->session->resumes ? m->lineage : 0;
	r.first_here = first_on_node_of(m->begun, rank);
	session_reply(member->session, opcode, member->request_id, &r, sizeof(r), NULL, 0);
}

/* Is the rank's member on another node, or gone since all had joined? False: it is here. */
static bool is_elsewhere(struct comms *s, struct communicator *m, uint32_t k,
			 struct epoch_member *reported)
{
	struct member *member = &m->members[k];
	const struct control_member *who = &m->start->members[k];
	bool here = who->node == s->coord.me;
	*reported = (struct epoch_member){.session = EPOCH_ELSEWHERE,
					  .device = -1,
					  .pid = who->pid,
					  .node = who->node,
					  .address = member->address};
	if (comm_is_still_there(m, k))
		return false;
	if (here)
		return true;
	member->node = (int32_t)who->node;
	member->pid = member->far_pid = who->pid;
	member->device = m->cuda ? who->device : SVC_DEVICE_HOST;
	member->state = NCCLSVC_MEMBER_JOINED;
	m->remote++;
	return true;
}

static bool spans_nodes(const struct control_start *start, uint32_t nranks)
{
	for (uint32_t k = 1; k < nranks; k++)
		if (start->members[k].node != start->members[0].node)
			return true;
	return false;
}

/* Returns a rank whose member has gone since all had joined; -1: none. */
static int32_t fill_members(struct comms *s, struct communicator *m, struct epoch_member *members)
{
	const bool spans = spans_nodes(m->start, m->nranks);
	int32_t vanished = -1;
	m->remote = 0;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		member->node = -1;
		member->address = spans ? cluster_ipv4(s->cluster, m->start->members[k].node) : 0;
		member->ending = (struct ending){0};
		if (is_elsewhere(s, m, k, &members[k])) {
			if (member->node < 0)
				vanished = (int32_t)k;
			continue;
		}
		members[k] = (struct epoch_member){
			.session = member->session->slot,
			.handle = member->handle,
			.device = member->device,
			.pid = member->pid,
			.node = s->coord.me,
			.address = member->address,
		};
		member->state = NCCLSVC_MEMBER_JOINED;
		member->session->failure = 0; /* the process continues after it */
		comm_join_deadline(s, member, 0);
		member->overdue = false;
		m->joining--;
	}
	return vanished;
}

static enum transport_kind transport_of(const struct comms *s, const struct communicator *m)
{
	if (!m->cuda)
		return m->remote ? TRANSPORT_INTERNODE : TRANSPORT_HOST;
	return s->gpus->staging ? TRANSPORT_STAGED : TRANSPORT_NCCL;
}

static uint32_t slot_of(const struct communicator *m, enum transport_kind transport)
{
	if (transport != TRANSPORT_NCCL)
		return 0;
	return m->nccl_comm ? m->nccl_comm->slot : EPOCH_WITHOUT_NCCL;
}

/* A JOIN on this node for a rank of another node: it arrived after all had joined, or the
 * rendezvous was lost and its successor did not know of the member. */
static void turn_away_others(struct communicator *m)
{
	char text[SVC_TEXT_BYTES];
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		const struct control_member *who = &m->start->members[k];
		if (comm_is_member_here(m, k) || !comm_alive(member))
			continue;
		snprintf(text, sizeof(text),
			 "rank %u of communicator %s is held by pid %d, session %u of node %u (%s)",
			 k, m->label, who->pid, who->session, who->node,
			 coord_host(&m->comms->coord, who->node));
		if (member->state == NCCLSVC_MEMBER_JOINING) {
			remote_unjoin(m, k, member->session->id, WITHDRAW_CANCELLED);
			comm_refuse_join(m, k, NCCLSVC_RANK_TAKEN, text);
		}
		if (comm_alive(member))
			comm_vacate(m, member, NCCLSVC_MEMBER_ABSENT);
	}
}

static void start_epoch(struct comms *s, struct communicator *m)
{
	struct epoch_member *members = calloc(m->nranks, sizeof(*members));
	struct member_progress *progress = calloc(m->nranks, sizeof(*progress));
	struct comm_lateness *lateness = lateness_create(m->nranks);
	struct control_start *start = m->start;
	const bool over = m->start_is_over;
	if (!members || !progress || !lateness) {
		free(members);
		free(progress);
		free(lateness);
		comm_fail_joins(s, m, NCCLSVC_NO_MEMORY, -1,
				"the daemon has no memory for an epoch");
		return;
	}
	turn_away_others(m);
	m->epoch = start->epoch;
	m->failure = 0;
	m->ended_in_order.result = NCCLSVC_OK;
	m->refused_task.pid = 0;
	m->coordinator = start->members[0].node;
	comm_event(m, NCCLSVC_CAUSE_STARTED);
	m->split_seq = m->plan_seq = 0;
	m->nccl_wanted = m->nccl_asked = false;
	m->split_lost = m->plan_lost = m->suspended = false;
	comm_split_forget(m);
	m->progress = progress;
	m->lateness = lateness;
	int32_t vanished = fill_members(s, m, members);
	comm_record_members(m, transport_of(s, m), members);
	if (vanished < 0)
		peer_begin(m);
	note_lineage(m);
	if (m->peer)
		m->pending = nofail_calloc(m->nranks, sizeof(*m->pending), "an epoch's members");
	m->begun = start;
	m->start = NULL;
	m->start_is_over = false;
	struct shared_gpu shared;
	struct command cmd = {.kind = COMMAND_EPOCH_START};
	cmd.epoch_start.comm = m->slot;
	cmd.epoch_start.nranks = m->nranks;
	cmd.epoch_start.epoch = m->epoch;
	cmd.epoch_start.uid = m->uid;
	cmd.epoch_start.members = members;
	cmd.epoch_start.progress = progress;
	cmd.epoch_start.pending = m->pending;
	cmd.epoch_start.lateness = lateness;
	cmd.epoch_start.transport = transport_of(s, m);
	cmd.epoch_start.lineage = m->lineage;
	cmd.epoch_start.comm_slot = slot_of(m, cmd.epoch_start.transport);
	cmd.epoch_start.shared_gpu = comm_needs_kernels(m, &shared);
	cmd.epoch_start.internode_id = m->remote ? start->internode_id : 0;
	scheduler_command(s->scheduler, &cmd);
	/* The command is queued, so later submissions are behind it. A failed reply may end its
	 * session, and with it this epoch; the others must still be told that the epoch began. */
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_alive(&m->members[k]) && m->members[k].state == NCCLSVC_MEMBER_JOINED)
			reply_joined(m, k, m->reply_opcode);
	if (vanished >= 0)
		comm_break_epoch(m, NCCLSVC_CAUSE_MEMBER_DIED, vanished);
	if (over)
		comm_broken_elsewhere(m, &m->start_break);
	remote_handle_unexpected(m);
}

/* ---- Ranks on one GPU ---- */

/* A rank that waits in JOIN without staging memory; -1: none. */
static int32_t rank_without_kernels(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_is_still_there(m, k) && !peer_has_kernels(&m->members[k]))
			return (int32_t)k;
	return -1;
}

/* False: a member has gone since all had joined, so the epoch ends as soon as it has begun. */
static bool all_are_there(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!comm_is_still_there(m, k))
			return false;
	return true;
}

/* Why kernels cannot run all operations; empty: they can. */
static void explain(struct communicator *m, char *why, size_t size)
{
	int32_t from, to;
	const int32_t without = rank_without_kernels(m);
	why[0] = '\0';
	if (comm_across_nodes(m))
		snprintf(why, size, "the communicator has ranks on other nodes");
	else if (m->nranks > PEER_RANKS)
		snprintf(why, size, "the communicator has %u ranks, and at most %d can use it",
			 m->nranks, PEER_RANKS);
	else if (!m->comms->config->peer_bytes)
		snprintf(why, size, "it is off (peer_bytes = 0 in ncclsvcd.conf)");
	else if (without >= 0)
		snprintf(why, size, "rank %d (pid %d) does not use it (NCCLSVC_PEER=0?)", without,
			 m->members[without].pid);
	else if (!all_are_there(m))
		return;
	else if (!peer_all_reach(m, &from, &to))
		snprintf(why, size, "gpu%d cannot access gpu%d's memory", from, to);
	else if (!peer_all_can_map(m))
		snprintf(why, size, "a rank's process cannot map another rank's GPU memory");
}

/* False: two ranks share a GPU, and kernels cannot run their operations; the text says why. */
static bool shared_gpu_fits(struct communicator *m, char text[SVC_TEXT_BYTES])
{
	struct shared_gpu g;
	char why[112];
	if (!comm_needs_kernels(m, &g))
		return true;
	explain(m, why, sizeof(why));
	if (!why[0])
		return true;
	snprintf(text, SVC_TEXT_BYTES,
		 "ranks %u (pid %d) and %u (pid %d) both use GPU %d. NCCL refuses that; only the "
		 "direct transport does not, but %s: give each rank its own GPU",
		 g.ranks[0], g.pids[0], g.ranks[1], g.pids[1], g.device, why);
	return false;
}

/* False: this node does not reach all members' nodes yet, and connects to them. */
static bool reaches_all(struct comms *s, const struct communicator *m)
{
	bool all = true;
	for (uint32_t k = 0; s->cluster && k < m->nranks; k++)
		all &= cluster_reaches(s->cluster, m->start->members[k].node);
	return all;
}

/* The epoch that begins continues one whose operations kernels ran. False: they still can. */
static bool loses_kernels(const struct communicator *m)
{
	bool kernels = false;
	for (uint32_t k = 0; k < m->nranks; k++)
		kernels |= peer_has_kernels(&m->members[k]);
	return m->start->lineage & SVC_LINEAGE_RESUMED && kernels && !comm_across_nodes(m) &&
	       !peer_is_possible(m);
}

void comm_try_start(struct comms *s, struct communicator *m)
{
	char text[SVC_TEXT_BYTES];
	if (s->loop->closing || epoch_held(&m->life) || !comm_all_joined(m))
		return;
	if (!m->start_is_over && !reaches_all(s, m))
		return;
	if (m->cuda && !shared_gpu_fits(m, text)) {
		comm_fail_joins(s, m, NCCLSVC_UNSUPPORTED, -1, text);
		return;
	}
	if (loses_kernels(m)) {
		comm_fail_joins(s, m, NCCLSVC_UNSUPPORTED, -1,
				"the epoch cannot be continued: this daemon would run it without "
				"kernels");
		return;
	}
	const bool needs_gpus = m->cuda && !comm_needs_no_nccl(s, m);
	if (needs_gpus && m->life.state == NCCLSVC_EPOCH_FORMING)
		comm_event(m, NCCLSVC_CAUSE_GPUS_AWAITED);
	if (!needs_gpus || comm_gpus_ready(s, m))
		start_epoch(s, m);
}

/* ---- Conditions for an epoch's start ---- */

static void try_all(struct comms *s, struct communicator *m)
{
	comm_try_start(s, m);
	comm_try_give(s, m);
}

void comm_nccl_ready(struct communicator *m, int result, const char *why)
{
	struct comms *s = m->comms;
	if (result && epoch_held(&m->life))
		comm_nccl_not_given(m, result, why);
	else if (result)
		comm_fail_joins(s, m, result, -1, why);
	else
		try_all(s, m);
}

void comm_gpu_ready(struct comms *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		if (m->cuda)
			try_all(s, m);
}

void comm_session_known(struct session *c)
{
	for (uint32_t i = 1; i < c->nmemberships; i++)
		if (c->memberships[i].comm && c->memberships[i].comm->cuda)
			try_all(c->memberships[i].comm->comms, c->memberships[i].comm);
}

void comm_epoch_gone(struct comms *s, uint32_t slot)
{
	struct communicator *m = s->comm_by_slot[slot];
	comm_event(m, NCCLSVC_CAUSE_RELEASED);
	free(m->progress);
	free(m->lateness);
	free(m->pending);
	m->progress = NULL;
	m->lateness = NULL;
	m->pending = NULL;
	nccl_comm_release(&m->nccl_comm);
	comm_redops_refuse(m);
	if (m->suspended)
		comm_deadline(m, clock_now());
	comm_try_start(s, m);
	if (m->cuda) /* others may have waited for its NCCL communicator */
		comm_gpu_ready(s);
}
