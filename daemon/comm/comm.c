/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators and their members. A communicator goes through epochs. An epoch starts when every
 * rank has sent JOIN, and ends when a member dies: then the survivors and the process that takes
 * the free rank must JOIN again, and count their tasks from 0. The executor knows one epoch at a
 * time. join.c: a member takes a rank; leave.c: it gives the rank back; gpu.c: preparation of GPUs;
 * nodes.c: messages from other nodes.
 */
#include "comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "account/lateness.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/nofail.h"
#include "comms.h"
#include "consequences.h"
#include "gpu/gpu.h"
#include "gpu/nccl_comm.h"
#include "names.h"
#include "peer/peer.h"
#include "peer/shares.h"
#include "record/dump.h"
#include "record/record.h"
#include "remote.h"
#include "report.h"

static void reply_joined(struct communicator *m, uint32_t rank, unsigned opcode)
{
	struct member *member = &m->members[rank];
	struct svc_join_reply r = {
		.comm_uid = m->uid,
		.comm = member->handle,
		.epoch = m->epoch,
		.nranks = (int32_t)m->nranks,
		.rank = (int32_t)rank,
	};
	memcpy(r.id, m->id, sizeof(r.id));
	memcpy(r.label, m->label, sizeof(r.label));
	r.peer_bytes = peer_bytes(m);
	client_reply(member->client, opcode, member->serial, &r, sizeof(r), NULL, 0);
}

/* ---- Creating and forgetting ---- */

static void set_label(struct communicator *m)
{
	snprintf(m->label, sizeof(m->label), "%02x%02x%02x%02x", m->id[0], m->id[1], m->id[2],
		 m->id[3]);
}

void comm_name(struct communicator *m, const struct client *c, const char label[NCCLSVC_NAME_BYTES])
{
	const bool first = !m->occupied;
	if (first)
		memcpy(m->job, c->job[0] ? c->job : c->cgroup, sizeof(m->job));
	if (m->world || !label[0] || (m->named && !first))
		return;
	m->named = true;
	memcpy(m->label, label, sizeof(m->label));
}

void comm_note_idle(struct communicator *m)
{
	struct comms *s = m->comms;
	if (m->prev_idle)
		DL_DELETE2(s->idle, m, prev_idle, next_idle);
	m->prev_idle = NULL;
	if (comm_is_forgettable(m))
		DL_APPEND2(s->idle, m, prev_idle, next_idle);
}

/* The communicator that has been idle longest gives its slot to a new one. A communicator that was
 * just created is not in the list. of: the owner; NULL: any. False: there is none. */
static bool evict(struct comms *s, const struct account *of)
{
	struct communicator *m = s->idle;
	while (m && of && m->account != of)
		m = m->next_idle;
	if (m)
		comm_forget(s, m);
	return m;
}

/* A user over the limit frees one of the user's own idle communicators. Only a full daemon takes
 * another user's. */
static bool take_place(struct comms *s, struct account *a, char *text)
{
	if (account_take(a, SHARE_COMMS, 1, text))
		return true;
	if (evict(s, a) && account_take(a, SHARE_COMMS, 1, text))
		return true;
	return account_all_taken(a, SHARE_COMMS) && evict(s, NULL) &&
	       account_take(a, SHARE_COMMS, 1, text);
}

static struct communicator *allocate(struct comms *s, const struct account *a, uint32_t nranks)
{
	while (s->free_slot < SVC_COMMS_MAX && s->comm_by_slot[s->free_slot])
		s->free_slot++;
	if (s->free_slot == SVC_COMMS_MAX ||
	    deadlines_reserve(&s->joins, (uint32_t)s->accounts->held[SHARE_RANKS]))
		return NULL;
	struct communicator *m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->slot = s->free_slot;
	const uint64_t start = sizeof(*m->start) + nranks * sizeof(m->start->members[0]);
	const uint64_t bytes = nranks * sizeof(*m->members) + 2 * start;
	if (account_memory_left(a, bytes)) {
		m->members = calloc(nranks, sizeof(*m->members));
		m->starts[0] = calloc(1, start);
		m->starts[1] = calloc(1, start);
	}
	if (m->members && m->starts[0] && m->starts[1])
		return m;
	free(m->members);
	free(m->starts[0]);
	free(m->starts[1]);
	free(m);
	return NULL;
}

