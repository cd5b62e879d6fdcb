/* SPDX-License-Identifier: Apache-2.0
 * Lists for inspection. A reply holds a chunk of a list: as many records as fit a message and as
 * can be read in a fraction of a millisecond, and where the next chunk begins. So a list of any
 * length neither holds up the loop nor takes memory. The executor is never asked.
 */
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "build_config.h"
#include "channel/cluster.h"
#include "comm/comm.h"
#include "comm/peer/peer.h"
#include "comm/remote.h"
#include "coord/plan.h"
#include "coord/rendezvous.h"
#include "gpu/gpu.h"
#include "gpu/mps_service.h"
#include "memory/memory.h"
#include "names.h"
#include "operation.h"
#include "server_state.h"
#include "task.h"

#define CHUNK_WORK 32768 /* entries of tables that are looked at for one chunk */

struct chunk {
	const struct client *asker;
	uint32_t room;		     /* for so many records */
	uint32_t work;		     /* left for this chunk */
	struct svc_list_reply reply; /* the body of the message: this and the records */
	_Alignas(8) char records[SVC_LIST_MESSAGE_MAX - sizeof(struct svc_header) -
				 sizeof(struct svc_list_reply)];
};

_Static_assert(offsetof(struct chunk, records) ==
		       offsetof(struct chunk, reply) + sizeof(struct svc_list_reply),
	       "one body");

/* Looking at so many entries of tables. False: not in this chunk. */
static bool chunk_works(struct chunk *p, uint32_t entries)
{
	if (!p->work)
		return false;
	p->work -= entries < p->work ? entries : p->work;
	return true;
}

/* The place of the next record, for which so many entries are looked at. NULL: not in this chunk.
 */
static void *chunk_next(struct chunk *p, uint32_t entries)
{
	if (p->reply.count == p->room || !chunk_works(p, entries))
		return NULL;
	return p->records + p->reply.record_size * p->reply.count++;
}

static uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

/* ---- The lists: each begins at a place, and returns that of the next chunk; 0: it is complete
 * ---- */

static uint64_t list_sessions(struct server *s, struct chunk *p, uint64_t from)
{
	for (uint64_t slot = from; slot < SVC_SESSIONS_MAX; slot++) {
		const struct client *c = s->sessions.by_slot[slot];
		if (!c || c->state != CLIENT_OPEN)
			continue;
		ncclsvc_session_info *i = chunk_next(p, 1);
		if (!i)
			return slot;
		*i = (ncclsvc_session_info){
			.session = c->id,
			.pid = c->pid,
			.uid = c->uid,
			.ring_entries = c->entries,
			.age_ns = since(p->reply.time_ns, c->since_ns),
			.submitted = load(&c->counts.submitted),
			.completed = load(&c->counts.completed),
			.failed = load(&c->counts.failed),
			.comms = c->comms,
			.regions = c->regions,
			.region_bytes = c->region_bytes,
			.mps = gpu_mps_of(&s->gpus, c),
			.protocol = c->version,
		};
		memcpy(i->name, c->name, sizeof(i->name));
	}
	return 0;
}

/* Of an epoch that does not run, members are known where they gather. */
static struct rendezvous_view look(struct server *s, const struct communicator *m)
{
	if (!epoch_runs(&m->life) && !m->start)
		return rendezvous_look(&s->comms.coord, m->id);
	return (struct rendezvous_view){.node = s->comms.coord.me};
}

static void describe(const struct server *s, const struct communicator *m,
		     const struct rendezvous_view *v, ncclsvc_member_info *i)
{
	if (m->members[i->rank].client)
		return;
	if (m->start) { /* all have joined, and it is about to begin */
		i->state = NCCLSVC_MEMBER_JOINING;
		i->pid = m->start->members[i->rank].pid;
		i->elsewhere = m->start->members[i->rank].node + 1;
	} else {
		rendezvous_describe(&s->comms.coord, v, i);
	}
}

/* Communicators that gather here, though this node has no member of them; from that number on. */
static const struct rendezvous *next_unstarted(const struct server *s, uint64_t number)
{
	const struct rendezvous *g = s->comms.coord.rendezvous;
	while (g && (g->number < number || !g->held || g->running || remote_find(&s->comms, g->id)))
		g = g->hh.next;
	return g;
}

_Static_assert(sizeof(((struct refusal *)0)->text) == NCCLSVC_REFUSED_BYTES, "one text");

