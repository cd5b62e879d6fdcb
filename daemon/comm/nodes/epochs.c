/* SPDX-License-Identifier: Apache-2.0
 * Communicators with members on other nodes: handles reports, from these nodes or its own
 * scheduler, that an epoch begins or ends, or that a member has left. */
#include <string.h>

#include "comm/comm.h"
#include "comm/comms.h"
#include "comm/remote.h"
#include "comm/report.h"
#include "comm/requests.h"
#include "coord/messages.h"
#include "node_reports.h"

/* The node is missing from the epoch that is about to begin. */
static void begin_without(struct communicator *m, uint32_t node)
{
	for (uint32_t k = 0; m->start && k < m->nranks; k++) {
		if (m->start->members[k].node != node || m->start_is_over)
			continue;
		if (m->cuda) {
			comm_not_begun(m,
				       epoch_held(&m->life) ? NCCLSVC_CAUSE_START_FAILED
							    : NCCLSVC_CAUSE_NODE_LOST,
				       m->start->lineage & SVC_LINEAGE_RESUMED ? NCCLSVC_AGAIN
									       : NCCLSVC_PEER_GONE,
				       "a member's node was lost before the epoch began");
			return;
		}
		m->start_is_over = true;
		m->start_break = (struct control_break){.epoch = m->start->epoch,
							.result = NCCLSVC_PEER_GONE,
							.rank = (int32_t)k,
							.node = (int32_t)node,
							.suspends = m->start->lineage != 0};
		if (!cluster_is_together(m->comms->cluster)) /* others may reach it */
			remote_not_begun(m, NCCLSVC_PEER_GONE, (int32_t)k, (int32_t)node, true);
	}
}

void comm_gathered(struct communicator *m, const struct control_start *start)
{
	struct comms *s = m->comms;
	size_t size = sizeof(*start) + start->nranks * sizeof(start->members[0]);
	int32_t vanished = -1;
	/* A restarted rendezvous does not know the epoch that all ranks have left, and ends none.
	 */
	if (epoch_lives(&m->life))
		comm_break_for(m, NCCLSVC_CAUSE_RENEWED, NCCLSVC_STALE_EPOCH, -1, -1);
	m->start_is_over = false;
	m->barrier = BARRIER_NONE;
	m->start = m->starts[m->begun == m->starts[0]];
	memcpy(m->start, start, size);
	m->start->lost = -1;
	comm_name_epoch(s, m->slot, start->internode_id);
	comm_event(m, NCCLSVC_CAUSE_GATHERED);
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_is_member_here(m, k) && !comm_is_still_there(m, k))
			vanished = (int32_t)k;
	for (uint32_t k = 0; m->start && k < m->nranks; k++) {
		const uint32_t node = m->start->members[k].node;
		if (s->cluster)
			cluster_revive(s->cluster, node);
		if (coord_is_gone(&s->coord, node))
			begin_without(m, node);
	}
	if (!m->start)
		return;
	if (m->cuda && vanished >= 0 && comm_can_wait(m))
		comm_join_again(m, vanished, true);
	else if (m->cuda && vanished >= 0)
		comm_fail_joins(s, m, NCCLSVC_PEER_GONE, vanished,
				"a member left or died before the split was done");
	else
		comm_try_start(s, m);
	remote_handle_unexpected(m);
}

void comm_left_elsewhere(struct communicator *m, int32_t rank)
{
	struct comms *s = m->comms;
	struct member *member = &m->members[rank];
	if ((!epoch_runs(&m->life) && !m->cuda) || member->node < 0)
		return;
	member->node = -1;
	if (!comm_alive(member))
		member->state = NCCLSVC_MEMBER_ABSENT;
	m->remote--;
	if (epoch_lives(&m->life))
		scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_MEMBER_LEFT,
								  .left = {m->slot, rank}});
	if (m->life.state == NCCLSVC_EPOCH_LEFT)
		comm_event_for(m, NCCLSVC_CAUSE_LEFT,
			       &(ncclsvc_status){.result = NCCLSVC_CANCELLED,
						 .rank_a = rank,
						 .pid_a = member->pid,
						 .rank_b = -1});
	comm_split_failed(m, NCCLSVC_PEER_GONE, rank);
}