struct communicator *comm_create(struct comms *s, const uint8_t *id, uint32_t nranks,
				 struct account *a, char text[SVC_TEXT_BYTES])
{
	if (!account_take(a, SHARE_RANKS, nranks, text))
		return NULL;
	if (!take_place(s, a, text)) {
		account_give(a, SHARE_RANKS, nranks);
		return NULL;
	}
	struct communicator *m = allocate(s, a, nranks);
	if (!m) {
		account_give(a, SHARE_RANKS, nranks);
		account_give(a, SHARE_COMMS, 1);
		snprintf(text, SVC_TEXT_BYTES, "the daemon has no memory for a communicator");
		return NULL;
	}
	for (uint32_t k = 0; k < nranks; k++) {
		m->members[k].device = SVC_DEVICE_HOST;
		m->members[k].node = -1;
		m->members[k].staging_fd = -1;
	}
	m->comms = s;
	m->account = a;
	m->uid = ++s->last_comm;
	memcpy(m->id, id, sizeof(m->id));
	m->nranks = nranks;
	m->since_ns = m->idle_ns = clock_now();
	epoch_begin(&m->life, m->since_ns);
	set_label(m);
	s->comm_by_slot[m->slot] = m;
	s->ncomms++;
	HASH_ADD(hh, s->comms, id, sizeof(m->id), m);
	comm_deadline(m, comm_idle_end(m));
	return m;
}

void comm_forget(struct comms *s, struct communicator *m)
{
	comm_event(m, NCCLSVC_CAUSE_FORGOTTEN);
	nccl_comm_release(&m->nccl_comm);
	plan_forget(m);
	HASH_DEL(s->comms, m);
	if (m->prev_idle)
		DL_DELETE2(s->idle, m, prev_idle, next_idle);
	deadlines_remove(&s->deadlines, &m->deadline);
	s->comm_by_slot[m->slot] = NULL;
	if (m->slot < s->free_slot)
		s->free_slot = m->slot;
	s->ncomms--;
	account_give(m->account, SHARE_RANKS, m->nranks);
	account_give(m->account, SHARE_COMMS, 1);
	account_put(m->account);
	free(m->members);
	free(m->split);
	free(m->progress);
	free(m->lateness);
	free(m->pending);
	free(m->descriptions);
	free(m->starts[0]);
	free(m->starts[1]);
	remote_forget_unexpected(m);
	free(m);
}

void comm_hand_over(struct communicator *m, struct account *a)
{
	struct account *before = m->account;
	m->account = a;
	account_add(a, SHARE_RANKS, m->nranks);
	account_add(a, SHARE_COMMS, 1);
	account_give(before, SHARE_RANKS, m->nranks);
	account_give(before, SHARE_COMMS, 1);
	account_put(before);
}

int comms_open(struct comms *s)
{
	s->comm_by_slot = calloc(SVC_COMMS_MAX, sizeof(struct communicator *));
	return s->comm_by_slot ? deadlines_reserve(&s->deadlines, SVC_COMMS_MAX) : -ENOMEM;
}

int comm_create_world(struct comms *s)
{
	uint8_t id[NCCLSVC_ID_BYTES];
	uint32_t ranks = (uint32_t)s->config->ranks;
	if (coord_random_id(id))
		return -1;
	if (s->cluster) { /* node 0's id; node by node */
		memcpy(id, s->cluster->nodes[0].info.world, sizeof(id));
		ranks = 0;
		for (uint32_t i = 0; i < s->cluster->n; i++) {
			if (i == s->cluster->me)
				s->world_first = ranks;
			ranks += s->cluster->nodes[i].info.ranks;
		}
	}
	if (ranks > SVC_HOST_RANKS_MAX) {
		log_error("all nodes together have %u host ranks; the limit is %d: start them with "
			  "fewer (--ranks)",
			  ranks, SVC_HOST_RANKS_MAX);
		errno = EINVAL;
		return -1;
	}
	struct account *own = account_get(s->accounts, geteuid());
	char text[SVC_TEXT_BYTES] = "out of memory";
	s->world = own ? comm_create(s, id, ranks, own, text) : NULL;
	if (!s->world) {
		log_error("cannot create the world communicator: %s", text);
		errno = ENOMEM;
		return -1;
	}
	s->world->world = true;
	snprintf(s->world->label, sizeof(s->world->label), "world");
	return 0;
}

void comm_free_all(struct comms *s)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp)
		comm_forget(s, m);
	deadlines_fini(&s->deadlines);
	deadlines_fini(&s->joins);
	deadlines_fini(&s->looks);
	deadlines_fini(&s->unshares);
	free(s->comm_by_slot);
}

/* ---- Handles ---- */

