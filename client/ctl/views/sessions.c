/* SPDX-License-Identifier: Apache-2.0 */
#include "base/table.h"
#include "base/units.h"
#include "view.h"

static const struct table_column columns[] = {
	{"SESSION", true}, {"PID", true},	{"UID", true},	     {"TENANT", false},
	{"NAME", false},   {"JOB", false},	{"AGE", true},	     {"RING", true},
	{"COMMS", true},   {"SUBMITTED", true}, {"COMPLETED", true}, {"FAILED", true},
	{"REGIONS", true}, {"MEMORY", true},	{"MPS", false},
};

static void row(struct table *t, const ncclsvc_session_info *x)
{
	table_u64(t, x->session);
	table_i64(t, x->pid);
	table_u64(t, x->uid);
	view_job_cell(t, x->tenant);
	view_name_cell(t, x->name, sizeof(x->name));
	view_job_cell(t, view_job(x));
	units_age(table_cell(t), x->age_ns);
	table_end(t, TABLE_PLAIN);
	if (x->ring_entries)
		table_u64(t, x->ring_entries);
	else
		table_add(t, "-");
	table_u64(t, x->comms);
	table_u64(t, x->submitted);
	table_u64(t, x->completed);
	text_u64(table_cell(t), x->failed);
	table_end(t, x->failed ? TABLE_BAD : TABLE_PLAIN);
	table_u64(t, x->regions);
	units_bytes(table_cell(t), x->region_bytes);
	table_end(t, TABLE_PLAIN);
	table_add(t, x->mps == NCCLSVC_MPS_UNKNOWN ? "-" : mps_name(x->mps));
}

static void element(struct json *j, const ncclsvc_session_info *x)
{
	put_object(j, NULL);
	put_u64(j, "session", x->session);
	put_i64(j, "pid", x->pid);
	put_u64(j, "uid", x->uid);
	put_string(j, "tenant", x->tenant[0] ? x->tenant : NULL, sizeof(x->tenant));
	put_string(j, "name", x->name[0] ? x->name : NULL, sizeof(x->name));
	put_string(j, "job", x->job[0] ? x->job : NULL, sizeof(x->job));
	put_string(j, "cgroup", x->cgroup[0] ? x->cgroup : NULL, sizeof(x->cgroup));
	put_u64(j, "age_ns", x->age_ns);
	put_u64(j, "ring_entries", x->ring_entries);
	put_u64(j, "comms", x->comms);
	put_u64(j, "submitted", x->submitted);
	put_u64(j, "completed", x->completed);
	put_u64(j, "failed", x->failed);
	put_u64(j, "regions", x->regions);
	put_u64(j, "region_bytes", x->region_bytes);
	put_string(j, "mps", x->mps == NCCLSVC_MPS_UNKNOWN ? NULL : mps_name(x->mps), SIZE_MAX);
	put_u64(j, "protocol", x->protocol);
	put_object_end(j);
	text_flush(j->out, false);
}

void view_sessions(const struct view *v)
{
	const struct snapshot *s = v->s;
	if (v->args->json) {
		struct json j = view_json_begin(v);
		put_array(&j, "sessions");
		for (size_t i = 0; i < s->nsessions; i++)
			if (view_job_wanted(v->args, view_job(&s->sessions[i])))
				element(&j, &s->sessions[i]);
		put_array_end(&j);
		view_json_end(&j);
		return;
	}
	struct table *t = table_new(columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < s->nsessions; i++)
		if (view_job_wanted(v->args, view_job(&s->sessions[i])))
			row(t, &s->sessions[i]);
	table_print(t, v->out, v->colour);
	table_free(t);
}
