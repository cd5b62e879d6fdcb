/* SPDX-License-Identifier: Apache-2.0
 * Who is to blame for one group. */
#include "find.h"
#include "finding.h"
#include "sentences.h"

#include <stdlib.h>
#include <string.h>

#define WALKED_MAX 256 /* missing ranks looked at, of one group */

/* Several paths may end at one process, in one communicator or in several: it is blamed once, in
 * the finding's communicator if one path ends there. Returns its place among the culprits. */
static size_t blame_once(const struct why *w, struct why_finding *f, const struct why_step *s,
			 enum why_cause cause)
{
	why_blame(w, f, s->comm, s->rank, cause);
	const struct why_culprit *last = &f->culprits[f->nculprits - 1];
	*w->steps += f->nculprits;
	for (size_t i = 0; i + 1 < f->nculprits; i++) {
		struct why_culprit *old = &f->culprits[i];
		if (!why_same_process(old, last))
			continue;
		f->nculprits--;
		if (old->comm == f->comm || last->comm != f->comm)
			return f->nculprits;
		*old = *last;
		return i;
	}
	return f->nculprits - 1;
}

/* Adds the path's culprits, and the path to those that are shown. */
static void add_path(const struct why *w, struct why_fault *fault, const struct why_path *p)
{
	struct why_finding *f = &fault->f;
	const struct why_step *last = &p->step[p->n - 1];
	size_t place = fault->nshown;
	switch (p->cause) {
	case WHY_RUNNING:
		break;
	case WHY_ELSEWHERE:
	case WHY_SILENT:
		why_name_nodes(f, last->t);
		break;
	case WHY_WORKER:
		why_name_worker(w, f, last->m);
		break;
	case WHY_DEADLOCK:
		for (unsigned i = (unsigned)p->cycle; i < p->n; i++)
			if (p->step[i].t)
				blame_once(w, f, &p->step[i], p->cause);
		break;
	default:
		place = blame_once(w, f, last, p->cause);
		if (place == f->nculprits) /* another path says the same */
			return;
	}
	if (place >= WHY_SHOWN)
		return;
	fault->shown[place] = *p;
	if (place == fault->nshown)
		fault->nshown++;
}

/* All ranks a group waits for, as far as they are known. */
static int32_t *missing_ranks(const struct why *w, const struct why_group *g, size_t *n)
{
	const ncclsvc_task_info *t = g->tasks[0];
	size_t shown = task_waits_shown(t), total = shown;
	/* More than the daemon names: those of a collective that are not here, if it fits. */
	bool derive = t->waits_count > shown && !op_is_p2p(t->op) && t->nranks > g->n &&
		      t->nranks - g->n == t->waits_count;
	if (derive)
		total = t->waits_count;
	int32_t *ranks = ctl_calloc(total, sizeof(*ranks));
	*n = 0;
	for (size_t i = 0; i < shown && !derive; i++)
		ranks[(*n)++] = t->waits_for[i];
	for (size_t rank = 0, at = 0; derive && rank < t->nranks; rank++, ++*w->steps) {
		if (at < g->n && g->tasks[at]->rank == (int32_t)rank)
			at++;
		else if (*n < total)
			ranks[(*n)++] = (int32_t)rank;
	}
	return ranks;
}

static struct why_fault *fault_of(struct why *w, const struct why_group *g, enum why_cause cause)
{
	struct why_fault *fault = &w->faults[cause];
	if (fault->f.cause != cause) {
		fault->f = why_finding_of(g, cause);
		fault->nshown = fault->more = 0;
	}
	return fault;
}

/* Follows each rank that is missing to its cause. Returns the gravest cause; *more: ranks that were
 * not followed. */
static enum why_cause follow_missing(struct why *w, const struct why_group *g, size_t *more)
{
	struct why_path path;
	enum why_cause gravest = WHY_NONE;
	size_t n, i = 0;
	int32_t *missing = missing_ranks(w, g, &n);
	for (; i < n && i < WALKED_MAX && gravest != WHY_DEADLOCK; i++) {
		why_walk(w, g->tasks[0], missing[i], &path);
		if (path.cause == WHY_NONE)
			continue;
		add_path(w, fault_of(w, g, path.cause), &path);
		if (path.cause > gravest)
			gravest = path.cause;
	}
	*more = g->tasks[0]->waits_count - i;
	free(missing);
	return gravest;
}

/* A finding for each cause, the gravest first. A circle is the only finding, because
 * all other waits follow from it. */
