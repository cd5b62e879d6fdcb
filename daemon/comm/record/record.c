/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include "base/clock.h"
#include "comm/comms.h"
#include "comm/peer/comm_peer.h"
#include "proto/operation.h"
#include "proto/task.h"
#include "recorder/recorder.h"

uint32_t comm_recorded_transport(enum transport_kind kind)
{
	static const uint32_t transports[TRANSPORTS] = {
		[TRANSPORT_HOST] = NCCLSVC_OPERATION_HOST,
		[TRANSPORT_INTERNODE] = NCCLSVC_OPERATION_NODES,
		[TRANSPORT_STAGED] = NCCLSVC_OPERATION_STAGED,
		[TRANSPORT_NCCL] = NCCLSVC_OPERATION_NCCL,
	};
	return transports[kind];
}

/* FNV-1a: of what all nodes know alike, but which is not for everybody to see. */
uint64_t comm_recorded_key(const struct communicator *m)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < sizeof(m->id); i++)
		hash = (hash ^ m->id[i]) * UINT64_C(0x100000001b3);
	return hash;
}

void comm_record_members(struct communicator *m, enum transport_kind kind,
			 struct epoch_member *members)
{
	struct recorded_join join = {.comm = m->uid,
				     .key = comm_recorded_key(m),
				     .epoch = m->epoch,
				     .nranks = m->nranks,
				     .transport = comm_recorded_transport(kind)};
	memcpy(join.label, m->label, sizeof(join.label));
	for (uint32_t k = 0; m->comms->recorder && k < m->nranks; k++) {
		const struct session *c = m->members[k].session;
		if (members[k].session == EPOCH_ELSEWHERE)
			continue;
		join.rank = (int32_t)k;
		join.device = members[k].device;
		const struct recording *rec =
			recorder_join(m->comms->recorder, c->id, c->pid, c->uid, c->account, &join,
				      &members[k].join);
		members[k].recording = rec ? rec->tasks : NULL;
	}
}

struct kernels {
	struct recording *rec;
	uint32_t join;
	int result; /* of what is pending */
	uint64_t now;
};

/* The record's contents are a trainer's, and may be anything. */
static bool record_kernel(void *arg, const struct peer_operation *op)
{
	const struct kernels *k = arg;
	const struct svc_record r = svc_header_record(op->record.header);
	const bool pending = op->state != NCCLSVC_DONE && op->state != NCCLSVC_FAILED;
	if (!svc_op_known(r.op))
		return true;
	recording_add_kernel(k->rec,
			     &(struct recorded){
				     .join = k->join,
				     .op = r.op,
				     .type = r.type,
				     .result = (int8_t)(pending ? k->result : op->result),
				     .state = (uint8_t)(pending ? NCCLSVC_FAILED : op->state),
				     .seq = op->record.operation,
				     .count = r.count,
				     .submitted_ns = op->record.launched_ns,
				     .started_ns = op->waits_ns,
				     .done_ns = pending ? k->now : 0,
				     .graph = op->graph,
				     .collective = op->record.collective,
				     .peer = r.peer,
				     .kernel = op->kernel,
			     });
	return true;
}

void comm_record_kernels(const struct communicator *m, int result)
{
	for (uint32_t k = 0; m->comms->recorder && m->peer && k < m->nranks; k++) {
		struct kernels kernels = {
			.rec = recorder_find(m->comms->recorder, m->peer->members[k].session),
			.result = result,
			.now = clock_now()};
		if (kernels.rec &&
		    recording_find_join(kernels.rec, m->uid, m->epoch, (int32_t)k, &kernels.join))
			peer_each_launched(m, k, 0, record_kernel, &kernels);
	}
}
