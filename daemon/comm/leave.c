/* SPDX-License-Identifier: Apache-2.0
 * Communicators: members that leave, those whose session ends, and all as the daemon exits. */
#include "base/clock.h"
#include "comm.h"
#include "comm_gpus.h"
#include "comms.h"
#include "gpu/nccl_comm.h"
#include "peer/comm_peer.h"
#include "remote.h"
#include "report.h"
#include "requests.h"

static void leave(struct session *c, struct communicator *m, int32_t rank)
{
	struct comms *s = m->comms;
	struct member *member = &m->members[rank];
	if (member->state == NCCLSVC_MEMBER_JOINED)
		remote_left(m, (uint32_t)rank, 0);
	else
		remote_unjoin(m, (uint32_t)rank, c->id, WITHDRAW_CANCELLED);
	const bool joining = member->state == NCCLSVC_MEMBER_JOINING;
	const bool starts = comm_is_still_there(m, (uint32_t)rank);
	if (joining) {
		m->joining--;
		session_error(c, m->reply_opcode, member->request_id, NCCLSVC_CANCELLED,
			      "the communicator was left before all had joined");
	} else if (member->state == NCCLSVC_MEMBER_JOINED) {
		scheduler_command(s->scheduler, &(struct command){.kind = COMMAND_MEMBER_LEFT,
								  .left = {m->slot, rank}});
	}
	if (member->suspended) /* the scheduler holds its tasks */
		scheduler_command(s->scheduler,
				  &(struct command){.kind = COMMAND_HELD,
						    .session = c->slot,
						    .held = {.kind = SVC_RESUME_NOT,
							     .number = member->handle}});
	if (m->split)
		comm_split_failed(m, NCCLSVC_PEER_GONE, rank);
	plan_commit_failed(m, NCCLSVC_PEER_GONE, rank);
	plan_member_gone(m, (uint32_t)rank);
	const bool broken_off =
		member->state == NCCLSVC_MEMBER_JOINED && peer_broken_off(m, (uint32_t)rank);
	comm_vacate(m, member, NCCLSVC_MEMBER_ABSENT);
	report_ending(m, c, rank, (struct ending){.how = NCCLSVC_ENDED_LEFT});
	if (broken_off) /* its kernels were to do something yet */
		comm_break_epoch(m, NCCLSVC_CAUSE_LEFT, rank);
	comm_event_for(m, NCCLSVC_CAUSE_LEFT,
		       &(ncclsvc_status){.result = NCCLSVC_CANCELLED,
					 .rank_a = rank,
					 .pid_a = c->pid,
					 .rank_b = -1});
	if (starts)
		comm_left_while_joining(s, m, rank);
}

void comm_leave(struct session *c, uint32_t request_id, uint32_t handle)
{
	int32_t rank = -1;
	struct communicator *m = comm_of_handle(c, handle, &rank);
	if (!m) {
		session_error(c, SVC_LEAVE, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", handle);
		return;
	}
	leave(c, m, rank);
	session_reply(c, SVC_LEAVE, request_id, NULL, 0, NULL, 0);
}

void comm_abort(struct session *c, uint32_t request_id, const struct svc_abort *request)
{
	int32_t rank = -1;
	struct communicator *m = comm_of_handle(c, request->comm, &rank);
	if (!m) {
		session_error(c, SVC_ABORT, request_id, NCCLSVC_NOT_FOUND,
			      "there is no communicator %u in this session", request->comm);
		return;
	}
	if (m->epoch == request->epoch && comm_takes_part(&m->members[rank])) {
		report_ending(m, c, rank, (struct ending){.how = NCCLSVC_ENDED_ABORTED});
		comm_break_epoch(m, NCCLSVC_CAUSE_ABORTED, rank);
	}
	session_reply(c, SVC_ABORT, request_id, NULL, 0, NULL, 0);
}

static bool waits_to_join(const struct membership *at, uint32_t request_id)
{
	const struct communicator *m = at->comm;
	return m && m->reply_opcode == SVC_JOIN && m->members[at->rank].request_id == request_id &&
	       m->members[at->rank].state == NCCLSVC_MEMBER_JOINING;
}

void comm_join_cancel(struct session *c, uint32_t request_id, uint32_t join)
{
	for (uint32_t i = 1; i < c->nmemberships; i++) {
		const struct membership at = c->memberships[i];
		if (!waits_to_join(&at, join))
			continue;
		leave(c, at.comm, at.rank);
		session_reply(c, SVC_JOIN_CANCEL, request_id, NULL, 0, NULL, 0);
		return;
	}
	session_error(c, SVC_JOIN_CANCEL, request_id, NCCLSVC_NOT_FOUND,
		      "no JOIN of this session with request id %u waits for an answer", join);
}

bool comm_session_gone(struct comms *s, struct session *c, uint64_t until_ns)
{
	/* A SPLIT that ends meanwhile may add a membership in an entry already visited. */
	for (; c->comms; c->leaving_at++) {
		if (c->leaving_at >= c->nmemberships)
			c->leaving_at = 0;
		const struct membership *at = &c->memberships[c->leaving_at];
		struct communicator *m = at->comm;
		if (!m)
			continue;
		if (clock_now() > until_ns)
			return false;
		int32_t rank = at->rank;
		struct member *member = &m->members[rank];
		uint32_t was = member->state;
		const bool starts = comm_is_still_there(m, (uint32_t)rank);
		if (was == NCCLSVC_MEMBER_JOINING)
			m->joining--;
		if (was != NCCLSVC_MEMBER_JOINED)
			remote_unjoin(m, (uint32_t)rank, c->id,
				      was == NCCLSVC_MEMBER_JOINING ? WITHDRAW_DIED
								    : WITHDRAW_CANCELLED);
		report_ending(m, c, rank, c->ending);
		comm_vacate(m, member,
			    was == NCCLSVC_MEMBER_JOINING ? NCCLSVC_MEMBER_ABSENT
							  : NCCLSVC_MEMBER_DEAD);
		if (was == NCCLSVC_MEMBER_JOINED)
			comm_break_epoch(m, NCCLSVC_CAUSE_MEMBER_DIED, rank);
		report_ended(m, c);
		if (was == NCCLSVC_MEMBER_BROKEN)
			report_ended_later(m, rank);
		/* If an epoch still runs, the session was no member of it. */
		comm_event(m,
			   epoch_runs(&m->life) ? NCCLSVC_CAUSE_LEFT : NCCLSVC_CAUSE_MEMBER_DIED);
		if (starts)
			comm_left_while_joining(s, m, rank);
		/* The messages that this causes are handled in this turn, too; otherwise they would
		 * all be due at once. */
		remote_handle_own(s);
	}
	return true;
}

void comm_close_all(struct comms *s, int reason)
{
	struct communicator *m, *tmp;
	HASH_ITER (hh, s->comms, m, tmp) {
		comm_event_for(m, NCCLSVC_CAUSE_DAEMON_ENDS,
			       &(ncclsvc_status){.result = reason, .rank_a = -1, .rank_b = -1});
		if (!m->nccl_comm || !epoch_held(&m->life))
			continue;
		if (m->lineage) /* its members' libraries find out what has run */
			comm_nccl_dead(m);
		else /* no operation that never ends may be left */
			nccl_comm_abort(m->nccl_comm, NULL);
	}
}
