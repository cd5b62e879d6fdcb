/* SPDX-License-Identifier: Apache-2.0
 * Communicators of GPUs: preparations for an epoch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/loop.h"
#include "base/timings.h"
#include "comm.h"
#include "comms.h"
#include "coord/messages.h"
#include "gpu/gpu.h"
#include "gpu/nccl_comm.h"
#include "gpus.h"
#include "memory/memory.h"
#include "remote.h"
#include "report.h"

bool comm_is_member_here(const struct communicator *m, uint32_t k)
{
	return !m->start || m->start->members[k].node == m->comms->coord.me;
}

/* Do all workers of this node's members run, and know their timelines? */
static bool staged_ready(struct comms *s, struct communicator *m)
{
	bool known = true;
	for (uint32_t k = 0; k < m->nranks; k++) {
		const struct member *member = &m->members[k];
		if (!comm_is_member_here(m, k) || !comm_alive(member))
			continue;
		struct gpu *g = s->gpus->gpu[member->device];
		if (g->info.state != NCCLSVC_DEVICE_READY)
			return false;
		known = gpu_session_known(s->memory, g, member->client) && known;
	}
	return known;
}

struct nccl_comm_want comm_want(struct communicator *m)
{
	struct nccl_comm_want w = {.user = m,
				   .held = &m->nccl_comm,
				   .account = m->account,
				   .nranks = m->nranks,
				   .nnodes = 1};
	for (uint32_t k = 0; k < m->nranks && w.n < GPUS_MAX; k++)
		if (comm_is_member_here(m, k))
			w.locals[w.n++] = (struct nccl_comm_rank){k, m->members[k].device};
	return w;
}

/* Its NCCL communicator is being created: comm_nccl_ready follows. */
static bool being_acquired(const struct communicator *m)
{
	return m->barrier == BARRIER_READY || (m->nccl_comm && m->nccl_comm->waiting);
}

/* True: every worker runs and knows its member's timelines, and NCCL has a communicator. Otherwise
 * requests the missing parts; the answer leads back here. */
bool comm_gpus_ready(struct comms *s, struct communicator *m)
{
	bool known = true;
	if (being_acquired(m))
		return false;
	if (s->gpus->staging)
		return staged_ready(s, m);
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (!comm_is_member_here(m, k))
			continue;
		struct gpu *g = s->gpus->gpu[m->members[k].device];
		if (g->info.state != NCCLSVC_DEVICE_READY || nccl_comm_stuck(g))
			return false;
		known = gpu_session_known(s->memory, g, m->members[k].client) && known;
	}
	if (!known)
		return false;
	const struct nccl_comm_want w = comm_want(m);
	if (nccl_comm_fits(m->nccl_comm, &w))
		return true;
	uint64_t due = nccl_comm_due(s->gpus, &w);
	if (due) {
		comm_deadline(m, due);
		return false;
	}
	nccl_comm_release(&m->nccl_comm);
	if (nodes_across(m)) {
		nodes_want(m);
		return false;
	}
	nccl_comm_acquire(s->gpus, &w);
	return nccl_comm_fits(m->nccl_comm, &w);
}

/* The other nodes believe that it has begun. */
static void tell_not_begun(struct comms *s, struct communicator *m, int result, int32_t rank,
			   bool all)
{
	m->epoch = m->start->epoch;
	if (m->cuda && !s->gpus->staging && nodes_across(m))
		nodes_withdraw(m, result, rank);
	remote_not_begun(m, result, rank, all);
	comm_name_epoch(s, m->slot, 0);
	m->start = NULL;
	m->start_is_over = false;
}

static void answer_joins(struct communicator *m, ncclsvc_epoch_cause cause, int result,
			 const char *why)
{
	if (m->joining)
		report_request(m, "JOIN", result, why);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		struct client *c = member->client;
		uint32_t serial = member->serial;
		if (member->state != NCCLSVC_MEMBER_JOINING)
			continue;
		m->joining--;
		member->state = NCCLSVC_MEMBER_BROKEN;
		comm_join_deadline(m->comms, member, 0);
		if (member->fresh)
			remote_unjoin(m, k, c->id, WITHDRAW_CANCELLED);
		if (member->fresh)
			comm_vacate(m, member, NCCLSVC_MEMBER_ABSENT);
		client_error(c, m->reply_opcode, serial, result, "%s", why);
	}
	comm_event(m, cause);
}

void comm_fail_joins(struct comms *s, struct communicator *m, int result, int32_t rank,
		     const char *why)
{
	if (m->start)
		tell_not_begun(s, m, result, rank, true);
	answer_joins(
		m, result == NCCLSVC_TIMEOUT ? NCCLSVC_CAUSE_DEADLINE : NCCLSVC_CAUSE_START_FAILED,
		result, why);
}

