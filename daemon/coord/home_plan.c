/* SPDX-License-Identifier: Apache-2.0
 * The home gathers the plans of a communicator's members, matches them, and tells all members'
 * nodes what came of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gathering.h"
#include "missing.h"
#include "plan.h"

/* Of one round. */
struct planning {
	struct plan *plan;
	uint32_t whole; /* members whose plans are here */
	struct planning_member {
		struct svc_plan_task *tasks; /* NULL: none came yet, or they are the plan's now */
		uint32_t ntasks, here;
		bool whole;
	} members[];
};

void home_plan_forget(struct gathering *g)
{
	struct planning *p = g->planning;
	for (uint32_t k = 0; p && k < g->nranks; k++)
		free(p->members[k].tasks);
	if (p)
		plan_free(p->plan);
	free(p);
	g->planning = NULL;
}

static struct control_plan_verdict verdict_of(const uint8_t *id, uint32_t epoch, uint32_t round,
					      int result, const char *text)
{
	struct control_plan_verdict v = {.epoch = epoch, .round = round, .result = result};
	memcpy(v.id, id, sizeof(v.id));
	snprintf(v.text, sizeof(v.text), "%s", text);
	return v;
}

/* The round is over. */
static void tell_verdict(struct cluster *c, struct gathering *g, int result, const char *text)
{
	struct control_plan_verdict v = verdict_of(g->id, g->epoch, g->plan_round++, result, text);
	if (!result)
		v.uid = ((uint64_t)c->me + 1) << 40 | ++c->plans;
	home_tell_nodes(c, g, CONTROL_PLAN_VERDICT, &v, sizeof(v));
	home_plan_forget(g);
}

void home_plan_refuse(struct cluster *c, struct gathering *g, int result, const char *text)
{
	if (g->planning)
		tell_verdict(c, g, result, text);
}

static struct planning *begin(const struct gathering *g)
{
	struct planning *p = calloc(1, sizeof(*p) + g->nranks * sizeof(p->members[0]));
	if (!p)
		return NULL;
	p->plan = plan_create(g->nranks);
	if (!p->plan) {
		free(p);
		return NULL;
	}
	p->plan->whole_groups = g->cuda;
	return p;
}

/* False: it is not what follows, or there is no memory. */
static bool add_piece(struct planning_member *pm, const struct control_plan *m)
{
	if (!m->at && !pm->tasks && !pm->whole) {
		pm->tasks = malloc(m->tasks ? m->tasks * sizeof(m->piece[0]) : 1);
		pm->ntasks = m->tasks;
	}
	if (!pm->tasks || m->tasks != pm->ntasks || m->at != pm->here ||
	    m->count > m->tasks - m->at)
		return false;
	memcpy(pm->tasks + m->at, m->piece, m->count * sizeof(m->piece[0]));
	pm->here += m->count;
	pm->whole = pm->here == pm->ntasks;
	return true;
}

/* A member's plan is here: perhaps all are. */
static void member_is_whole(struct cluster *c, struct gathering *g, const struct control_plan *m)
{
	char text[PLAN_TEXT] = "";
	struct planning *p = g->planning;
	struct svc_plan_task *tasks = p->members[m->rank].tasks;
	p->members[m->rank].tasks = NULL;
	int result = plan_set(p->plan, m->rank, m->groups, m->tasks, tasks, text);
	if (!result && ++p->whole < g->nranks)
		return;
	if (!result)
		result = plan_match(p->plan, text);
	tell_verdict(c, g, result, text);
}

void home_plan(struct cluster *c, uint32_t from, const struct control_plan *m)
{
	struct gathering *g = home_find(c, m->id);
	if (!g || !g->running || m->epoch != g->epoch) {
		const struct control_plan_verdict v =
			verdict_of(m->id, m->epoch, m->round, NCCLSVC_STALE_EPOCH, HOME_STALE_TEXT);
		link_send(c, from, CONTROL_PLAN_VERDICT, &v, sizeof(v));
		return;
	}
	if (m->round != g->plan_round || m->rank >= g->nranks || g->seats[m->rank].node != from)
		return; /* the verdict is on its way */
	if (!g->planning)
		g->planning = begin(g);
	if (g->held != g->nranks || g->plan_round >= PLAN_NUMBER_MAX)
		tell_verdict(c, g, NCCLSVC_STALE_EPOCH, HOME_STALE_TEXT);
	else if (!g->planning || !add_piece(&g->planning->members[m->rank], m))
		tell_verdict(c, g, NCCLSVC_NO_MEMORY, "the plans cannot be gathered: no memory");
	else if (g->planning->members[m->rank].whole)
		member_is_whole(c, g, m);
}

void home_plan_late(struct cluster *c, const struct control_plan_member *m)
{
	char text[SVC_TEXT_BYTES];
	struct rank_names missing = {0};
	struct gathering *g = home_find(c, m->id);
	if (!g || !g->planning || m->epoch != g->epoch || m->round != g->plan_round)
		return;
	for (uint32_t k = 0; k < g->nranks; k++)
		if (!g->planning->members[k].whole)
			rank_names_add(&missing, k);
	snprintf(text, sizeof(text), PLAN_LATE_TEXT, g->label, rank_names_text(&missing));
	tell_verdict(c, g, NCCLSVC_TIMEOUT, text);
}

void home_plan_left(struct cluster *c, uint32_t from, const struct control_plan_member *m)
{
	struct gathering *g = home_find(c, m->id);
	if (g && g->running && m->epoch == g->epoch && m->rank < g->nranks &&
	    g->seats[m->rank].node == from)
		home_tell_nodes(c, g, CONTROL_PLAN_GONE, m, sizeof(*m));
}
