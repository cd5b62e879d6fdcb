/* SPDX-License-Identifier: Apache-2.0
 * Asks for each group of what waits who is to blame. Then looks at their processes, all at once:
 * the CPU use of a process takes a while to measure. */
#include "why.h"

#include "find.h"
#include "finding.h"
#include "sentences.h"

#include <stdlib.h>

#define EXAMINED_MAX 256 /* culprits of one finding */

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
		far[i] = process_reported(s->sessions[i].pid, (char)s->sessions[i].process_state,
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
	w.faults = ctl_calloc(WHY_CAUSES, sizeof(w.faults[0]));
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
	free(w.faults);
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
