/* SPDX-License-Identifier: Apache-2.0
 * The analysis in words. */
#include "base/merge.h"
#include "base/units.h"
#include "internal.h"

#include <string.h>

#define CHAIN_TOLD 8 /* longer ones are told without their middle */

/* " (pid 4711, trainer-2)" */
static void add_process(const struct why *w, int32_t pid, uint32_t session, struct text *out)
{
	const ncclsvc_session_info *s = snapshot_session(w->s, session);
	if (pid <= 0)
		return;
	text_printf(out, " (pid %d", pid);
	if (s && s->pid == pid && s->name[0]) {
		text_add(out, ", ");
		text_name(out, s->name, sizeof(s->name));
	}
	text_char(out, ')');
}

void why_add_rank(const struct why *w, uint64_t comm, int32_t rank, struct text *out)
{
	const ncclsvc_member_info *m = why_member(w, comm, rank);
	text_printf(out, "rank %d", rank);
	if (m && m->elsewhere && m->pid > 0)
		text_printf(out, " (pid %d on node %u)", m->pid, m->elsewhere - 1);
	else if (m)
		add_process(w, m->pid, m->session, out);
}

void why_add_comm(const struct why *w, uint64_t id, uint32_t nranks, struct text *out)
{
	const ncclsvc_comm_info *comm = snapshot_comm(w->s, id);
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

void why_add_operation(const char *op, uint64_t seq, uint32_t graph, struct text *out)
{
	text_printf(out, "%s #%llu", op, (unsigned long long)seq);
	if (graph)
		text_printf(out, " of CUDA graph %u", graph);
}

static void add_task(const ncclsvc_task_info *t, struct text *out)
{
	why_add_operation(ncclsvc_op_name(t->op), t->seq, t->graph, out);
	text_quoted(out, t->label, sizeof(t->label));
}

static void add_shape(const ncclsvc_task_info *t, struct text *out)
{
	if (t->op == NCCLSVC_SEND || t->op == NCCLSVC_RECV)
		text_printf(out, " %s rank %d", t->op == NCCLSVC_SEND ? "to" : "from", t->peer);
	if (t->op != NCCLSVC_BARRIER)
		text_printf(out, " (%s, %llu element%s)", ncclsvc_type_name(t->type),
			    (unsigned long long)t->count, t->count == 1 ? "" : "s");
}

static void add_ranks(const struct why_group *g, struct text *out)
{
	int32_t ranks[9];
	for (size_t i = 0; i < g->n && i < sizeof(ranks) / sizeof(ranks[0]); i++)
		ranks[i] = g->tasks[i]->rank;
	units_ranks(out, ranks, g->n, g->tasks[0]->nranks);
}

void why_add_head(const struct why *w, const struct why_group *g, const char *verb,
		  struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	text_add(out, "Communicator ");
	why_add_comm(w, t->comm, t->nranks, out);
	text_printf(out, " has %s ", verb);
	units_age(out, g->age_ns);
	text_add(out, " at ");
	add_task(t, out);
	add_shape(t, out);
	text_add(out, ": ");
}

static void add_idle(const struct why *w, const struct why_path *p, struct text *out)
{
	const ncclsvc_member_info *m = p->step[p->n - 1].m;
	uint64_t submitted = m ? m->submitted : 0;
	if (!submitted)
		text_add(out, "it has submitted nothing there yet, and it is ");
	else
		text_printf(out, "its last task there was #%llu (done), and it is ",
			    (unsigned long long)(submitted - 1));
	if (p->process == 'D')
		text_add(out, "in an uninterruptible wait (state D) for a device or a file "
			      "system");
	else
		text_add(out, p->process ? "alive" : "connected");
	struct text lacks = TEXT_INIT(-1);
	if (m && why_add_missing(w, m->comm, m->rank, &lacks)) {
		text_char(out, ';');
		text_addn(out, lacks.at, lacks.len);
	}
	text_free(&lacks);
}

/* What is the matter with the last step. */
static void add_reason(const struct why *w, const struct why_path *p, struct text *out)
{
	const struct why_step *s = &p->step[p->n - 1];
	switch (p->cause) {
	case WHY_STOPPED:
		text_printf(out, "its process is stopped (state %c)", p->process);
		return;
	case WHY_DEAD:
		if (s->m && s->m->state == NCCLSVC_MEMBER_BROKEN)
			text_add(out, "it has yet to rejoin the communicator");
		else
			text_add(out, "its process has died");
		return;
	case WHY_JOINING:
		text_add(out, "it is not in the communicator");
		return;
	case WHY_INPUT:
		text_add(out, "it is at ");
		add_task(s->t, out);
		text_add(out, s->m && s->m->device >= 0
				      ? ", which waits on its GPU for the stream it was put on"
				      : ", whose timeline nobody has signalled");
		return;
	case WHY_PLAN:
		text_add(out, "it holds ");
		add_task(s->t, out);
		text_add(out, ", but");
		if (!why_add_missing(w, s->comm, s->rank, out))
			text_add(out, " has not submitted the rest of its planned group");
		return;
	case WHY_ELSEWHERE:
	case WHY_SILENT:
		text_add(out, "it waits itself at ");
		add_task(s->t, out);
		text_add(out, ", and ");
		why_tell_nodes(w, s->t, out);
		return;
	case WHY_RUNNING:
		text_add(out, "it is at ");
		add_task(s->t, out);
		if (s->t->state == NCCLSVC_LAUNCHED) {
			text_add(out, s->m && s->m->device >= 0
					      ? ", which its GPU's worker launched, for "
					      : ", which ncclsvcd has executed for ");
			units_age(out, s->t->state_ns);
		} else {
			text_add(out, ", which has not ended either");
		}
		return;
	default:
		add_idle(w, p, out);
	}
}

/* "rank 2 (pid 4711, trainer-2) has not: ...", on to the end of the chain. */
static void add_chain(const struct why *w, const struct why_path *p, struct text *out)
{
	for (unsigned i = 1; i < p->n; i++) {
		const struct why_step *s = &p->step[i];
		const ncclsvc_task_info *before = p->step[i - 1].t;
		if (i > 1)
			text_add(out, "; ");
		if (i == 3 && p->n > CHAIN_TOLD) {
			text_printf(out, "and so on, over %u ranks; ", p->n - 5);
			i = p->n - 2;
			s = &p->step[i];
			before = p->step[i - 1].t;
		}
		why_add_rank(w, s->comm, s->rank, out);
		if (before && before->op == NCCLSVC_SEND)
			text_add(out, " has no Recv for it");
		else if (before && before->op == NCCLSVC_RECV)
			text_add(out, " has no Send for it");
		else if (i + 1 == p->n && (p->cause == WHY_INPUT || p->cause == WHY_RUNNING))
			text_add(out, " is not ready");
		else
			text_add(out, " has not");
		text_add(out, ": ");
		/* The same process, seen where it is held up. */
		bool elsewhere = !s->t && i + 1 < p->n;
		if (elsewhere)
			s = &p->step[++i];
		if (i + 1 == p->n) {
			if (elsewhere) {
				text_add(out, "in communicator ");
				why_add_comm(w, s->comm, 0, out);
				text_char(out, ' ');
			}
			add_reason(w, p, out);
			return;
		}
		text_add(out, "it waits itself");
		if (elsewhere) {
			text_add(out, " in communicator ");
			why_add_comm(w, s->comm, 0, out);
		}
		text_add(out, " at ");
		add_task(s->t, out);
		text_printf(out, " for rank %d%s", p->step[i + 1].rank, elsewhere ? " there" : "");
	}
}

static void add_circle(const struct why *w, const struct why_path *p, struct text *out)
{
	unsigned begin = (unsigned)p->cycle;
	bool first = true;
	text_add(out, "this is a deadlock: ");
	for (unsigned i = begin; i < p->n; i++) {
		const struct why_step *s = &p->step[i];
		const struct why_step *next = &p->step[i + 1 < p->n ? i + 1 : begin];
		if (!s->t)
			continue;
		if (!first)
			text_add(out, ", and ");
		first = false;
		why_add_rank(w, s->comm, s->rank, out);
		text_add(out, " waits in communicator ");
		why_add_comm(w, s->comm, 0, out);
		text_add(out, " at ");
		add_task(s->t, out);
		text_add(out, " for ");
		why_add_rank(w, s->comm, next->rank, out);
	}
	text_printf(out,
		    ". Each must submit first what another waits for: submit in the same order "
		    "everywhere, or in one task group. `ncclsvc-ctl cancel comm %llu`",
		    (unsigned long long)merge_number_of(p->step[begin].comm));
	if (merge_node_of(p->step[begin].comm)) {
		text_add(out, " on ");
		units_node(out, w->s, merge_node_of(p->step[begin].comm) - 1);
	}
	text_add(out, " ends it.");
}

/* "pid 3", "pids 3, 4 and 5", "pids 3, 4, 5 and others" of the culprits; false if none is known. */
static bool add_pids(const struct why_finding *f, struct text *out)
{
	int32_t pids[WHY_TOLD];
	size_t n = 0, i;
	for (i = 0; i < f->nculprits && n < WHY_TOLD; i++) {
		bool known = f->culprits[i].pid <= 0;
		for (size_t k = 0; k < n; k++)
			known |= pids[k] == f->culprits[i].pid;
		if (!known)
			pids[n++] = f->culprits[i].pid;
	}
	bool more = i < f->nculprits;
	text_add(out, n > 1 ? "pids " : n ? "pid " : "");
	for (i = 0; i < n; i++)
		text_printf(out, "%s%d", i ? (i + 1 == n && !more ? " and " : ", ") : "", pids[i]);
	text_add(out, more ? " and others" : "");
	return n > 0;
}

static void add_stopped(const struct why_finding *f, struct text *out)
{
	for (size_t i = 0; i < f->nculprits; i++)
		if (!strcmp(f->culprits[i].state, WHY_STATE_STOPPED))
			text_printf(out, " %d", f->culprits[i].pid);
}

static void add_advice(const struct why *w, const struct why_finding *f, struct text *out)
{
	bool idle = true, one = f->nculprits == 1;
	for (size_t i = 0; i < f->nculprits; i++)
		idle &= !why_session_has_tasks(w, f->culprits[i].session);
	switch (f->cause) {
	case WHY_MISSING:
	case WHY_UNMATCHED:
	case WHY_PLAN:
		if (f->cause == WHY_PLAN)
			text_add(out, "`ncclsvc-ctl plan` shows the plan: ");
		else if (idle)
			text_add(out,
				 one ? "It has nothing queued: " : "They have nothing queued: ");
		else
			text_add(out, "Tasks of other communicators go on: ");
		text_add(out, "look at what ");
		if (add_pids(f, out))
			text_add(out, one ? " is doing." : " are doing.");
		else
			text_add(out, "the program does.");
		break;
	case WHY_STOPPED:
		text_add(out, "Continue it with `kill -CONT");
		add_stopped(f, out);
		text_add(out, "`, or end it.");
		break;
	case WHY_INPUT:
		text_add(out, "Look at what makes that input in ");
		if (!add_pids(f, out))
			text_add(out, "the program");
		text_char(out, '.');
		break;
	case WHY_DEAD:
		text_add(out, "Start it again: it must join, and the others rejoin.");
		break;
	case WHY_JOINING:
		text_add(out, "It must join first.");
		break;
	case WHY_ELSEWHERE:
		text_add(out, "`ncclsvc-ctl why` there tells more.");
		break;
	case WHY_SILENT:
		text_add(out, WHY_SILENT_ADVICE);
		break;
	default:
		text_printf(out, "ncclsvcd (pid %d) works on it.", w->s->daemon.pid);
	}
}

void why_tell_waiting(const struct why *w, const struct why_group *g, const struct why_finding *f,
		      const struct why_path *paths, size_t npaths, size_t more, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	why_add_head(w, g, "waited", out);
	if (op_is_p2p(t->op) && t->peer == t->rank) {
		why_add_rank(w, t->comm, t->rank, out);
		text_add(out, " has not submitted the other side. A Send to oneself and its Recv "
			      "belong in one task group.");
		return;
	}
	if (op_is_p2p(t->op)) {
		why_add_rank(w, t->comm, t->rank, out);
		text_add(out, " has submitted it; ");
	} else {
		add_ranks(g, out);
		text_add(out, g->n == 1 ? " has submitted it; " : " have submitted it; ");
	}
	if (f->cause == WHY_DEADLOCK) {
		add_circle(w, &paths[0], out);
		return;
	}
	const bool silent_first = why_asks(w, t) == WHY_SILENT;
	if (silent_first)
		why_tell_nodes(w, t, out);
	for (size_t i = 0; i < npaths; i++) {
		if (i || silent_first)
			text_add(out, "; ");
		add_chain(w, &paths[i], out);
	}
	if (t->ask_count && !silent_first) {
		text_add(out, npaths ? "; " : "");
		why_tell_nodes(w, t, out);
	}
	if (more)
		text_printf(out, "; and %zu more rank%s", more,
			    more == 1 ? " has not" : "s have not");
	text_add(out, ". ");
	add_advice(w, f, out);
}

void why_tell_input(const struct why *w, const struct why_group *g, struct text *out)
{
	size_t told = g->n < WHY_TOLD ? g->n : WHY_TOLD;
	why_add_head(w, g, "waited", out);
	for (size_t i = 0; i < told; i++) {
		if (i)
			text_add(out, ", ");
		why_add_rank(w, g->tasks[i]->comm, g->tasks[i]->rank, out);
	}
	if (g->n > told)
		text_printf(out, " and %zu more", g->n - told);
	text_add(out, g->n == 1 ? " has" : " have");
	text_add(out, " submitted it, but its input is not ready: nobody has signalled its "
		      "timeline. Look at what makes that input there.");
}

void why_tell_running(const struct why *w, const struct why_group *g, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	if (t->state == NCCLSVC_LAUNCHED) {
		why_add_head(w, g, "been", out);
		text_printf(out,
			    "everyone has submitted it, and ncclsvcd (pid %d) executes it. If that "
			    "is long for ",
			    w->s->daemon.pid);
		units_bytes(out, t->bytes);
		text_add(out, ", look at the load of this machine.");
		return;
	}
	why_add_head(w, g, "waited", out);
	text_printf(out,
		    "nothing is missing that ncclsvcd (pid %d) knows of, and it has not started "
		    "it. Look at the daemon's log and its threads.",
		    w->s->daemon.pid);
}

void why_tell_also(const struct why *w, const struct why_finding *f, struct text *out)
{
	size_t told = f->nalso < WHY_ALSO ? f->nalso : WHY_ALSO;
	if (!told)
		return;
	text_add(out, " Held up by the same: ");
	for (size_t i = 0; i < told; i++) {
		const struct why_also *a = &f->also[i];
		if (i)
			text_add(out, ", ");
		text_add(out, "communicator ");
		why_add_comm(w, a->comm, 0, out);
		if (a->op) {
			text_add(out, " at ");
			why_add_operation(a->op, a->seq, a->graph, out);
		}
		text_printf(out, " (%zu rank%s)", a->nwaiting, a->nwaiting == 1 ? "" : "s");
	}
	if (f->nalso > told)
		text_printf(out, " and %zu more", f->nalso - told);
	text_char(out, '.');
}
