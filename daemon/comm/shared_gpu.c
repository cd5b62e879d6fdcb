/* SPDX-License-Identifier: Apache-2.0
 * Communicators with two ranks on one GPU. NCCL takes one rank per GPU, so all operations of such a
 * communicator run in the members' kernels, inside one node, or through staged host memory. */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "comm.h"
#include "comm_gpus.h"
#include "comms.h"
#include "gpu/gpu.h"
#include "peer/comm_peer.h"

/* Where a rank is, or is about to be. */
struct gpu_place {
	int32_t device; /* -1: it has no GPU, or is unknown */
	uint32_t node;
	int32_t pid;
};

static struct gpu_place place_of(const struct communicator *m, uint32_t k)
{
	const struct member *member = &m->members[k];
	const uint32_t me = m->comms->coord.me;
	if (m->start)
		return (struct gpu_place){m->start->members[k].device, m->start->members[k].node,
					  m->start->members[k].pid};
	return (struct gpu_place){member->device, member->node < 0 ? me : (uint32_t)member->node,
				  member->pid};
}

bool comm_shared_gpu(const struct communicator *m, struct shared_gpu *shared)
{
	for (uint32_t b = 1; m->cuda && b < m->nranks; b++) {
		const struct gpu_place at = place_of(m, b);
		for (uint32_t a = 0; at.device >= 0 && a < b; a++) {
			const struct gpu_place other = place_of(m, a);
			if (other.device != at.device || other.node != at.node)
				continue;
			*shared = (struct shared_gpu){{a, b}, {other.pid, at.pid}, at.device};
			return true;
		}
	}
	return false;
}

bool comm_needs_kernels(const struct communicator *m, struct shared_gpu *shared)
{
	return !m->comms->gpus->staging && comm_shared_gpu(m, shared);
}

bool comm_lacks_nccl(const struct communicator *m, const char *what, char text[SVC_TEXT_BYTES])
{
	struct shared_gpu g;
	if (!comm_needs_kernels(m, &g))
		return false;
	snprintf(text, SVC_TEXT_BYTES,
		 "two ranks of this communicator use GPU %d (ranks %u and %u, pids %d and %d); %s "
		 "needs NCCL, which takes one rank per GPU: give each rank its own GPU",
		 g.device, g.ranks[0], g.ranks[1], g.pids[0], g.pids[1], what);
	return true;
}

/* ---- Starts ---- */

/* A rank that waits in JOIN without staging memory; -1: none. */
static int32_t rank_without_kernels(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_is_member_here(m, k) && m->members[k].staging_fd < 0)
			return (int32_t)k;
	return -1;
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
	else if (!peer_all_reach(m, &from, &to))
		snprintf(why, size, "gpu%d cannot access gpu%d's memory", from, to);
	else if (!peer_all_can_map(m))
		snprintf(why, size, "a rank's process cannot map another rank's GPU memory");
}

bool comm_shared_gpu_startable(struct communicator *m, char text[SVC_TEXT_BYTES])
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

static uint32_t ranks_on(const struct communicator *m, int32_t device)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < m->nranks; k++)
		n += m->members[k].device == device;
	return n;
}

uint32_t comm_ranks_per_gpu(const struct communicator *m)
{
	uint32_t most = 1;
	for (uint32_t k = 0; k < m->nranks; k++) {
		const uint32_t n = ranks_on(m, m->members[k].device);
		most = n > most ? n : most;
	}
	return most;
}

void comm_shared_gpu_log(struct communicator *m)
{
	struct shared_gpu g;
	if (m->shared_gpu_logged || !comm_shared_gpu(m, &g))
		return;
	m->shared_gpu_logged = true;
	log_warning(
		"communicator %s: ranks %u (pid %d) and %u (pid %d) share gpu%d. All operations "
		"run in kernels; NCCL would refuse them. Without MPS, the kernels of two "
		"processes take turns on the GPU, so each operation waits some milliseconds. To "
		"avoid that, use MPS, or give each rank its own GPU",
		m->label, g.ranks[0], g.pids[0], g.ranks[1], g.pids[1], g.device);
}