static uint32_t unstarted_state(const struct rendezvous *g)
{
	return g->joining < g->held ? NCCLSVC_COMM_BROKEN : NCCLSVC_COMM_FORMING;
}

/* A refused JOIN is shown as long as members wait for an epoch to begin. */
static void add_refusal(const struct refusal *r, ncclsvc_comm_info *i)
{
	if (!r->pid || i->state == NCCLSVC_COMM_READY || i->state == NCCLSVC_COMM_IDLE)
		return;
	i->refused_rank = r->rank;
	i->refused_pid = r->pid;
	memcpy(i->refused, r->text, sizeof(i->refused));
}

/* They come behind the slots. */
static uint64_t list_unstarted_comms(struct server *s, struct chunk *p, uint64_t from)
{
	const struct rendezvous *g = next_unstarted(s, from - SVC_COMMS_MAX);
	for (; g; g = next_unstarted(s, g->number + 1)) {
		ncclsvc_comm_info *i = chunk_next(p, g->nranks);
		if (!i)
			return SVC_COMMS_MAX + g->number;
		*i = (ncclsvc_comm_info){
			.comm = g->number,
			.nranks = g->nranks,
			.joined = g->joining,
			.epoch = g->epoch,
			.state = unstarted_state(g),
			.uid = g->uid,
			.age_ns = since(p->reply.time_ns, g->since_ns),
		};
		if (client_allows(p->asker, g->uid))
			memcpy(i->id, g->id, sizeof(i->id));
		memcpy(i->label, g->label, sizeof(i->label));
		add_refusal(&g->refused, i);
	}
	return 0;
}

static bool is_in(uint32_t member_state)
{
	return member_state == NCCLSVC_MEMBER_JOINED || member_state == NCCLSVC_MEMBER_JOINING;
}

static void add_life(const struct epoch_life *e, uint64_t now, ncclsvc_comm_info *i)
{
	struct epoch_step steps[NCCLSVC_EPOCH_STEPS];
	i->epoch_state = e->state;
	i->epoch_state_ns = since(now, e->since_ns);
	i->epoch_faults = e->faults;
	i->epoch_step_count = epoch_last_steps(e, steps);
	for (uint32_t k = 0; k < i->epoch_step_count; k++)
		i->epoch_steps[k] = (ncclsvc_epoch_step){steps[k].to, steps[k].cause,
							 since(now, steps[k].at_ns)};
}

static uint64_t list_comms(struct server *s, struct chunk *p, uint64_t from)
{
	for (uint64_t slot = from; slot < SVC_COMMS_MAX; slot++) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		ncclsvc_comm_info *i = m ? chunk_next(p, m->nranks) : NULL;
		if (!m)
			continue;
		if (!i)
			return slot;
		const struct rendezvous_view v = look(s, m);
		*i = (ncclsvc_comm_info){
			.comm = m->uid,
			.nranks = m->nranks,
			.epoch = m->epoch,
			.state = comm_state(m),
			.uid = m->owner,
			.age_ns = since(p->reply.time_ns, m->since_ns),
			.ask_node = v.node != s->comms.coord.me ? v.node + 1 : 0,
			.peer_bytes = peer_bytes(m),
			.peer_source = peer_source(m),
			.pending = peer_pending(m),
		};
		for (uint32_t k = 0; k < m->nranks; k++) {
			ncclsvc_member_info member = {.rank = (int32_t)k,
						      .state = m->members[k].state};
			describe(s, m, &v, &member);
			i->joined += is_in(member.state);
			if (m->progress)
				i->pending += (uint32_t)(load(&m->progress[k].submitted) -
							 load(&m->progress[k].completed));
		}
		if (i->state == NCCLSVC_COMM_IDLE && v.rendezvous && v.rendezvous->held &&
		    !v.rendezvous->running)
			i->state = unstarted_state(v.rendezvous);
		if (client_allows(p->asker, m->owner))
			memcpy(i->id, m->id, sizeof(i->id));
		memcpy(i->label, m->label, sizeof(i->label));
		add_life(&m->life, p->reply.time_ns, i);
		add_refusal(v.rendezvous ? &v.rendezvous->refused : &m->refused, i);
	}
	return list_unstarted_comms(s, p, from < SVC_COMMS_MAX ? SVC_COMMS_MAX : from);
}

static uint64_t at_rank(uint64_t slot, uint64_t rank)
{
	return slot << 32 | rank;
}

/* Lists one member; false: not in this chunk. */
typedef bool list_member(struct server *s, struct chunk *p, const struct communicator *m,
			 uint32_t rank);

