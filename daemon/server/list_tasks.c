/* SPDX-License-Identifier: Apache-2.0
 * The list of tasks: those of the scheduler, and operations on the direct transport. */
#include <string.h>

#include "channel/cluster.h"
#include "comm/peer/comm_peer.h"
#include "coord/plan.h"
#include "list_parts.h"
#include "proto/operation.h"
#include "proto/task.h"

/* Only a member's own node knows its submitted tasks. asked: nodes that are in i already. */
static void add_wait(const struct communicator *m, uint32_t rank, bool *asked, ncclsvc_task_info *i)
{
	const struct member *member = &m->members[rank];
	if (member->session || member->node < 0) {
		if (i->waits_count < NCCLSVC_MISSING_SHOWN)
			i->waits_for[i->waits_count] = (int32_t)rank;
		i->waits_count++;
	} else if (!asked[member->node]) {
		asked[member->node] = true;
		if (i->ask_count < NCCLSVC_MISSING_SHOWN)
			i->ask_nodes[i->ask_count] = (uint32_t)member->node;
		i->ask_count++;
	}
}

/* Has the rank come to its collective of that number? number: the low half; the first one's is 0 */
static bool has_posted(const struct member_progress *p, uint32_t number)
{
	return (int32_t)((uint32_t)load(&p->collectives) - number) > 0;
}

/* The members that have not posted the collective of this task, or the peer of a Send or Recv. */
static void list_waits(const struct server *s, const struct table_entry *e, ncclsvc_task_info *i)
{
	const struct communicator *m =
		e->comm < SVC_COMMS_MAX ? s->comms.comm_by_slot[e->comm] : NULL;
	bool asked[CLUSTER_NODES_MAX];
	if (e->state != NCCLSVC_WAITING_PEERS && e->state != NCCLSVC_FAILED)
		return;
	if (!m || m->uid != e->comm_uid || m->epoch != e->epoch || !m->progress)
		return;
	if (s->cluster)
		memset(asked, false, s->cluster->n * sizeof(asked[0]));
	if (svc_op_is_p2p(e->op)) {
		add_wait(m, (uint32_t)e->peer, asked, i);
		return;
	}
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!has_posted(&m->progress[k], e->collective))
			add_wait(m, k, asked, i);
}

/* Adds a planned task's label, if its plan still exists. */
void list_label(const struct server *s, const struct table_entry *e,
		char label[NCCLSVC_LABEL_BYTES])
{
	const struct communicator *m =
		e->plan && e->comm < SVC_COMMS_MAX ? s->comms.comm_by_slot[e->comm] : NULL;
	ncclsvc_plan_task_info planned;
	if (!m || m->uid != e->comm_uid || m->epoch != e->epoch || !m->plan)
		return;
	const struct plan_member *p = &m->plan->members[e->rank];
	if (p->handle == e->plan && e->plan_group < p->ngroups &&
	    plan_task_info(m->plan, (uint32_t)e->rank, p->first[e->plan_group] + e->plan_task,
			   &planned))
		memcpy(label, planned.label, NCCLSVC_LABEL_BYTES);
}

static void kernel_waits(const struct peer_operation *op, ncclsvc_task_info *i)
{
	for (uint32_t rank = 0; rank < PEER_RANKS && i->state == NCCLSVC_WAITING_PEERS; rank++)
		if (op->missing >> rank & 1)
			i->waits_for[i->waits_count++] = (int32_t)rank;
}

