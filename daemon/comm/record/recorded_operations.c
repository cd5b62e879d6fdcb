/* SPDX-License-Identifier: Apache-2.0 */
#include "recorded_operations.h"
#include "record.h"

#include "account/task_table.h"
#include "proto/operation.h"
#include "proto/task.h"

static int32_t peer_of(unsigned op, int32_t peer)
{
	return svc_op_has_root(op) || svc_op_is_p2p(op) ? peer : -1;
}

static void fill_join(const struct recorded_join *j, ncclsvc_operation_info *i)
{
	if (!j)
		return;
	i->comm = j->comm;
	i->comm_key = j->key;
	i->epoch = j->epoch;
	i->nranks = j->nranks;
	i->rank = j->rank;
	i->transport = (uint8_t)j->transport;
	memcpy(i->comm_label, j->label, sizeof(i->comm_label));
}

static void fill_amount(unsigned op, unsigned type, uint64_t count, uint32_t nranks,
			ncclsvc_operation_info *i)
{
	const struct svc_record r = {.op = (uint8_t)op, .type = (uint8_t)type, .count = count};
	i->op = (uint8_t)op;
	i->type = op == NCCLSVC_BARRIER ? UINT8_MAX : (uint8_t)type;
	i->count = op == NCCLSVC_BARRIER ? 0 : count;
	i->bytes = svc_task_bytes(&r, nranks);
}

void operation_of_recorded(const struct recording *rec, const struct recorded_join *j,
			   const struct recorded *x, ncclsvc_operation_info *i)
{
	const bool wrapped = atomic_load(&rec->tasks->written) >= RECORDER_ENTRIES;
	*i = (ncclsvc_operation_info){
		.seq = x->seq,
		.collective = svc_op_is_p2p(x->op) ? 0 : x->collective,
		.submitted_ns = x->submitted_ns,
		.matched_ns = x->matched_ns ? x->matched_ns
			      : x->kernel   ? 0
					    : x->started_ns,
		.started_ns = x->started_ns,
		.done_ns = x->done_ns,
		.result = x->result,
		.state = x->state,
		.peer = peer_of(x->op, x->peer),
		.pid = rec->pid,
		.session = rec->session,
		.uid = rec->uid,
		.graph = x->graph,
		.kernel = x->kernel,
		.ended = rec->ended,
		.wrapped = wrapped,
	};
	fill_join(j, i);
	if (x->kernel)
		i->transport = NCCLSVC_OPERATION_KERNEL;
	fill_amount(x->op, x->type, x->count, j->nranks, i);
}

void operation_of_task(const struct table_entry *e, const struct recorded_join *j, uint32_t uid,
		       ncclsvc_operation_info *i)
{
	*i = (ncclsvc_operation_info){
		.comm = e->comm_uid,
		.seq = e->graph ? e->graph_place : e->seq,
		.collective = e->collective,
		.count = e->count,
		.bytes = e->bytes,
		.submitted_ns = e->submitted_ns,
		.started_ns = e->state == NCCLSVC_LAUNCHED ? e->state_ns : 0,
		.result = NCCLSVC_IN_PROGRESS,
		.op = e->op,
		.type = e->type,
		.state = (uint8_t)e->state,
		.rank = e->rank,
		.peer = e->peer,
		.pid = e->pid,
		.session = e->session,
		.epoch = e->epoch,
		.nranks = e->nranks,
		.uid = uid,
		.graph = e->graph,
	};
	fill_join(j, i);
}

void operation_of_kernel(const struct communicator *m, uint32_t rank,
			 const struct peer_operation *op, ncclsvc_operation_info *i)
{
	const struct svc_record r = svc_header_record(op->record.header);
	const struct session *c = m->members[rank].session;
	const bool over = op->state == NCCLSVC_DONE || op->state == NCCLSVC_FAILED;
	*i = (ncclsvc_operation_info){
		.comm = m->uid,
		.seq = op->record.operation,
		.collective = svc_op_is_p2p(r.op) ? 0 : op->record.collective,
		.submitted_ns = op->record.launched_ns,
		.started_ns = op->waits_ns,
		.result = over ? op->result : NCCLSVC_IN_PROGRESS,
		.state = (uint8_t)op->state,
		.transport = NCCLSVC_OPERATION_KERNEL,
		.rank = (int32_t)rank,
		.peer = peer_of(r.op, r.peer),
		.pid = m->members[rank].pid,
		.session = c ? c->id : 0,
		.epoch = m->epoch,
		.nranks = m->nranks,
		.uid = c ? c->uid : m->account->tenant.uid,
		.graph = op->graph,
		.kernel = op->kernel,
		.comm_key = comm_recorded_key(m),
	};
	memcpy(i->comm_label, m->label, sizeof(i->comm_label));
	fill_amount(r.op, r.type, r.count, m->nranks, i);
}