void comm_blameless_text(const struct communicator *m, int result, uint32_t asked,
			 char text[SVC_TEXT_BYTES])
{
	const struct coord *c = &m->comms->coord;
	if (c->n == 1 || result != NCCLSVC_TIMEOUT)
		snprintf(text, SVC_TEXT_BYTES, "communicator %s: %s", m->label,
			 svc_result_meaning(result));
	else
		snprintf(text, SVC_TEXT_BYTES,
			 "node %u (%s) does not answer; it knows the missing ranks of communicator "
			 "%s",
			 asked, coord_host(c, asked), m->label);
}

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
	c->memberships[i] = (struct membership){.comm = m, .rank = rank};
	if (!c->process.watched)
		client_watch_process(c);
	c->comms++;
	return i;
}

static struct membership *find_handle(struct client *c, uint32_t handle)
{
	if (!handle || handle >= c->nmemberships || !c->memberships[handle].comm)
		return NULL;
	return &c->memberships[handle];
}

void comm_vacate(struct communicator *m, struct member *member, uint32_t state)
{
	struct client *c = member->client;
	peer_staging_drop(member);
	c->memberships[member->handle] = (struct membership){0};
	c->comms--;
	m->occupied--;
	member->client = NULL;
	member->state = state;
	shares_left(m);
	comm_join_deadline(m->comms, member, 0);
	member->overdue = false;
}

/* ---- Epochs ---- */

bool comm_is_whole(const struct communicator *m)
{
	if (!epoch_runs(&m->life))
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].node < 0 && !comm_takes_part(&m->members[k]))
			return false;
	return true;
}

bool comm_is_still_there(const struct communicator *m, uint32_t k)
{
	const struct member *member = &m->members[k];
	return m->start && comm_is_member_here(m, k) && comm_alive(member) &&
	       member->state == NCCLSVC_MEMBER_JOINING &&
	       member->client->id == m->start->members[k].session &&
	       member->serial == m->start->members[k].serial;
}

/* Is the rank's member on another node, or gone since all had joined? False: it is here. */
static bool is_elsewhere(struct comms *s, struct communicator *m, uint32_t k,
			 struct epoch_member *told)
{
	struct member *member = &m->members[k];
	const struct control_member *who = &m->start->members[k];
	bool here = who->node == s->coord.me;
	*told = (struct epoch_member){
		.session = EPOCH_ELSEWHERE, .device = -1, .pid = who->pid, .node = who->node};
	if (comm_is_still_there(m, k))
		return false;
	if (here)
		return true;
	member->node = (int32_t)who->node;
	member->pid = member->far_pid = who->pid;
	member->device = m->cuda ? who->device : SVC_DEVICE_HOST;
	member->state = NCCLSVC_MEMBER_JOINED;
	m->remote++;
	return true;
}

/* Returns a rank whose member has gone since all had joined; -1: none. */
static int32_t fill_members(struct comms *s, struct communicator *m, struct epoch_member *members)
{
	int32_t vanished = -1;
	m->remote = 0;
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		member->node = -1;
		member->ending = (struct ending){0};
		if (is_elsewhere(s, m, k, &members[k])) {
			if (member->node < 0)
				vanished = (int32_t)k;
			continue;
		}
		members[k] = (struct epoch_member){
			.session = member->client->slot,
			.handle = member->handle,
			.device = member->device,
			.pid = member->pid,
			.node = s->coord.me,
		};
		member->state = NCCLSVC_MEMBER_JOINED;
		member->client->failure = 0; /* it goes on */
		comm_join_deadline(s, member, 0);
		member->overdue = false;
		m->joining--;
	}
	return vanished;
}

static enum transport_kind transport_of(const struct comms *s, const struct communicator *m)
{
	if (!m->cuda)
		return m->remote ? TRANSPORT_INTERNODE : TRANSPORT_HOST;
	return s->gpus->staging ? TRANSPORT_STAGED : TRANSPORT_NCCL;
}

/* A JOIN on this node for a rank of another node: it came after all had joined, or the rendezvous
 * was lost and its successor did not know of the member. */
static void turn_away_others(struct communicator *m)
{
	char text[SVC_TEXT_BYTES];
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		const struct control_member *who = &m->start->members[k];
		if (comm_is_member_here(m, k) || !comm_alive(member))
			continue;
		snprintf(text, sizeof(text),
			 "rank %u of communicator %s is held by pid %d, session %u of node %u (%s)",
			 k, m->label, who->pid, who->session, who->node,
			 coord_host(&m->comms->coord, who->node));
		if (member->state == NCCLSVC_MEMBER_JOINING) {
			remote_unjoin(m, k, member->client->id, WITHDRAW_CANCELLED);
			comm_refuse_join(m, k, NCCLSVC_RANK_TAKEN, text);
		}
		if (comm_alive(member))
			comm_vacate(m, member, NCCLSVC_MEMBER_ABSENT);
	}
}

