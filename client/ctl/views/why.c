/* SPDX-License-Identifier: Apache-2.0 */
#include "base/merge.h"
#include "base/units.h"
#include "view.h"

#include <stdlib.h>

#define PARAGRAPHS 5
#define TENTH_NS   UINT64_C(100000000)

static void last_failure(const struct view *v)
{
	const ncclsvc_daemon_info *d = &v->s->daemon;
	const ncclsvc_comm_info *comm = snapshot_comm(v->s, d->last_failure_comm);
	char sentence[VIEW_SENTENCE];
	if (d->last_failure.result == NCCLSVC_OK)
		return;
	struct text t = TEXT_INIT(-1);
	text_add(&t, "Last failure, ");
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
	text_printf(v->out, "Nothing is stuck: %zu communicator%s, ", comms, comms == 1 ? "" : "s");
	if (!r->pending) {
		text_add(v->out, "no task is pending.\n");
		return;
	}
	uint64_t tenths = r->oldest_ns / TENTH_NS + 1;
	text_printf(v->out, "no task waits longer than %llu.%llu s.\n",
		    (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10));
}

static void put_graph(struct json *j, uint32_t graph)
{
	if (graph)
		put_u64(j, "graph", graph);
	else
		put_null(j, "graph");
}

static void finding_json(struct json *j, const struct view *v, const struct why_finding *f)
{
	put_object(j, NULL);
	view_json_comm(v->s, j, f->comm);
	view_json_label(j, "label", snapshot_comm(v->s, f->comm));
	if (f->op)
		put_u64(j, "seq", f->seq);
	else
		put_null(j, "seq");
	put_graph(j, f->graph);
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
	for (size_t i = 0; i < f->nculprits; i++) {
		const struct why_culprit *c = &f->culprits[i];
		put_object(j, NULL);
		const ncclsvc_member_info *m = snapshot_member(v->s, c->comm, c->rank);
		view_json_comm(v->s, j, c->comm);
		put_i64(j, "rank", c->rank);
		view_json_node(v->s, j, m ? view_member_node(v->s, m) : 0);
		put_i64(j, "pid", c->pid);
		put_u64(j, "session", merge_session_number(v->s, c->session));
		put_string(j, "name", c->name, NCCLSVC_NAME_BYTES);
		put_string(j, "state", c->state, SIZE_MAX);
		put_object_end(j);
	}
	put_array_end(j);
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
		if (a->op)
			put_u64(j, "seq", a->seq);
		else
			put_null(j, "seq");
		put_graph(j, a->graph);
		put_string(j, "op", a->op, SIZE_MAX);
		put_seconds(j, "age_s", a->age_ns);
		put_u64(j, "waiting", a->nwaiting);
		put_object_end(j);
	}
	put_array_end(j);
	put_string(j, "text", f->text, SIZE_MAX);
	put_object_end(j);
	text_flush(j->out, false);
}

static void why_json(const struct view *v, const struct why_report *r)
{
	struct json j = view_json_begin(v);
	put_bool(&j, "stuck", r->n > 0);
	put_seconds(&j, "after_s", v->args->after_ns);
	put_array(&j, "findings");
	for (size_t i = 0; i < r->n; i++)
		finding_json(&j, v, &r->findings[i]);
	put_array_end(&j);
	put_u64(&j, "unseen", r->unseen);
	view_json_answers(v, &j);
	view_json_failure(&j, &v->s->daemon);
	view_json_end(&j);
}

void view_why(const struct view *v, const struct why_report *r)
{
	if (v->args->json) {
		why_json(v, r);
		return;
	}
	if (!r->n)
		nothing(v, r);
	for (size_t i = 0; i < r->n && i < PARAGRAPHS; i++) {
		if (i)
			text_char(v->out, '\n');
		view_paragraph(v, 0, r->findings[i].text);
	}
	if (r->n > PARAGRAPHS)
		text_printf(v->out, "\nAnd %zu more: see ncclsvc-ctl why --json.\n",
			    r->n - PARAGRAPHS);
	view_silence(v, r);
	if (r->unseen)
		text_printf(v->out, "\n%zu more are not looked at: the daemon lists too much.\n",
			    r->unseen);
	if (v->s->daemon.last_failure.result != NCCLSVC_OK && r->n)
		text_char(v->out, '\n');
	last_failure(v);
}
