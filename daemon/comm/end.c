/* SPDX-License-Identifier: Apache-2.0
 * The end of an epoch because of a member, its GPU or a node, here or as another node reports. */
#include "base/log.h"
#include "channel/cluster.h"
#include "comm.h"
#include "comms.h"
#include "gpu/gpu.h"
#include "record/dump_file.h"
#include "remote.h"
#include "report.h"
#include "requests.h"

/* 1 + the node at fault; 0: none. */
static uint32_t lost_node(const ncclsvc_status *st)
{
	return st->field == NCCLSVC_FIELD_NODE ? (uint32_t)st->value_a + 1 : 0;
}

static void tell_end(struct communicator *m, uint32_t k, const ncclsvc_status *why, int32_t rank)
{
	struct member *member = &m->members[k];
	struct svc_event_comm ev = {
		.comm = member->handle,
		.epoch = m->epoch,
		.reason = why->result,
		.rank = rank,
		.pid = rank >= 0 ? m->members[rank].pid : 0,
		.status = *why,
	};
	member->state = NCCLSVC_MEMBER_BROKEN;
	ev.status.epoch = m->epoch;
	session_comm_event(member->session, &ev);
}

/* ended: the rank that the epoch lacks, or -1; reported: the status that members get. */
static void end_epoch(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why,
		      int32_t ended, const ncclsvc_status *reported, int32_t reported_rank)
{
	const uint32_t node = lost_node(why);
	const bool failure = recorder_dump_wanted(m, reported);
	comm_event_for(m, cause, reported);
	m->nccl_wanted = false;
	if (failure)
		recorder_dump_for(m, reported);
	comm_split_failed(m, reported->result, reported_rank);
	plan_commit_failed(m, reported->result, reported_rank);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		bool gone = (int32_t)k == ended && why->result == NCCLSVC_PEER_GONE && !node;
		if (!comm_alive(member) && member->node >= 0) { /* on another node */
			bool dead = gone || (uint32_t)member->node + 1 == node;
			member->state = dead ? NCCLSVC_MEMBER_DEAD : NCCLSVC_MEMBER_BROKEN;
		}
		if (comm_takes_part(member))
			tell_end(m, k, reported, reported_rank);
	}
}

void comm_end_epoch(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why,
		    int32_t rank)
{
	end_epoch(m, cause, why, rank, why, rank);
}

/* Adds the GPU and the pid of the lost worker, unless it is another node's. */
static void name_worker(const struct communicator *m, ncclsvc_status *why)
{
	const struct member *member = why->rank_a >= 0 ? &m->members[why->rank_a] : NULL;
	const struct gpu *g =
		member && member->node < 0 ? gpu_find(m->comms->gpus, member->device) : NULL;
	if (!g)
		return;
	why->value_a = (uint64_t)g->index;
	why->pid_b = g->info.pid;
}

/* first: the failure behind this one, as another node reports it; NULL: none. */
static void break_after(struct communicator *m, ncclsvc_epoch_cause cause, int reason, int32_t rank,
			int32_t node, const ncclsvc_status *first)
{
	const bool gone = reason == NCCLSVC_PEER_GONE && node < 0 && rank >= 0;
	ncclsvc_status why = {
		.result = reason,
		.field = node >= 0 ? NCCLSVC_FIELD_NODE : NCCLSVC_FIELD_NONE,
		.value_a = node >= 0 ? (uint64_t)node : 0,
		.value_b = gone	       ? m->members[rank].address
			   : node >= 0 ? cluster_ipv4(m->comms->cluster, (uint32_t)node)
				       : 0,
		.rank_a = rank,
		.pid_a = rank >= 0 ? m->members[rank].pid : 0,
		.rank_b = -1,
		.ending = rank >= 0 ? m->members[rank].ending.how : NCCLSVC_ENDED_UNKNOWN,
		.ending_code = rank >= 0 ? m->members[rank].ending.code : 0,
	};
	if (reason == NCCLSVC_WORKER_LOST)
		name_worker(m, &why);
	ncclsvc_status reported = why;
	if (m->life.state == NCCLSVC_EPOCH_LEFT)
		comm_event_for(m, cause, &why);
	if (!epoch_runs(&m->life))
		return;
	report_epoch(m, &reported, first);
	end_epoch(m, cause, &why, rank, &reported, reported.rank_a);
}

void comm_break_for(struct communicator *m, ncclsvc_epoch_cause cause, int reason, int32_t rank,
		    int32_t node)
{
	break_after(m, cause, reason, rank, node, NULL);
}

void comm_break_epoch(struct communicator *m, ncclsvc_epoch_cause cause, int32_t rank)
{
	const bool tell = epoch_runs(&m->life);
	comm_break_for(m, cause, NCCLSVC_PEER_GONE, rank, -1);
	if (tell)
		remote_break(m, NCCLSVC_PEER_GONE, rank, -1);
}

void comm_gpu_lost(struct communicator *m, int result, int32_t rank)
{
	const bool tell = epoch_lives(&m->life);
	comm_break_for(m, NCCLSVC_CAUSE_GPU_LOST, result, rank, -1);
	if (tell)
		remote_break(m, result, rank, -1);
}