static void start_epoch(struct comms *s, struct communicator *m)
{
	struct epoch_member *members = calloc(m->nranks, sizeof(*members));
	struct member_progress *progress = calloc(m->nranks, sizeof(*progress));
	struct comm_lateness *lateness = lateness_create(m->nranks);
	struct control_start *start = m->start;
	const bool over = m->start_is_over;
	if (!members || !progress || !lateness) {
		free(members);
		free(progress);
		free(lateness);
		comm_fail_joins(s, m, NCCLSVC_NO_MEMORY, -1,
				"the daemon has no memory for an epoch");
		return;
	}
	turn_away_others(m);
	m->epoch = start->epoch;
	m->failure = 0;
	m->ended_in_order.result = NCCLSVC_OK;
	m->refused_task.pid = 0;
	m->coordinator = start->members[0].node;
	comm_event(m, NCCLSVC_CAUSE_STARTED);
	m->split_round = m->plan_round = 0;
	m->split_lost = m->plan_lost = false;
	m->progress = progress;
	m->lateness = lateness;
	int32_t vanished = fill_members(s, m, members);
	comm_record_members(m, transport_of(s, m), members);
	if (vanished < 0)
		peer_begin(m);
	if (m->peer)
		m->pending = nofail_calloc(m->nranks, sizeof(*m->pending), "an epoch's members");
	m->begun = start;
	m->start = NULL;
	m->start_is_over = false;
	struct command cmd = {.kind = COMMAND_EPOCH_START};
	cmd.epoch_start.comm = m->slot;
	cmd.epoch_start.nranks = m->nranks;
	cmd.epoch_start.epoch = m->epoch;
	cmd.epoch_start.uid = m->uid;
	cmd.epoch_start.members = members;
	cmd.epoch_start.progress = progress;
	cmd.epoch_start.pending = m->pending;
	cmd.epoch_start.lateness = lateness;
	cmd.epoch_start.transport = transport_of(s, m);
	cmd.epoch_start.comm_slot = m->nccl_comm ? m->nccl_comm->slot : 0;
	cmd.epoch_start.internode_id = m->remote ? start->internode_id : 0;
	executor_command(s->executor, &cmd);
	/* The command is queued, so later submissions are behind it. A failed reply may end its
	 * session, and with it this epoch; the others must still be told that the epoch began. */
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_alive(&m->members[k]) && m->members[k].state == NCCLSVC_MEMBER_JOINED)
			reply_joined(m, k, m->reply_opcode);
	if (vanished >= 0)
		comm_break_epoch(m, NCCLSVC_CAUSE_MEMBER_DIED, vanished);
	if (over)
		comm_broken_elsewhere(m, &m->start_break);
	remote_handle_unexpected(m);
}

void comm_try_start(struct comms *s, struct communicator *m)
{
	if (s->loop->closing || epoch_held(&m->life) || !comm_all_joined(m))
		return;
	if (m->cuda && m->life.state == NCCLSVC_EPOCH_FORMING)
		comm_event(m, NCCLSVC_CAUSE_GPUS_AWAITED);
	if (!m->cuda || comm_gpus_ready(s, m))
		start_epoch(s, m);
}

void comm_epoch_gone(struct comms *s, uint32_t slot)
{
	struct communicator *m = s->comm_by_slot[slot];
	comm_event(m, NCCLSVC_CAUSE_RELEASED);
	free(m->progress);
	free(m->lateness);
	free(m->pending);
	m->progress = NULL;
	m->lateness = NULL;
	m->pending = NULL;
	nccl_comm_release(&m->nccl_comm);
	comm_try_start(s, m);
	if (m->cuda) /* others may have waited for its NCCL communicator */
		comm_gpu_ready(s);
}

void comm_close_all(struct comms *s, int reason)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp) {
		comm_event_for(m, NCCLSVC_CAUSE_DAEMON_ENDS,
			       &(ncclsvc_status){.result = reason, .rank_a = -1, .rank_b = -1});
		if (m->nccl_comm &&
		    epoch_held(&m->life)) /* no operation that never ends may be left */
			nccl_comm_abort(m->nccl_comm, NULL);
	}
}

