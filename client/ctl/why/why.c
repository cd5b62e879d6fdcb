/* SPDX-License-Identifier: Apache-2.0
 * Asks for each group of what waits who is to blame, and puts together those with the same
 * culprits. Then looks at their processes, all at once: the CPU use of a process takes a while to
 * measure. */
#include "why.h"

#include "internal.h"
#include "sentences.h"

#include <stdlib.h>
#include <string.h>

#define EXAMINED_MAX 256 /* culprits of one finding */

bool why_same_process(const struct why_culprit *a, const struct why_culprit *b)
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
		if (why_same_process(&f->culprits[i], culprit))
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
			    (old->comm == f->comm || f->cause == WHY_SILENT ||
			     (f->device >= 0 && f->device == old->device)))
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

void why_finding_free(struct why_finding *f)
{
	for (size_t i = 0; i < f->nculprits; i++)
		free(f->culprits[i].next);
	free(f->waiting);
	free(f->culprits);
	free(f->nodes);
	free(f->also);
	free(f->text);
	free(f->next);
}

void why_report(struct why *w, struct why_report *report, struct why_finding *f, struct text *out)
{
	struct why_finding *old = told_before(w, report, f);
	f->text = text_steal(out);
	if (!old) {
		report->findings = ctl_grow(report->findings, report->n, &report->room, sizeof(*f));
		report->findings[report->n++] = *f;
		return;
	}
	if (!same_operation(old, f) && !names(w, old, f)) {
		old->also = ctl_grow(old->also, old->nalso, &old->also_room, sizeof(*old->also));
		old->also[old->nalso++] =
			(struct why_also){f->comm, f->seq, f->graph, f->op, f->age_ns, f->nwaiting};
	}
	why_finding_free(f);
}

static void finish(const struct why *w, struct why_finding *f)
{
	struct text out = TEXT_INIT(-1);
	for (size_t i = 0; i < f->nculprits; i++)
		f->culprits[i].first = !f->second && f->culprits[i].cause == f->cause;
	for (size_t i = 0; i < f->nculprits && i < EXAMINED_MAX; i++) {
		struct why_culprit *c = &f->culprits[i];
		const ncclsvc_member_info *m = why_member(w, c->comm, c->rank);
		struct text next = TEXT_INIT(-1);
		if (w->in->look && m && !m->elsewhere && c->pid > 0)
			c->process = why_look_at(w, c->pid, true);
		else if (m && m->elsewhere && why_process(w, m)->state != PROCESS_UNSEEN)
			c->process = why_process(w, m);
		why_add_command(w, c, &next);
		if (next.len)
			c->next = text_steal(&next);
	}
	text_add(&out, f->text);
	why_tell_end(w, f, &out);
	free(f->text);
	f->text = text_steal(&out);
}

/* The processes of other nodes' sessions, as those nodes describe them, in the order of all
 * sessions. */
static struct process *far_processes(const struct snapshot *s)
{
	struct process *far = ctl_calloc(s->nsessions, sizeof(*far));
	for (size_t i = 0; i < s->nsessions; i++)
		far[i] = process_told(s->sessions[i].pid, (char)s->sessions[i].process_state,
				      s->sessions[i].tracer_pid);
	return far;
}

void why_analyse(const struct why_input *in, struct why_report *report)
{
	struct why w;
	uint64_t steps = 0;
	size_t nheld, ngroups, i = 0;
	*report = (struct why_report){0};
	why_index(&w, in, &steps);
	w.far = report->far = far_processes(in->s);
	const ncclsvc_task_info **held = why_held_up(&w, &nheld, report);
	struct why_group *groups = why_gather(&w, held, nheld, &ngroups);
	for (; i < ngroups && why_goes_on(&w); i++) {
		if (groups[i].n)
			why_find_tasks(&w, &groups[i], report);
		else if (groups[i].request)
			why_find_request(&w, &groups[i], report);
		else
			why_find_joining(&w, &groups[i], report);
	}
	report->unseen = ngroups - i;
	for (size_t i = 0; i < report->n; i++)
		finish(&w, &report->findings[i]);
	report->steps = steps;
	free(groups);
	free(held);
	why_index_free(&w);
}

void why_free(struct why_report *report)
{
	for (size_t i = 0; i < report->n; i++)
		why_finding_free(&report->findings[i]);
	free(report->findings);
	free(report->far);
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
	case WHY_CAUSES:
		break;
	}
	return "?";
}
