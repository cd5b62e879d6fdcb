/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: who sits where. A communicator lives through epochs. An epoch starts when every
 * seat is taken by a JOIN, and ends when a member dies: then the survivors must JOIN again, beside
 * whoever takes the empty seat, and count their tasks from 0. The executor knows one epoch at a
 * time.
 */
#include "comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "log.h"

#define LANDING_NS_MAX UINT64_C(10000000000) /* for launched tasks, once their epoch is over */

static uint64_t landing_ns(const struct server *s)
{
	uint64_t patience = gpu_patience_ns(s);
	return patience < LANDING_NS_MAX ? patience : LANDING_NS_MAX;
}

static bool alive(const struct seat *seat)
{
	return seat->client != NULL;
}

static void reply_joined(struct communicator *m, uint32_t rank, unsigned opcode)
{
	struct seat *seat = &m->seats[rank];
	struct svc_join_reply r = {
		.comm_uid = m->uid,
		.comm = seat->handle,
		.epoch = m->epoch,
		.nranks = (int32_t)m->nranks,
		.rank = (int32_t)rank,
	};
	memcpy(r.id, m->id, sizeof(r.id));
	client_reply(seat->client, opcode, seat->serial, &r, sizeof(r), NULL, 0);
}

/* ---- Making and forgetting ---- */

static void set_label(struct communicator *m)
{
	snprintf(m->label, sizeof(m->label), "%02x%02x%02x%02x", m->id[0], m->id[1], m->id[2],
		 m->id[3]);
}

struct communicator *comm_create(struct server *s, const uint8_t *id, uint32_t nranks,
				 uint32_t owner)
{
	uint32_t slot = 0;
	struct account *a = memory_account(s, owner);
	if (!a)
		return NULL;
	if (s->ncomms >= (uint32_t)s->config->comms_max || nranks > SVC_USER_RANKS - a->ranks) {
		memory_account_drop(s, a);
		return NULL;
	}
	while (slot < SVC_COMMS_MAX && s->comm_by_slot[slot])
		slot++;
	struct communicator *m = slot < SVC_COMMS_MAX ? calloc(1, sizeof(*m)) : NULL;
	struct seat *seats = calloc(nranks, sizeof(*seats));
	if (!m || !seats) {
		memory_account_drop(s, a);
		free(m);
		free(seats);
		return NULL;
	}
	for (uint32_t k = 0; k < nranks; k++)
		seats[k].device = SVC_DEVICE_HOST;
	m->seats = seats;
	a->ranks += nranks;
	m->account = a;
	m->slot = slot;
	m->uid = ++s->last_comm;
	memcpy(m->id, id, sizeof(m->id));
	m->nranks = nranks;
	m->owner = owner;
	m->state = NCCLSVC_COMM_IDLE;
	m->since_ns = m->idle_ns = server_now();
	set_label(m);
	s->comm_by_slot[slot] = m;
	s->ncomms++;
	HASH_ADD(hh, s->comms, id, sizeof(m->id), m);
	return m;
}

static void comm_free(struct server *s, struct communicator *m)
{
	physical_release(m);
	HASH_DEL(s->comms, m);
	s->comm_by_slot[m->slot] = NULL;
	s->ncomms--;
	m->account->ranks -= m->nranks;
	memory_account_drop(s, m->account);
	free(m->seats);
	free(m->split);
	free(m->board);
	free(m);
}

int comm_create_world(struct server *s)
{
	uint8_t id[NCCLSVC_ID_BYTES];
	if (comm_random_id(id))
		return -1;
	s->world = comm_create(s, id, (uint32_t)s->config->ranks, geteuid());
	if (!s->world)
		return -1;
	s->world->world = true;
	snprintf(s->world->label, sizeof(s->world->label), "world");
	return 0;
}

void comm_free_all(struct server *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		comm_free(s, m);
}

/* Nobody sits there any more: kept for comm_idle_seconds, so that a restart finds it. */
static void check_idle(struct server *s, struct communicator *m)
{
	if (m->occupied)
		return;
	m->state = NCCLSVC_COMM_IDLE;
	m->idle_ns = server_now();
	if (!m->world)
		server_deadline(s,
				m->idle_ns + (uint64_t)s->config->comm_idle_seconds * 1000000000);
}

/* ---- Handles ---- */