/* 1 + the node at fault; 0: none. */
static uint32_t lost_node(const ncclsvc_status *st)
{
	return st->field == NCCLSVC_FIELD_NODE ? (uint32_t)st->value_a + 1 : 0;
}

static void tell_end(struct communicator *m, uint32_t k, const ncclsvc_status *why, int32_t rank)
{
	struct member *member = &m->members[k];
	struct svc_event_comm ev = {
		.comm = member->handle,
		.epoch = m->epoch,
		.reason = why->result,
		.rank = rank,
		.pid = rank >= 0 ? m->members[rank].pid : 0,
		.status = *why,
	};
	member->state = NCCLSVC_MEMBER_BROKEN;
	ev.status.epoch = m->epoch;
	client_comm_event(member->client, &ev);
}

/* ended: the rank that the epoch lacks, or -1; told: what members are told. */
static void end_epoch(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why,
		      int32_t ended, const ncclsvc_status *told, int32_t told_rank)
{
	const uint32_t node = lost_node(why);
	const bool failure = recorder_dump_wanted(m, told);
	comm_event_for(m, cause, told);
	if (failure)
		recorder_dump_for(m, told);
	comm_split_failed(m, told->result, told_rank);
	plan_commit_failed(m, told->result, told_rank);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		bool gone = (int32_t)k == ended && why->result == NCCLSVC_PEER_GONE && !node;
		if (!comm_alive(member) && member->node >= 0) { /* on another node */
			bool dead = gone || (uint32_t)member->node + 1 == node;
			member->state = dead ? NCCLSVC_MEMBER_DEAD : NCCLSVC_MEMBER_BROKEN;
		}
		if (comm_takes_part(member))
			tell_end(m, k, told, told_rank);
	}
}

void comm_end_epoch(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why,
		    int32_t rank)
{
	end_epoch(m, cause, why, rank, why, rank);
}

/* Adds the GPU and the pid of the lost worker, unless it is another node's. */
static void name_worker(const struct communicator *m, ncclsvc_status *why)
{
	const struct member *member = why->rank_a >= 0 ? &m->members[why->rank_a] : NULL;
	const struct gpu *g =
		member && member->node < 0 ? gpu_find(m->comms->gpus, member->device) : NULL;
	if (!g)
		return;
	why->value_a = (uint64_t)g->index;
	why->pid_b = g->info.pid;
}

void comm_break_after(struct communicator *m, ncclsvc_epoch_cause cause, int reason, int32_t rank,
		      int32_t node, const ncclsvc_status *first)
{
	ncclsvc_status why = {
		.result = reason,
		.field = node >= 0 ? NCCLSVC_FIELD_NODE : NCCLSVC_FIELD_NONE,
		.value_a = node >= 0 ? (uint64_t)node : 0,
		.rank_a = rank,
		.pid_a = rank >= 0 ? m->members[rank].pid : 0,
		.rank_b = -1,
		.ending = rank >= 0 ? m->members[rank].ending.how : NCCLSVC_ENDED_UNKNOWN,
		.ending_code = rank >= 0 ? m->members[rank].ending.code : 0,
	};
	if (reason == NCCLSVC_WORKER_LOST)
		name_worker(m, &why);
	ncclsvc_status told = why;
	if (m->life.state == NCCLSVC_EPOCH_LEFT)
		comm_event_for(m, cause, &why);
	if (!epoch_runs(&m->life))
		return;
	report_epoch(m, &told, first);
	end_epoch(m, cause, &why, rank, &told, told.rank_a);
}

void comm_break_for(struct communicator *m, ncclsvc_epoch_cause cause, int reason, int32_t rank,
		    int32_t node)
{
	comm_break_after(m, cause, reason, rank, node, NULL);
}

void comm_break_epoch(struct communicator *m, ncclsvc_epoch_cause cause, int32_t rank)
{
	const bool tell = epoch_runs(&m->life);
	comm_break_for(m, cause, NCCLSVC_PEER_GONE, rank, -1);
	if (tell)
		remote_break(m, NCCLSVC_PEER_GONE, rank, -1);
}

void comm_gpu_lost(struct communicator *m, int result, int32_t rank)
{
	const bool tell = epoch_lives(&m->life);
	comm_break_for(m, NCCLSVC_CAUSE_GPU_LOST, result, rank, -1);
	if (tell)
		remote_break(m, result, rank, -1);
}

struct communicator *comm_of_handle(struct client *c, uint32_t handle, int32_t *rank)
{
	const struct membership *at = find_handle(c, handle);
	if (at)
		*rank = at->rank;
	return at ? at->comm : NULL;
}
