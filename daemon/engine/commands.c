/* SPDX-License-Identifier: Apache-2.0
 * What the supervisor asks of the engine: sessions, regions, epochs, cancellations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

#include "span.h"
#include "staged.h"

/* ---- Sessions ---- */

/* Clients that spin need a core each, beside ours; else they must yield. */
static void advise_spin(struct engine *e, struct session *changed)
{
	struct session *s;
	bool crowded = e->nactive + 1 > e->cores;
	atomic_store_explicit(&changed->ring->spin_ns, (uint32_t)e->spin_ns, memory_order_relaxed);
	atomic_store_explicit(&changed->ring->crowded, crowded, memory_order_relaxed);
	if (crowded == e->crowded)
		return;
	e->crowded = crowded;
	for (s = e->active; s; s = s->next_active)
		atomic_store_explicit(&s->ring->crowded, crowded, memory_order_relaxed);
}

void engine_session_poll(struct engine *e, struct session *s)
{
	if (!s->ring || s->broken)
		return;
	s->active = true;
	e->nactive++;
	atomic_store(&s->ring->asleep, 0);
	DL_APPEND2(e->active, s, prev_active, next_active);
	advise_spin(e, s);
}

void engine_session_idle(struct engine *e, struct session *s)
{
	if (!s->active)
		return;
	DL_DELETE2(e->active, s, prev_active, next_active);
	s->active = false;
	e->nactive--;
	advise_spin(e, s);
	/* Either the client sees the flag, or we see its record or its signal: both are seq_cst. */
	atomic_store(&s->ring->asleep, 1);
	uint64_t number = __atomic_load_n(&svc_record_slot(s->ring, s->entries, s->next)->number,
					  __ATOMIC_SEQ_CST);
	if (number == s->next && !s->broken)
		engine_session_active(e, s);
	if (s->inputs)
		order_check_inputs(e);
}

static int add_session(struct engine *e, const struct command *c)
{
	struct session *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->slot = c->session;
	s->id = c->session_add.id;
	s->pid = c->session_add.pid;
	s->uid = c->session_add.uid;
	s->fd = c->session_add.fd;
	s->counts = c->session_add.counts;
	s->doorbell = s->completion = -1;
	s->next = 1;
	e->sessions[s->slot] = s;
	return 0;
}

static int add_ring(struct engine *e, struct session *s, const struct command *c)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = s->slot};
	s->busy = calloc(c->ring.entries, 1);
	if (!s->busy)
		return -ENOMEM;
	if (epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, c->ring.doorbell, &ev) < 0)
		return -errno;
	s->entries = c->ring.entries;
	s->doorbell = c->ring.doorbell;
	s->completion = c->ring.completion;
	atomic_store(&c->ring.ring->asleep, 1);
	s->ring = c->ring.ring;
	/* The client may have been quicker than this command. */
	engine_session_active(e, s);
	return 0;
}

void engine_free_session(struct engine *e, struct session *s)
{
	if (!s->leaving || s->tasks || s->dirty)
		return;
	/* With other nodes, an epoch ends a little after it was asked to. */
	for (uint32_t i = 0; i < s->nhandles; i++)
		if (s->handles[i].comm)
			return;
	e->sessions[s->slot] = NULL;
	engine_event(e, &(struct event){.kind = EVENT_SESSION_GONE, .session = s->slot});
	free(s->handles);
	free(s->regions);
	free(s->busy);
	free(s->lines);
	free(s);
}

static void remove_session(struct engine *e, struct session *s)
{
	s->broken = true;
	s->leaving = true;
	intake_drop_group(e, s);
	device_session_dead(e, s);
	for (uint32_t i = 0; i < s->nregions; i++)
		window_region_gone(e, &s->regions[i]);
	if (s->active)
		engine_session_idle(e, s);
	if (s->ring)
		epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, s->doorbell, NULL);
	e->leaving++;
}

static int add_region(struct engine *e, struct session *s, const struct command *c)
{
	uint32_t i = c->region.region;
	if (i >= s->nregions) {
		uint32_t n = i + 16;
		struct region *r = realloc(s->regions, n * sizeof(*r));
		if (!r)
			return -ENOMEM;
		memset(r + s->nregions, 0, (n - s->nregions) * sizeof(*r));
		s->regions = r;
		s->nregions = n;
	}
	/* A new worker may have imported it again, while tasks that failed still hold it. */
	struct region *r = &s->regions[i];
	window_region_gone(e, r);
	*r = (struct region){.base = c->region.base,
			     .bytes = c->region.bytes,
			     .pins = r->pins,
			     .device = c->region.device,
			     .lent = c->region.lent ? ++e->lent : 0};
	return 0;
}