/* The scheduler reports it ahead of the other node's message. */
void comm_member_left(struct comms *s, uint32_t slot, uint32_t epoch, int32_t rank)
{
	struct communicator *m = s->comm_by_slot[slot];
	if (m && m->epoch == epoch)
		comm_left_elsewhere(m, rank);
}

void comm_node_lost(struct communicator *m, uint32_t node, bool returns)
{
	int32_t rank = -1;
	for (uint32_t k = m->nranks; k-- > 0;)
		if (m->members[k].node == (int32_t)node)
			rank = (int32_t)k;
	/* Standalone daemons: others may reach the node. */
	const bool tell =
		rank >= 0 && epoch_runs(&m->life) && !cluster_is_together(m->comms->cluster);
	const bool suspended = rank >= 0 && returns && comm_suspend(m, rank, (int32_t)node);
	if (rank >= 0 && !suspended)
		comm_break_for(m, NCCLSVC_CAUSE_NODE_LOST, NCCLSVC_PEER_GONE, rank, (int32_t)node);
	if (suspended)
		remote_suspend(m, rank, (int32_t)node);
	else if (tell)
		remote_break(m, NCCLSVC_PEER_GONE, rank, (int32_t)node);
	/* Its coordinator may not have told all nodes which ranks join which subcommunicator. */
	const bool lacks = rank >= 0 || m->coordinator == node;
	if (lacks && m->joining && !m->start && !comm_can_wait(m))
		comm_fail_joins(m->comms, m, NCCLSVC_PEER_GONE, rank,
				"a member's node was lost before the split was done");
	begin_without(m, node);
	if (m->start_is_over)
		comm_try_start(m->comms, m);
}

void comm_captured_group_failed(struct comms *s, uint32_t slot, const ncclsvc_status *st)
{
	struct communicator *m = s->comm_by_slot[slot];
	const int32_t rank = st->missing_count ? st->missing[0]
			     : st->rank_b >= 0 ? st->rank_b
					       : st->rank_a;
	if (!m || m->epoch != st->epoch || !epoch_lives(&m->life))
		return;
	/* No task is involved: */
	if (st->result == NCCLSVC_PROTOCOL)
		report_kernels(m, st,
			       "a stream has started operations of a CUDA graph that is gone");
	if (st->result == NCCLSVC_LIMIT)
		report_kernels(m, st, "no room for operations that a stream starts");
	comm_end_epoch(m, NCCLSVC_CAUSE_GRAPH_FAILED, st, rank);
	remote_break_with(m, st, rank, -1);
}

/* The scheduler finds that the nodes cannot continue together. */
void comm_internode_failed(struct comms *s, uint32_t slot, uint32_t epoch, int result, int32_t node)
{
	struct communicator *m = s->comm_by_slot[slot];
	int32_t rank = -1;
	if (!m || m->epoch != epoch || !epoch_lives(&m->life))
		return;
	for (uint32_t k = m->nranks; node >= 0 && k-- > 0;)
		if (m->members[k].node == node)
			rank = (int32_t)k;
	comm_break_for(m, NCCLSVC_CAUSE_NODES_FAILED, result, rank, node);
	remote_break(m, result, rank, node);
}

void comm_not_in_table(struct communicator *m, ncclsvc_epoch_cause cause)
{
	const bool tell = m->comms->cluster && epoch_runs(&m->life);
	if (epoch_lives(&m->life))
		comm_break_for(m, NCCLSVC_CAUSE_FAULT, NCCLSVC_STALE_EPOCH, -1, -1);
	else if (m->joining && cause != NCCLSVC_CAUSE_START_FAILED)
		comm_fail_joins(m->comms, m, NCCLSVC_STALE_EPOCH, -1,
				"a defect of the daemon: see its log; join again");
	if (tell)
		remote_break(m, NCCLSVC_STALE_EPOCH, -1, -1);
}