uint32_t comm_new_handle(struct client *c, struct communicator *m, int32_t rank)
{
	uint32_t i = 1;
	while (i < c->nmemberships && c->memberships[i].comm)
		i++;
	if (i >= c->nmemberships) {
		uint32_t n = c->nmemberships ? c->nmemberships * 2 : 4;
		if (n > SVC_SESSION_COMMS)
			n = SVC_SESSION_COMMS;
		if (i >= n)
			return 0;
		struct membership *p = realloc(c->memberships, n * sizeof(*p));
		if (!p)
			return 0;
		memset(p + c->nmemberships, 0, (n - c->nmemberships) * sizeof(*p));
		c->memberships = p;
		c->nmemberships = n;
	}
	c->memberships[i] = (struct membership){m, rank};
	c->comms++;
	return i;
}

static struct membership *find_handle(struct client *c, uint32_t handle)
{
	if (!handle || handle >= c->nmemberships || !c->memberships[handle].comm)
		return NULL;
	return &c->memberships[handle];
}

static void vacate(struct communicator *m, struct seat *seat, uint32_t state)
{
	struct client *c = seat->client;
	c->memberships[seat->handle] = (struct membership){0};
	c->comms--;
	m->occupied--;
	seat->client = NULL;
	seat->state = state;
	seat->deadline_ns = 0;
}

void comm_discard(struct server *s, struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (alive(&m->seats[k]))
			vacate(m, &m->seats[k], NCCLSVC_MEMBER_ABSENT);
	comm_free(s, m);
}

/* ---- Epochs ---- */

static void start_epoch(struct server *s, struct communicator *m)
{
	struct epoch_member *members = calloc(m->nranks, sizeof(*members));
	struct board_entry *board = calloc(m->nranks, sizeof(*board));
	if (!members || !board) {
		log_error("communicator %s: out of memory", m->label);
		abort();
	}
	m->epoch++;
	m->state = NCCLSVC_COMM_READY;
	m->joining = 0;
	m->running = true;
	m->ended = false;
	m->board = board;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct seat *seat = &m->seats[k];
		members[k] = (struct epoch_member){seat->client->slot, seat->handle, seat->device};
		seat->state = NCCLSVC_MEMBER_JOINED;
		seat->deadline_ns = 0;
	}
	struct command cmd = {.kind = COMMAND_EPOCH_START};
	cmd.epoch_start.comm = m->slot;
	cmd.epoch_start.nranks = m->nranks;
	cmd.epoch_start.epoch = m->epoch;
	cmd.epoch_start.uid = m->uid;
	cmd.epoch_start.members = members;
	cmd.epoch_start.board = board;
	cmd.epoch_start.cuda = m->cuda;
	cmd.epoch_start.lane = m->physical ? m->physical->lane : 0;
	server_command(s, &cmd);
	/* The command is in the queue: whoever submits now is behind it. A reply that fails may end
	 * its session, and with it this epoch; the others must still hear that it was. */
	for (uint32_t k = 0; k < m->nranks; k++)
		if (alive(&m->seats[k]))
			reply_joined(m, k, m->reply_opcode);
}

/* ---- Communicators of GPUs: what an epoch of theirs needs first ---- */

static bool physical_fits(const struct communicator *m)
{
	const struct physical *p = m->physical;
	if (!p || !p->ready || p->bad)
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (p->devices[k] != m->seats[k].device)
			return false;
	return true;
}

/* True: every worker is there and knows its member's timelines, and NCCL has a communicator. Else
 * whatever is missing has been asked for, and the answer comes back here. */
static bool gpus_ready(struct server *s, struct communicator *m)
{
	bool known = true;
	if (m->acquiring)
		return false;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct gpu *g = s->gpus[m->seats[k].device];
		if (g->info.state != NCCLSVC_DEVICE_READY)
			return false;
		known = gpu_session_known(g, m->seats[k].client) && known;
	}
	if (!known || physical_fits(m))
		return known;
	uint64_t due = physical_due(s, m);
	if (due) {
		server_deadline(s, due);
		return false;
	}
	physical_release(m);
	m->acquiring = true;
	physical_acquire(s, m);
	if (!physical_fits(m))
		return false;
	m->acquiring = false;
	return true;
}

void comm_try_start(struct server *s, struct communicator *m)
{
	if (m->joining == m->nranks && !m->running && (!m->cuda || gpus_ready(s, m)))
		start_epoch(s, m);
}

