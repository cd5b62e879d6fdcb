/* SPDX-License-Identifier: Apache-2.0
 * The words of the analysis. A paragraph says what is known of one cause (here; in
 * sentences_joining.c of communicators that lack members, in sentences_gpus.c of GPUs), then what
 * the culprits' processes are doing, and what to do next: a command to paste (sentences_next.c). */
#include "base/units.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define CHAIN_TOLD  5 /* steps; longer chains are told without their middle */
#define CIRCLE_TOLD 4 /* ranks */

/* ---- Names ---- */

/* "rank 2 (pid 4711, trainer-2)", "rank 2 (pid 4711 on node 1)" */
void why_add_rank(const struct why *w, uint64_t comm, int32_t rank, struct text *out)
{
	const ncclsvc_member_info *m = why_member(w, comm, rank);
	const ncclsvc_session_info *s = m ? snapshot_session(w->s, m->session) : NULL;
	text_printf(out, "rank %d", rank);
	if (!m || m->pid <= 0)
		return;
	text_printf(out, " (pid %d", m->pid);
	if (m->elsewhere) {
		text_printf(out, " on node %u", m->elsewhere - 1);
	} else if (s && s->pid == m->pid && s->name[0]) {
		text_add(out, ", ");
		text_name(out, s->name, sizeof(s->name));
	}
	text_char(out, ')');
}

/* "rank 1 (pid 7), rank 2 (pid 8) and 5 more ranks" */
void why_add_ranks(const struct why *w, uint64_t comm, const int32_t *ranks, size_t n,
		   struct text *out)
{
	for (size_t i = 0; i < n && i < WHY_TOLD; i++) {
		text_add(out, !i ? "" : i + 1 == n ? " and " : ", ");
		why_add_rank(w, comm, ranks[i], out);
	}
	if (n > WHY_TOLD)
		text_printf(out, " and %zu more rank%s", n - WHY_TOLD, n > WHY_TOLD + 1 ? "s" : "");
}

/* "communicator world (id 1, 4 ranks)"; without the size if nranks is 0 */
void why_add_comm(const struct why *w, uint64_t id, uint32_t nranks, struct text *out)
{
	const ncclsvc_comm_info *comm = snapshot_comm(w->s, id);
	text_add(out, "communicator ");
	if (comm && comm->label[0])
		text_name(out, comm->label, sizeof(comm->label));
	else
		units_number(out, id);
	text_add(out, " (id ");
	units_number(out, id);
	if (nranks)
		text_printf(out, ", %u rank%s", nranks, nranks == 1 ? "" : "s");
	text_char(out, ')');
}

/* "AllReduce #2 of CUDA graph 1" */
void why_add_operation(const char *op, uint64_t seq, uint32_t graph, struct text *out)
{
	text_add(out, op);
	if (seq != WHY_NO_SEQ)
		text_printf(out, " #%llu", (unsigned long long)seq);
	if (graph)
		text_printf(out, " of CUDA graph %u", graph);
}

static void add_task(const ncclsvc_task_info *t, struct text *out)
{
	why_add_operation(ncclsvc_op_name(t->op), t->seq, t->graph, out);
	text_quoted(out, t->label, sizeof(t->label));
}

/* "AllReduce #7 (float32, 1048576 elements) of communicator world (id 1, 4 ranks)" */
static void add_whole_task(const struct why *w, const ncclsvc_task_info *t, bool peer,
			   struct text *out)
{
	add_task(t, out);
	if (peer && op_is_p2p(t->op))
		text_printf(out, " %s rank %d", t->op == NCCLSVC_SEND ? "to" : "from", t->peer);
	if (t->op != NCCLSVC_BARRIER)
		text_printf(out, " (%s, %llu element%s)", ncclsvc_type_name(t->type),
			    (unsigned long long)t->count, t->count == 1 ? "" : "s");
	text_add(out, " of ");
	why_add_comm(w, t->comm, t->nranks, out);
}

