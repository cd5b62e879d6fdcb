/* SPDX-License-Identifier: Apache-2.0
 * NCCL communicators of running epochs of one node. An epoch whose operations run in kernels begins
 * without one, and gets one for its first operation on NCCL, which waits in the scheduler. After
 * idle_release without operations, it is destroyed. */
#include <stdio.h>

#include "base/config.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/comms.h"
#include "comm/peer/shared_gpu.h"
#include "gpu/nccl_comm.h"

void comm_try_give(struct comms *s, struct communicator *m)
{
	if (!m->nccl_wanted || m->nccl_asked || !epoch_runs(&m->life) || !comm_gpus_ready(s, m))
		return;
	m->nccl_wanted = false;
	scheduler_command(s->scheduler,
			  &(struct command){.kind = COMMAND_NCCL_GIVE,
					    .nccl = {m->slot, m->epoch, m->nccl_comm->slot}});
	comm_redops_add(m);
}

void comm_event_nccl_wanted(struct comms *s, uint32_t slot, uint32_t epoch)
{
	struct communicator *m = s->comm_by_slot[slot];
	if (!m || m->epoch != epoch || !epoch_runs(&m->life))
		return;
	m->nccl_wanted = true;
	comm_try_give(s, m);
}

static bool has_redops(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].redops)
			return true;
	return m->redop_calls;
}

void comm_nccl_unused(struct communicator *m)
{
	if (m->nccl_asked || m->nccl_wanted || !epoch_runs(&m->life) || has_redops(m))
		return;
	m->nccl_asked = true;
	scheduler_command(m->comms->scheduler, &(struct command){.kind = COMMAND_NCCL_TAKE,
								 .nccl = {m->slot, m->epoch, 0}});
}

void comm_event_nccl_taken(struct comms *s, uint32_t slot, uint32_t epoch, bool taken)
{
	struct communicator *m = s->comm_by_slot[slot];
	if (!m || m->epoch != epoch || !m->nccl_asked)
		return;
	m->nccl_asked = false;
	if (taken && m->nccl_comm && !m->nccl_comm->aborting && !m->nccl_comm->waiting) {
		char why[64] = "all ranks on this node have suspended it";
		if (!comm_sleeps(m))
			snprintf(why, sizeof(why), "it was unused for %d s (idle_release)",
				 s->config->idle_release);
		log_info("communicator %s: destroying its NCCL communicator to free GPU memory, "
			 "because %s; the next operation on NCCL creates another",
			 m->label, why);
		struct nccl_comm *p = m->nccl_comm;
		nccl_comm_detach(p);
		nccl_comm_destroy(p);
	}
	comm_try_give(s, m);
}

void comm_nccl_not_given(struct communicator *m, int result, const char *why)
{
	if (!m->nccl_wanted)
		return;
	log_error("communicator %s: its epoch ends for lack of an NCCL communicator: %s", m->label,
		  why);
	m->nccl_wanted = false;
	comm_gpu_lost(m, result, -1);
}

uint32_t comm_nccl_state(const struct communicator *m)
{
	struct shared_gpu shared;
	if (!m->cuda || m->comms->gpus->staging || !epoch_runs(&m->life) ||
	    comm_needs_kernels(m, &shared))
		return NCCLSVC_COMM_NCCL_NONE;
	if (m->nccl_wanted)
		return NCCLSVC_COMM_NCCL_AWAITED;
	if (m->nccl_comm)
		return NCCLSVC_COMM_NCCL_HELD;
	return comm_sleeps(m) ? NCCLSVC_COMM_NCCL_SUSPENDED : NCCLSVC_COMM_NCCL_ON_DEMAND;
}
