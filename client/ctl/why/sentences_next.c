/* SPDX-License-Identifier: Apache-2.0
 * The end of each paragraph: what the culprits' processes are doing, what else waits for them, and
 * the command to run next. */
#include "base/ids.h"
#include "base/units.h"
#include "sentences.h"

#include <string.h>

/* ---- What a process is doing ---- */

static void add_wchan(const struct process *p, struct text *out)
{
	if (!p->wchan[0])
		return;
	text_add(out, " in the kernel's ");
	text_name(out, p->wchan, sizeof(p->wchan));
}

static void add_tracer(const struct process *p, struct text *out)
{
	text_name(out, p->tracer_name[0] ? p->tracer_name : "a debugger", sizeof(p->tracer_name));
	if (p->tracer > 0)
		text_printf(out, " (pid %d)", p->tracer);
}

/* " Pid 112 is stopped by a signal (SIGSTOP or Ctrl-Z)." */
static void tell_process(const struct process *p, struct text *out)
{
	text_printf(out, " Pid %d", p->pid);
	switch (p->state) {
	case PROCESS_GONE:
		text_add(out, " has ended.");
		return;
	case PROCESS_RUNNING:
		text_add(out, " is running");
		if (p->cpu >= 0)
			text_printf(out, " (%d %% CPU)", p->cpu);
		break;
	case PROCESS_SLEEPING:
		text_add(out, " is sleeping");
		add_wchan(p, out);
		break;
	case PROCESS_BLOCKED:
		text_add(out, " waits for a device or file system");
		add_wchan(p, out);
		text_add(out, " (state D: it cannot be interrupted)");
		break;
	case PROCESS_STOPPED:
		text_add(out, " is stopped by a signal (SIGSTOP or Ctrl-Z)");
		break;
	case PROCESS_TRACED:
		text_add(out, " is held by the debugger ");
		add_tracer(p, out);
		break;
	case PROCESS_FROZEN:
		text_add(out, " is frozen by its cgroup");
		break;
	case PROCESS_LEADERLESS:
		text_printf(out, "'s main thread has ended, but %u of its threads still run%s",
			    p->threads, p->threads == 1 ? "s" : "");
		break;
	case PROCESS_UNSEEN:
		text_add(out, " cannot be seen from here: /proc hides it");
	}
	text_char(out, '.');
}

/* Adds a command, such as "`kill -CONT 112`", that resumes the process or shows its activity. */
static void add_process_command(const struct process *p, int32_t pid, struct text *out)
{
	switch (p->state) {
	case PROCESS_GONE:
		return;
	case PROCESS_STOPPED:
		text_printf(out, "kill -CONT %d", pid);
		return;
	case PROCESS_TRACED:
		text_printf(out, "ps -fp %d", p->tracer);
		return;
	case PROCESS_FROZEN:
		if (!p->cgroup[0]) { /* another node's, which can find it */
			text_add(out, "ncclsvc-ctl why");
			return;
		}
		text_add(out, "echo 0 > ");
		text_name(out, p->cgroup, sizeof(p->cgroup));
		text_add(out, "/cgroup.freeze");
		return;
	case PROCESS_BLOCKED:
		text_printf(out, "cat /proc/%d/stack", pid);
		return;
	case PROCESS_UNSEEN:
		text_add(out, "sudo ncclsvc-ctl why");
		return;
	case PROCESS_LEADERLESS:
		pid = p->thread;
		break;
	default:
		if (p->python) {
			text_printf(out, "py-spy dump --pid %d", pid);
			return;
		}
	}
	text_printf(out, "gdb -p %d -batch -ex 'thread apply all bt'", pid);
}

void why_tell_daemon(const struct process *p, uint64_t silent_ns, struct text *out)
{
	text_add(out, "ncclsvcd");
	if (p->pid > 0)
		text_printf(out, " (pid %d)", p->pid);
	text_add(out, " has not answered for ");
	units_age(out, silent_ns);
	text_char(out, '.');
	if (p->pid <= 0 || p->state == PROCESS_UNSEEN) {
		text_add(out, " Its process cannot be seen from here. Next: `systemctl status "
			      "ncclsvcd`.");
		return;
	}
	tell_process(p, out);
	text_add(out, " Next: `");
	add_process_command(p, p->pid, out);
	text_add(out, "`.");
}