/* "ranks 0, 1 and 3", "rank 0 (pid 110, trainer-0)", "63 of 64 ranks"; *many: more than one */
static void add_callers(const struct why *w, const struct why_group *g, bool *many,
			struct text *out)
{
	int32_t ranks[9] = {0};
	*many = g->n > 1;
	if (g->n == 1) {
		why_add_rank(w, g->tasks[0]->comm, g->tasks[0]->rank, out);
		return;
	}
	for (size_t i = 0; i < g->n && i < sizeof(ranks) / sizeof(ranks[0]); i++)
		ranks[i] = g->tasks[i]->rank;
	units_ranks(out, ranks, g->n, g->tasks[0]->nranks);
}

/* The sentence that began there begins with a capital letter. */
static void capitalize(struct text *out, size_t begin)
{
	if (begin < out->len && out->at[begin] >= 'a' && out->at[begin] <= 'z')
		out->at[begin] = (char)(out->at[begin] - 'a' + 'A');
}

/* "Ranks 0, 1 and 3 have waited 12.3 s in AllReduce #7 (...) of communicator world (id 1, 4 ranks)"
 */
static void add_waiting(const struct why *w, const struct why_group *g, bool peer, struct text *out)
{
	bool many;
	add_callers(w, g, &many, out);
	capitalize(out, 0);
	text_add(out, many ? " have waited " : " has waited ");
	units_age(out, g->age_ns);
	text_add(out, " in ");
	add_whole_task(w, g->tasks[0], peer, out);
}

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

/* "node 2 (b, ncclsvcd pid 77) has sent nothing for 3.2 s" */
void why_add_silence(const ncclsvc_node_info *n, struct text *out)
{
	text_printf(out, "node %u (", n->node);
	if (n->host[0]) {
		text_name(out, n->host, sizeof(n->host));
		text_add(out, ", ");
	}
	text_printf(out, "ncclsvcd pid %d) has sent nothing for ", n->pid);
	units_age(out, n->heard_ns);
}

