/* SPDX-License-Identifier: Apache-2.0
 * The words of operations that all ranks have called: they wait for input, for a GPU's stream or
 * worker, for a node, or run. */
#include "base/units.h"
#include "sentences.h"

/* "All ranks have called AllReduce #2 (...) of communicator world (id 1, 2 ranks)" */
static void add_called_by_all(const struct why *w, const struct why_group *g, struct text *out)
{
	text_add(out, "All ranks have called ");
	why_add_whole_task(w, g->tasks[0], true, out);
}

void why_tell_input(const struct why *w, const struct why_group *g, struct text *out)
{
	int32_t ranks[WHY_SHOWN] = {0};
	for (size_t i = 0; i < g->n && i < WHY_SHOWN; i++)
		ranks[i] = g->tasks[i]->rank;
	why_add_ranks(w, g->tasks[0]->comm, ranks, g->n, out);
	why_capitalize(out, 0);
	text_add(out, g->n == 1 ? " has waited " : " have waited ");
	units_age(out, g->age_ns);
	text_add(out, " in ");
	why_add_whole_task(w, g->tasks[0], true, out);
	text_add(out, " for input: nobody has signalled its timeline.");
}

void why_tell_running(const struct why *w, const struct why_group *g, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	if (t->state == NCCLSVC_LAUNCHED) {
		add_called_by_all(w, g, out);
		text_printf(out, ", and ncclsvcd (pid %d) has been executing it for ",
			    w->s->daemon.pid);
		units_age(out, g->age_ns);
		text_char(out, '.');
		return;
	}
	why_add_waiting(w, g, true, out);
	text_printf(out, ", although no rank is missing: ncclsvcd (pid %d) has not started it.",
		    w->s->daemon.pid);
}

void why_tell_silent(const struct why *w, const struct why_group *g, const ncclsvc_node_info *n,
		     struct text *out)
{
	add_called_by_all(w, g, out);
	text_add(out, ", but ");
	why_add_silence(n, out);
	text_char(out, '.');
}

void why_tell_worker(const struct why *w, const struct why_group *g, const ncclsvc_member_info *bad,
		     struct text *out)
{
	add_called_by_all(w, g, out);
	text_add(out, ", and it has been on the GPUs for ");
	units_age(out, g->age_ns);
	text_add(out, ", but ");
	why_add_device(w, bad, out);
	text_char(out, '.');
}

void why_tell_streams(const struct why *w, const struct why_group *g, const int32_t *ranks,
		      size_t n, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	add_called_by_all(w, g, out);
	text_add(out, ", but it has waited ");
	units_age(out, g->age_ns);
	text_add(out, " on the GPUs for the stream of ");
	for (size_t i = 0; i < n && i < WHY_SHOWN; i++) {
		const ncclsvc_member_info *m = why_member(w, t->comm, ranks[i]);
		text_add(out, !i ? "" : i + 1 == n ? " and " : ", ");
		why_add_rank(w, t->comm, ranks[i], out);
		if (m && m->device >= 0)
			text_printf(out, " on device %d", m->device);
	}
	if (n > WHY_SHOWN)
		text_printf(out, " and %zu more", n - WHY_SHOWN);
	text_add(out, ", where earlier work has not ended.");
}

void why_tell_launched(const struct why *w, const struct why_group *g, const int32_t *ranks,
		       size_t n, struct text *out)
{
	const ncclsvc_task_info *t = g->tasks[0];
	add_called_by_all(w, g, out);
	if (t->kernel) {
		text_add(out, "; its kernels have run on all GPUs for ");
		units_age(out, g->age_ns);
		text_add(out, " and have not ended.");
		return;
	}
	text_add(out, ", and for ");
	units_age(out, g->age_ns);
	text_add(out, " it has been on the GPUs of ");
	units_ranks(out, ranks, n, t->nranks);
	text_add(out, ". NCCL is moving ");
	units_bytes(out, t->bytes);
	text_add(out, ", or earlier work of a rank's stream has not ended.");
}