static uint64_t list_each_member(struct server *s, struct chunk *p, uint64_t from,
				 list_member *list)
{
	uint64_t k = (uint32_t)from;
	for (uint64_t slot = from >> 32; slot < SVC_COMMS_MAX; slot++, k = 0) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		for (; m && k < m->nranks; k++)
			if (!chunk_works(p, 1) || !list(s, p, m, (uint32_t)k))
				return at_rank(slot, k);
	}
	return 0;
}

/* The age of a member's oldest task that is pending, in a kernel or not; 0: none is. */
static uint64_t oldest_age(const struct communicator *m, const ncclsvc_member_info *i, uint64_t now)
{
	struct peer_operation op;
	struct peer_range range;
	const uint32_t k = (uint32_t)i->rank;
	const uint64_t head = load(&m->progress[k].head_ns);
	const uint64_t task = head && i->submitted > i->completed ? since(now, head) : 0;
	const uint64_t kernel =
		peer_operations(m, k, &range) && peer_operation(m, k, &range, 0, &op)
			? since(now, peer_operation_since(&op, now))
			: 0;
	return task > kernel ? task : kernel;
}

static bool list_one_member(struct server *s, struct chunk *p, const struct communicator *m,
			    uint32_t k)
{
	const struct member *member = &m->members[k];
	ncclsvc_member_info *i = chunk_next(p, 1);
	if (!i)
		return false;
	*i = (ncclsvc_member_info){
		.comm = m->uid,
		.rank = (int32_t)k,
		.state = member->state,
		.session = member->client ? member->client->id : 0,
		.pid = member->pid,
		.epoch = m->epoch,
		.device = member->device,
		.elsewhere = member->client ? 0 : (uint32_t)(member->node + 1),
		.transport =
			m->cuda && s->gpus.staging ? NCCLSVC_TRANSPORT_MPI : NCCLSVC_TRANSPORT_NCCL,
	};
	if (member->state == NCCLSVC_MEMBER_JOINING)
		i->waiting_ns = since(p->reply.time_ns, member->since_ns);
	const struct rendezvous_view v = look(s, m);
	describe(s, m, &v, i);
	if (!m->progress)
		return true;
	i->completed = load(&m->progress[k].completed);
	i->submitted = load(&m->progress[k].submitted);
	const uint64_t age = oldest_age(m, i, p->reply.time_ns);
	if (age)
		i->waiting_ns = age;
	return true;
}

static uint64_t list_unstarted_members(const struct server *s, struct chunk *p, uint64_t from)
{
	uint64_t k = (uint32_t)from;
	const struct rendezvous *g = next_unstarted(s, (from >> 32) - SVC_COMMS_MAX);
	for (; g; g = next_unstarted(s, g->number + 1), k = 0) {
		const struct rendezvous_view v = {s->comms.coord.me, g};
		for (; k < g->nranks; k++) {
			ncclsvc_member_info *i = chunk_next(p, 1);
			if (!i)
				return at_rank(SVC_COMMS_MAX + g->number, k);
			*i = (ncclsvc_member_info){.comm = g->number,
						   .rank = (int32_t)k,
						   .epoch = g->epoch,
						   .device = SVC_DEVICE_HOST};
			rendezvous_describe(&s->comms.coord, &v, i);
		}
	}
	return 0;
}

static uint64_t list_members(struct server *s, struct chunk *p, uint64_t from)
{
	const uint64_t unstarted = at_rank(SVC_COMMS_MAX, 0);
	uint64_t next = list_each_member(s, p, from, list_one_member);
	return next ? next : list_unstarted_members(s, p, from < unstarted ? unstarted : from);
}

/* Only its own node knows what a member has submitted. asked: nodes that stand in i
 * already. */
static void add_wait(const struct communicator *m, uint32_t rank, bool *asked, ncclsvc_task_info *i)
{
	const struct member *member = &m->members[rank];
	if (member->client || member->node < 0) {
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

/* The members that have not posted the collective this task is, or the peer of a Send or Recv. */
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
	uint64_t mine = load(&m->progress[e->rank].collectives);
	for (uint32_t k = 0; k < m->nranks; k++)
		if (load(&m->progress[k].collectives) < mine)
			add_wait(m, k, asked, i);
}

/* Of a planned task, if its plan is still there. */
static void list_label(const struct server *s, const struct table_entry *e, ncclsvc_task_info *i)
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
		memcpy(i->label, planned.label, sizeof(i->label));
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
		.session = member->client ? member->client->id : 0,
		.epoch = m->epoch,
		.nranks = m->nranks,
		.age_ns = since(now, peer_operation_since(op, now)),
		.kernel = op->kernel,
		.graph = op->graph,
	};
	i->state_ns = op->waits_ns ? since(now, op->waits_ns) : i->age_ns;
	kernel_waits(op, i);
}

