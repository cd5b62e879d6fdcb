/* SPDX-License-Identifier: Apache-2.0
 * The sessions that a drained daemon waits for: those with a ring, a communicator or memory. */
#include "base/table.h"
#include "base/units.h"
#include "view.h"

static const struct table_column columns[] = {
	{"SESSION", true}, {"PID", true}, {"TENANT", false},	    {"NAME", false},
	{"JOB", false},	   {"AGE", true}, {"COMMUNICATORS", false},
};

static bool holds(const ncclsvc_session_info *x)
{
	return x->ring_entries || x->comms || x->regions;
}

size_t view_drain_left(const struct snapshot *s)
{
	size_t n = 0;
	for (size_t i = 0; i < s->nsessions; i++)
		n += holds(&s->sessions[i]);
	return n;
}

static void comms(const struct snapshot *s, const ncclsvc_session_info *x, struct text *out)
{
	size_t n = 0;
	for (size_t i = 0; i < s->nmembers; i++) {
		const ncclsvc_member_info *m = &s->members[i];
		const ncclsvc_comm_info *comm = snapshot_comm(s, m->comm);
		if (m->session != x->session || m->elsewhere)
			continue;
		text_printf(out, "%s%llu", n++ ? ", " : "", (unsigned long long)m->comm);
		if (comm)
			text_quoted(out, comm->label, sizeof(comm->label));
	}
	if (!n)
		text_char(out, '-');
}

static void row(const struct snapshot *s, struct table *t, const ncclsvc_session_info *x)
{
	table_u64(t, x->session);
	table_i64(t, x->pid);
	view_job_cell(t, x->tenant);
	view_name_cell(t, x->name, sizeof(x->name));
	view_job_cell(t, view_job(x));
	units_age(table_cell(t), x->age_ns);
	table_end(t, TABLE_PLAIN);
	comms(s, x, table_cell(t));
	table_end(t, TABLE_PLAIN);
}

static void element(const struct snapshot *s, struct json *j, const ncclsvc_session_info *x)
{
	put_object(j, NULL);
	put_u64(j, "session", x->session);
	put_i64(j, "pid", x->pid);
	put_u64(j, "uid", x->uid);
	put_string(j, "tenant", x->tenant[0] ? x->tenant : NULL, sizeof(x->tenant));
	put_string(j, "name", x->name[0] ? x->name : NULL, sizeof(x->name));
	put_string(j, "job", view_job(x)[0] ? view_job(x) : NULL, NCCLSVC_JOB_BYTES);
	put_u64(j, "age_ns", x->age_ns);
	put_array(j, "comms");
	for (size_t i = 0; i < s->nmembers; i++) {
		const ncclsvc_member_info *m = &s->members[i];
		if (m->session != x->session || m->elsewhere)
			continue;
		put_object(j, NULL);
		put_u64(j, "comm", m->comm);
		view_json_label(j, "label", snapshot_comm(s, m->comm));
		put_i64(j, "rank", m->rank);
		put_object_end(j);
	}
	put_array_end(j);
	put_object_end(j);
	text_flush(j->out, false);
}

static void drain_json(const struct view *v)
{
	const struct snapshot *s = v->s;
	struct json j = view_json_begin(v);
	put_bool(&j, "drained", s->daemon.draining != NCCLSVC_SERVING);
	put_array(&j, "sessions");
	for (size_t i = 0; i < s->nsessions; i++)
		if (holds(&s->sessions[i]))
			element(s, &j, &s->sessions[i]);
	put_array_end(&j);
	view_json_end(&j);
}

void view_drain(const struct view *v)
{
	const struct snapshot *s = v->s;
	const size_t left = view_drain_left(s);
	if (v->args->json) {
		drain_json(v);
		return;
	}
	if (!s->daemon.draining) {
		text_add(v->out, "The daemon takes new jobs again.\n");
		return;
	}
	text_add(v->out, "The daemon takes no new jobs (`ncclsvc-ctl resume` ends this). ");
	if (!left) {
		text_add(v->out, "None is left.\n");
		return;
	}
	text_printf(v->out, "%zu session%s left:\n", left, left == 1 ? " is" : "s are");
	struct table *t = table_new(columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < s->nsessions; i++)
		if (holds(&s->sessions[i]))
			row(s, t, &s->sessions[i]);
	table_print(t, v->out, v->colour);
	table_free(t);
}

void view_drain_progress(const struct view *v, uint64_t waited_ns)
{
	const struct snapshot *s = v->s;
	const ncclsvc_session_info *first = NULL;
	for (size_t i = 0; i < s->nsessions && !first; i++)
		if (holds(&s->sessions[i]))
			first = &s->sessions[i];
	if (!first)
		return;
	text_printf(v->out, "%zu left after ", view_drain_left(s));
	units_age(v->out, waited_ns);
	text_printf(v->out, ": session %u, pid %d", first->session, first->pid);
	text_quoted(v->out, first->name, sizeof(first->name));
	text_add(v->out, ", communicators ");
	comms(s, first, v->out);
}