static void fail_joins(struct server *s, struct communicator *m, int result, const char *why)
{
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct seat *seat = &m->seats[k];
		struct client *c = seat->client;
		uint32_t serial = seat->serial;
		if (seat->state != NCCLSVC_MEMBER_JOINING)
			continue;
		m->joining--;
		seat->state = NCCLSVC_MEMBER_BROKEN;
		seat->deadline_ns = 0;
		if (seat->fresh)
			vacate(m, seat, NCCLSVC_MEMBER_ABSENT);
		client_error(c, m->reply_opcode, serial, result, "%s", why);
	}
	check_idle(s, m);
}

void comm_physical_ready(struct communicator *m, int result, const char *why)
{
	struct server *s = m->account->server;
	m->acquiring = false;
	if (result)
		fail_joins(s, m, result, why);
	else
		comm_try_start(s, m);
}

void comm_gpu_ready(struct server *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		if (m->cuda)
			comm_try_start(s, m);
}

void comm_session_known(struct client *c)
{
	for (uint32_t i = 1; i < c->nmemberships; i++)
		if (c->memberships[i].comm && c->memberships[i].comm->cuda)
			comm_try_start(c->server, c->memberships[i].comm);
}

void comm_epoch_gone(struct server *s, uint32_t slot)
{
	struct communicator *m = s->comm_by_slot[slot];
	m->running = false;
	free(m->board);
	m->board = NULL;
	physical_release(m);
	comm_try_start(s, m);
	if (m->cuda) /* others may have waited for its NCCL communicator */
		comm_gpu_ready(s);
	if (m->state == NCCLSVC_COMM_IDLE)
		check_idle(s, m);
}

static void end_epoch(struct server *s, struct communicator *m, int result, int32_t rank,
		      int32_t pid)
{
	if (!m->running || m->ended)
		return;
	m->ended = true;
	m->ended_ns = server_now();
	if (m->cuda)
		server_deadline(s, m->ended_ns + landing_ns(s));
	struct command cmd = {.kind = COMMAND_EPOCH_END};
	cmd.epoch_end.comm = m->slot;
	cmd.epoch_end.result = result;
	cmd.epoch_end.rank = rank;
	cmd.epoch_end.pid = pid;
	server_command(s, &cmd);
}

void comm_close_all(struct server *s, int reason)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp) {
		end_epoch(s, m, reason, -1, 0);
		m->state = NCCLSVC_COMM_BROKEN;
		if (m->physical && m->running) /* nothing may be left that never ends */
			physical_abort(m->physical, NULL);
	}
}

/* Ends the epoch because of one member, or of its GPU; the others are told to rejoin. */
static void break_epoch_for(struct server *s, struct communicator *m, int reason, int32_t rank)
{
	int32_t pid = m->seats[rank].pid;
	if (m->state != NCCLSVC_COMM_READY)
		return;
	m->state = NCCLSVC_COMM_BROKEN;
	end_epoch(s, m, reason, rank, pid);
	comm_split_failed(m, reason, rank);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct seat *seat = &m->seats[k];
		bool gone = (int32_t)k == rank && reason == NCCLSVC_PEER_GONE;
		if (!alive(seat) || seat->state != NCCLSVC_MEMBER_JOINED || gone)
			continue;
		seat->state = NCCLSVC_MEMBER_BROKEN;
		struct svc_event_comm ev = {
			.comm = seat->handle,
			.epoch = m->epoch,
			.reason = reason,
			.rank = rank,
			.pid = pid,
		};
		client_event(seat->client, SVC_EVENT_COMM, &ev, sizeof(ev));
	}
}

static void break_epoch(struct server *s, struct communicator *m, int32_t rank)
{
	break_epoch_for(s, m, NCCLSVC_PEER_GONE, rank);
}

void comm_gpu_lost(struct communicator *m, int result, int32_t rank)
{
	break_epoch_for(m->account->server, m, result, rank);
}

/* A part of a split that lost a member before it began. */
void comm_abandon(struct server *s, struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct client *c = m->seats[k].client;
		uint32_t serial = m->seats[k].serial;
		if (!c)
			continue;
		m->joining--;
		vacate(m, &m->seats[k], NCCLSVC_MEMBER_ABSENT);
		client_error(c, SVC_SPLIT, serial, NCCLSVC_PEER_GONE,
			     "a member went before the split was done");
	}
	check_idle(s, m);
}

/* ---- Joining ---- */

