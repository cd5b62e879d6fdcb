/* SPDX-License-Identifier: Apache-2.0
 * The plans of a communicator's members: gathers and matches them, and tells all members' nodes
 * whether they are in force. Each attempt ends with one result; messages that come after it are
 * ignored, because the result has made their node fail the commit. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop.h"
#include "coordinator.h"
#include "plan.h"

/* An attempt to commit a plan. While the plan is being matched, perhaps in another thread, nothing
 * else changes or frees it, even if the attempt has ended. */
struct planning {
	struct loop_job matching;
	bool is_matched;
	struct coord *coord;
	struct coordinator *coordinator; /* NULL: the attempt has ended */
	int result;			 /* of the matching; with a sentence */
	char text[PLAN_TEXT];
	struct plan *plan;
	uint32_t whole; /* members whose plans are complete */
	struct planning_member {
		struct svc_plan_task *tasks; /* NULL: none arrived yet, or the plan owns them now */
		uint32_t ntasks, here, request_id;
		bool whole;
	} members[];
};

static void release(struct planning *p)
{
	for (uint32_t k = 0; k < p->plan->nranks; k++)
		free(p->members[k].tasks);
	plan_free(p->plan);
	free(p);
}

void plans_forget(struct coordinator *r)
{
	struct planning *p = r->planning;
	r->planning = NULL;
	if (p && p->is_matched)
		p->coordinator = NULL;
	else if (p)
		release(p);
}

/* The attempt has ended. */
static void tell_plan_result(struct coord *c, struct coordinator *r, int result, const char *text)
{
	struct control_result m =
		coordinator_result(r->id, r->epoch, SVC_PLAN_COMMIT, r->plan_seq++, result, text);
	r->failed = result ? result : r->failed;
	if (!result)
		m.uid = ((uint64_t)c->me + 1) << 40 | ++c->plans;
	coordinator_tell(c, r, &m);
	plans_forget(r);
}

void plans_fail(struct coord *c, struct coordinator *r, int result, const char *text)
{
	if (r->planning)
		tell_plan_result(c, r, result, text);
}

static struct planning *begin(struct coord *c, struct coordinator *r, bool cuda)
{
	struct planning *p = calloc(1, sizeof(*p) + r->nranks * sizeof(p->members[0]));
	if (!p)
		return NULL;
	p->plan = plan_create(r->nranks);
	if (!p->plan) {
		free(p);
		return NULL;
	}
	p->plan->whole_groups = cuda;
	p->coord = c;
	p->coordinator = r;
	return p;
}

/* False: it is not the expected chunk, or there is no memory. */
static bool add_chunk(struct planning_member *pm, const struct control_plan *m)
{
	if (!m->at && !pm->tasks && !pm->whole) {
		pm->tasks = malloc(m->tasks ? m->tasks * sizeof(m->chunk[0]) : 1);
		pm->ntasks = m->tasks;
		pm->request_id = m->request_id;
	}
	if (!pm->tasks || m->tasks != pm->ntasks || m->at != pm->here ||
	    m->count > m->tasks - m->at)
		return false;
	memcpy(pm->tasks + m->at, m->chunk, m->count * sizeof(m->chunk[0]));
	pm->here += m->count;
	pm->whole = pm->here == pm->ntasks;
	return true;
}

static struct planning *planning_of(struct loop_job *job)
{
	return (struct planning *)((char *)job - offsetof(struct planning, matching));
}

static void match(struct loop_job *job)
{
	struct planning *p = planning_of(job);
	uint64_t steps;
	p->result = plan_match(p->plan, p->text, &steps);
}

static void matched(struct loop_job *job)
{
	struct planning *p = planning_of(job);
	p->is_matched = false;
	if (p->coordinator)
		tell_plan_result(p->coord, p->coordinator, p->result, p->text);
	else
		release(p);
}

static void start_matching(struct coord *c, struct planning *p)
{
	p->is_matched = true;
	p->matching.run = match;
	p->matching.done = matched;
	c->ops->run_job(c->arg, &p->matching, plan_match_steps(p->plan));
}

/* A member's plan is complete, and perhaps all plans are. */
static void member_is_whole(struct coord *c, struct coordinator *r, const struct control_plan *m)
{
	char text[PLAN_TEXT] = "";
	struct planning *p = r->planning;
	struct svc_plan_task *tasks = p->members[m->rank].tasks;
	p->members[m->rank].tasks = NULL;
	int result = plan_set(p->plan, m->rank, m->groups, m->tasks, tasks, true, text);
	if (result)
		tell_plan_result(c, r, result, text);
	else if (++p->whole == r->nranks)
		start_matching(c, p);
}

void plans_take(struct coord *c, uint32_t from, const struct control_plan *m)
{
	struct coordinator *r = coordinator_for(c, from, &m->of);
	if (!r) {
		coordinator_refuse(c, from, &m->of, SVC_PLAN_COMMIT, m->seq);
		return;
	}
	if (m->seq < r->plan_seq) {
		coordinator_late(c, r, from, SVC_PLAN_COMMIT, m->seq);
		return;
	}
	if (m->seq > r->plan_seq) { /* members know of results that this node does not know */
		plans_forget(r);
		r->plan_seq = m->seq;
	}
	if (!r->planning)
		r->planning = begin(c, r, m->cuda);
	if (!r->planning)
		tell_plan_result(c, r, NCCLSVC_NO_MEMORY, "the daemon has no memory for the plans");
	else if (r->nleft || r->plan_seq >= PLAN_NUMBER_MAX)
		tell_plan_result(c, r, NCCLSVC_STALE_EPOCH, STALE_TEXT);
	else if (!add_chunk(&r->planning->members[m->rank], m))
		tell_plan_result(c, r, NCCLSVC_NO_MEMORY, "the daemon has no memory for the plans");
	else if (r->planning->members[m->rank].whole)
		member_is_whole(c, r, m);
}

void plans_withdrawn(struct coord *c, struct coordinator *r, const struct control_withdraw *m)
{
	char text[SVC_TEXT_BYTES];
	struct rank_names missing = {0};
	if (!r->planning || r->planning->members[m->rank].request_id != m->request_id ||
	    r->planning->is_matched) /* then the result comes soon */
		return;
	for (uint32_t k = 0; k < r->nranks; k++)
		if (!r->planning->members[k].whole)
			rank_names_add(&missing, k);
	snprintf(text, sizeof(text), PLAN_LATE_TEXT, r->label, rank_names_text(&missing));
	tell_plan_result(c, r, NCCLSVC_TIMEOUT, text);
}
