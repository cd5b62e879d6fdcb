/* SPDX-License-Identifier: Apache-2.0
 * Who is to blame for one group. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define WALKED_MAX 256 /* missing ranks looked at, of one group */

void why_blame(const struct why *w, struct why_finding *f, uint64_t comm, int32_t rank,
	       bool stopped)
{
	const ncclsvc_member_info *m = why_member(w, comm, rank);
	const ncclsvc_session_info *s = m ? snapshot_session(w->s, m->session) : NULL;
	struct why_culprit culprit = {
		.comm = comm,
		.rank = rank,
		.pid = m ? m->pid : 0,
		.session = m ? m->session : 0,
		.name = m && s && s->pid == m->pid && s->name[0] ? s->name : NULL,
		.state = stopped ? WHY_STATE_STOPPED : member_state_name(m ? m->state : 0),
	};
	f->culprits = ctl_grow(f->culprits, f->nculprits, &f->culprits_room, sizeof(culprit));
	f->culprits[f->nculprits++] = culprit;
}

/* Several paths may end at one rank. */
static void blame_once(const struct why *w, struct why_finding *f, const struct why_step *s,
		       bool stopped)
{
	for (size_t i = 0; i < f->nculprits; i++)
		if (f->culprits[i].comm == s->comm && f->culprits[i].rank == s->rank)
			return;
	why_blame(w, f, s->comm, s->rank, stopped);
}

