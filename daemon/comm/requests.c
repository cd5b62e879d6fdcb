/* SPDX-License-Identifier: Apache-2.0
 * SPLITs and plans that wait for the other members' requests: deadlines, and how they fail. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/timings.h"
#include "comm.h"
#include "comms.h"
#include "coord/plan.h"
#include "proto/names.h"
#include "remote.h"
#include "report.h"
#include "requests.h"

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

/* ---- SPLIT ---- */

void comm_split_refused(struct communicator *m, int result, const char *text)
{
	struct split_request *split = m->split;
	if (!split)
		return;
	report_request(m, "SPLIT", result, text);
	m->split = NULL; /* an answer may end a session, and lead back here */
	for (uint32_t k = 0; k < m->nranks; k++)
		if (split[k].here && m->members[k].session)
			session_error(m->members[k].session, SVC_SPLIT, split[k].request_id, result,
				      "%s", text);
	free(split);
}

void comm_split_failed(struct communicator *m, int result, int32_t rank)
{
	char text[SVC_TEXT_BYTES];
	if (!m->split)
		return;
	if (rank >= 0)
		snprintf(text, sizeof(text),
			 "rank %d (pid %d) of communicator %s left or died before the split was "
			 "done",
			 rank, m->members[rank].pid, m->label);
	else
		comm_blameless_text(m, result, m->coordinator, text);
	m->split_lost = true;
	comm_split_refused(m, result, text);
}

void comm_split_forget(struct communicator *m)
{
	free(m->split);
	m->split = NULL;
}

uint64_t comm_split_expire(struct communicator *m, uint64_t now)
{
	uint64_t next = 0;
	for (uint32_t k = 0; m->split && k < m->nranks; k++) {
		uint64_t at = m->split[k].here ? m->split[k].deadline_ns : 0;
		if (at && at <= now && !m->split[k].overdue) {
			/* The coordinator knows which ranks are missing; its answer comes soon. */
			m->split[k].overdue = true;
			at = m->split[k].deadline_ns = now + NODE_ANSWER_NS;
			remote_late(m, k, m->split[k].request_id);
		}
		if (at && at <= now) {
			comm_split_failed(m, NCCLSVC_TIMEOUT, -1);
			return 0;
		}
		if (at && (!next || at < next))
			next = at;
	}
	return next;
}

/* ---- Plans ---- */

void plan_discard(struct account *a, struct plan *p)
{
	if (!p)
		return;
	account_give(a, SHARE_PLAN_TASKS, p->quota);
	plan_free(p);
	account_put(a);
}

void plan_forget(struct communicator *m)
{
	struct plan *p = m->forming;
	free(m->commits);
	m->commits = NULL;
	m->forming = NULL;
	m->committing = 0;
	plan_discard(m->account, p);
}

void plan_refused(struct communicator *m, int result, const char *text)
{
	struct commit *commits = m->commits;
	if (!commits)
		return;
	report_request(m, "plan", result, text);
	m->commits = NULL; /* an answer may end a session, and lead back here */
	plan_forget(m);
	for (uint32_t k = 0; k < m->nranks; k++) {
		struct session *c = m->members[k].session;
		if (commits[k].here && c)
			session_error(c, SVC_PLAN_COMMIT, commits[k].request_id, result, "%s",
				      text);
	}
	free(commits);
}

void plan_commit_failed(struct communicator *m, int result, int32_t rank)
{
	char text[SVC_TEXT_BYTES];
	if (rank >= 0)
		snprintf(text, sizeof(text), PLAN_GONE_TEXT, rank, m->members[rank].pid, m->label);
	else
		comm_blameless_text(m, result, m->coordinator, text);
	m->plan_lost = m->commits != NULL;
	plan_refused(m, result, text);
}

uint64_t plan_expire(struct communicator *m, uint64_t now)
{
	uint64_t next = 0;
	for (uint32_t k = 0; m->commits && k < m->nranks; k++) {
		uint64_t at = m->commits[k].here ? m->commits[k].deadline_ns : 0;
		if (at && at <= now && !m->commits[k].overdue) {
			/* The coordinator knows which ranks are missing; its answer comes soon. */
			m->commits[k].overdue = true;
			at = m->commits[k].deadline_ns = now + NODE_ANSWER_NS;
			remote_late(m, k, m->commits[k].request_id);
		}
		if (at && at <= now) {
			plan_commit_failed(m, NCCLSVC_TIMEOUT, -1);
			return 0;
		}
		next = earlier(next, at);
	}
	return next;
}
