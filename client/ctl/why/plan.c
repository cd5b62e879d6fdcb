/* SPDX-License-Identifier: Apache-2.0
 * Members that have yet to submit a task of their plan. */
#include "internal.h"

bool why_add_missing(const struct why *w, uint64_t comm, int32_t rank, struct text *out)
{
	const ncclsvc_plan_task_info *first;
	const ncclsvc_plan_info *plan = snapshot_plan(w->s, comm, rank);
	size_t n = plan ? snapshot_plan_missing(w->s, plan, &first, 1) : 0;
	if (!n || plan->left)
		return false;
	text_printf(out, " of its plan's group %u it has not submitted%s the %s", plan->group,
		    first->ahead ? ", or waits for the shapes of," : "",
		    ncclsvc_op_name(first->op));
	text_quoted(out, first->label, sizeof(first->label));
	text_printf(out, " %s rank %d", first->op == NCCLSVC_SEND ? "to" : "from", first->peer);
	if (n > 1)
		text_printf(out, " and %zu more", n - 1);
	return true;
}

void why_find_held(struct why *w, const struct why_group *g, struct why_finding *f,
		   struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	char process = why_process(w, why_member(w, t->comm, t->rank));
	bool stopped = process == 'T' || process == 't';
	f->cause = stopped ? WHY_STOPPED : WHY_PLAN;
	why_blame(w, f, t->comm, t->rank, stopped);
	why_add_head(w, g, "waited", out);
	why_add_rank(w, t->comm, t->rank, out);
	text_add(out, " has submitted it, but");
	if (!why_add_missing(w, t->comm, t->rank, out))
		text_add(out, " not all of its planned group");
	if (stopped)
		text_printf(out,
			    ": its process is stopped (state %c). Continue it with `kill "
			    "-CONT %d`, or end it.",
			    process, t->pid);
	else
		text_printf(out,
			    ". Look at what pid %d is doing; `ncclsvc-ctl plan` shows the "
			    "plan.",
			    t->pid);
}