static bool check_join(struct client *c, uint32_t serial, const struct svc_join *j)
{
	const char *wrong = NULL;
	bool world = j->flags & SVC_JOIN_WORLD;
	if (j->flags & ~SVC_JOIN_WORLD)
		wrong = "unknown flags";
	else if (j->timeout_ns > SVC_TIMEOUT_MAX_NS)
		wrong = "the timeout is out of range";
	else if (world && (j->nranks || j->rank < -1))
		wrong = "the world is joined with nranks 0 and a rank, or -1 for any";
	else if (!world && j->nranks < 1)
		wrong = "nranks must be at least 1";
	else if (!world && (j->rank < 0 || j->rank >= j->nranks))
		wrong = "the rank must be from 0 to nranks - 1";
	if (wrong) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_INVALID_ARGUMENT, "%s", wrong);
		return false;
	}
	if (j->device != SVC_DEVICE_HOST && !gpu_find(c->server, j->device)) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_UNSUPPORTED,
			     "this daemon has no device %d (host ranks are -1)", j->device);
		return false;
	}
	if (j->device != SVC_DEVICE_HOST && world) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_UNSUPPORTED,
			     "the world's ranks are the host's (device -1)");
		return false;
	}
	if (j->device != SVC_DEVICE_HOST && (uint32_t)j->nranks > c->server->ngpus) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_INVALID_ARGUMENT,
			     "nranks is %d: each needs a GPU of its own, and this node has %u",
			     j->nranks, c->server->ngpus);
		return false;
	}
	if (!world && j->nranks > SVC_HOST_RANKS_MAX) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_LIMIT,
			     "a host communicator has at most %d ranks", SVC_HOST_RANKS_MAX);
		return false;
	}
	return true;
}

/* The communicator a JOIN names, made if need be; NULL after an error was sent. */
static struct communicator *find_or_create(struct client *c, uint32_t serial,
					   const struct svc_join *j)
{
	struct server *s = c->server;
	struct communicator *m = NULL;
	if (j->flags & SVC_JOIN_WORLD)
		m = s->world;
	else
		HASH_FIND(hh, s->comms, j->id, sizeof(j->id), m);
	/* One that nobody holds belongs to whoever comes next. */
	if (m && !m->occupied && m->owner != c->uid && m->world)
		m->owner = c->uid;
	if (m && m->owner != c->uid) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_PERMISSION,
			     "communicator %s belongs to user %u", m->label, m->owner);
		return NULL;
	}
	if (m && !(j->flags & SVC_JOIN_WORLD) && m->nranks != (uint32_t)j->nranks) {
		if (m->occupied || m->running || m->world) {
			client_error(c, SVC_JOIN, serial, NCCLSVC_MISMATCH,
				     "nranks differs: rank %d (pid %d) says %d, the members of "
				     "communicator %s said %u",
				     j->rank, c->pid, j->nranks, m->label, m->nranks);
			return NULL;
		}
		comm_free(s, m);
		m = NULL;
	}
	if (m)
		return m;
	m = comm_create(s, j->id, (uint32_t)j->nranks, c->uid);
	if (!m)
		client_error(c, SVC_JOIN, serial, NCCLSVC_LIMIT,
			     "the daemon has its limit of %d communicators (comms_max), or user "
			     "%u of %d ranks in all",
			     s->config->comms_max, c->uid, SVC_USER_RANKS);
	return m;
}

/* Members are all of the host or all of GPUs, each of its own. */
static bool device_fits(struct client *c, struct communicator *m, uint32_t serial,
			const struct svc_join *j, int32_t rank)
{
	if (!m->occupied && !m->running)
		m->cuda = j->device != SVC_DEVICE_HOST;
	if (m->cuda != (j->device != SVC_DEVICE_HOST)) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_MISMATCH,
			     "rank %d (pid %d) joins with %s, the members of communicator %s did "
			     "with %s",
			     rank, c->pid, m->cuda ? "host memory" : "a GPU", m->label,
			     m->cuda ? "GPUs" : "host memory");
		return false;
	}
	for (uint32_t k = 0; m->cuda && k < m->nranks; k++) {
		if ((int32_t)k == rank || !alive(&m->seats[k]) || m->seats[k].device != j->device)
			continue;
		client_error(c, SVC_JOIN, serial, NCCLSVC_INVALID_ARGUMENT,
			     "ranks %u (pid %d) and %d (pid %d) of communicator %s have both taken "
			     "device %d",
			     k, m->seats[k].pid, rank, c->pid, m->label, j->device);
		return false;
	}
	return true;
}

static int32_t any_free_rank(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (!alive(&m->seats[k]))
			return (int32_t)k;
	return -1;
}

