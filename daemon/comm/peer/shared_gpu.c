/* SPDX-License-Identifier: Apache-2.0
 * Communicators with two ranks on one GPU. NCCL takes one rank per GPU, so all operations of such a
 * communicator run in the members' kernels, inside one node, or through staged host memory. */
#include "shared_gpu.h"

#include <stdio.h>

#include "base/log.h"
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