/* Behind the tasks: communicator, rank, and which of its operations. */
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

static uint64_t list_tasks(struct server *s, struct chunk *p, uint64_t from)
{
	const struct task_table *t = s->executor->table(s->executor);
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
		list_label(s, &e, i);
	}
	return list_kernels(s, p, from < KERNELS_FROM ? KERNELS_FROM : from);
}

static uint64_t list_regions(struct server *s, struct chunk *p, uint64_t from)
{
	uint64_t k = (uint32_t)from;
	for (uint64_t slot = from >> 32; slot < SVC_SESSIONS_MAX; slot++, k = 0) {
		const struct client *c = s->sessions.by_slot[slot];
		for (; c && k < c->nmappings; k++) {
			const struct mapping *m = &c->mappings[k];
			if (!chunk_works(p, 1))
				return at_rank(slot, k);
			ncclsvc_region_info *i = m->used ? chunk_next(p, 1) : NULL;
			if (!m->used)
				continue;
			if (!i)
				return at_rank(slot, k);
			*i = (ncclsvc_region_info){
				.session = c->id,
				.region = (uint32_t)k,
				.pid = c->pid,
				.kind = m->kind,
				.device = m->device,
				.bytes = m->bytes,
				.age_ns = since(p->reply.time_ns, m->since_ns),
			};
		}
	}
	return 0;
}

static uint64_t list_devices(struct server *s, struct chunk *p, uint64_t from)
{
	for (uint64_t i = from; i < s->gpus.ngpus; i++) {
		ncclsvc_device_info *info = chunk_next(p, 1);
		if (!info)
			return i;
		*info = s->gpus.gpu[i]->info;
		info->age_ns = since(p->reply.time_ns, s->gpus.gpu[i]->since_ns);
		info->peer_source = peer_source_of(&s->comms, s->gpus.gpu[i]);
	}
	return 0;
}

static bool list_one_plan(struct server *s, struct chunk *p, const struct communicator *m,
			  uint32_t k)
{
	const struct member *member = &m->members[k];
	(void)s;
	if (!m->plan || !m->plan->members[k].handle)
		return true;
	ncclsvc_plan_info *i = chunk_next(p, m->plan->members[k].ntasks / 16 + 1);
	if (!i)
		return false;
	*i = (ncclsvc_plan_info){
		.comm = m->uid,
		.rank = (int32_t)k,
		.pid = member->pid,
		.session = member->client ? member->client->id : 0,
		.epoch = m->epoch,
		.age_ns = since(p->reply.time_ns, m->plan->since_ns),
	};
	plan_info(m->plan, k, i);
	return true;
}

static uint64_t list_plans(struct server *s, struct chunk *p, uint64_t from)
{
	return list_each_member(s, p, from, list_one_plan);
}

/* The place: communicator, rank, task. */
static uint64_t list_plan_tasks(struct server *s, struct chunk *p, uint64_t from)
{
	ncclsvc_plan_task_info info;
	uint64_t k = from >> 32 & UINT16_MAX, i = (uint32_t)from;
	for (uint64_t slot = from >> 48; slot < SVC_COMMS_MAX; slot++, k = i = 0) {
		const struct communicator *m = s->comms.comm_by_slot[slot];
		for (; m && m->plan && k < m->nranks; k++, i = 0) {
			if (!chunk_works(p, 1))
				return slot << 48 | k << 32 | i;
			for (; plan_task_info(m->plan, (uint32_t)k, (uint32_t)i, &info); i++) {
				ncclsvc_plan_task_info *next = chunk_next(p, 1);
				if (!next)
					return slot << 48 | k << 32 | i;
				*next = info;
			}
		}
	}
	return 0;
}

