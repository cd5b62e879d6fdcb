/* SPDX-License-Identifier: Apache-2.0
 * Runs the supervisor's commands to the scheduler: sessions, regions, epochs, cancellations. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/nofail.h"
#include "base/timings.h"
#include "commands.h"
#include "ingest.h"
#include "sched/base/pending.h"
#include "sched/base/sched_sessions.h"
#include "sched/base/status.h"
#include "sched/base/supervisor.h"
#include "sched/base/tasks.h"
#include "sched/base/timeline.h"
#include "sched/internode/internode_comm.h"
#include "sched/internode/internode_loop.h"
#include "sched/internode/sequence.h"
#include "sched/internode/unexpected.h"
#include "sched/queue/captured_groups.h"
#include "sched/queue/complete.h"
#include "sched/queue/plan_slots.h"
#include "sched/queue/planned_tasks.h"
#include "sched/queue/release.h"
#include "sched/queue/set.h"

/* Between two polls of the rings */
#define COMMANDS_PER_ROUND 64

/* ---- Sessions ---- */

static void add_session(struct scheduler *sched, const struct command *c)
{
	struct sched_session *s = nofail_calloc(1, sizeof(*s), "a session");
	s->user = user_get(sched, c->session_add.uid, c->session_add.tenant);
	s->user->sessions++;
	s->slot = c->session;
	s->id = c->session_add.id;
	s->pid = c->session_add.pid;
	s->fd = c->session_add.fd;
	s->counts = c->session_add.counts;
	s->doorbell = s->completion = -1;
	s->next = 1;
	sched->sessions[s->slot] = s;
}

static void add_ring(struct scheduler *sched, struct sched_session *s, const struct command *c)
{
	/* Each write to the doorbell is an edge. The scheduler never reads it, since the client
	 * could empty it, so that the read blocks. */
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.u64 = s->slot};
	s->busy = nofail_calloc(c->ring.entries, 1, "a ring");
	s->entries = c->ring.entries;
	s->doorbell = c->ring.doorbell;
	s->completion = c->ring.completion;
	atomic_store(&c->ring.ring->asleep, 1);
	s->ring = c->ring.ring;
	if (epoll_ctl(sched->epoll_fd, EPOLL_CTL_ADD, c->ring.doorbell, &ev) < 0)
		complete_break_session(sched, s, NCCLSVC_LIMIT, "its doorbell cannot be watched");
	/* The client may have been faster than this command. */
	sched_session_active(sched, s);
}

static void remove_session(struct scheduler *sched, struct sched_session *s)
{
	s->broken = true;
	s->leaving = true;
	ingest_drop_group(sched, s);
	captured_groups_drop(sched, s);
	sched->inputs_ns = 0; /* checks at once for inputs that it no longer signals */
	if (s->active)
		sched_session_idle(sched, s);
	if (s->ring)
		epoll_ctl(sched->epoll_fd, EPOLL_CTL_DEL, s->doorbell, NULL);
	regions_drop_departures(s); /* all its regions are freed with it */
	s->next_leaving = sched->leaving;
	sched->leaving = s;
}

/* Regions that no worker has imported get addresses that do not overlap: a region has at most 2^46
 * bytes. */
static char *base_of(const struct command *c)
{
	const uint64_t apart = (uint64_t)c->region.region << 47;
	return c->region.absent ? (char *)(uintptr_t)apart : c->region.base;
}

static void add_region(struct sched_session *s, const struct command *c)
{
	uint32_t i = c->region.region;
	if (i >= s->nregions) {
		uint32_t n = i + 16;
		struct region *r = nofail_realloc(s->regions, n * sizeof(*r), "a region");
		memset(r + s->nregions, 0, (n - s->nregions) * sizeof(*r));
		s->regions = r;
		s->nregions = n;
	}
	/* A new worker may have imported it again while failed tasks still hold it. */
	struct region *r = &s->regions[i];
	if (c->region.again && !r->base)
		return;
	s->user->file_bytes += c->region.file_bytes - r->file_bytes;
	*r = (struct region){.base = base_of(c),
			     .absent = c->region.absent,
			     .bytes = c->region.bytes,
			     .pins = r->pins,
			     .device = c->region.device,
			     .fault = c->region.fault,
			     .file_bytes = c->region.file_bytes};
}

/* ---- Communicators ---- */

