/* SPDX-License-Identifier: Apache-2.0
 * Snapshots for inspection. Each is written into a memfd that the asker gets, so that no list is
 * too long for a message, and no slow reader can hold the daemon up. The executor is never asked.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "build_config.h"
#include "cluster/cluster.h"
#include "fdio.h"
#include "gpu.h"
#include "names.h"
#include "plan.h"
#include "server_state.h"

struct snapshot {
	int fd;
	char *base;
	size_t record_size;
	uint64_t count, room;
	uint64_t now;
};

/* Room for up to n records; pages come as they are written. */
static int snapshot_begin(struct snapshot *s, size_t record_size, uint64_t n)
{
	size_t size = (n ? n : 1) * record_size;
	*s = (struct snapshot){.record_size = record_size, .room = n, .now = server_now()};
	s->fd = memfd_create("ncclsvc-list", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->fd < 0)
		return -errno;
	if (ftruncate(s->fd, (off_t)size) == 0) {
		s->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
		if (s->base != MAP_FAILED)
			return 0;
	}
	int error = errno;
	close(s->fd);
	return -error;
}

static void *snapshot_next(struct snapshot *s)
{
	return s->count < s->room ? s->base + s->count++ * s->record_size : NULL;
}

static void snapshot_send(struct snapshot *s, struct client *c, uint32_t serial, uint32_t what)
{
	munmap(s->base, (s->room ? s->room : 1) * s->record_size);
	if (ftruncate(s->fd, (off_t)(s->count * s->record_size)) < 0 ||
	    fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) <
		    0) {
		client_error(c, SVC_LIST, serial, NCCLSVC_SYSTEM, "the list could not be sealed");
	} else {
		struct svc_list_reply r = {what, (uint32_t)s->record_size, s->count, s->now};
		client_reply(c, SVC_LIST, serial, &r, sizeof(r), &s->fd, 1);
	}
	close(s->fd);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

static void list_sessions(struct server *s, struct snapshot *snap)
{
	struct client *c;
	DL_FOREACH (s->clients, c) {
		if (c->state != CLIENT_OPEN)
			continue;
		ncclsvc_session_info *i = snapshot_next(snap);
		*i = (ncclsvc_session_info){
			.session = c->id,
			.pid = c->pid,
			.uid = c->uid,
			.ring_entries = c->entries,
			.age_ns = since(snap->now, c->since_ns),
			.submitted = load(&c->counts.submitted),
			.completed = load(&c->counts.completed),
			.failed = load(&c->counts.failed),
			.comms = c->comms,
			.regions = c->regions,
			.region_bytes = c->region_bytes,
		};
		memcpy(i->name, c->name, sizeof(i->name));
	}
}

static void list_comms(struct server *s, struct snapshot *snap, const struct client *asker)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp) {
		ncclsvc_comm_info *i = snapshot_next(snap);
		*i = (ncclsvc_comm_info){
			.comm = m->uid,
			.nranks = m->nranks,
			.epoch = m->epoch,
			.state = m->state,
			.uid = m->owner,
			.age_ns = since(snap->now, m->since_ns),
		};
		for (uint32_t k = 0; k < m->nranks; k++) {
			uint32_t state = m->seats[k].state;
			i->joined +=
				state == NCCLSVC_MEMBER_JOINED || state == NCCLSVC_MEMBER_JOINING;
			if (m->board)
				i->pending += (uint32_t)(load(&m->board[k].submitted) -
							 load(&m->board[k].completed));
		}
		if (server_allows(asker, m->owner))
			memcpy(i->id, m->id, sizeof(i->id));
		memcpy(i->label, m->label, sizeof(i->label));
	}
}

static void list_members(struct server *s, struct snapshot *snap)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp) {
		for (uint32_t k = 0; k < m->nranks; k++) {
			const struct seat *seat = &m->seats[k];
			ncclsvc_member_info *i = snapshot_next(snap);
			if (!i)
				return;
			*i = (ncclsvc_member_info){
				.comm = m->uid,
				.rank = (int32_t)k,
				.state = seat->state,
				.session = seat->client ? seat->client->id : 0,
				.pid = seat->pid,
				.epoch = m->epoch,
				.device = seat->device,
				.elsewhere = seat->client ? 0 : (uint32_t)(seat->node + 1),
				.transport = m->cuda && s->staging ? NCCLSVC_TRANSPORT_MPI
								   : NCCLSVC_TRANSPORT_NCCL,
			};
			if (seat->state == NCCLSVC_MEMBER_JOINING)
				i->waiting_ns = since(snap->now, seat->since_ns);
			if (!m->board)
				continue;
			uint64_t head = load(&m->board[k].head_ns);
			i->windows =
				atomic_load_explicit(&m->board[k].windows, memory_order_relaxed);
			i->completed = load(&m->board[k].completed);
			i->submitted = load(&m->board[k].submitted);
			if (i->submitted > i->completed && head)
				i->waiting_ns = since(snap->now, head);
		}
	}
}

