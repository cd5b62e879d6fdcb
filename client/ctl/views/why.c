/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ids.h"
#include "base/units.h"
#include "view.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 1400 /* bytes of text that an operator reads at once */
#define TENTH_NS UINT64_C(100000000)

/* "Failed 102 ms ago on communicator world: ..."; nothing if nothing has failed. */
static void tell_failure(const struct view *v)
{
	const ncclsvc_daemon_info *d = &v->s->daemon;
	const ncclsvc_comm_info *comm = snapshot_comm(v->s, d->last_failure_comm);
	char sentence[VIEW_SENTENCE];
	if (d->last_failure.result == NCCLSVC_OK)
		return;
	struct text t = TEXT_INIT(-1);
	text_add(&t, "Failed ");
	units_age(&t, d->last_failure_age_ns);
	text_add(&t, " ago on communicator ");
	if (comm && comm->label[0])
		view_label(&t, comm);
	else
		text_u64(&t, d->last_failure_comm);
	text_add(&t, ": ");
	text_add(&t, ncclsvc_status_sentence(&d->last_failure, sentence, sizeof(sentence)));
	text_char(&t, '.');
	char *s = text_steal(&t);
	view_paragraph(v, 0, s);
	free(s);
}

static void nothing(const struct view *v, const struct why_report *r)
{
	size_t comms = 0;
	for (size_t i = 0; i < v->s->ncomms; i++)
		comms += v->s->comms[i].state != NCCLSVC_COMM_IDLE;
	text_printf(v->out, "Nothing is stuck now: %zu communicator%s, ", comms,
		    comms == 1 ? "" : "s");
	uint64_t tenths = r->oldest_ns / TENTH_NS + 1;
	if (!r->pending)
		text_add(v->out, "no task is pending.\n");
	else
		text_printf(v->out, "no task waits longer than %llu.%llu s.\n",
			    (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10));
	view_straggler(v);
}

static void process_json(struct json *j, const struct process *p)
{
	if (!p) {
		put_null(j, "process");
		return;
	}
	put_object(j, "process");
	put_string(j, "state", process_state_name(p->state), SIZE_MAX);
	put_i64_or_null(j, "cpu_percent", p->cpu >= 0, p->cpu);
	put_string(j, "wchan", p->wchan[0] ? p->wchan : NULL, sizeof(p->wchan));
	put_i64_or_null(j, "tracer", p->tracer > 0, p->tracer);
	put_object_end(j);
}

static void culprit_json(struct json *j, const struct view *v, const struct why_culprit *c)
{
	const ncclsvc_member_info *m = snapshot_member(v->s, c->comm, c->rank);
	put_object(j, NULL);
	view_json_comm(v->s, j, c->comm);
	put_i64(j, "rank", c->rank);
	view_json_node(v->s, j, m ? view_member_node(v->s, m) : 0);
	put_i64(j, "pid", c->pid);
	put_u64(j, "session", ids_session_number(v->s, c->session));
	put_string(j, "name", c->name, NCCLSVC_NAME_BYTES);
	put_string(j, "state", c->state, SIZE_MAX);
	put_string(j, "cause", why_cause_name(c->cause), SIZE_MAX);
	put_bool(j, "first", c->first);
	process_json(j, c->process);
	put_string(j, "next", c->next, SIZE_MAX);
	put_object_end(j);
}

static void worker_json(struct json *j, const struct why_finding *f)
{
	if (f->device < 0) {
		put_null(j, "worker");
		return;
	}
	put_object(j, "worker");
	put_i64(j, "device", f->device);
	put_i64(j, "pid", f->worker);
	put_object_end(j);
}

static void finding_json(struct json *j, const struct view *v, const struct why_finding *f)
{
	put_object(j, NULL);
	view_json_comm(v->s, j, f->comm);
	view_json_label(j, "label", snapshot_comm(v->s, f->comm));
	put_u64_or_null(j, "seq", f->op && f->seq != WHY_NO_SEQ, f->seq);
	put_u64_or_null(j, "graph", f->graph, f->graph);
	put_string(j, "op", f->op, SIZE_MAX);
	if (f->age_known)
		put_seconds(j, "age_s", f->age_ns);
	else
		put_null(j, "age_s");
	put_string(j, "cause", why_cause_name(f->cause), SIZE_MAX);
	put_array(j, "waiting_ranks");
	for (size_t i = 0; i < f->nwaiting; i++)
		put_i64(j, NULL, f->waiting[i]);
	put_array_end(j);
	put_array(j, "culprits");
	for (size_t i = 0; i < f->nculprits; i++)
		culprit_json(j, v, &f->culprits[i]);
	put_array_end(j);
	worker_json(j, f);
	put_array(j, "nodes");
	for (size_t i = 0; i < f->nnodes; i++) {
		const ncclsvc_node_info *n = snapshot_node(v->s, f->nodes[i]);
		put_object(j, NULL);
		put_u64(j, "node", f->nodes[i]);
		put_string(j, "host", n ? n->host : NULL, n ? sizeof(n->host) : 0);
		put_i64(j, "pid", n ? n->pid : 0);
		if (n)
			put_seconds(j, "heard_s", n->heard_ns);
		else
			put_null(j, "heard_s");
		put_bool(j, "silent", n && node_is_silent(n));
		put_object_end(j);
	}
	put_array_end(j);
	put_array(j, "also");
	for (size_t i = 0; i < f->nalso; i++) {
		const struct why_also *a = &f->also[i];
		put_object(j, NULL);
		view_json_comm(v->s, j, a->comm);
		view_json_label(j, "label", snapshot_comm(v->s, a->comm));
		put_u64_or_null(j, "seq", a->op && a->seq != WHY_NO_SEQ, a->seq);
		put_u64_or_null(j, "graph", a->graph, a->graph);
		put_string(j, "op", a->op, SIZE_MAX);
		put_seconds(j, "age_s", a->age_ns);
		put_u64(j, "waiting", a->nwaiting);
		put_object_end(j);
	}
	put_array_end(j);
	put_string(j, "text", f->text, SIZE_MAX);
	put_string(j, "next", f->next, SIZE_MAX);
	put_object_end(j);
	text_flush(j->out, false);
}