/* ---- Epochs that their members continue ---- */

/* When a daemon ends, or the connection to it, the other nodes suspend the epochs that they share
 * with it: their schedulers finish what runs, and hold the tasks that have not run
 * (sched/base/held.h). Then their members JOIN again with SVC_RESUME_COMM, as the members on that
 * node do once it has a new daemon. */

static bool can_suspend(const struct communicator *m)
{
	if (!m->lineage || !m->remote || !comm_is_whole(m))
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_alive(&m->members[k]) && !m->members[k].session->resumes)
			return false;
	return true;
}

/* The status of tasks that cannot be continued. */
static ncclsvc_status lost_status(const struct communicator *m, int32_t rank, int32_t node)
{
	return (ncclsvc_status){
		.result = NCCLSVC_PEER_GONE,
		.field = node >= 0 ? NCCLSVC_FIELD_NODE : NCCLSVC_FIELD_NONE,
		.value_a = node >= 0 ? (uint64_t)node : 0,
		.value_b = node >= 0 ? cluster_ipv4(m->comms->cluster, (uint32_t)node) : 0,
		.rank_a = rank,
		.pid_a = rank >= 0 ? m->members[rank].pid : 0,
		.rank_b = -1,
	};
}

/* quiet: the members are not told, since this daemon ends, too. */
static bool suspend(struct communicator *m, int32_t rank, int32_t node, bool quiet)
{
	if (!epoch_runs(&m->life) || !can_suspend(m))
		return false;
	const ncclsvc_status why = lost_status(m, rank, node);
	if (node >= 0 && !quiet)
		log_info("communicator %s, epoch %u: suspended; its members continue it when node "
			 "%d (%s) has a daemon again",
			 m->label, m->epoch, node, coord_host(&m->comms->coord, (uint32_t)node));
	m->suspended = true;
	m->quiet = quiet;
	m->suspended_why = why;
	comm_event_for(m, NCCLSVC_CAUSE_SUSPENDED, &why);
	plan_forget(m); /* the split may be decided, and its result on its way */
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		member->suspended = comm_takes_part(member);
		if (member->suspended || member->node >= 0)
			member->state = NCCLSVC_MEMBER_BROKEN;
	}
	return true;
}

bool comm_suspend(struct communicator *m, int32_t rank, int32_t node)
{
	return suspend(m, rank, node, false);
}

void comm_tell_suspended(struct communicator *m)
{
	const ncclsvc_status *why = &m->suspended_why;
	for (uint32_t k = 0; m->suspended && !m->quiet && k < m->nranks; k++) {
		const struct member *member = &m->members[k];
		if (!comm_alive(member) || member->state != NCCLSVC_MEMBER_BROKEN)
			continue;
		struct svc_event_comm ev = {.comm = member->handle,
					    .epoch = m->epoch,
					    .reason = why->result,
					    .rank = why->rank_a,
					    .pid = why->pid_a,
					    .suspended = 1,
					    .status = *why};
		ev.status.epoch = m->epoch;
		session_comm_event(member->session, &ev);
	}
	m->suspended = false;
}

bool comm_suspend_all(struct comms *s)
{
	struct communicator *m, *next;
	bool any = false;
	/* No SPLIT or plan is answered on the other nodes only. */
	while (s->own_messages)
		remote_handle_own(s);
	HASH_ITER (hh, s->comms, m, next) {
		if (!suspend(m, -1, (int32_t)s->coord.me, true))
			continue;
		remote_suspend(m, -1, (int32_t)s->coord.me);
		any = true;
	}
	return any;
}

/* ---- The end on another node ---- */

static bool names_ranks_of(const struct communicator *m, const ncclsvc_status *st)
{
	const int32_t n = (int32_t)m->nranks;
	bool valid = st->rank_a < n && st->rank_b < n;
	for (uint32_t i = 0; i < st->missing_count && i < NCCLSVC_MISSING_SHOWN; i++)
		valid = valid && st->missing[i] >= 0 && st->missing[i] < n;
	return valid;
}

void comm_broken_elsewhere(struct communicator *m, const struct control_break *b)
{
	if (b->suspends && comm_suspend(m, b->rank, b->node))
		return;
	if (b->rank >= 0)
		m->members[b->rank].ending = b->ending;
	const bool follows = b->first.result && names_ranks_of(m, &b->first);
	if (follows && b->result == NCCLSVC_MISMATCH && b->first.result == b->result &&
	    epoch_runs(&m->life)) {
		ncclsvc_status why = b->first;
		report_epoch(m, &why, NULL);
		comm_end_epoch(m, NCCLSVC_CAUSE_ENDED_ELSEWHERE, &b->first, b->rank);
		return;
	}
	break_after(m, b->renewed ? NCCLSVC_CAUSE_RENEWED : NCCLSVC_CAUSE_ENDED_ELSEWHERE,
		    b->result, b->rank, b->node, follows ? &b->first : NULL);
}