static uint64_t list_nodes(struct server *s, struct chunk *p, uint64_t from)
{
	const struct cluster *c = s->cluster;
	const struct task_table *t = s->executor->table(s->executor);
	for (uint64_t i = from; c && i < c->n; i++) {
		const struct node *n = &c->nodes[i];
		ncclsvc_node_info *info = chunk_next(p, 1);
		if (!info)
			return i;
		*info = (ncclsvc_node_info){
			.node = (uint32_t)i,
			.state = i == c->me ? NCCLSVC_NODE_SELF
				 : !n->gone ? NCCLSVC_NODE_ALIVE
				 : n->left  ? NCCLSVC_NODE_LEFT
					    : NCCLSVC_NODE_LOST,
			.pid = n->info.pid,
			.host_ranks = n->info.ranks,
			.gone_ns = n->gone ? since(p->reply.time_ns, n->lost_ns) : 0,
			.heard_ns =
				n->gone || i == c->me ? 0 : since(p->reply.time_ns, n->heard_ns),
			.messages = i == c->me ? c->sent + load(&t->messages) : 0,
		};
		memcpy(info->host, n->info.host, sizeof(info->host));
		memcpy(info->address, n->info.address, sizeof(info->address));
	}
	return 0;
}

static const struct {
	uint64_t (*list)(struct server *s, struct chunk *p, uint64_t from);
	uint32_t record_size;
} lists[] = {
	[SVC_LIST_SESSIONS] = {list_sessions, sizeof(ncclsvc_session_info)},
	[SVC_LIST_COMMS] = {list_comms, sizeof(ncclsvc_comm_info)},
	[SVC_LIST_MEMBERS] = {list_members, sizeof(ncclsvc_member_info)},
	[SVC_LIST_TASKS] = {list_tasks, sizeof(ncclsvc_task_info)},
	[SVC_LIST_REGIONS] = {list_regions, sizeof(ncclsvc_region_info)},
	[SVC_LIST_DEVICES] = {list_devices, sizeof(ncclsvc_device_info)},
	[SVC_LIST_PLANS] = {list_plans, sizeof(ncclsvc_plan_info)},
	[SVC_LIST_PLAN_TASKS] = {list_plan_tasks, sizeof(ncclsvc_plan_task_info)},
	[SVC_LIST_NODES] = {list_nodes, sizeof(ncclsvc_node_info)},
};

void list_send(struct server *s, struct client *c, uint32_t serial, uint32_t what, uint64_t from)
{
	if (what >= sizeof(lists) / sizeof(lists[0]) || !lists[what].list) {
		client_error(c, SVC_LIST, serial, NCCLSVC_INVALID_ARGUMENT, "there is no list %u",
			     what);
		return;
	}
	struct chunk p;
	p.asker = c;
	p.reply = (struct svc_list_reply){
		.what = what, .record_size = lists[what].record_size, .time_ns = clock_now()};
	p.room = sizeof(p.records) / p.reply.record_size;
	p.work = CHUNK_WORK;
	p.reply.next = lists[what].list(s, &p, from);
	client_reply(c, SVC_LIST, serial, &p.reply,
		     sizeof(p.reply) + (size_t)p.reply.count * p.reply.record_size, NULL, 0);
}

void list_daemon(struct server *s, struct client *c, uint32_t serial)
{
	const struct task_table *t = s->executor->table(s->executor);
	struct failure f = s->executor->last_failure(s->executor);
	uint64_t now = clock_now();
	struct svc_daemon_info_reply r = {
		.info = {
			.version = NCCLSVC_VERSION_STRING,
			.protocol_min = SVC_PROTOCOL_MIN,
			.protocol_max = SVC_PROTOCOL_MAX,
			.pid = getpid(),
			.uid = geteuid(),
			.draining = s->draining,
			.uptime_ns = since(now, s->start_ns),
			.host_ranks = (uint32_t)s->config->ranks,
			.engine_threads = s->executor->threads,
			.sessions_max = (uint32_t)s->config->sessions_max,
			.comms = s->comms.ncomms,
			.comms_max = (uint32_t)s->config->comms_max,
			.regions = (uint32_t)s->accounts.held[SHARE_REGIONS],
			.tasks_max = t->size,
			.region_bytes = s->accounts.held[SHARE_REGION_BYTES],
			.tasks_pending = load(&t->pending),
			.tasks_completed = load(&t->completed),
			.tasks_failed = load(&t->failed),
			.last_failure = f.status,
			.last_failure_comm = f.comm_uid,
			.last_failure_age_ns = f.status.done_ns ? since(now, f.status.done_ns) : 0,
		}};
	struct client *other;
	DL_FOREACH (s->sessions.clients, other)
		r.info.sessions += other->state == CLIENT_OPEN;
	gpu_mps_describe(&s->gpus, &r.info);
	client_reply(c, SVC_DAEMON_INFO, serial, &r, sizeof(r), NULL, 0);
}