void comm_not_begun(struct communicator *m, ncclsvc_epoch_cause cause, int result, const char *why)
{
	if (m->start)
		tell_not_begun(m->comms, m, result, -1, false);
	answer_joins(m, cause, result, why);
}

void comm_join_again(struct communicator *m, int32_t rank, bool all)
{
	bool again[SVC_HOST_RANKS_MAX];
	for (uint32_t k = 0; k < m->nranks; k++)
		again[k] = (int32_t)k != rank && comm_is_still_there(m, k);
	tell_not_begun(m->comms, m, NCCLSVC_PEER_GONE, rank, all);
	comm_event(m, NCCLSVC_CAUSE_START_FAILED);
	for (uint32_t k = 0; k < m->nranks; k++)
		if (again[k])
			remote_join(m, k);
}

void comm_nccl_ready(struct communicator *m, int result, const char *why)
{
	struct comms *s = m->comms;
	if (result)
		comm_fail_joins(s, m, result, -1, why);
	else
		comm_try_start(s, m);
}

static int32_t staged_rank_on(const struct communicator *m, int32_t device)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].node < 0 && m->members[k].device == device)
			return (int32_t)k;
	return -1;
}

void comm_staged_worker_lost(struct comms *s, const struct gpu *g)
{
	struct communicator *m, *next;
	if (!s->gpus->staging)
		return;
	HASH_ITER (hh, s->comms, m, next) {
		int32_t rank = m->cuda && epoch_held(&m->life) ? staged_rank_on(m, g->index) : -1;
		if (rank >= 0)
			comm_gpu_lost(m, NCCLSVC_WORKER_LOST, rank);
	}
}

void comm_epoch_dirty(struct comms *s, uint32_t slot)
{
	const struct communicator *m = s->comm_by_slot[slot];
	if (m->nccl_comm)
		nccl_comm_abort(m->nccl_comm, "the nodes did not agree on what was launched");
}

bool comm_nccl_broken(struct communicator *m, int result, int32_t rank)
{
	if (epoch_held(&m->life))
		comm_gpu_lost(m, result, rank);
	return epoch_held(&m->life);
}

/* Tells the scheduler about the epoch that has ended. */
static void tell_of_end(const struct communicator *m, enum command_kind kind)
{
	if (epoch_held(&m->life))
		scheduler_command(m->comms->scheduler,
				  &(struct command){.kind = kind, .epoch_end = {.comm = m->slot}});
}

void comm_nccl_abort(const struct communicator *m)
{
	tell_of_end(m, COMMAND_EPOCH_BROKEN);
}

void comm_nccl_dead(const struct communicator *m)
{
	tell_of_end(m, COMMAND_EPOCH_DEAD);
}

void comm_nccl_release(const struct communicator *m)
{
	tell_of_end(m, COMMAND_EPOCH_RELEASE);
}

uint64_t comm_left_until(const struct communicator *m)
{
	return m->occupied ? 0 : m->idle_ns + COMM_LEAVING_NS;
}

void comm_gpu_ready(struct comms *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		if (m->cuda)
			comm_try_start(s, m);
}

bool comm_uses_gpus(const struct client *c)
{
	for (uint32_t i = 1; i < c->nmemberships; i++)
		if (c->memberships[i].comm && c->memberships[i].comm->cuda)
			return true;
	return false;
}

void comm_session_known(struct client *c)
{
	for (uint32_t i = 1; i < c->nmemberships; i++)
		if (c->memberships[i].comm && c->memberships[i].comm->cuda)
			comm_try_start(c->memberships[i].comm->comms, c->memberships[i].comm);
}

/* Members are either all on the host, or each on a GPU of its own. */
bool comm_device_fits(struct client *c, struct communicator *m, uint32_t serial,
		      const struct svc_join *j, int32_t rank)
{
	if (!m->occupied && !epoch_held(&m->life))
		m->cuda = j->device != SVC_DEVICE_HOST;
	if (m->cuda != (j->device != SVC_DEVICE_HOST)) {
		comm_turn_away(c, m, serial, rank, NCCLSVC_MISMATCH,
			       "rank %d (pid %d) joins with %s, but the members of communicator %s "
			       "joined with %s",
			       rank, c->pid, m->cuda ? "host memory" : "a GPU", m->label,
			       m->cuda ? "GPUs" : "host memory");
		return false;
	}
	for (uint32_t k = 0; m->cuda && k < m->nranks; k++) {
		if ((int32_t)k == rank || !comm_alive(&m->members[k]) ||
		    m->members[k].device != j->device)
			continue;
		comm_turn_away(c, m, serial, rank, NCCLSVC_MISMATCH,
			       "ranks %u (pid %d) and %d (pid %d) of communicator %s both use "
			       "device %d: each rank needs its own GPU",
			       k, m->members[k].pid, rank, c->pid, m->label, j->device);
		return false;
	}
	return true;
}
