/* SPDX-License-Identifier: Apache-2.0
 * Members that are asleep run nothing on GPUs, so the daemon frees the communicator's GPU memory.
 */
#include "sleep.h"
#include "comm/comm.h"
#include "comm/comm_gpus.h"
#include "comm/comms.h"
#include "comm_peer.h"
#include "gpu/nccl_comm.h"

static void fall_asleep(struct communicator *m, uint32_t rank)
{
	m->members[rank].asleep = true;
	const bool all = comm_sleeps(m);
	if (m->peer)
		peer_staging_sleep(m, rank);
	if (m->peer && all)
		shares_restart(m);
	else if (m->peer)
		shares_left(m);
	if (all && m->nccl_comm && !m->nccl_comm->nccl_id) /* otherwise it spans nodes */
		comm_nccl_unused(m);
}

void comm_sleep(struct session *c, uint32_t request_id, const struct svc_sleep *r)
{
	int32_t rank = -1;
	struct communicator *m = comm_of_handle(c, r->comm, &rank);
	if (!m) {
		session_error(c, SVC_SLEEP, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", r->comm);
		return;
	}
	if (!m->cuda) {
		session_error(c, SVC_SLEEP, request_id, NCCLSVC_UNSUPPORTED,
			      "communicator %s uses no GPU memory", m->label);
		return;
	}
	if (!epoch_runs(&m->life) || !comm_takes_part(&m->members[rank])) {
		session_error(c, SVC_SLEEP, request_id, NCCLSVC_STALE_EPOCH,
			      "communicator %s has no running epoch", m->label);
		return;
	}
	if (r->reserved || r->asleep > 1 || (r->staging && (r->asleep || !m->peer))) {
		session_error(
			c, SVC_SLEEP, request_id, NCCLSVC_INVALID_ARGUMENT,
			"invalid SLEEP: reserved must be 0, asleep must be 0 or 1, and staging "
			"must be 0 unless a member with staging memory wakes up");
		return;
	}
	struct member *member = &m->members[rank];
	if (r->asleep && !member->asleep)
		fall_asleep(m, (uint32_t)rank);
	if (!r->asleep && m->peer && !peer_staging_wake(m, (uint32_t)rank, request_id, r->staging))
		return;
	member->asleep = r->asleep;
	session_reply(c, SVC_SLEEP, request_id, NULL, 0, NULL, 0);
}