static void tell_node(const struct why *w, const ncclsvc_task_info *t, uint32_t node,
		      struct text *out)
{
	size_t n;
	int32_t *ranks = why_ranks_of(w, t, node, &n);
	text_char(out, ' ');
	if (why_node_is_silent(w, node)) {
		const size_t begin = out->len;
		why_add_silence(snapshot_node(w->s, node), out);
		capitalize(out, begin);
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
	uint32_t told = 0;
	for (int silent = 1; silent >= 0; silent--)
		for (uint32_t i = 0; i < task_asks_shown(t) && told < WHY_TOLD; i++)
			if (why_node_is_silent(w, t->ask_nodes[i]) == silent) {
				told++;
				tell_node(w, t, t->ask_nodes[i], out);
			}
	if (t->ask_count > told)
		text_printf(out, " %u more node%s may lack ranks.", t->ask_count - told,
			    t->ask_count - told == 1 ? "" : "s");
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
	add_task(s->t, out);
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
		add_task(s->t, out);
		add_other_comm(w, p, s, out);
		text_add(out, " for ");
		if (i <= 2 && p->n > CHAIN_TOLD) {
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

/* All ranks of the fault that are told, and how many there are more. */
static void add_culprits(const struct why *w, const struct why_fault *fault, struct text *out)
{
	const size_t n = fault->f.nculprits, told = fault->ntold;
	const size_t more = fault->more + (n > told ? n - told : 0);
	bool direct = true;
	for (size_t i = 0; i < told; i++)
		direct &= is_direct(&fault->told[i]);
	for (size_t i = 0; i < told; i++) {
		const struct why_path *p = &fault->told[i];
		const struct why_step *s = &p->step[p->n - 1];
		text_add(out, !i		     ? ""
			      : !direct		     ? ", and for "
			      : more || i + 1 < told ? ", "
						     : " and ");
		if (direct)
			why_add_rank(w, s->comm, s->rank, out);
		else
			add_chain(w, p, out);
	}
	if (direct && more)
		text_printf(out, " and %zu more rank%s", more, more == 1 ? "" : "s");
	if (direct)
		add_fault(w, &fault->told[0], told + more > 1, out);
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
	const struct why_path *first = fault->ntold ? &fault->told[0] : NULL;
	if (fault->f.second) {
		add_task(t, out);
		text_add(out, " of ");
		why_add_comm(w, t->comm, 0, out);
		text_add(out, " also waits");
	} else {
		add_waiting(w, g, !first || t->peer == t->rank, out);
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

/* ---- Requests of all members ---- */

void why_tell_request(const struct why *w, const struct why_finding *f, struct text *out)
{
	const ncclsvc_comm_info *comm = snapshot_comm(w->s, f->comm);
	int32_t ranks[9] = {0};
	for (size_t i = 0; i < f->nwaiting && i < sizeof(ranks) / sizeof(ranks[0]); i++)
		ranks[i] = f->waiting[i];
	units_ranks(out, ranks, f->nwaiting, comm ? comm->nranks : 0);
	capitalize(out, 0);
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
	unsigned told = 0, more = 0;
	for (unsigned i = (unsigned)p->cycle; i < p->n; i++) {
		const struct why_step *s = &p->step[i];
		const struct why_step *next = &p->step[i + 1 < p->n ? i + 1 : (unsigned)p->cycle];
		if (!s->t)
			continue;
		if (told == CIRCLE_TOLD) {
			more++;
			continue;
		}
		text_add(out, told++ ? ", and " : "");
		why_add_rank(w, s->comm, s->rank, out);
		text_add(out, " waits in ");
		add_task(s->t, out);
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
		add_task(g->tasks[0], out);
		text_add(out, " of ");
		why_add_comm(w, g->tasks[0]->comm, 0, out);
		text_add(out, " waits for them.");
		capitalize(out, begin);
	}
	if (op)
		text_printf(out, " All of them wait in %s, and none has called %s.",
			    ncclsvc_op_name(op), op == NCCLSVC_SEND ? "Recv" : "Send");
}

/* ---- Operations that lack nobody ---- */

void why_tell_held(const struct why *w, const struct why_group *g, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	add_waiting(w, g, true, out);
	text_add(out, ": it has not called ");
	if (!add_missing(w, t->comm, t->rank, out))
		text_add(out, "the rest of its planned group");
	text_char(out, '.');
}

void why_tell_input(const struct why *w, const struct why_group *g, struct text *out)
{
	int32_t ranks[WHY_TOLD] = {0};
	for (size_t i = 0; i < g->n && i < WHY_TOLD; i++)
		ranks[i] = g->tasks[i]->rank;
	why_add_ranks(w, g->tasks[0]->comm, ranks, g->n, out);
	capitalize(out, 0);
	text_add(out, g->n == 1 ? " has waited " : " have waited ");
	units_age(out, g->age_ns);
	text_add(out, " in ");
	add_whole_task(w, g->tasks[0], true, out);
	text_add(out, " for input: nobody has signalled its timeline.");
}

/* "All ranks have called AllReduce #2 (...) of communicator world (id 1, 2 ranks)" */
void why_add_called_by_all(const struct why *w, const struct why_group *g, struct text *out)
{
	text_add(out, "All ranks have called ");
	add_whole_task(w, g->tasks[0], true, out);
}

void why_tell_running(const struct why *w, const struct why_group *g, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	if (t->state == NCCLSVC_LAUNCHED) {
		why_add_called_by_all(w, g, out);
		text_printf(out, ", and ncclsvcd (pid %d) has been executing it for ",
			    w->s->daemon.pid);
		units_age(out, g->age_ns);
		text_char(out, '.');
		return;
	}
	add_waiting(w, g, true, out);
	text_printf(out, ", although no rank is missing: ncclsvcd (pid %d) has not started it.",
		    w->s->daemon.pid);
}

void why_tell_silent(const struct why *w, const struct why_group *g, const ncclsvc_node_info *n,
		     struct text *out)
{
	why_add_called_by_all(w, g, out);
	text_add(out, ", but ");
	why_add_silence(n, out);
	text_char(out, '.');
}
