/* SPDX-License-Identifier: Apache-2.0
 * The other lists, and the dispatch of all lists. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "build_config.h"
#include "channel/cluster.h"
#include "comm/peer/comm_peer.h"
#include "gpu/gpu.h"
#include "gpu/mps_service.h"
#include "list_parts.h"
#include "memory/memory.h"
#include "proto/task.h"
#include "relay.h"
#include "session_process.h"

#define CHUNK_WORK   32768 /* table entries visited for one chunk */
#define PROCESS_WORK 4096  /* as many of them as a look at /proc takes the time of */

static uint64_t list_sessions(struct server *s, struct chunk *p, uint64_t from)
{
	for (uint64_t slot = from; slot < SVC_SESSIONS_MAX; slot++) {
		const struct session *c = s->sessions.by_slot[slot];
		if (!c || c->state != SESSION_OPEN)
			continue;
		const bool allowed = session_allows(p->asker, &c->account->tenant);
		const bool looks = p->by_node && allowed;
		ncclsvc_session_info *i = chunk_next(p, looks ? PROCESS_WORK : 1);
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
		memcpy(i->tenant, c->account->name, sizeof(i->tenant));
		if (allowed) {
			memcpy(i->name, c->name, sizeof(i->name));
			memcpy(i->job, c->job, sizeof(i->job));
			memcpy(i->cgroup, c->cgroup, sizeof(i->cgroup));
		}
		if (looks)
			process_look(c->pid, i);
	}
	return 0;
}

static uint64_t list_regions(struct server *s, struct chunk *p, uint64_t from)
{
	uint64_t k = (uint32_t)from;
	for (uint64_t slot = from >> 32; slot < SVC_SESSIONS_MAX; slot++, k = 0) {
		const struct session *c = s->sessions.by_slot[slot];
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

static uint64_t list_nodes(struct server *s, struct chunk *p, uint64_t from)
{
	const struct cluster *c = s->cluster;
	const struct task_table *t = scheduler_table(s->scheduler);
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
			.heard_ns = n->gone || i == c->me
					    ? 0
					    : since(p->reply.time_ns, n->last_seen_ns),
			.messages = i == c->me ? c->sent + load(&t->messages) : 0,
		};
		memcpy(info->host, n->info.host, sizeof(info->host));
		memcpy(info->address, n->info.address, sizeof(info->address));
	}
	return 0;
}

/* A failure's record has only the name of its tenant. */
static bool may_see(const struct session *asker, const ncclsvc_failure_info *i)
{
	const bool own =
		i->uid == asker->uid && i->tenant[0] && !strcmp(i->tenant, asker->account->name);
	return own || session_allows_user(asker, i->uid);
}

static uint64_t list_failures(struct server *s, struct chunk *p, uint64_t from)
{
	for (const struct failure *f = s->comms.failures.all; f; f = f->hh.next) {
		if (f->info.failure < from || !may_see(p->asker, &f->info))
			continue;
		ncclsvc_failure_info *i = chunk_next(p, 1);
		if (!i)
			return f->info.failure;
		*i = f->info;
	}
	return 0;
}

static const struct {
	list_chunk *list;
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
	[SVC_LIST_FAILURES] = {list_failures, sizeof(ncclsvc_failure_info)},
	[SVC_LIST_OPERATIONS] = {list_operations, sizeof(ncclsvc_operation_info)},
	[SVC_LIST_LATENESS] = {list_lateness, sizeof(ncclsvc_lateness_info)},
};

bool list_chunk_make(struct server *s, struct chunk *p, const struct session *asker, bool by_node,
		     uint32_t what, uint64_t from)
{
	if (what >= sizeof(lists) / sizeof(lists[0]) || !lists[what].list)
		return false;
	p->asker = asker;
	p->by_node = by_node;
	p->reply = (struct svc_list_reply){
		.what = what, .record_size = lists[what].record_size, .time_ns = clock_now()};
	p->room = sizeof(p->records) / p->reply.record_size;
	p->work = CHUNK_WORK;
	p->reply.next = lists[what].list(s, p, from);
	return true;
}

void list_send(struct server *s, struct session *c, uint32_t request_id, const struct svc_list *m)
{
	struct chunk p;
	if (relay_takes(s, c, request_id, m))
		return;
	if (!list_chunk_make(s, &p, c, m->node != 0, m->what, m->from)) {
		session_error(c, SVC_LIST, request_id, NCCLSVC_INVALID_ARGUMENT,
			      "there is no list %u", m->what);
		return;
	}
	session_reply(c, SVC_LIST, request_id, &p.reply, chunk_bytes(&p), NULL, 0);
}

void list_daemon(struct server *s, struct session *c, uint32_t request_id)
{
	const struct task_table *t = scheduler_table(s->scheduler);
	const ncclsvc_status *last = &s->comms.last_failure;
	uint64_t now = clock_now();
	struct svc_daemon_info_reply r = {
		.info = {
			.version = NCCLSVC_VERSION_STRING,
			.protocol_min = SVC_PROTOCOL_MIN,
			.protocol_max = SVC_PROTOCOL_MAX,
			.pid = getpid(),
			.uid = geteuid(),
			.draining = s->draining	      ? NCCLSVC_ENDING
				    : s->refuses_jobs ? NCCLSVC_DRAINED
						      : NCCLSVC_SERVING,
			.uptime_ns = since(now, s->start_ns),
			.host_ranks = (uint32_t)s->config->ranks,
			.host_threads = scheduler_threads(s->scheduler),
			.sessions = s->sessions.nopen,
			.sessions_max = (uint32_t)s->config->sessions_max,
			.comms = s->comms.ncomms,
			.comms_max = (uint32_t)s->config->comms_max,
			.regions = s->sessions.nregions,
			.tasks_max = t->size,
			.region_bytes = s->accounts.held[SHARE_REGION_BYTES],
			.tasks_pending = load(&t->pending),
			.tasks_completed = load(&t->completed),
			.tasks_failed = load(&t->failed),
			.last_failure = *last,
			.last_failure_comm = s->comms.last_failure_comm,
			.last_failure_age_ns = last->done_ns ? since(now, last->done_ns) : 0,
		}};
	gpu_mps_describe(&s->gpus, &r.info);
	session_reply(c, SVC_DAEMON_INFO, request_id, &r, sizeof(r), NULL, 0);
}
