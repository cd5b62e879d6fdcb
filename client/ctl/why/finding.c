/* SPDX-License-Identifier: Apache-2.0
 * Findings: whom and what they name, and the report, where findings with the same culprits are one.
 */
#include "finding.h"

#include <stdlib.h>
#include <string.h>

struct why_finding why_finding_of(const struct why_group *g, enum why_cause cause)
{
	struct why_finding f = {
		.comm = g->n ? g->tasks[0]->comm : g->comm->comm,
		.age_ns = g->age_ns,
		.age_known = g->age_known,
		.cause = cause,
		.device = -1,
		.nwaiting = g->n,
	};
	if (!g->n)
		return f;
	f.seq = g->tasks[0]->seq;
	f.graph = g->tasks[0]->graph;
	f.op = ncclsvc_op_name(g->tasks[0]->op);
	f.waiting = ctl_calloc(g->n, sizeof(*f.waiting));
	for (size_t i = 0; i < g->n; i++)
		f.waiting[i] = g->tasks[i]->rank;
	return f;
}

void why_blame(const struct why *w, struct why_finding *f, uint64_t comm, int32_t rank,
	       enum why_cause cause)
{
	const ncclsvc_member_info *m = why_member(w, comm, rank);
	const ncclsvc_session_info *s = m ? snapshot_session(w->s, m->session) : NULL;
	struct why_culprit culprit = {
		.comm = comm,
		.rank = rank,
		.pid = m ? m->pid : 0,
		.session = m ? m->session : 0,
		.name = m && s && s->pid == m->pid && s->name[0] ? s->name : NULL,
		.state = cause == WHY_STOPPED ? "stopped" : member_state_name(m ? m->state : 0),
		.cause = cause,
	};
	f->culprits = ctl_grow(f->culprits, f->nculprits, &f->culprits_room, sizeof(culprit));
	f->culprits[f->nculprits++] = culprit;
}

void why_name_node(struct why_finding *f, uint32_t node)
{
	for (size_t i = 0; i < f->nnodes; i++)
		if (f->nodes[i] == node)
			return;
	f->nodes = ctl_grow(f->nodes, f->nnodes, &f->nodes_room, sizeof(*f->nodes));
	f->nodes[f->nnodes++] = node;
}

void why_name_nodes(struct why_finding *f, const ncclsvc_task_info *t)
{
	for (uint32_t i = 0; i < task_asks_shown(t); i++)
		why_name_node(f, t->ask_nodes[i]);
}

void why_name_worker(const struct why *w, struct why_finding *f, const ncclsvc_member_info *m)
{
	const ncclsvc_device_info *d = why_device(w, m);
	if (!d || f->device >= 0)
		return;
	f->device = m->device;
	f->worker = m->elsewhere ? 0 : d->pid;
}

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
static struct why_finding *reported_before(const struct why *w, struct why_report *report,
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
	struct why_finding *old = reported_before(w, report, f);
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