/* The node whose daemon answered. */
static void answerer_json(struct json *j, const struct view *v)
{
	const ncclsvc_node_info *self = NULL;
	for (size_t i = 0; i < v->s->nnodes; i++)
		if (v->s->nodes[i].state == NCCLSVC_NODE_SELF)
			self = &v->s->nodes[i];
	put_u64(j, "node", self ? self->node : 0);
	if (self)
		put_string(j, "host", self->host, sizeof(self->host));
	else
		put_string(j, "host", v->host, SIZE_MAX);
}

static void why_json(const struct view *v, const struct why_report *r)
{
	struct json j = view_json_begin(v);
	answerer_json(&j, v);
	put_bool(&j, "stuck", r->n > 0);
	put_bool(&j, "failed_lately", view_failed_lately(&v->s->daemon));
	put_seconds(&j, "after_s", v->args->after_ns);
	put_array(&j, "findings");
	for (size_t i = 0; i < r->n; i++)
		finding_json(&j, v, &r->findings[i]);
	put_array_end(&j);
	put_u64(&j, "unseen", r->unseen);
	view_json_answers(v, &j);
	view_straggler_json(v, &j);
	view_json_failure(&j, &v->s->daemon);
	view_json_end(&j);
}

/* A line for the daemon's watcher (daemon/server/watcher.c), fields parted by tabs: communicator,
 * position, graph (0: none), operation (empty: JOIN), ranks that wait, ranks of it that they wait
 * for, cause, text. */
static void finding_line(struct text *out, const struct why_finding *f)
{
	text_printf(out, "%llu\t%llu\t%u\t%s\t", (unsigned long long)f->comm,
		    f->op ? (unsigned long long)f->seq : 0, f->graph, f->op ? f->op : "");
	for (size_t i = 0; i < f->nwaiting && i < NCCLSVC_MISSING_SHOWN; i++)
		text_printf(out, "%s%d", i ? "," : "", f->waiting[i]);
	text_char(out, '\t');
	for (size_t i = 0, n = 0; i < f->nculprits && n < NCCLSVC_MISSING_SHOWN; i++)
		if (f->culprits[i].comm == f->comm)
			text_printf(out, "%s%d", n++ ? "," : "", f->culprits[i].rank);
	text_printf(out, "\t%s\t%s\n", why_cause_name(f->cause), f->text);
}

/* Whole paragraphs, the first at least. */
static void tell_findings(const struct view *v, const struct why_report *r)
{
	const size_t begin = v->out->len;
	size_t i = 0;
	for (; i < r->n; i++) {
		if (i && v->out->len - begin + strlen(r->findings[i].text) > TEXT_MAX)
			break;
		if (i)
			text_char(v->out, '\n');
		view_paragraph(v, 0, r->findings[i].text);
	}
	if (r->n > i)
		text_printf(v->out, "\n%zu more are stuck. Next: `ncclsvc-ctl why --json`.\n",
			    r->n - i);
	view_silence(v, r);
	if (r->unseen)
		text_printf(v->out, "\n%zu more were not examined: ncclsvcd lists too many.\n",
			    r->unseen);
}

void view_why(const struct view *v, const struct why_report *r)
{
	if (v->args->lines) {
		for (size_t i = 0; i < r->n; i++)
			finding_line(v->out, &r->findings[i]);
		return;
	}
	if (v->args->json) {
		why_json(v, r);
	} else if (r->n) {
		tell_findings(v, r);
		if (view_failed_lately(&v->s->daemon) && v->out->len < TEXT_MAX) {
			text_char(v->out, '\n');
			tell_failure(v);
		}
	} else {
		tell_failure(v);
		nothing(v, r);
		view_silence(v, r);
	}
}
