/* SPDX-License-Identifier: Apache-2.0
 * JOINs that fail: refused, overdue, or of an epoch that cannot begin. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/timings.h"
#include "comm.h"
#include "comm_gpus.h"
#include "comms.h"
#include "coord/rendezvous.h"
#include "gpu/gpu.h"
#include "remote.h"
#include "report.h"
#include "requests.h"

static void report_join(struct communicator *m, int32_t rank, int32_t pid, int result,
			const char *text)
{
	char request[64];
	snprintf(request, sizeof(request), "JOIN of rank %d (pid %d)", rank, pid);
	report_request(m, request, result, text);
}

void comm_turn_away(struct session *c, struct communicator *m, uint32_t request_id, int32_t rank,
		    int result, const char *format, ...)
{
	char text[SVC_TEXT_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	refusal_note(&m->refused, rank, c->pid, text);
	session_error(c, SVC_JOIN, request_id, result, "%s", text);
	report_join(m, rank, c->pid, result, text);
	remote_refused(m, result, text);
}

void comm_refuse_join(struct communicator *m, uint32_t rank, int result, const char *text)
{
	struct member *member = &m->members[rank];
	struct session *c = member->session;
	uint32_t request_id = member->request_id;
	member->state = NCCLSVC_MEMBER_BROKEN;
	comm_join_deadline(m->comms, member, 0);
	member->late = result == NCCLSVC_TIMEOUT;
	if (result != NCCLSVC_AGAIN && (!member->late || !m->late_reported))
		report_join(m, (int32_t)rank, member->pid, result, text);
	m->late_reported |= member->late;
	m->joining--;
	if (member->fresh)
		comm_vacate(m, member, NCCLSVC_MEMBER_ABSENT);
	if (!comm_alive(member) && member->node >= 0 && epoch_runs(&m->life)) {
		member->state = NCCLSVC_MEMBER_JOINED; /* on another node, as before */
		member->pid = member->far_pid;
	}
	comm_event(m, member->late ? NCCLSVC_CAUSE_DEADLINE : NCCLSVC_CAUSE_REFUSED);
	session_error(c, m->reply_opcode, request_id, result, "%s", text);
}

/* ---- Epochs that cannot begin ---- */

/* The other nodes believe that it has begun. */
static void tell_not_begun(struct comms *s, struct communicator *m, int result, int32_t rank,
			   bool all)
{
	m->epoch = m->start->epoch;
	if (m->cuda && !s->gpus->staging && comm_across_nodes(m))
		comm_pool_withdraw(m, result, rank);
	remote_not_begun(m, result, rank, -1, all);
	comm_name_epoch(s, m->slot, 0);
	m->start = NULL;
	m->start_is_over = false;
}

static void answer_joins(struct communicator *m, ncclsvc_epoch_cause cause, int result,
			 const char *why)
{
	if (m->joining && result != NCCLSVC_AGAIN)
		report_request(m, "JOIN", result, why);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct member *member = &m->members[k];
		struct session *c = member->session;
		uint32_t request_id = member->request_id;
		if (member->state != NCCLSVC_MEMBER_JOINING)
			continue;
		m->joining--;
		member->state = NCCLSVC_MEMBER_BROKEN;
		comm_join_deadline(m->comms, member, 0);
		if (member->fresh)
			remote_unjoin(m, k, c->id, WITHDRAW_CANCELLED);
		if (member->fresh)
			comm_vacate(m, member, NCCLSVC_MEMBER_ABSENT);
		session_error(c, m->reply_opcode, request_id, result, "%s", why);
	}
	comm_event(m, cause);
}

void comm_fail_joins(struct comms *s, struct communicator *m, int result, int32_t rank,
		     const char *why)
{
	if (m->start)
		tell_not_begun(s, m, result, rank, true);
	answer_joins(
		m, result == NCCLSVC_TIMEOUT ? NCCLSVC_CAUSE_DEADLINE : NCCLSVC_CAUSE_START_FAILED,
		result, why);
}