static void remove_region(struct engine *e, struct session *s, const struct command *c)
{
	struct region *r = &s->regions[c->region.region];
	struct event ev = {.kind = EVENT_REGION_GONE,
			   .session = s->slot,
			   .region = {c->region.region, c->region.serial}};
	/* A group that is not closed yet holds no pins. */
	if (r->pins || s->group) {
		ev.kind = EVENT_REGION_BUSY;
	} else {
		window_region_gone(e, r);
		*r = (struct region){0};
	}
	engine_event(e, &ev);
}

/* Tasks that were submitted before it was asked for may name it, and have not been seen. They may
 * need the commands behind this one, so they are taken in when all have run. */
static void remove_region_later(struct engine *e, const struct command *c)
{
	if (e->ndeparting == e->departing_room) {
		e->departing_room = e->departing_room ? 2 * e->departing_room : 16;
		e->departing = realloc(e->departing, e->departing_room * sizeof(*e->departing));
		if (!e->departing)
			abort();
	}
	e->departing[e->ndeparting++] = *c;
}

void engine_regions_depart(struct engine *e)
{
	for (uint32_t i = 0; i < e->ndeparting; i++) {
		const struct command c = e->departing[i];
		struct session *s = e->sessions[c.session];
		if (!s->leaving)
			intake_all(e, s);
		remove_region(e, s, &c);
	}
	e->ndeparting = 0;
}

/* ---- Communicators ---- */

static int set_handle(struct session *s, uint32_t handle, struct comm *c, int32_t rank)
{
	if (handle >= s->nhandles) {
		uint32_t n = handle + 4;
		struct handle *h = realloc(s->handles, n * sizeof(*h));
		if (!h)
			return -ENOMEM;
		memset(h + s->nhandles, 0, (n - s->nhandles) * sizeof(*h));
		s->handles = h;
		s->nhandles = n;
	}
	s->handles[handle] = (struct handle){.comm = c, .rank = rank, .known = true};
	return 0;
}

static int start_epoch(struct engine *e, const struct command *cmd)
{
	uint32_t n = cmd->epoch_start.nranks;
	struct comm *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->members = calloc(n, sizeof(*c->members));
	c->collective = calloc(n, sizeof(*c->collective));
	if (!c->members || !c->collective)
		return -ENOMEM;
	c->slot = cmd->epoch_start.comm;
	c->nranks = n;
	c->epoch = cmd->epoch_start.epoch;
	c->uid = cmd->epoch_start.uid;
	c->cuda = cmd->epoch_start.cuda;
	c->staged = cmd->epoch_start.staged;
	c->may_window = cmd->epoch_start.windows;
	c->lane = cmd->epoch_start.lane;
	for (uint32_t k = 0; k < n; k++) {
		const struct epoch_member *em = &cmd->epoch_start.members[k];
		struct member *m = &c->members[k];
		m->comm = c;
		m->board = &cmd->epoch_start.board[k];
		m->pid = em->pid;
		if (em->session == EPOCH_ELSEWHERE) {
			m->device = -1;
			m->gone = em->node == e->config.node; /* before it began */
			c->gone += m->gone;
			continue;
		}
		c->here++;
		m->session = e->sessions[em->session];
		m->handle = em->handle;
		m->pid = m->session->pid;
		m->device = em->device;
		if (set_handle(m->session, em->handle, c, (int32_t)k))
			return -ENOMEM;
		if (c->cuda && device_start_member(e, m))
			return -ENOMEM;
		if (c->staged && staged_start_member(e, m))
			return -ENOMEM;
	}
	if (cmd->epoch_start.span && span_create(e, c, cmd))
		return -ENOMEM;
	free(cmd->epoch_start.members);
	e->comms[c->slot] = c;
	if (c->span)
		early_hear(e, c->span);
	return 0;
}