static void find_waiting(struct why *w, const struct why_group *g, struct why_report *report)
{
	const ncclsvc_task_info *t = g->tasks[0];
	const enum why_cause asks = why_asks(w, t);
	bool second = false;
	size_t more;
	enum why_cause gravest = follow_missing(w, g, &more);
	if (asks > gravest && (gravest == WHY_NONE || asks == WHY_SILENT))
		gravest = asks;
	else if (gravest == WHY_NONE)
		gravest = WHY_RUNNING;
	fault_of(w, g, gravest);
	for (enum why_cause cause = gravest; cause > WHY_NONE; cause--) {
		struct why_fault *fault = &w->faults[cause];
		struct text out = TEXT_INIT(-1);
		if (fault->f.cause != cause)
			continue;
		fault->f.cause = WHY_NONE;
		if (second && (cause == WHY_RUNNING || gravest == WHY_DEADLOCK)) {
			why_finding_free(&fault->f);
			continue;
		}
		struct why_finding f = fault->f;
		f.cause = cause;
		f.second = fault->f.second = second;
		fault->more = second ? 0 : more;
		if (!second && cause != WHY_DEADLOCK)
			why_name_nodes(&f, t);
		if (cause == WHY_DEADLOCK)
			why_tell_deadlock(w, g, &fault->shown[0], &out);
		else
			why_tell_waiting(w, g, fault, &out);
		why_report(w, report, &f, &out);
		second = true;
	}
}

static void find_held(struct why *w, const struct why_group *g, struct why_finding *f,
		      struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	const bool halted = process_is_halted(why_process(w, why_member(w, t->comm, t->rank)));
	f->cause = halted ? WHY_STOPPED : WHY_PLAN;
	why_blame(w, f, t->comm, t->rank, f->cause);
	why_tell_held(w, g, out);
}

static void find_input(struct why *w, const struct why_group *g, struct why_finding *f,
		       struct text *out)
{
	f->cause = WHY_INPUT;
	for (size_t i = 0; i < g->n; i++)
		why_blame(w, f, f->comm, g->tasks[i]->rank, WHY_INPUT);
	why_tell_input(w, g, out);
}

/* The ranks that are at this very operation in that state. */
static size_t ranks_at(const struct why *w, const ncclsvc_task_info *t, unsigned state,
		       int32_t *ranks)
{
	size_t found = 0, n;
	for (uint32_t rank = 0; rank < t->nranks; rank++) {
		const ncclsvc_task_info **at = why_tasks(w, t->comm, (int32_t)rank, &n);
		for (size_t i = 0; i < n; i++) {
			if (at[i]->state != state || at[i]->op != t->op || at[i]->seq != t->seq ||
			    at[i]->graph != t->graph)
				continue;
			ranks[found++] = (int32_t)rank;
			break;
		}
	}
	return found;
}

static void find_launched(struct why *w, const struct why_group *g, struct why_finding *f,
			  struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	const ncclsvc_member_info *bad = why_bad_device(w, t->comm, t->kernel);
	int32_t *late = ctl_calloc((size_t)t->nranks * 2, sizeof(*late));
	int32_t *launched = late + t->nranks;
	size_t nlate = ranks_at(w, t, NCCLSVC_WAITING_INPUT, late);
	size_t nlaunched = ranks_at(w, t, NCCLSVC_LAUNCHED, launched);
	f->launched = true;
	free(f->waiting);
	f->nwaiting = nlate + nlaunched;
	f->waiting = ctl_calloc(f->nwaiting, sizeof(*f->waiting));
	memcpy(f->waiting, late, nlate * sizeof(*late));
	memcpy(f->waiting + nlate, launched, nlaunched * sizeof(*late));
	if (bad) {
		f->cause = WHY_WORKER;
		why_name_worker(w, f, bad);
		why_tell_worker(w, g, bad, out);
	} else if (nlate) {
		f->cause = WHY_INPUT;
		for (size_t i = 0; i < nlate; i++)
			why_blame(w, f, t->comm, late[i], WHY_INPUT);
		why_tell_streams(w, g, late, nlate, out);
	} else {
		why_tell_launched(w, g, launched, nlaunched, out);
	}
	free(late);
}

void why_find_tasks(struct why *w, const struct why_group *g, struct why_report *report)
{
	const ncclsvc_task_info *t = g->tasks[0];
	const bool launched = t->state == NCCLSVC_LAUNCHED;
	const ncclsvc_node_info *silent = launched ? why_silent_node(w, t->comm) : NULL;
	struct text out = TEXT_INIT(-1);
	if (t->state == NCCLSVC_WAITING_PEERS && (t->waits_count || t->ask_count)) {
		find_waiting(w, g, report);
		return;
	}
	struct why_finding f = why_finding_of(g, WHY_RUNNING);
	if (silent) {
		f.cause = WHY_SILENT;
		why_name_node(&f, silent->node);
		why_tell_silent(w, g, silent, &out);
	} else if (t->state == NCCLSVC_WAITING_GROUP) {
		find_held(w, g, &f, &out);
	} else if ((t->state == NCCLSVC_WAITING_INPUT || launched) && why_on_gpus(w, t->comm)) {
		find_launched(w, g, &f, &out);
	} else if (t->state == NCCLSVC_WAITING_INPUT) {
		find_input(w, g, &f, &out);
	} else {
		why_tell_running(w, g, &out);
	}
	why_report(w, report, &f, &out);
}