static void set_handle(struct scheduler *sched, struct sched_session *s, uint32_t handle,
		       struct comm *c, int32_t rank, bool continues)
{
	if (handle >= s->nhandles) {
		uint32_t n = handle + 4;
		struct handle *h = nofail_realloc(s->handles, n * sizeof(*h), "a member");
		memset(h + s->nhandles, 0, (n - s->nhandles) * sizeof(*h));
		s->handles = h;
		s->nhandles = n;
	}
	struct handle *h = &s->handles[handle];
	if (!continues)
		complete_drop_held(sched, s, handle);
	*h = (struct handle){
		.comm = c, .rank = rank, .known = true, .suspended = h->suspended, .held = h->held};
	s->members++;
}

static void start_epoch(struct scheduler *sched, const struct command *cmd)
{
	uint32_t n = cmd->epoch_start.nranks;
	struct comm *c = nofail_calloc(1, sizeof(*c), "an epoch");
	c->members = nofail_calloc(n, sizeof(*c->members), "an epoch's members");
	c->collective = nofail_calloc(n, sizeof(*c->collective), "an epoch's members");
	c->slot = cmd->epoch_start.comm;
	c->nranks = n;
	c->epoch = cmd->epoch_start.epoch;
	c->uid = cmd->epoch_start.uid;
	c->transport = sched->config.transports[cmd->epoch_start.transport];
	c->comm_slot = cmd->epoch_start.comm_slot;
	c->shared_gpu = cmd->epoch_start.shared_gpu;
	for (uint32_t k = 0; k < n; k++) {
		const struct epoch_member *em = &cmd->epoch_start.members[k];
		struct member *m = &c->members[k];
		m->comm = c;
		m->progress = &cmd->epoch_start.progress[k];
		m->pid = em->pid;
		m->address = em->address;
		if (em->session == EPOCH_ELSEWHERE) {
			m->device = -1;
			m->gone = em->node == sched->config.node; /* before the epoch began */
			m->elsewhere = !m->gone;
			if (m->gone) {
				c->gone++;
				c->gone_rank = (int32_t)k;
			}
			continue;
		}
		c->here++;
		m->session = sched->sessions[em->session];
		m->user = m->session->user;
		m->handle = em->handle;
		m->pid = m->session->pid;
		m->device = em->device;
		m->recording = em->recording;
		m->join = em->join;
		set_handle(sched, m->session, em->handle, c, (int32_t)k,
			   cmd->epoch_start.lineage & SVC_LINEAGE_RESUMED);
		if (!cmd->epoch_start.lineage)
			m->session->resumes = m->session->left = false;
		if (m->device >= 0)
			timeline_reserve(m->session);
	}
	if (cmd->epoch_start.internode_id) {
		internode_comm_create(sched, c, cmd);
		sequence_begin(sched, c->internode);
	}
	free(cmd->epoch_start.members);
	pending_begin(c, cmd->epoch_start.pending);
	c->lateness = cmd->epoch_start.lateness;
	sched->comms[c->slot] = c;
	if (c->transport->epoch_begin)
		c->transport->epoch_begin(sched, c);
	unexpected_deliver(sched, c);
}

/* ---- Cancellations ---- */

/* Progress of the current one. */
struct cancellation {
	bool found, forbidden;
	uint64_t count;	   /* of tasks */
	uint32_t rank;	   /* whose tasks are being checked */
	uint32_t slot;	   /* the next one of its plan */
	struct task *last; /* of its queue; NULL: none yet */
	uint64_t last_uid;
};

bool commands_init(struct scheduler *sched)
{
	sched->cancellation = calloc(1, sizeof(*sched->cancellation));
	return sched->cancellation;
}

void commands_finish(struct scheduler *sched)
{
	free(sched->cancellation);
}

static void cancel_task(struct scheduler *sched, const struct command *c, struct task *t)
{
	struct cancellation *at = sched->cancellation;
	ncclsvc_status st = status_of(NCCLSVC_CANCELLED);
	const struct user *u = t->session->user;
	if (!c->cancel.any_user &&
	    (c->cancel.uid != u->uid || (c->cancel.tenant && c->cancel.tenant != u->tenant))) {
		at->forbidden = true;
		return;
	}
	at->found = true;
	if ((t->stage == RUNNING && !t->node_match && !set_may_fail(sched, t)) || t->tombstone)
		return;
	st.pid_a = c->cancel.pid;
	const uint64_t live = sched->live;
	at->count += t->node_match != NULL; /* asks other nodes, which may have begun */
	release_fail(sched, t, &st);	    /* and with it, others of its collective */
	at->count += live - sched->live;
}

