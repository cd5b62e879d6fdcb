/* SPDX-License-Identifier: Apache-2.0
 * A communicator's state, and the events that change it, by the table of epoch.h. */
#include <utlist.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timings.h"
#include "comm.h"
#include "comms.h"
#include "consequences.h"
#include "gpu/gpu.h"
#include "peer/comm_peer.h"
#include "proto/names.h"
#include "record/record.h"

/* ---- Deadlines ---- */

uint64_t comm_completion_ns(const struct communicator *m)
{
	const uint64_t patience = gpu_patience_ns(m->comms->gpus);
	const uint64_t most = m->suspended ? EPOCH_SUSPEND_NS : EPOCH_LAND_NS;
	return patience < most ? patience : most;
}

void comm_deadline(struct communicator *m, uint64_t at_ns)
{
	struct comms *s = m->comms;
	if (m->deadline.place && m->deadline.at_ns <= at_ns)
		return;
	deadlines_remove(&s->deadlines, &m->deadline);
	deadlines_add(&s->deadlines, &m->deadline, at_ns); /* there is room */
	loop_deadline(s->loop, at_ns);
}

void comm_join_deadline(struct comms *s, struct member *member, uint64_t at_ns)
{
	deadlines_remove(&s->joins, &member->deadline);
	if (!at_ns)
		return;
	deadlines_add(&s->joins, &member->deadline, at_ns); /* there is room */
	loop_deadline(s->loop, at_ns);
}

