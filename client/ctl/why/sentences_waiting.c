/* SPDX-License-Identifier: Apache-2.0
 * The words of ranks that wait for other ranks: for whom, over which others, and what those have
 * not called. */
#include "base/units.h"
#include "sentences.h"

#include <stdlib.h>

#define CHAIN_SHOWN  5 /* steps; longer chains are shown without their middle */
#define CIRCLE_SHOWN 4 /* ranks */

/* "the Send to rank 0 of its plan's group 3 and 1 more"; false: the plan lacks nothing. */
static bool add_missing(const struct why *w, uint64_t comm, int32_t rank, struct text *out)
{
	const ncclsvc_plan_task_info *first;
	const ncclsvc_plan_info *plan = snapshot_plan(w->s, comm, rank);
	size_t n = plan ? snapshot_plan_missing(w->s, plan, &first, 1) : 0;
	if (!n || plan->left)
		return false;
	text_printf(out, "the %s", ncclsvc_op_name(first->op));
	text_quoted(out, first->label, sizeof(first->label));
	text_printf(out, " %s rank %d in its plan's group %u%s",
		    first->op == NCCLSVC_SEND ? "to" : "from", first->peer, plan->group,
		    first->ahead ? " (or it waits for the shapes)" : "");
	if (n > 1)
		text_printf(out, " and %zu more", n - 1);
	return true;
}

/* ---- Ranks of other nodes ---- */

static void tell_node(const struct why *w, const ncclsvc_task_info *t, uint32_t node,
		      struct text *out)
{
	size_t n;
	int32_t *ranks = why_ranks_of(w, t, node, &n);
	text_char(out, ' ');
	if (why_node_is_silent(w, node)) {
		const size_t begin = out->len;
		why_add_silence(snapshot_node(w->s, node), out);
		why_capitalize(out, begin);
		text_add(out, "; this node cannot see its ");
		units_ranks(out, ranks, n, t->nranks);
	} else {
		text_add(out, "This node cannot see ");
		units_ranks(out, ranks, n, t->nranks);
		text_add(out, " on ");
		units_node(out, w->s, node);
	}
	text_char(out, '.');
	free(ranks);
}

/* A sentence for each node that the task asks; silent ones first. */
static void tell_nodes(const struct why *w, const ncclsvc_task_info *t, struct text *out)
{
	uint32_t shown = 0;
	for (int silent = 1; silent >= 0; silent--)
		for (uint32_t i = 0; i < task_asks_shown(t) && shown < WHY_SHOWN; i++)
			if (why_node_is_silent(w, t->ask_nodes[i]) == silent) {
				shown++;
				tell_node(w, t, t->ask_nodes[i], out);
			}
	if (t->ask_count > shown)
		text_printf(out, " %u more node%s may lack ranks.", t->ask_count - shown,
			    t->ask_count - shown == 1 ? "" : "s");
}

/* ---- Who waits for whom ---- */

/* " of communicator other (id 2)", if that is not the one the sentence is about. */
static void add_other_comm(const struct why *w, const struct why_path *p, const struct why_step *s,
			   struct text *out)
{
	if (s->comm == p->step[0].comm)
		return;
	text_add(out, " of ");
	why_add_comm(w, s->comm, 0, out);
}

/* " has not called it", " has not called the matching Recv" */
static void add_not_called(const struct why_path *p, bool many, struct text *out)
{
	const ncclsvc_task_info *before = p->step[p->n - 2].t;
	text_add(out, many ? " have not called " : " has not called ");
	if (before && op_is_p2p(before->op))
		text_printf(out, "the matching %s", before->op == NCCLSVC_SEND ? "Recv" : "Send");
	else
		text_add(out, "it");
}

/* ", which has called nothing there yet"; false: it has. What a CUDA graph launches is not
 * called. */