/* The members that have not posted the collective this task is, or the peer of a Send or Recv. */
static void list_waits(const struct server *s, const struct table_entry *e, ncclsvc_task_info *i)
{
	const struct communicator *m = e->comm < SVC_COMMS_MAX ? s->comm_by_slot[e->comm] : NULL;
	if (e->state != NCCLSVC_WAITING_PEERS && e->state != NCCLSVC_FAILED)
		return;
	if (svc_op_is_p2p(e->op)) {
		i->waits_for[i->waits_count++] = e->peer;
		return;
	}
	if (!m || m->uid != e->comm_uid || m->epoch != e->epoch || !m->board)
		return;
	uint64_t mine = load(&m->board[e->rank].collectives);
	for (uint32_t k = 0; k < m->nranks; k++) {
		if (load(&m->board[k].collectives) >= mine)
			continue;
		if (i->waits_count < NCCLSVC_MISSING_SHOWN)
			i->waits_for[i->waits_count] = (int32_t)k;
		i->waits_count++;
	}
}

static void list_tasks(struct server *s, struct snapshot *snap)
{
	const struct task_table *t = s->executor->table(s->executor);
	uint32_t high = atomic_load_explicit(&t->high, memory_order_acquire);
	struct table_entry e;
	for (uint32_t slot = 0; slot < high; slot++) {
		if (!table_get(t, slot, &e))
			continue;
		ncclsvc_task_info *i = snapshot_next(snap);
		if (!i)
			return;
		*i = (ncclsvc_task_info){
			.task = e.uid,
			.comm = e.comm_uid,
			.seq = e.seq,
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
			.age_ns = since(snap->now, e.submitted_ns),
			.state_ns = since(snap->now, e.state_ns),
		};
		list_waits(s, &e, i);
	}
}

static void list_regions(struct server *s, struct snapshot *snap)
{
	struct client *c;
	DL_FOREACH (s->clients, c) {
		for (uint32_t k = 1; k < c->nmappings; k++) {
			const struct mapping *m = &c->mappings[k];
			if (!m->used)
				continue;
			ncclsvc_region_info *i = snapshot_next(snap);
			if (!i)
				return;
			*i = (ncclsvc_region_info){
				.session = c->id,
				.region = k,
				.pid = c->pid,
				.kind = m->kind,
				.device = m->device,
				.bytes = m->bytes,
				.age_ns = since(snap->now, m->since_ns),
			};
		}
	}
}

static void list_devices(struct server *s, struct snapshot *snap)
{
	for (uint32_t i = 0; i < s->ngpus; i++) {
		ncclsvc_device_info *info = snapshot_next(snap);
		*info = s->gpus[i]->info;
		info->age_ns = since(snap->now, s->gpus[i]->since_ns);
	}
}

static void list_plans(struct server *s, struct snapshot *snap)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		for (uint32_t k = 0; m->plan && k < m->nranks; k++) {
			const struct seat *seat = &m->seats[k];
			ncclsvc_plan_info *i =
				m->plan->members[k].handle ? snapshot_next(snap) : NULL;
			if (!i)
				continue;
			*i = (ncclsvc_plan_info){
				.comm = m->uid,
				.rank = (int32_t)k,
				.pid = seat->pid,
				.session = seat->client ? seat->client->id : 0,
				.epoch = m->epoch,
				.age_ns = since(snap->now, m->plan->since_ns),
			};
			plan_info(m->plan, k, i);
		}
}

static void list_plan_tasks(struct server *s, struct snapshot *snap)
{
	struct communicator *m, *tmp;
	ncclsvc_plan_task_info info;
	HASH_ITER (hh, s->comms, m, tmp)
		for (uint32_t k = 0; m->plan && k < m->nranks; k++)
			for (uint32_t i = 0; plan_task_info(m->plan, k, i, &info); i++) {
				ncclsvc_plan_task_info *next = snapshot_next(snap);
				if (!next)
					return;
				*next = info;
			}
}

static uint64_t count_plan_tasks(const struct server *s, bool tasks)
{
	uint64_t n = 0;
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		for (uint32_t k = 0; m->plan && k < m->nranks; k++)
			n += tasks ? m->plan->members[k].ntasks : m->plan->members[k].handle != 0;
	return n;
}

