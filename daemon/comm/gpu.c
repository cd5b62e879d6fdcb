/* SPDX-License-Identifier: Apache-2.0
 * Communicators of GPUs: preparations for an epoch. */
#include "gpu/gpu.h"
#include "base/config.h"
#include "base/timings.h"
#include "comm.h"
#include "comm_gpus.h"
#include "comms.h"
#include "coord/messages.h"
#include "gpu/nccl_comm.h"
#include "memory/memory.h"
#include "peer/comm_peer.h"
#include "peer/shared_gpu.h"
#include "remote.h"

/* Does the worker know the session's timelines, and have all of its memory? */
static bool session_known(struct comms *s, struct gpu *g, struct session *c)
{
	return gpu_session_known(s->memory, g, c) && !c->restoring;
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
		known = session_known(s, g, member->session) && known;
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

/* ---- NCCL communicators across nodes ---- */

bool comm_across_nodes(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!comm_is_member_here(m, k))
			return true;
	return false;
}

void comm_pool_ready(struct communicator *m)
{
	m->barrier = BARRIER_READY;
	remote_nccl_ready(m, NCCLSVC_OK, -1, false);
}

void comm_pool_withdraw(struct communicator *m, int result, int32_t rank)
{
	if (m->barrier != BARRIER_OVER)
		remote_nccl_ready(m, result, rank, m->barrier == BARRIER_READY);
	m->barrier = BARRIER_OVER;
	if (!epoch_held(&m->life)) /* otherwise the last epoch still uses it */
		nccl_comm_release(&m->nccl_comm);
}

/* ---- Readiness ---- */

static bool workers_ready(struct comms *s, struct communicator *m)
{
	bool ready = true, known = true;
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (!comm_is_member_here(m, k))
			continue;
		if (!m->members[k].session)
			return false;
		struct gpu *g = s->gpus->gpu[m->members[k].device];
		gpu_need(g);
		ready = ready && gpu_serves(g) && !nccl_comm_stuck(g);
	}
	for (uint32_t k = 0; ready && k < m->nranks; k++)
		if (comm_is_member_here(m, k))
			known = session_known(s, s->gpus->gpu[m->members[k].device],
					      m->members[k].session) &&
				known;
	return ready && known;
}

bool comm_needs_no_nccl(struct comms *s, const struct communicator *m)
{
	return !m->nccl_comm && s->config->worker_idle && !s->gpus->staging &&
	       !comm_across_nodes(m) && peer_is_possible(m);
}

/* True: every worker runs and knows its member's timelines, and NCCL has a communicator, or two
 * members share a GPU, and only kernels run. Otherwise requests the missing parts; the answer leads
 * back here. */
bool comm_gpus_ready(struct comms *s, struct communicator *m)
{
	struct shared_gpu shared;
	if (being_acquired(m))
		return false;
	if (s->gpus->staging)
		return staged_ready(s, m);
	if (comm_needs_kernels(m, &shared)) {
		nccl_comm_release(&m->nccl_comm); /* of an attempt with other GPUs */
		return true;
	}
	if (!workers_ready(s, m))
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
	if (comm_across_nodes(m)) {
		comm_pool_ready(m);
		return false;
	}
	nccl_comm_acquire(s->gpus, &w);
	return nccl_comm_fits(m->nccl_comm, &w);
}

/* ---- Faults and ends ---- */

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