static void cancel(struct engine *e, const struct command *c)
{
	ncclsvc_status st = status_of(NCCLSVC_CANCELLED);
	struct event ev = {.kind = EVENT_CANCELLED,
			   .cancelled = {.asker = c->cancel.asker,
					 .serial = c->cancel.serial,
					 .result = NCCLSVC_NOT_FOUND}};
	const uint64_t live = e->live;
	uint64_t asked = 0; /* of other nodes, which may have begun */
	st.pid_a = c->cancel.pid;
	for (uint32_t i = 0; i < e->fresh; i++) {
		struct task *t = &e->tasks[i];
		if (!t->uid || !t->comm || t->place == IN_GROUP)
			continue;
		if (c->cancel.kind == SVC_CANCEL_TASK ? t->uid != c->cancel.id
						      : t->comm->slot != c->cancel.id)
			continue;
		if (c->cancel.uid && c->cancel.uid != t->session->uid) {
			ev.cancelled.result = NCCLSVC_PERMISSION;
			continue;
		}
		ev.cancelled.result = NCCLSVC_OK;
		if ((t->place == RUNNING && !t->junction && !device_may_fail(e, t)) || t->ghost)
			continue;
		asked += t->junction != NULL;
		order_fail(e, t, &st); /* and with it, others of its collective */
	}
	ev.cancelled.count = live - e->live + asked;
	engine_event(e, &ev);
}

static void end_epoch(struct engine *e, const struct command *cmd)
{
	struct comm *c = e->comms[cmd->epoch_end.comm];
	struct epoch_end end = {cmd->epoch_end.result, cmd->epoch_end.rank, cmd->epoch_end.pid,
				cmd->epoch_end.node};
	order_run_ready(e); /* none may point to a communicator that goes */
	if (c->span)
		span_begin_end(e, c, &end);
	else
		order_end_epoch(e, c, &end);
}

/* ---- Commands ---- */

static void run_command(struct engine *e, const struct command *c)
{
	struct session *s = c->session < e->config.sessions_max ? e->sessions[c->session] : NULL;
	int error = 0;
	switch (c->kind) {
	case COMMAND_SESSION_ADD:
		error = add_session(e, c);
		break;
	case COMMAND_SESSION_RING:
		error = add_ring(e, s, c);
		break;
	case COMMAND_SESSION_DEL:
		remove_session(e, s);
		break;
	case COMMAND_REGION_ADD:
		error = add_region(e, s, c);
		break;
	case COMMAND_REGION_DEL:
		remove_region_later(e, c);
		break;
	case COMMAND_EPOCH_START:
		error = start_epoch(e, c);
		break;
	case COMMAND_EPOCH_END:
		end_epoch(e, c);
		break;
	case COMMAND_MEMBER_LEFT:
		order_run_ready(e);
		order_member_left(e, e->comms[c->left.comm], c->left.rank);
		break;
	case COMMAND_TASK:
		intake_socket(e, s, c->task.serial, &c->task.record);
		break;
	case COMMAND_CANCEL:
		cancel(e, c);
		break;
	case COMMAND_DRAIN:
		e->draining = true;
		break;
	case COMMAND_PING:
		engine_event(e, &(struct event){.kind = EVENT_PONG});
		break;
	case COMMAND_STOP:
		e->stop = true;
		break;
	case COMMAND_DEVICE_ADD:
		device_add(e, c->device.device, c->device.queue, c->device.doorbell);
		break;
	case COMMAND_STAGING:
		error = staged_add_memory(e, c);
		break;
	case COMMAND_DEVICE_WORKER:
		staged_worker(e, c->worker.device, c->worker.generation);
		break;
	case COMMAND_PLAN_ADD:
		plan_add(e, e->comms[c->plan.comm], c->plan.plan);
		break;
	case COMMAND_PLAN_DROP:
		plan_drop(e, c);
		break;
	case COMMAND_NODE_LOST:
		span_node_lost(e, c->node.node);
		break;
	case COMMAND_EPOCH_RELEASE:
		device_release_inputs(e->comms[c->epoch_end.comm]);
		break;
	case COMMAND_MAKE:
		making_add(e, c->making);
		break;
	case COMMAND_MAKE_NOT:
		making_cancel(e, c->making_number);
		break;
	case COMMAND_EPOCH_DEAD:
		device_epoch_dead(e, e->comms[c->epoch_end.comm]);
		break;
	}
	/* Small allocations only: without them nothing can be kept consistent. */
	if (error)
		abort();
}

void engine_run_commands(struct engine *e)
{
	/* A record that is checked while its command runs may ask for the commands behind it. */
	struct command c;
	while (atomic_exchange(&e->commands_waiting, false)) {
		for (;;) {
			pthread_mutex_lock(&e->lock);
			bool any = e->commands_read < e->ncommands;
			if (any)
				c = e->commands[e->commands_read++];
			else
				e->commands_read = e->ncommands = 0;
			pthread_mutex_unlock(&e->lock);
			if (!any)
				break;
			run_command(e, &c);
		}
	}
}