static void take_seat(struct client *c, struct communicator *m, int32_t rank, uint32_t serial,
		      const struct svc_join *j)
{
	struct server *s = c->server;
	struct seat *seat = &m->seats[rank];
	/* Someone left while the others went on: a newcomer needs an epoch with all of them. */
	if (m->state == NCCLSVC_COMM_READY)
		break_epoch(s, m, rank);
	if (!alive(seat)) {
		seat->handle = comm_new_handle(c, m, rank);
		if (!seat->handle) {
			client_error(c, SVC_JOIN, serial, NCCLSVC_LIMIT,
				     "a session has at most %d communicators",
				     SVC_SESSION_COMMS - 1);
			return;
		}
		seat->client = c;
		seat->fresh = true;
		m->occupied++;
	} else {
		seat->fresh = false;
	}
	if (m->state == NCCLSVC_COMM_IDLE)
		m->state = NCCLSVC_COMM_FORMING;
	seat->state = NCCLSVC_MEMBER_JOINING;
	seat->pid = c->pid;
	seat->device = j->device;
	m->reply_opcode = SVC_JOIN;
	seat->serial = serial;
	seat->since_ns = server_now();
	seat->deadline_ns = j->timeout_ns ? seat->since_ns + j->timeout_ns : 0;
	m->joining++;
	if (seat->deadline_ns)
		server_deadline(s, seat->deadline_ns);
	comm_try_start(s, m);
}

void comm_join(struct client *c, uint32_t serial, const struct svc_join *j)
{
	struct server *s = c->server;
	if (!check_join(c, serial, j))
		return;
	struct communicator *m = find_or_create(c, serial, j);
	if (!m)
		return;
	int32_t rank = j->rank >= 0 ? j->rank : any_free_rank(m);
	if (rank < 0) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_LIMIT,
			     "all %u ranks of the world are taken", m->nranks);
		return;
	}
	if ((uint32_t)rank >= m->nranks) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_INVALID_ARGUMENT,
			     "rank %d is none of the %u ranks of the world (--ranks)", rank,
			     m->nranks);
		return;
	}
	const struct seat *seat = &m->seats[rank];
	/* Somebody left, so the epoch can do little more: its member may ask for the next. */
	if (seat->client == c && seat->state == NCCLSVC_MEMBER_JOINED && m->occupied < m->nranks)
		break_epoch(s, m, any_free_rank(m));
	if (alive(seat) && !(seat->client == c && seat->state == NCCLSVC_MEMBER_BROKEN)) {
		client_error(c, SVC_JOIN, serial, NCCLSVC_RANK_TAKEN,
			     "rank %d of communicator %s is held by pid %d, session %u", rank,
			     m->label, seat->client->pid, seat->client->id);
		return;
	}
	if (device_fits(c, m, serial, j, rank))
		take_seat(c, m, rank, serial, j);
}

/* ---- Leaving ---- */

void comm_leave(struct client *c, uint32_t serial, uint32_t handle)
{
	struct server *s = c->server;
	struct membership *at = find_handle(c, handle);
	if (!at) {
		client_error(c, SVC_LEAVE, serial, NCCLSVC_NOT_FOUND,
			     "there is no communicator %u in this session", handle);
		return;
	}
	struct communicator *m = at->comm;
	int32_t rank = at->rank;
	struct seat *seat = &m->seats[rank];
	if (seat->state == NCCLSVC_MEMBER_JOINING) {
		m->joining--;
		client_error(c, m->reply_opcode, seat->serial, NCCLSVC_CANCELLED,
			     "the communicator was left before all had joined");
	} else if (seat->state == NCCLSVC_MEMBER_JOINED) {
		server_command(
			s, &(struct command){.kind = COMMAND_MEMBER_LEFT, .left = {m->slot, rank}});
	}
	if (m->split)
		comm_split_failed(m, NCCLSVC_PEER_GONE, rank);
	vacate(m, seat, NCCLSVC_MEMBER_ABSENT);
	if (!m->occupied)
		end_epoch(s, m, NCCLSVC_CANCELLED, rank, c->pid);
	check_idle(s, m);
	client_reply(c, SVC_LEAVE, serial, NULL, 0, NULL, 0);
}