static bool add_no_call(const struct why *w, const struct why_path *p, struct text *out)
{
	const ncclsvc_member_info *m = p->step[p->n - 1].m;
	const ncclsvc_task_info *before = p->step[p->n - 2].t;
	if (before && before->graph) {
		text_add(out,
			 ", whose graph has not reached it: it has not been launched, or earlier "
			 "work in its stream has not ended");
		return true;
	}
	if (p->cause == WHY_UNMATCHED || !m || !snapshot_knows(w->s, m) || m->submitted)
		return false;
	text_add(out, ", which has called nothing there yet");
	return true;
}

/* " (its last call there was #6), nor the Send to rank 0 in its plan's group 3" */
static void add_last_call(const struct why *w, const struct why_step *s, struct text *out)
{
	struct text lacks = TEXT_INIT(-1);
	if (!s->m || !snapshot_knows(w->s, s->m))
		return;
	if (s->m->submitted)
		text_printf(out, " (its last call there was #%llu)",
			    (unsigned long long)(s->m->submitted - 1));
	if (add_missing(w, s->comm, s->rank, &lacks)) {
		text_add(out, ", nor ");
		text_addn(out, lacks.at, lacks.len);
	}
	text_free(&lacks);
}

/* ", which has called Recv #0" */
static void add_has_called(const struct why *w, const struct why_path *p, const char *verb,
			   struct text *out)
{
	const struct why_step *s = &p->step[p->n - 1];
	text_printf(out, ", which %s ", verb);
	why_add_task(s->t, out);
	add_other_comm(w, p, s, out);
}

static void add_running(const struct why *w, const struct why_path *p, struct text *out)
{
	const struct why_step *s = &p->step[p->n - 1];
	add_has_called(w, p, "is itself in", out);
	if (s->t->state != NCCLSVC_LAUNCHED) {
		text_add(out, ", which has not ended either");
		return;
	}
	text_add(out, s->m && s->m->device >= 0 ? ", which has run on its GPU for "
						: ", which ncclsvcd has been executing for ");
	units_age(out, s->t->state_ns);
}

/* Adds the fault of the last rank of the path, or one that many ranks share. */
static void add_fault(const struct why *w, const struct why_path *p, bool many, struct text *out)
{
	const struct why_step *s = &p->step[p->n - 1];
	switch (p->cause) {
	case WHY_DEAD:
		if (s->m && s->m->state == NCCLSVC_MEMBER_BROKEN)
			text_add(out,
				 many ? ", which have not rejoined" : ", which has not rejoined");
		else
			text_add(out, many ? ", whose processes have ended"
					   : ", whose process has ended");
		return;
	case WHY_JOINING:
		text_add(out, many ? ", which have not joined" : ", which has not joined");
		return;
	case WHY_INPUT:
		add_has_called(w, p, "has called", out);
		text_add(out, s->m && s->m->device >= 0
				      ? ", but whose GPU stream has not reached it: earlier work "
					"there has not ended"
				      : ", but nobody has signalled its timeline");
		return;
	case WHY_PLAN:
		add_has_called(w, p, "has called", out);
		text_add(out, " but not ");
		if (!add_missing(w, s->comm, s->rank, out))
			text_add(out, "the rest of its planned group");
		return;
	case WHY_ELSEWHERE:
	case WHY_SILENT:
		add_has_called(w, p, "waits in", out);
		return;
	case WHY_RUNNING:
		add_running(w, p, out);
		return;
	default:
		if (s->t && p->cause == WHY_STOPPED) {
			add_has_called(w, p, "has called", out);
			text_add(out, " but is not ready");
			return;
		}
		if (many || !add_no_call(w, p, out)) {
			text_add(out, ", which");
			add_not_called(p, many, out);
		}
		if (!many)
			add_last_call(w, s, out);
		if (p->cause != WHY_WORKER)
			return;
		text_add(out, "; ");
		why_add_device(w, s->m, out);
	}
}

/* "rank 1 (pid 7), which waits in Recv #4 for rank 2 (pid 8), which ...", to the end of the chain.
 */