/* Cancels a whole queue. False: there is more, behind the last task checked. */
static bool cancel_queue(struct scheduler *sched, const struct command *c, struct member *m,
			 uint64_t enough)
{
	struct cancellation *at = sched->cancellation;
	struct task *t = m->queue, *next;
	if (at->last &&
	    at->last->uid == at->last_uid) /* otherwise it has ended, and others with it */
		t = at->last->next;
	for (; t; t = next) {
		next = t->next;
		const uint64_t uid = t->uid;
		sched->steps += STEP_END;
		cancel_task(sched, c, t);
		if (next && !next->uid) /* it ended with this one */
			return false;
		at->last = t;
		at->last_uid = uid;
		if (sched->steps >= enough)
			return false;
	}
	return true;
}

static bool cancel_plan(struct scheduler *sched, const struct command *c, struct member *m,
			uint64_t enough)
{
	struct cancellation *at = sched->cancellation;
	struct task *t;
	while (plan_held(m, at->slot, &t)) {
		at->slot++;
		sched->steps += t ? STEP_END : 1;
		if (t)
			cancel_task(sched, c, t);
		if (sched->steps >= enough)
			return false;
	}
	return true;
}

static bool cancel_comm(struct scheduler *sched, const struct command *c)
{
	struct cancellation *at = sched->cancellation;
	struct comm *comm = sched->comms[c->cancel.id];
	const uint64_t enough = sched->steps + STEP_SLICE;
	for (; comm && at->rank < comm->nranks; at->rank++) {
		struct member *m = &comm->members[at->rank];
		if (!cancel_queue(sched, c, m, enough) || !cancel_plan(sched, c, m, enough))
			return false;
		at->last = NULL;
		at->slot = 0;
	}
	return true;
}

/* False: call it again. */
static bool cancel(struct scheduler *sched, const struct command *c)
{
	struct cancellation *at = sched->cancellation;
	struct task *t = c->cancel.kind == SVC_CANCEL_TASK ? task_find(sched, c->cancel.id) : NULL;
	if (t && t->comm)
		cancel_task(sched, c, t);
	else if (c->cancel.kind == SVC_CANCEL_COMM && !cancel_comm(sched, c))
		return false;
	/* The supervisor has checked that the communicator exists. */
	const bool known = at->found || c->cancel.kind == SVC_CANCEL_COMM;
	const int result = !at->found && at->forbidden ? NCCLSVC_PERMISSION
			   : known		       ? NCCLSVC_OK
						       : NCCLSVC_NOT_FOUND;
	supervisor_event(sched,
			 &(struct event){.kind = EVENT_CANCELLED,
					 .cancelled = {.asker = c->cancel.asker,
						       .request_id = c->cancel.request_id,
						       .result = result,
						       .count = at->count + c->cancel.kernels}});
	*at = (struct cancellation){0};
	return true;
}

/* ---- Tasks of suspended epochs ---- */

/* False: there are more. */
static bool handle_held(struct scheduler *sched, struct sched_session *s,
			const struct svc_resume *what)
{
	if (what->kind == SVC_RESUME_TASKS)
		return ingest_held(sched, s);
	if (what->kind == SVC_RESUME_NOT) {
		complete_drop_held(sched, s, what->number);
		return true;
	}
	const ncclsvc_status st = status_of(what->number ? NCCLSVC_DAEMON_LOST : NCCLSVC_OK);
	struct held *h = held_find(s, what->done);
	if (h)
		complete_held(sched, s, h, &st);
	return true;
}

/* ---- Shutting down ---- */

static void be_quiet(struct scheduler *sched)
{
	sched->draining = true;
	sched->drain_ns = sched->now;
	for (uint32_t i = 0; i < sched->config.sessions_max; i++)
		if (sched->sessions[i])
			sched->sessions[i]->left = sched->sessions[i]->resumes;
}

/* ---- Commands ---- */

static bool end_epoch(struct scheduler *sched, const struct command *cmd)
{
	struct comm *c = sched->comms[cmd->epoch_end.comm];
	const ncclsvc_status *end = &cmd->epoch_end.status;
	c->later = cmd->epoch_end.later;
	return internode_comm_begin_end(sched, c, end) || release_epoch(sched, c, end);
}