static void blame_path(const struct why *w, struct why_finding *f, const struct why_path *p)
{
	const struct why_step *last = &p->step[p->n - 1];
	if (p->cause == WHY_DEADLOCK) {
		for (unsigned i = (unsigned)p->cycle; i < p->n; i++)
			if (p->step[i].t)
				blame_once(w, f, &p->step[i], false);
	} else if (p->cause == WHY_ELSEWHERE || p->cause == WHY_SILENT) {
		why_name_nodes(f, last->t);
	} else if (p->cause != WHY_RUNNING) {
		blame_once(w, f, last, p->cause == WHY_STOPPED);
	}
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

/* Keeps the gravest paths, in order, for the text. */
static void keep(struct why_path *told, size_t *ntold, const struct why_path *p)
{
	size_t at = *ntold;
	while (at && told[at - 1].cause < p->cause)
		at--;
	if (at == WHY_TOLD)
		return;
	if (*ntold < WHY_TOLD)
		(*ntold)++;
	memmove(&told[at + 1], &told[at], (*ntold - 1 - at) * sizeof(*told));
	told[at] = *p;
}

static void find_waiting(struct why *w, const struct why_group *g, struct why_finding *f,
			 struct text *out)
{
	struct why_path told[WHY_TOLD], path;
	size_t ntold = 0, nmissing;
	int32_t *missing = missing_ranks(w, g, &nmissing);
	for (size_t i = 0; i < nmissing && i < WALKED_MAX; i++) {
		why_walk(w, g->tasks[0], missing[i], &path);
		keep(told, &ntold, &path);
		if (path.cause == WHY_DEADLOCK) {
			f->nculprits = 0;
			blame_path(w, f, &path);
			break;
		}
		blame_path(w, f, &path);
	}
	const enum why_cause asks = why_asks(w, g->tasks[0]);
	f->cause = ntold && told[0].cause > asks ? told[0].cause : asks;
	if (f->cause != WHY_DEADLOCK)
		why_name_nodes(f, g->tasks[0]);
	why_tell_waiting(w, g, f, told, ntold, g->tasks[0]->waits_count - ntold, out);
	free(missing);
}

static void count_member(const struct why *w, const ncclsvc_comm_info *c, int32_t rank,
			 struct why_census *census)
{
	const ncclsvc_member_info *m = why_member(w, c->comm, rank);
	switch (m ? m->state : NCCLSVC_MEMBER_ABSENT) {
	case NCCLSVC_MEMBER_JOINING:
	case NCCLSVC_MEMBER_JOINED:
		census->joined[census->njoined++] = rank;
		break;
	case NCCLSVC_MEMBER_DEAD:
		census->dead[census->ndead++] = rank;
		break;
	case NCCLSVC_MEMBER_BROKEN:
		census->broken[census->nbroken++] = rank;
		break;
	case NCCLSVC_MEMBER_UNKNOWN:
		census->unknown[census->nunknown++] = rank;
		break;
	default:
		census->absent[census->nabsent++] = rank;
	}
}

void why_find_joining(struct why *w, const struct why_group *g, struct why_finding *f,
		      struct text *out)
{
	const ncclsvc_comm_info *c = g->comm;
	const ncclsvc_node_info *rendezvous =
		c->ask_node ? snapshot_node(w->s, c->ask_node - 1) : NULL;
	int32_t *ranks = ctl_calloc((size_t)c->nranks * 5, sizeof(*ranks));
	struct why_census census = {
		.joined = ranks,
		.dead = ranks + c->nranks,
		.broken = ranks + 2 * (size_t)c->nranks,
		.absent = ranks + 3 * (size_t)c->nranks,
		.unknown = ranks + 4 * (size_t)c->nranks,
	};
	for (uint32_t rank = 0; rank < c->nranks; rank++)
		count_member(w, c, (int32_t)rank, &census);
	for (size_t i = 0; i < census.ndead; i++)
		why_blame(w, f, c->comm, census.dead[i], false);
	for (size_t i = 0; i < census.nbroken; i++)
		why_blame(w, f, c->comm, census.broken[i], false);
	for (size_t i = 0; i < census.nabsent; i++)
		why_blame(w, f, c->comm, census.absent[i], false);
	if (c->ask_node)
		why_name_node(f, c->ask_node - 1);
	f->cause = rendezvous && node_is_silent(rendezvous) ? WHY_SILENT
		   : why_bad_device(w, c->comm)		    ? WHY_WORKER
		   : census.ndead || census.nbroken	    ? WHY_DEAD
		   : census.nunknown			    ? WHY_ELSEWHERE
							    : WHY_JOINING;
	f->nwaiting = census.njoined;
	f->waiting = ctl_calloc(f->nwaiting, sizeof(*f->waiting));
	memcpy(f->waiting, census.joined, f->nwaiting * sizeof(*f->waiting));
	why_tell_joining(w, g, &census, out);
	free(ranks);
}

void why_find_tasks(struct why *w, const struct why_group *g, struct why_finding *f,
		    struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	f->comm = t->comm;
	f->seq = t->seq;
	f->graph = t->graph;
	f->op = ncclsvc_op_name(t->op);
	f->nwaiting = g->n;
	f->waiting = ctl_calloc(g->n, sizeof(*f->waiting));
	for (size_t i = 0; i < g->n; i++)
		f->waiting[i] = g->tasks[i]->rank;
	const ncclsvc_node_info *silent =
		t->state == NCCLSVC_LAUNCHED ? why_silent_node(w, t->comm) : NULL;
	if (silent) {
		f->cause = WHY_SILENT;
		why_name_node(f, silent->node);
		why_add_head(w, g, "been", out);
		text_add(out, "everyone has submitted it, and ");
		why_tell_silent(silent, out);
		text_add(out, ". " WHY_SILENT_ADVICE);
	} else if (t->state == NCCLSVC_WAITING_GROUP) {
		why_find_held(w, g, f, out);
	} else if (t->state == NCCLSVC_WAITING_PEERS && (t->waits_count || t->ask_count)) {
		find_waiting(w, g, f, out);
	} else if ((t->state == NCCLSVC_WAITING_INPUT || t->state == NCCLSVC_LAUNCHED) &&
		   why_on_gpus(w, t->comm)) {
		why_find_launched(w, g, f, out);
	} else if (t->state == NCCLSVC_WAITING_INPUT) {
		f->cause = WHY_INPUT;
		for (size_t i = 0; i < g->n; i++)
			why_blame(w, f, t->comm, g->tasks[i]->rank, false);
		why_tell_input(w, g, out);
	} else {
		f->cause = WHY_RUNNING;
		why_tell_running(w, g, out);
	}
}