void comm_not_begun(struct communicator *m, ncclsvc_epoch_cause cause, int result, const char *why)
{
	if (m->start)
		tell_not_begun(m->comms, m, result, -1, false);
	answer_joins(m, cause, result, why);
}

void comm_join_again(struct communicator *m, int32_t rank, bool all)
{
	bool again[SVC_HOST_RANKS_MAX];
	for (uint32_t k = 0; k < m->nranks; k++)
		again[k] = (int32_t)k != rank && comm_is_still_there(m, k);
	tell_not_begun(m->comms, m, NCCLSVC_PEER_GONE, rank, all);
	comm_event(m, NCCLSVC_CAUSE_START_FAILED);
	for (uint32_t k = 0; k < m->nranks; k++)
		if (again[k])
			remote_join(m, k);
}

void comm_left_while_joining(struct comms *s, struct communicator *m, int32_t rank)
{
	if (!m->cuda)
		return;
	if (comm_can_wait(m))
		comm_join_again(m, rank, true);
	else
		comm_fail_joins(s, m, NCCLSVC_PEER_GONE, rank,
				"a member left or died before the split was done");
}

/* ---- Deadlines ---- */

/* An epoch on GPUs needs their workers. False: all are ready. */
static bool name_lost_gpu(const struct comms *s, const struct communicator *m, uint32_t rank,
			  char *text, size_t size)
{
	for (uint32_t k = 0; m->cuda && k < m->nranks; k++) {
		int32_t device = m->members[k].device;
		const struct gpu *g =
			device < 0 || !comm_alive(&m->members[k]) ? NULL : s->gpus->gpu[device];
		if (!g || g->info.state == NCCLSVC_DEVICE_READY)
			continue;
		snprintf(text, size,
			 "communicator %s waits for the worker of gpu%d, which %s by rank %u's "
			 "deadline%s%.90s",
			 m->label, g->index,
			 g->info.state == NCCLSVC_DEVICE_STARTING
				 ? "had not started"
				 : "was lost and had not restarted",
			 rank, g->info.text[0] ? ": " : "", g->info.text);
		return true;
	}
	return false;
}

/* The rendezvous knows which ranks are missing; its answer comes soon. */
static bool ask_missing(struct comms *s, struct communicator *m, uint32_t rank)
{
	struct member *member = &m->members[rank];
	if (member->overdue)
		return false;
	member->overdue = true;
	comm_join_deadline(s, member, clock_now() + NODE_ANSWER_NS);
	remote_unjoin(m, rank, member->session->id, WITHDRAW_LATE);
	return true;
}

void comm_expire_join(struct comms *s, struct communicator *m, uint32_t rank)
{
	struct absent_ranks absent = {0};
	char text[SVC_TEXT_BYTES];
	const bool lost = name_lost_gpu(s, m, rank, text, sizeof(text));
	const bool starts = comm_is_still_there(m, rank);
	if (!lost && !starts && ask_missing(s, m, rank))
		return;
	for (uint32_t k = 0; k < m->nranks; k++)
		if (comm_is_member_here(m, k) && m->members[k].state != NCCLSVC_MEMBER_JOINING)
			absent_add(&absent, k, m->members[k].late);
	if (!lost && !starts)
		comm_blameless_text(m, NCCLSVC_TIMEOUT, coord_rendezvous(&s->coord, m->id), text);
	else if (!lost && absent.never.n + absent.late.n)
		absent_text(&absent, m->label, rank, &m->refused, text);
	else if (!lost)
		snprintf(text, sizeof(text),
			 m->cuda ? "NCCL had not created communicator %s by rank %u's deadline"
				 : "the last epoch of communicator %s had not ended by rank %u's "
				   "deadline",
			 m->label, rank);
	if (starts && !comm_can_wait(m)) {
		comm_fail_joins(s, m, NCCLSVC_TIMEOUT, -1, text);
		return;
	}
	if (starts)
		comm_join_again(m, (int32_t)rank, true);
	if (m->members[rank].session)
		remote_unjoin(m, rank, m->members[rank].session->id, WITHDRAW_CANCELLED);
	comm_refuse_join(m, rank, NCCLSVC_TIMEOUT, text);
}