void comm_client_gone(struct client *c)
{
	struct server *s = c->server;
	for (uint32_t i = 1; i < c->nmemberships; i++) {
		struct communicator *m = c->memberships[i].comm;
		if (!m)
			continue;
		int32_t rank = c->memberships[i].rank;
		struct seat *seat = &m->seats[rank];
		uint32_t was = seat->state;
		if (was == NCCLSVC_MEMBER_JOINING)
			m->joining--;
		vacate(m, seat,
		       was == NCCLSVC_MEMBER_JOINING ? NCCLSVC_MEMBER_ABSENT : NCCLSVC_MEMBER_DEAD);
		if (was == NCCLSVC_MEMBER_JOINED)
			break_epoch(s, m, rank);
		else if (was == NCCLSVC_MEMBER_JOINING && m->reply_opcode == SVC_SPLIT)
			comm_abandon(s, m); /* it waits for its GPUs */
		check_idle(s, m);
	}
}

/* ---- Deadlines ---- */

void rank_names_add(struct rank_names *r, uint32_t rank)
{
	if (r->n++ < NCCLSVC_MISSING_SHOWN)
		r->at += (size_t)snprintf(r->text + r->at, sizeof(r->text) - r->at, "%s%u",
					  r->n > 1 ? ", " : "", rank);
}

const char *rank_names_text(struct rank_names *r)
{
	if (r->n > NCCLSVC_MISSING_SHOWN)
		snprintf(r->text + r->at, sizeof(r->text) - r->at, " and %u more",
			 r->n - NCCLSVC_MISSING_SHOWN);
	return r->text;
}

/* An epoch on GPUs needs their workers. False: they are all there. */
static bool name_lost_gpu(const struct server *s, const struct communicator *m, uint32_t rank,
			  char *text, size_t size)
{
	for (uint32_t k = 0; m->cuda && k < m->nranks; k++) {
		int32_t device = m->seats[k].device;
		const struct gpu *g = device < 0 ? NULL : s->gpus[device];
		if (!g || g->info.state == NCCLSVC_DEVICE_READY)
			continue;
		snprintf(text, size,
			 "communicator %s waits for the worker of gpu%d, which %s by rank %u's "
			 "deadline%s%.90s",
			 m->label, g->index,
			 g->info.state == NCCLSVC_DEVICE_STARTING ? "had not started"
								  : "was lost and not back",
			 rank, g->info.text[0] ? ": " : "", g->info.text);
		return true;
	}
	return false;
}

static void expire_join(struct server *s, struct communicator *m, uint32_t rank)
{
	struct seat *seat = &m->seats[rank];
	struct client *c = seat->client;
	struct rank_names missing = {0};
	char text[SVC_TEXT_BYTES];
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->seats[k].state != NCCLSVC_MEMBER_JOINING)
			rank_names_add(&missing, k);
	bool lost = name_lost_gpu(s, m, rank, text, sizeof(text));
	if (!lost && missing.n)
		snprintf(text, sizeof(text),
			 "of communicator %s, these ranks had not joined by rank %u's deadline: %s",
			 m->label, rank, rank_names_text(&missing));
	else if (!lost)
		snprintf(text, sizeof(text),
			 "NCCL had not made communicator %s by rank %u's deadline", m->label, rank);
	if (m->reply_opcode == SVC_SPLIT) { /* nobody else can ever come */
		fail_joins(s, m, NCCLSVC_TIMEOUT, text);
		return;
	}
	seat->state = NCCLSVC_MEMBER_BROKEN;
	seat->deadline_ns = 0;
	m->joining--;
	uint32_t serial = seat->serial;
	if (seat->fresh)
		vacate(m, seat, NCCLSVC_MEMBER_ABSENT);
	check_idle(s, m);
	client_error(c, SVC_JOIN, serial, NCCLSVC_TIMEOUT, "%s", text);
}

uint64_t comm_expire(struct server *s, uint64_t now)
{
	uint64_t next = 0;
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp) {
		for (uint32_t k = 0; k < m->nranks && m->joining; k++) {
			uint64_t at = m->seats[k].deadline_ns;
			if (!at)
				continue;
			if (at <= now)
				expire_join(s, m, k);
			else
				next = earlier(next, at);
		}
		next = earlier(next, comm_split_expire(m, now));
		if (m->cuda && m->joining == m->nranks)
			comm_try_start(s, m);
		if (m->cuda && m->running && m->ended && m->physical) {
			if (m->ended_ns + landing_ns(s) <= now)
				physical_abort(m->physical, "tasks of a past epoch do not end");
			else
				next = earlier(next, m->ended_ns + landing_ns(s));
		}
		if (m->state != NCCLSVC_COMM_IDLE || m->world || m->running)
			continue;
		uint64_t end = m->idle_ns + (uint64_t)s->config->comm_idle_seconds * 1000000000;
		if (end <= now)
			comm_free(s, m);
		else
			next = earlier(next, end);
	}
	return next;
}