static void list_nodes(struct server *s, struct snapshot *snap)
{
	const struct cluster *c = s->cluster;
	for (uint32_t i = 0; c && i < c->n; i++) {
		const struct node *n = &c->nodes[i];
		ncclsvc_node_info *info = snapshot_next(snap);
		*info = (ncclsvc_node_info){
			.node = i,
			.state = i == c->me ? NCCLSVC_NODE_SELF
				 : !n->gone ? NCCLSVC_NODE_ALIVE
				 : n->left  ? NCCLSVC_NODE_LEFT
					    : NCCLSVC_NODE_LOST,
			.pid = n->card.pid,
			.host_ranks = n->card.ranks,
			.gone_ns = n->gone ? since(snap->now, n->lost_ns) : 0,
		};
		memcpy(info->host, n->card.host, sizeof(info->host));
		memcpy(info->address, n->card.address, sizeof(info->address));
	}
}

static uint64_t count_seats(const struct server *s)
{
	uint64_t n = 0;
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		n += m->nranks;
	return n;
}

void list_send(struct client *c, uint32_t serial, uint32_t what)
{
	struct server *s = c->server;
	struct snapshot snap;
	int error = -EINVAL;
	switch (what) {
	case SVC_LIST_SESSIONS:
		error = snapshot_begin(&snap, sizeof(ncclsvc_session_info), s->nclients);
		if (!error)
			list_sessions(s, &snap);
		break;
	case SVC_LIST_COMMS:
		error = snapshot_begin(&snap, sizeof(ncclsvc_comm_info), s->ncomms);
		if (!error)
			list_comms(s, &snap, c);
		break;
	case SVC_LIST_MEMBERS:
		error = snapshot_begin(&snap, sizeof(ncclsvc_member_info), count_seats(s));
		if (!error)
			list_members(s, &snap);
		break;
	case SVC_LIST_TASKS:
		error = snapshot_begin(&snap, sizeof(ncclsvc_task_info),
				       s->executor->table(s->executor)->high);
		if (!error)
			list_tasks(s, &snap);
		break;
	case SVC_LIST_REGIONS:
		error = snapshot_begin(&snap, sizeof(ncclsvc_region_info), s->regions);
		if (!error)
			list_regions(s, &snap);
		break;
	case SVC_LIST_DEVICES:
		error = snapshot_begin(&snap, sizeof(ncclsvc_device_info), s->ngpus);
		if (!error)
			list_devices(s, &snap);
		break;
	case SVC_LIST_PLANS:
		error = snapshot_begin(&snap, sizeof(ncclsvc_plan_info),
				       count_plan_tasks(s, false));
		if (!error)
			list_plans(s, &snap);
		break;
	case SVC_LIST_PLAN_TASKS:
		error = snapshot_begin(&snap, sizeof(ncclsvc_plan_task_info),
				       count_plan_tasks(s, true));
		if (!error)
			list_plan_tasks(s, &snap);
		break;
	case SVC_LIST_NODES:
		error = snapshot_begin(&snap, sizeof(ncclsvc_node_info),
				       s->cluster ? s->cluster->n : 0);
		if (!error)
			list_nodes(s, &snap);
		break;
	default:
		client_error(c, SVC_LIST, serial, NCCLSVC_INVALID_ARGUMENT, "there is no list %u",
			     what);
		return;
	}
	if (error)
		client_error(c, SVC_LIST, serial, NCCLSVC_NO_MEMORY, "no memory for the list: %s",
			     strerror(-error));
	else
		snapshot_send(&snap, c, serial, what);
}

void list_daemon(struct client *c, uint32_t serial)
{
	struct server *s = c->server;
	const struct task_table *t = s->executor->table(s->executor);
	struct failure f = s->executor->last_failure(s->executor);
	uint64_t now = server_now();
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
			.comms = s->ncomms,
			.comms_max = (uint32_t)s->config->comms_max,
			.regions = s->regions,
			.tasks_max = t->size,
			.region_bytes = s->region_bytes,
			.tasks_pending = load(&t->pending),
			.tasks_completed = load(&t->completed),
			.tasks_failed = load(&t->failed),
			.last_failure = f.status,
			.last_failure_comm = f.comm_uid,
			.last_failure_age_ns = f.status.done_ns ? since(now, f.status.done_ns) : 0,
		}};
	struct client *other;
	DL_FOREACH (s->clients, other)
		r.info.sessions += other->state == CLIENT_OPEN;
	client_reply(c, SVC_DAEMON_INFO, serial, &r, sizeof(r), NULL, 0);
}