static void describe_kernel(const struct communicator *m, uint32_t rank,
			    const struct peer_operation *op, uint64_t now, ncclsvc_task_info *i)
{
	const struct svc_record r = svc_header_record(op->record.header);
	const struct member *member = &m->members[rank];
	*i = (ncclsvc_task_info){
		.comm = m->uid,
		.seq = op->record.operation,
		.count = r.count,
		.bytes = svc_task_bytes(&r, m->nranks),
		.op = r.op,
		.type = r.op == NCCLSVC_BARRIER ? UINT8_MAX : r.type,
		.redop = svc_op_reduces(r.op) ? r.redop : UINT8_MAX,
		.state = (uint8_t)op->state,
		.rank = (int32_t)rank,
		.peer = svc_op_has_root(r.op) || svc_op_is_p2p(r.op) ? r.peer : -1,
		.pid = member->pid,
		.session = member->session ? member->session->id : 0,
		.epoch = m->epoch,
		.nranks = m->nranks,
		.age_ns = since(now, peer_operation_since(op, now)),
		.kernel = op->kernel,
		.graph = op->graph,
	};
	const struct account *a = member->session ? member->session->account : m->account;
	memcpy(i->tenant, a->name, sizeof(i->tenant));
	i->state_ns = op->waits_ns ? since(now, op->waits_ns) : i->age_ns;
	kernel_waits(op, i);
}

/* After the tasks: communicator, rank, and index among its operations. */
#define KERNELS_FROM (UINT64_C(1) << 40)

static uint64_t kernel_place(uint64_t slot, uint64_t rank, uint64_t nth)
{
	return KERNELS_FROM | slot << 20 | rank << 12 | nth;
}

static uint64_t list_kernels(struct server *s, struct chunk *p, uint64_t from)
{
	struct peer_operation op;
	struct peer_range range;
	uint64_t nth = from & 4095, rank = from >> 12 & 255;
	for (uint64_t slot = (from - KERNELS_FROM) >> 20; slot < SVC_COMMS_MAX; slot++) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		for (; m && m->peer && rank < m->nranks; rank++, nth = 0) {
			if (!peer_operations(m, (uint32_t)rank, &range))
				continue;
			for (; nth < range.n; nth++) {
				if (!peer_operation(m, (uint32_t)rank, &range, (uint32_t)nth, &op))
					continue;
				ncclsvc_task_info *i = chunk_next(p, m->nranks);
				if (!i)
					return kernel_place(slot, rank, nth);
				describe_kernel(m, (uint32_t)rank, &op, p->reply.time_ns, i);
			}
		}
		rank = nth = 0;
	}
	return 0;
}

/* Adds what the task's session knows; the label only if the asker may see it. */
static void add_session(struct server *s, const struct chunk *p, const struct table_entry *e,
			ncclsvc_task_info *i)
{
	const struct session *c = sessions_find(&s->sessions, e->session);
	if (c)
		memcpy(i->tenant, c->account->name, sizeof(i->tenant));
	if (c && session_allows(p->asker, &c->account->tenant))
		list_label(s, e, i->label);
}

uint64_t list_tasks(struct server *s, struct chunk *p, uint64_t from)
{
	const struct task_table *t = scheduler_table(s->scheduler);
	uint32_t high = atomic_load_explicit(&t->high, memory_order_acquire);
	struct table_entry e;
	for (uint64_t slot = from; slot < high; slot++) {
		if (!chunk_works(p, 1))
			return slot;
		if (!table_get(t, (uint32_t)slot, &e))
			continue;
		ncclsvc_task_info *i = chunk_next(p, e.nranks);
		if (!i)
			return slot;
		*i = (ncclsvc_task_info){
			.task = e.uid,
			.comm = e.comm_uid,
			.seq = e.graph ? e.graph_place : e.seq,
			.graph = e.graph,
			.count = e.count,
			.bytes = e.bytes,
			.op = e.op,
			.type = e.type,
			.redop = e.redop,
			.state = (uint8_t)e.state,
			.rank = e.rank,
			.peer = e.peer,
			.pid = e.pid,
			.session = e.session,
			.epoch = e.epoch,
			.nranks = e.nranks,
			.group = e.group,
			.age_ns = since(p->reply.time_ns, e.submitted_ns),
			.state_ns = since(p->reply.time_ns, e.state_ns),
		};
		list_waits(s, &e, i);
		add_session(s, p, &e, i);
	}
	return list_kernels(s, p, from < KERNELS_FROM ? KERNELS_FROM : from);
}