/* ---- The end of a paragraph ---- */

/* " on host b (node 2)" */
static void add_host(const struct why *w, uint32_t node, struct text *out)
{
	const ncclsvc_node_info *n = snapshot_node(w->s, node);
	text_add(out, " on ");
	if (n && n->host[0]) {
		text_add(out, "host ");
		text_name(out, n->host, sizeof(n->host));
		text_printf(out, " (node %u)", node);
	} else {
		text_printf(out, "node %u", node);
	}
}

static void add_there(const struct why *w, uint32_t node, struct text *out)
{
	text_add(out, "`ncclsvc-ctl why`");
	add_host(w, node, out);
}

/* 1 + the other node on which the culprit's command is to be run; 0: it is this one. */
static uint32_t place_of_command(const struct why *w, const struct why_culprit *c)
{
	const ncclsvc_member_info *m = why_member(w, c->comm, c->rank);
	if (c->cause == WHY_DEADLOCK)
		return ids_node(c->comm);
	return c->process && m ? m->elsewhere : 0;
}

static bool has_ended(const struct why_culprit *c)
{
	return c->process && c->process->state == PROCESS_GONE;
}

void why_add_command(const struct why *w, const struct why_culprit *c, struct text *out)
{
	if (c->cause == WHY_DEADLOCK)
		text_printf(out, "ncclsvc-ctl cancel comm %llu",
			    (unsigned long long)ids_number(c->comm));
	else if (c->cause == WHY_JOINING)
		text_add(out, "ncclsvc-ctl sessions");
	else if (has_ended(c) || (c->cause == WHY_DEAD && !c->process))
		text_printf(out, "ncclsvc-ctl comms --members --comm %llu",
			    (unsigned long long)c->comm);
	else if (c->process)
		add_process_command(c->process, c->pid, out);
	(void)w;
}

static void tell_culprit(const struct why *w, const struct why_culprit *c, struct text *out)
{
	if (c->process)
		tell_process(c->process, out);
	else if (!w->in->look && c->pid > 0)
		text_printf(out,
			    " Pid %d cannot be seen from here: ncclsvc-ctl runs in another PID "
			    "namespace than ncclsvcd.",
			    c->pid);
	else if (c->pid <= 0 && c->session)
		text_printf(out,
			    " Rank %d's process cannot be seen from here: it is in another PID "
			    "namespace.",
			    c->rank);
}

static void tell_processes(const struct why *w, const struct why_finding *f, struct text *out)
{
	const size_t n = f->nculprits < WHY_SHOWN ? f->nculprits : WHY_SHOWN;
	for (size_t i = 0; i < n; i++) {
		const struct why_culprit *c = &f->culprits[i];
		bool known = c->cause == WHY_DEADLOCK || c->cause == WHY_JOINING || has_ended(c);
		for (size_t k = 0; k < i; k++)
			known |= f->culprits[k].pid == c->pid;
		if (!known)
			tell_culprit(w, c, out);
	}
	if (f->worker > 0 && f->cause == WHY_WORKER) {
		const struct process *p = why_look_at(w, f->worker, true);
		if (process_is_halted(p))
			tell_process(p, out);
	}
}

static void tell_also(const struct why *w, const struct why_finding *f, struct text *out)
{
	size_t shown = f->nalso < WHY_ALSO ? f->nalso : WHY_ALSO;
	if (!shown)
		return;
	text_add(out, " Also waiting for this: ");
	for (size_t i = 0; i < shown; i++) {
		const struct why_also *a = &f->also[i];
		text_add(out, i ? ", " : "");
		if (a->op) {
			text_printf(out, "%zu rank%s in ", a->nwaiting,
				    a->nwaiting == 1 ? "" : "s");
			why_add_operation(a->op, a->seq, a->graph, out);
			text_add(out, " of ");
		}
		why_add_comm(w, a->comm, 0, out);
	}
	if (f->nalso > shown)
		text_printf(out, " and %zu more", f->nalso - shown);
	text_char(out, '.');
}