static void add_chain(const struct why *w, const struct why_path *p, struct text *out)
{
	for (unsigned i = 1; i < p->n; i++) {
		const struct why_step *s = &p->step[i];
		why_add_rank(w, s->comm, s->rank, out);
		/* The same process, seen where it is held up. */
		if (!s->t && i + 1 < p->n)
			s = &p->step[++i];
		if (i + 1 == p->n) {
			add_fault(w, p, false, out);
			return;
		}
		text_add(out, ", which waits in ");
		why_add_task(s->t, out);
		add_other_comm(w, p, s, out);
		text_add(out, " for ");
		if (i <= 2 && p->n > CHAIN_SHOWN) {
			text_printf(out, "rank %d, and so on over %u ranks to ",
				    p->step[i + 1].rank, p->n - 4);
			i = p->n - 3;
			if (!p->step[i].t) /* it goes with the step after it */
				i--;
		}
	}
}

/* The culprit waits for nobody, and no other rank stands between. */
static bool is_direct(const struct why_path *p)
{
	return p->n == 2 &&
	       (p->cause == WHY_MISSING || p->cause == WHY_UNMATCHED || p->cause == WHY_DEAD ||
		p->cause == WHY_JOINING || (p->cause == WHY_STOPPED && !p->step[1].t));
}

/* All ranks of the fault that are shown, and how many there are more. */
static void add_culprits(const struct why *w, const struct why_fault *fault, struct text *out)
{
	const size_t n = fault->f.nculprits, shown = fault->nshown;
	const size_t more = fault->more + (n > shown ? n - shown : 0);
	bool direct = true;
	for (size_t i = 0; i < shown; i++)
		direct &= is_direct(&fault->shown[i]);
	for (size_t i = 0; i < shown; i++) {
		const struct why_path *p = &fault->shown[i];
		const struct why_step *s = &p->step[p->n - 1];
		text_add(out, !i		      ? ""
			      : !direct		      ? ", and for "
			      : more || i + 1 < shown ? ", "
						      : " and ");
		if (direct)
			why_add_rank(w, s->comm, s->rank, out);
		else
			add_chain(w, p, out);
	}
	if (direct && more)
		text_printf(out, " and %zu more rank%s", more, more == 1 ? "" : "s");
	if (direct)
		add_fault(w, &fault->shown[0], shown + more > 1, out);
	else if (more)
		text_printf(out, " and %zu more rank%s", more, more == 1 ? "" : "s");
}

/* A culprit's last operation was refused. */
static void tell_refused(const struct why *w, const struct why_finding *f, struct text *out)
{
	const ncclsvc_comm_info *comm = snapshot_comm(w->s, f->comm);
	for (size_t i = 0; comm && i < f->nculprits; i++)
		if (f->culprits[i].comm == f->comm && f->culprits[i].rank == comm->refused_rank)
			why_tell_refused(comm, out);
}

void why_tell_waiting(const struct why *w, const struct why_group *g, const struct why_fault *fault,
		      struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	const struct why_path *first = fault->nshown ? &fault->shown[0] : NULL;
	if (fault->f.second) {
		why_add_task(t, out);
		text_add(out, " of ");
		why_add_comm(w, t->comm, 0, out);
		text_add(out, " also waits");
	} else {
		why_add_waiting(w, g, !first || t->peer == t->rank, out);
	}
	if (op_is_p2p(t->op) && t->peer == t->rank) {
		text_add(out, ", and has not called the other side. A Send to oneself and its Recv "
			      "belong in one group.");
		return;
	}
	if (first) {
		text_add(out, " for ");
		add_culprits(w, fault, out);
	}
	text_char(out, '.');
	tell_refused(w, &fault->f, out);
	if (!fault->f.second)
		tell_nodes(w, t, out);
	if (first && (first->cause == WHY_ELSEWHERE || first->cause == WHY_SILENT))
		tell_nodes(w, first->step[first->n - 1].t, out);
}

/* ---- The rest of a plan's group ---- */

