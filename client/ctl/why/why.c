/* SPDX-License-Identifier: Apache-2.0
 * Asks for each group of what waits who is to blame, and puts together those with the same
 * culprits. */
#include "why.h"

#include "internal.h"

#include <stdlib.h>
#include <string.h>

static bool same_process(const struct why_culprit *a, const struct why_culprit *b)
{
	if (a->session && b->session)
		return a->session == b->session;
	if (a->pid > 0 && b->pid > 0)
		return a->pid == b->pid;
	return a->comm == b->comm && a->rank == b->rank;
}

static bool blames(const struct why *w, const struct why_finding *f,
		   const struct why_culprit *culprit)
{
	for (size_t i = 0; i < f->nculprits; i++, ++*w->steps)
		if (same_process(&f->culprits[i], culprit))
			return true;
	return false;
}

static bool same_nodes(const struct why_finding *a, const struct why_finding *b)
{
	return a->nnodes == b->nnodes &&
	       (!a->nnodes || !memcmp(a->nodes, b->nodes, a->nnodes * sizeof(*a->nodes)));
}

/* An older finding that says already who is to blame for this one, or NULL. */
static struct why_finding *told_before(const struct why *w, struct why_report *report,
				       const struct why_finding *f)
{
	for (size_t i = 0; i < report->n && why_goes_on(w); i++, ++*w->steps) {
		struct why_finding *old = &report->findings[i];
		size_t k = 0;
		if (!f->nculprits) {
			if (old->cause == f->cause && same_nodes(old, f) &&
			    (old->comm == f->comm || f->cause == WHY_SILENT))
				return old;
			continue;
		}
		while (k < f->nculprits && blames(w, old, &f->culprits[k]))
			k++;
		if (k == f->nculprits)
			return old;
	}
	return NULL;
}

/* True for the same operation of GPUs, at which other ranks are in another way. */
static bool same_operation(const struct why_finding *old, const struct why_finding *f)
{
	return f->launched && old->launched && old->comm == f->comm && old->seq == f->seq &&
	       !strcmp(old->op, f->op);
}

/* True if the ranks that wait here are those that the older finding blames: it says so already. */
static bool names(const struct why *w, const struct why_finding *old, const struct why_finding *f)
{
	for (size_t i = 0; i < f->nwaiting && why_goes_on(w); i++) {
		size_t k = 0;
		while (k < old->nculprits &&
		       (old->culprits[k].comm != f->comm || old->culprits[k].rank != f->waiting[i]))
			k++;
		*w->steps += k;
		if (k == old->nculprits)
			return false;
	}
	return f->nwaiting > 0;
}

static void free_finding(struct why_finding *f)
{
	free(f->waiting);
	free(f->culprits);
	free(f->nodes);
	free(f->also);
	free(f->text);
}

static void add_finding(struct why *w, const struct why_group *g, struct why_report *report)
{
	struct text out = TEXT_INIT(-1);
	struct why_finding f = {
		.comm = g->comm ? g->comm->comm : 0,
		.age_ns = g->age_ns,
		.age_known = g->age_known,
	};
	if (g->n)
		why_find_tasks(w, g, &f, &out);
	else
		why_find_joining(w, g, &f, &out);
	f.text = text_steal(&out);
	struct why_finding *old = told_before(w, report, &f);
	if (old && (same_operation(old, &f) || names(w, old, &f))) {
		free_finding(&f);
	} else if (old) {
		old->also = ctl_grow(old->also, old->nalso, &old->also_room, sizeof(*old->also));
		old->also[old->nalso++] =
			(struct why_also){f.comm, f.seq, f.graph, f.op, f.age_ns, f.nwaiting};
		free_finding(&f);
	} else {
		report->findings = ctl_grow(report->findings, report->n, &report->room, sizeof(f));
		report->findings[report->n++] = f;
	}
}

void why_analyse(const struct why_input *in, struct why_report *report)
{
	struct why w;
	uint64_t steps = 0;
	size_t nheld, ngroups, i = 0;
	*report = (struct why_report){0};
	why_index(&w, in, &steps);
	const ncclsvc_task_info **held = why_held_up(&w, &nheld, report);
	struct why_group *groups = why_gather(&w, held, nheld, &ngroups);
	for (; i < ngroups && why_goes_on(&w); i++)
		add_finding(&w, &groups[i], report);
	report->unseen = ngroups - i;
	report->steps = steps;
	for (size_t i = 0; i < report->n; i++) {
		struct why_finding *f = &report->findings[i];
		struct text out = TEXT_INIT(-1);
		text_add(&out, f->text);
		why_tell_also(&w, f, &out);
		free(f->text);
		f->text = text_steal(&out);
	}
	free(groups);
	free(held);
	why_index_free(&w);
}

void why_free(struct why_report *report)
{
	for (size_t i = 0; i < report->n; i++)
		free_finding(&report->findings[i]);
	free(report->findings);
	*report = (struct why_report){0};
}

const char *why_cause_name(enum why_cause cause)
{
	switch (cause) {
	case WHY_RUNNING:
		return "running";
	case WHY_MISSING:
		return "missing";
	case WHY_UNMATCHED:
		return "unmatched";
	case WHY_PLAN:
		return "plan";
	case WHY_JOINING:
		return "joining";
	case WHY_INPUT:
		return "input";
	case WHY_STOPPED:
		return "stopped";
	case WHY_WORKER:
		return "worker";
	case WHY_DEAD:
		return "dead";
	case WHY_DEADLOCK:
		return "deadlock";
	case WHY_ELSEWHERE:
		return "elsewhere";
	case WHY_SILENT:
		return "silent";
	case WHY_NONE:
		break;
	}
	return "?";
}