/* c is NULL: it has ended already. */
static void let_inputs_go(struct scheduler *sched, struct comm *c)
{
	if (c && c->ended && c->transport->release)
		c->transport->release(sched, c);
}

static void epoch_dead(struct scheduler *sched, struct comm *c)
{
	if (c && c->transport->dead)
		c->transport->dead(sched, c);
}

static void tell_transports(struct scheduler *sched, const struct command *c)
{
	for (unsigned i = 0; i < TRANSPORTS; i++)
		if (sched->config.transports[i]->command)
			sched->config.transports[i]->command(sched, c);
}

/* False: there is more to do, in the next round and before any other command. */
static bool run_command(struct scheduler *sched, const struct command *c)
{
	struct sched_session *s =
		c->session < sched->config.sessions_max ? sched->sessions[c->session] : NULL;
	bool over = true;
	switch (c->kind) {
	case COMMAND_SESSION_ADD:
		add_session(sched, c);
		break;
	case COMMAND_SESSION_RING:
		add_ring(sched, s, c);
		break;
	case COMMAND_SESSION_RESUMES:
		s->resumes = true;
		s->left = sched->draining;
		break;
	case COMMAND_SESSION_DEL:
		remove_session(sched, s);
		break;
	case COMMAND_REGION_ADD:
		add_region(s, c);
		break;
	case COMMAND_REGION_DEL:
		region_remove_later(sched, s, c);
		break;
	case COMMAND_EPOCH_START:
		start_epoch(sched, c);
		break;
	case COMMAND_EPOCH_END:
		over = end_epoch(sched, c);
		break;
	case COMMAND_MEMBER_LEFT:
		over = release_member(sched, sched->comms[c->left.comm], c->left.rank);
		break;
	case COMMAND_TASK:
		ingest_socket(sched, s, c->task.request_id, &c->task.record);
		break;
	case COMMAND_CAPTURED_GROUP_DEL:
		captured_group_delete(sched, s, c->captured_group.timeline,
				      c->captured_group.value);
		break;
	case COMMAND_HELD:
		over = !s || handle_held(sched, s, &c->held);
		break;
	case COMMAND_CANCEL:
		over = cancel(sched, c);
		break;
	case COMMAND_QUIET:
		be_quiet(sched);
		break;
	case COMMAND_DRAIN:
		if (sched->drained) /* epochs have begun since */
			sched->drain_ns = sched->now;
		sched->finishing = true;
		sched->drained = false;
		break;
	case COMMAND_PING:
		sched->pinged = true;
		sched->ping_turns = sched->turns + sched->ready;
		break;
	case COMMAND_STOP:
		sched->stop = true;
		break;
	case COMMAND_DEVICE_ADD:
	case COMMAND_DEVICE_WORKER:
	case COMMAND_STAGING:
	case COMMAND_MAKE:
	case COMMAND_MAKE_NOT:
	case COMMAND_NCCL_GIVE:
	case COMMAND_NCCL_TAKE:
		tell_transports(sched, c);
		break;
	case COMMAND_PLAN_ADD:
		plan_add(sched, sched->comms[c->plan.comm], c->plan.plan);
		break;
	case COMMAND_PLAN_DROP:
		plan_drop(sched, c);
		break;
	case COMMAND_EPOCH_NAMED:
		unexpected_announce(sched, c->epoch_named.comm, c->epoch_named.internode_id);
		break;
	case COMMAND_NODE_CARRY:
		internode_comm_carry(sched, c);
		free(c->carry.address);
		break;
	case COMMAND_NODE_LOST:
		internode_comm_node_lost(sched, c->node.node);
		break;
	case COMMAND_EPOCH_RELEASE:
		let_inputs_go(sched, sched->comms[c->epoch_end.comm]);
		break;
	case COMMAND_EPOCH_BROKEN:
		if (sched->comms[c->epoch_end.comm])
			sched->comms[c->epoch_end.comm]->broken = true;
		break;
	case COMMAND_EPOCH_DEAD:
		epoch_dead(sched, sched->comms[c->epoch_end.comm]);
		break;
	}
	return over;
}

void commands_run_some(struct scheduler *sched)
{
	struct command c;
	const uint64_t began = clock_now();
	for (unsigned n = 0; n < COMMANDS_PER_ROUND && supervisor_next_command(sched, &c); n++) {
		if (!run_command(sched, &c))
			return;
		supervisor_command_done(sched);
		if (clock_now() - began >= COMMANDS_TURN_NS)
			return;
	}
}
