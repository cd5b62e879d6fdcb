/* SPDX-License-Identifier: Apache-2.0
 * Communicators with two ranks on one GPU. NCCL takes one rank per GPU, so all operations of such a
 * communicator run in the members' kernels, inside one node, or through staged host memory. */
#include "shared_gpu.h"

#include <stdio.h>

#include "base/log.h"
#include "channel/cluster.h"
#include "comm/comms.h"
#include "gpu/gpu.h"

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

/* The first rank on a GPU that an earlier rank uses; nranks: none. */
static uint32_t find_second(const struct communicator *m)
{
	uint32_t used[CLUSTER_NODES_MAX] = {0}; /* bitmaps of GPUs, by node */
	for (uint32_t k = 0; k < m->nranks; k++) {
		const struct gpu_place at = place_of(m, k);
		if (at.device < 0 || at.device >= GPUS_MAX || at.node >= CLUSTER_NODES_MAX)
			continue;
		if (used[at.node] >> at.device & 1)
			return k;
		used[at.node] |= 1u << at.device;
	}
	return m->nranks;
}

bool comm_shared_gpu(const struct communicator *m, struct shared_gpu *shared)
{
	const uint32_t b = m->cuda ? find_second(m) : m->nranks;
	if (b == m->nranks)
		return false;
	const struct gpu_place at = place_of(m, b);
	uint32_t a = 0;
	while (place_of(m, a).device != at.device || place_of(m, a).node != at.node)
		a++;
	*shared = (struct shared_gpu){{a, b}, {place_of(m, a).pid, at.pid}, at.device};
	return true;
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

void comm_shared_gpu_log(struct communicator *m)
{
	struct shared_gpu g;
	if (m->shared_gpu_logged || !comm_needs_kernels(m, &g))
		return;
	m->shared_gpu_logged = true;
	log_warning(
		"communicator %s: ranks %u (pid %d) and %u (pid %d) share gpu%d. All operations "
		"run in kernels; NCCL would refuse them. Without MPS, the kernels of two "
		"processes take turns on the GPU, so each operation waits some milliseconds. To "
		"avoid that, use MPS, or give each rank its own GPU",
		m->label, g.ranks[0], g.pids[0], g.ranks[1], g.pids[1], g.device);
}