uint64_t comm_idle_end(const struct communicator *m)
{
	return m->idle_ns + (uint64_t)m->comms->config->comm_idle_seconds * 1000000000;
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

/* ---- Members ---- */

bool comm_is_member_here(const struct communicator *m, uint32_t k)
{
	return !m->start || m->start->members[k].node == m->comms->coord.me;
}

bool comm_joins_in(const struct communicator *m, const struct control_start *start, uint32_t k)
{
	const struct member *member = &m->members[k];
	const struct control_member *who = &start->members[k];
	return who->node == m->comms->coord.me && comm_alive(member) &&
	       member->state == NCCLSVC_MEMBER_JOINING && member->pid == who->pid &&
	       member->session->id == who->session && member->request_id == who->request_id;
}

bool comm_is_still_there(const struct communicator *m, uint32_t k)
{
	return m->start && comm_joins_in(m, m->start, k);
}

bool comm_is_whole(const struct communicator *m)
{
	if (!epoch_runs(&m->life))
		return false;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (m->members[k].node < 0 && !comm_takes_part(&m->members[k]))
			return false;
	return true;
}

/* ---- Events ---- */

bool comm_all_joined(const struct communicator *m)
{
	return m->start != NULL;
}

void comm_name_epoch(struct comms *s, uint32_t slot, uint64_t internode_id)
{
	struct command cmd = {.kind = COMMAND_EPOCH_NAMED, .epoch_named = {slot, internode_id}};
	if (s->cluster)
		scheduler_command(s->scheduler, &cmd);
}

static enum members_here members_here_of(const struct communicator *m)
{
	const bool runs = epoch_lives(&m->life);
	if (m->comms->loop->closing)
		return MEMBERS_CLOSED;
	if (runs && !m->occupied)
		return m->cuda && m->remote ? MEMBERS_REMOTE : MEMBERS_NONE;
	if (runs)
		return MEMBERS_HELD;
	if (comm_all_joined(m))
		return MEMBERS_ALL;
	if (!m->occupied)
		return MEMBERS_NONE;
	return m->joining < m->occupied ? MEMBERS_HELD : MEMBERS_WAITING;
}

uint32_t comm_state(const struct communicator *m)
{
	switch (m->life.state) {
	case NCCLSVC_EPOCH_FORMING:
	case NCCLSVC_EPOCH_ACQUIRING:
		return NCCLSVC_COMM_FORMING;
	case NCCLSVC_EPOCH_BROKEN:
		return NCCLSVC_COMM_BROKEN;
	case NCCLSVC_EPOCH_RUNNING:
		return NCCLSVC_COMM_READY;
	case NCCLSVC_EPOCH_DRAINING:
		if (m->occupied)
			return m->joining < m->occupied ? NCCLSVC_COMM_BROKEN
							: NCCLSVC_COMM_FORMING;
		return NCCLSVC_COMM_IDLE;
	case NCCLSVC_EPOCH_IDLE:
	case NCCLSVC_EPOCH_LEFT:
	case NCCLSVC_EPOCH_GONE:
		break;
	}
	return NCCLSVC_COMM_IDLE;
}

/* Tells the scheduler, once per epoch. */
static void drain(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why)
{
	const ncclsvc_status held = {.result = EPOCH_SUSPENDED, .rank_a = -1, .rank_b = -1};
	struct comms *s = m->comms;
	m->plan = NULL; /* the scheduler returns it */
	comm_record_kernels(m, why->result);
	peer_end(m);
	if (m->cuda)
		comm_deadline(m, m->life.since_ns + comm_completion_ns(m));
	struct command cmd = {.kind = COMMAND_EPOCH_END};
	cmd.epoch_end.comm = m->slot;
	cmd.epoch_end.status =
		cause == NCCLSVC_CAUSE_SUSPENDED ? held : *consequences_pending(m, why);
	cmd.epoch_end.later = *why;
	scheduler_command(s->scheduler, &cmd);
}

static const char *members_name(enum members_here members)
{
	switch (members) {
	case MEMBERS_NONE:
		return "no member here";
	case MEMBERS_REMOTE:
		return "only members on other nodes";
	case MEMBERS_HELD:
		return "a member here does not wait in JOIN";
	case MEMBERS_WAITING:
		return "all members here wait in JOIN";
	case MEMBERS_ALL:
		return "all ranks have joined";
	case MEMBERS_CLOSED:
		return "the daemon exits";
	}
	return "?";
}

/* A defect of the daemon. Members are told that the epoch has ended, and may JOIN again. */
static void not_in_table(struct communicator *m, ncclsvc_epoch_cause cause,
			 enum members_here members)
{
	log_error(
		"communicator %s, epoch %u: a defect of the daemon: the cause \"%s\" in the state "
		"\"%s\" (%s) is not in the table of transitions; the epoch is ended",
		m->label, m->epoch, svc_epoch_cause_name(cause),
		svc_epoch_state_name(m->life.state), members_name(members));
	if (cause != NCCLSVC_CAUSE_RELEASED) /* the scheduler has nothing to end */
		m->comms->callbacks->not_in_table(m, cause);
}

void comm_event_for(struct communicator *m, ncclsvc_epoch_cause cause, const ncclsvc_status *why)
{
	const enum members_here members = members_here_of(m);
	const ncclsvc_epoch_state was = m->life.state;
	const uint64_t now = clock_now();
	if (!epoch_step(&m->life, cause, members, now)) {
		not_in_table(m, cause, members);
		return;
	}
	if (was != m->life.state)
		log_debug("communicator %s, epoch %u: %s -> %s (%s)", m->label, m->epoch,
			  svc_epoch_state_name(was), svc_epoch_state_name(m->life.state),
			  svc_epoch_cause_name(cause));
	if (!m->occupied) {
		m->idle_ns = now;
		if (!m->world)
			comm_deadline(m, comm_idle_end(m));
	}
	comm_note_idle(m);
	if (was != m->life.state && m->life.state == NCCLSVC_EPOCH_DRAINING)
		drain(m, cause, why);
}

void comm_event(struct communicator *m, ncclsvc_epoch_cause cause)
{
	comm_event_for(m, cause,
		       &(ncclsvc_status){.result = NCCLSVC_CANCELLED, .rank_a = -1, .rank_b = -1});
}

bool comm_sleeps(const struct communicator *m)
{
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_takes_part(&m->members[k]) && !m->members[k].asleep)
			return false;
	return true;
}
