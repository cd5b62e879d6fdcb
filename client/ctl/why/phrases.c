/* SPDX-License-Identifier: Apache-2.0
 * Parts of sentences: the names of ranks, communicators, operations, nodes and workers. */
#include "base/units.h"
#include "sentences.h"

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
	for (size_t i = 0; i < n && i < WHY_SHOWN; i++) {
		text_add(out, !i ? "" : i + 1 == n ? " and " : ", ");
		why_add_rank(w, comm, ranks[i], out);
	}
	if (n > WHY_SHOWN)
		text_printf(out, " and %zu more rank%s", n - WHY_SHOWN,
			    n > WHY_SHOWN + 1 ? "s" : "");
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

void why_add_task(const ncclsvc_task_info *t, struct text *out)
{
	why_add_operation(ncclsvc_op_name(t->op), t->seq, t->graph, out);
	text_quoted(out, t->label, sizeof(t->label));
}

/* "AllReduce #7 (float32, 1048576 elements) of communicator world (id 1, 4 ranks)" */
void why_add_whole_task(const struct why *w, const ncclsvc_task_info *t, bool peer,
			struct text *out)
{
	why_add_task(t, out);
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

void why_capitalize(struct text *out, size_t begin)
{
	if (begin < out->len && out->at[begin] >= 'a' && out->at[begin] <= 'z')
		out->at[begin] = (char)(out->at[begin] - 'a' + 'A');
}

/* "Ranks 0, 1 and 3 have waited 12.3 s in AllReduce #7 (...) of communicator world (id 1, 4 ranks)"
 */
void why_add_waiting(const struct why *w, const struct why_group *g, bool peer, struct text *out)
{
	bool many;
	add_callers(w, g, &many, out);
	why_capitalize(out, 0);
	text_add(out, many ? " have waited " : " has waited ");
	units_age(out, g->age_ns);
	text_add(out, " in ");
	why_add_whole_task(w, g->tasks[0], peer, out);
}

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

/* "the worker of device 1 (pid 501), which serves rank 1 (pid 111), has been starting for 3.0 s" */
void why_add_device(const struct why *w, const ncclsvc_member_info *m, struct text *out)
{
	const ncclsvc_device_info *d = why_device(w, m);
	text_printf(out, "the worker of device %d", m->device);
	if (d->pid > 0)
		text_printf(out, " (pid %d)", d->pid);
	text_add(out, ", which serves ");
	why_add_rank(w, m->comm, m->rank, out);
	switch (d->state) {
	case NCCLSVC_DEVICE_READY:
		text_add(out, ", does not run");
		return;
	case NCCLSVC_DEVICE_STARTING:
		text_add(out, ", has been starting for ");
		break;
	case NCCLSVC_DEVICE_FAILED:
		text_add(out, ", cannot be used; it failed ");
		break;
	default:
		text_add(out, ", was lost ");
	}
	units_age(out, d->age_ns);
	text_add(out, d->state == NCCLSVC_DEVICE_STARTING ? "" : " ago");
	if (d->text[0]) {
		text_add(out, " (");
		text_name(out, d->text, sizeof(d->text));
		text_char(out, ')');
	}
	if (d->state == NCCLSVC_DEVICE_LOST)
		text_add(out, "; ncclsvcd is starting another");
}

/* " Rank 1 (pid 7) was refused: ranks 0 (pid 6) and 1 (pid 7) ... both use device 0." */
void why_tell_refused(const ncclsvc_comm_info *c, struct text *out)
{
	if (!c->refused[0])
		return;
	text_printf(out, " Rank %d (pid %d) was refused: ", c->refused_rank, c->refused_pid);
	text_name(out, c->refused, sizeof(c->refused));
	text_char(out, '.');
}