/* Of processes: one command for all that are stopped, else the first one's. */
static bool add_culprits_command(const struct why *w, const struct why_finding *f, struct text *out)
{
	const struct why_culprit *first = NULL;
	for (size_t i = 0; i < f->nculprits && !first; i++)
		if (f->culprits[i].next)
			first = &f->culprits[i];
	if (!first)
		return false;
	text_printf(out, "`%s", first->next);
	for (const struct why_culprit *c = first + 1; c < f->culprits + f->nculprits; c++)
		if (first->process && first->process->state == PROCESS_STOPPED && c->process &&
		    c->process->state == PROCESS_STOPPED && c->pid != first->pid &&
		    place_of_command(w, c) == place_of_command(w, first))
			text_printf(out, " %d", c->pid);
	text_char(out, '`');
	if (place_of_command(w, first))
		add_host(w, place_of_command(w, first) - 1, out);
	if (first->process && first->process->state == PROCESS_TRACED)
		text_add(out, ", and let it continue or detach in that debugger");
	return true;
}

/* There is no process that could rejoin by itself. */
static bool must_start(const struct why_culprit *c)
{
	return has_ended(c) || (!c->process && strcmp(c->state, "broken") != 0);
}

/* No command for a process is known here. */
static void add_place_to_look(const struct why *w, const struct why_finding *f, struct text *out)
{
	const struct why_culprit *c = f->nculprits ? &f->culprits[0] : NULL;
	const ncclsvc_member_info *m = c ? why_member(w, c->comm, c->rank) : NULL;
	if (m && m->elsewhere)
		add_there(w, m->elsewhere - 1, out);
	else if (!w->in->look)
		text_add(out, "`ncclsvc-ctl why` on the host, outside of this container");
	else if (c)
		text_add(out, "`ncclsvc-ctl sessions`");
	else
		text_printf(out, "`ncclsvc-ctl comms --members --comm %llu`",
			    (unsigned long long)f->comm);
}

static void add_next(const struct why *w, const struct why_finding *f, struct text *out)
{
	const unsigned long long comm = f->comm;
	switch (f->cause) {
	case WHY_DEADLOCK:
		add_culprits_command(w, f, out);
		text_add(out, " ends the wait; then make all ranks call the operations in the same "
			      "order, or Send and Recv in one group");
		return;
	case WHY_ELSEWHERE:
	case WHY_SILENT:
		if (f->nnodes)
			add_there(w, f->nodes[0], out);
		return;
	case WHY_WORKER: {
		const struct process *p = why_look_at(w, f->worker, true);
		if (process_is_halted(p)) {
			text_char(out, '`');
			add_process_command(p, f->worker, out);
			text_char(out, '`');
		} else {
			text_add(out, "`ncclsvc-ctl devices`");
		}
		return;
	}
	case WHY_RUNNING:
		if (f->launched)
			text_add(out, "`nvidia-smi`");
		else
			text_printf(out, "`top -H -p %d`", w->s->daemon.pid);
		return;
	case WHY_JOINING:
		if (f->nculprits)
			text_add(out, "`ncclsvc-ctl sessions` shows which processes have "
				      "connected; start those of the missing ranks");
		else
			text_printf(out, "`ncclsvc-ctl comms --comm %llu`; see ncclsvcd's log",
				    comm);
		return;
	default:
		if (!add_culprits_command(w, f, out))
			add_place_to_look(w, f, out);
		else if (f->cause == WHY_DEAD && must_start(&f->culprits[0]))
			text_printf(out, " shows who has rejoined; start rank %d again",
				    f->culprits[0].rank);
	}
}

void why_tell_end(const struct why *w, struct why_finding *f, struct text *out)
{
	struct text next = TEXT_INIT(-1);
	tell_processes(w, f, out);
	tell_also(w, f, out);
	add_next(w, f, &next);
	if (!next.len)
		return;
	text_add(out, " Next: ");
	text_addn(out, next.at, next.len);
	text_char(out, '.');
	f->next = text_steal(&next);
}