void why_tell_held(const struct why *w, const struct why_group *g, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	why_add_waiting(w, g, true, out);
	text_add(out, ": it has not called ");
	if (!add_missing(w, t->comm, t->rank, out))
		text_add(out, "the rest of its planned group");
	text_char(out, '.');
}

/* ---- Requests of all members ---- */

void why_tell_request(const struct why *w, const struct why_finding *f, struct text *out)
{
	const ncclsvc_comm_info *comm = snapshot_comm(w->s, f->comm);
	int32_t ranks[9] = {0};
	for (size_t i = 0; i < f->nwaiting && i < sizeof(ranks) / sizeof(ranks[0]); i++)
		ranks[i] = f->waiting[i];
	units_ranks(out, ranks, f->nwaiting, comm ? comm->nranks : 0);
	why_capitalize(out, 0);
	text_add(out, f->nwaiting > 1 ? " have waited " : " has waited ");
	units_age(out, f->age_ns);
	text_printf(out, " in %s of ", f->op);
	why_add_comm(w, f->comm, comm ? comm->nranks : 0, out);
	if (!f->nculprits) {
		text_add(out, " for ranks that this node cannot see.");
		return;
	}
	text_add(out, " for ");
	int32_t *missing = ctl_calloc(f->nculprits, sizeof(*missing));
	for (size_t i = 0; i < f->nculprits; i++)
		missing[i] = f->culprits[i].rank;
	why_add_ranks(w, f->comm, missing, f->nculprits, out);
	free(missing);
	text_add(out,
		 f->nculprits > 1 ? ", which have not called it." : ", which has not called it.");
}

/* ---- Circles ---- */

/* The operation of all ranks of the circle; 0: they differ. */
static unsigned common_op(const struct why_path *p)
{
	const ncclsvc_task_info *first = NULL;
	for (unsigned i = (unsigned)p->cycle; i < p->n; i++) {
		const ncclsvc_task_info *t = p->step[i].t;
		if (!t)
			continue;
		if (!first)
			first = t;
		if (t->op != first->op || t->comm != first->comm)
			return 0;
	}
	return first && op_is_p2p(first->op) ? first->op : 0;
}

static void add_circle(const struct why *w, const struct why_path *p, struct text *out)
{
	unsigned shown = 0, more = 0;
	for (unsigned i = (unsigned)p->cycle; i < p->n; i++) {
		const struct why_step *s = &p->step[i];
		const struct why_step *next = &p->step[i + 1 < p->n ? i + 1 : (unsigned)p->cycle];
		if (!s->t)
			continue;
		if (shown == CIRCLE_SHOWN) {
			more++;
			continue;
		}
		text_add(out, shown++ ? ", and " : "");
		why_add_rank(w, s->comm, s->rank, out);
		text_add(out, " waits in ");
		why_add_task(s->t, out);
		text_add(out, " of ");
		why_add_comm(w, s->comm, 0, out);
		text_add(out, " for ");
		why_add_rank(w, s->comm, next->rank, out);
	}
	if (more)
		text_printf(out, ", and so on over %u more rank%s, which wait%s for the first",
			    more, more == 1 ? "" : "s", more == 1 ? "s" : "");
}

void why_tell_deadlock(const struct why *w, const struct why_group *g, const struct why_path *p,
		       struct text *out)
{
	const unsigned op = common_op(p);
	text_add(out, "Deadlock for ");
	units_age(out, g->age_ns);
	text_add(out, ": ");
	add_circle(w, p, out);
	text_char(out, '.');
	if (p->cycle > 0) {
		const size_t begin = out->len + 1;
		text_char(out, ' ');
		why_add_task(g->tasks[0], out);
		text_add(out, " of ");
		why_add_comm(w, g->tasks[0]->comm, 0, out);
		text_add(out, " waits for them.");
		why_capitalize(out, begin);
	}
	if (op)
		text_printf(out, " All of them wait in %s, and none has called %s.",
			    ncclsvc_op_name(op), op == NCCLSVC_SEND ? "Recv" : "Send");
}
