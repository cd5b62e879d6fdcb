/* SPDX-License-Identifier: Apache-2.0 */
#include "base/table.h"
#include "base/units.h"
#include "view.h"

#include <stdlib.h>

#define MISSING_SHOWN 8

static const struct table_column columns[] = {
	{"PLAN", true},	    {"COMM", false},  {"RANK", true},
	{"PID", true},	    {"FOR", true},    {"ITERATIONS", true},
	{"RUNNING", false}, {"LACKS", false}, {"MISSING", false},
};

static bool wanted(const struct view *v, const ncclsvc_plan_info *x)
{
	return (v->args->rank < 0 || v->args->rank == x->rank) &&
	       view_comm_wanted(v->args, x->comm, snapshot_comm(v->s, x->comm));
}

static void add_missing(const ncclsvc_plan_task_info *t, struct text *out)
{
	text_add(out, ncclsvc_op_name(t->op));
	text_quoted(out, t->label, sizeof(t->label));
	text_printf(out, " %s %d", t->op == NCCLSVC_SEND ? "to" : "from", t->peer);
}

static void row(const struct view *v, struct table *t, const ncclsvc_plan_info *x)
{
	const ncclsvc_plan_task_info *missing[MISSING_SHOWN];
	size_t n = snapshot_plan_missing(v->s, x, missing, 1);
	table_u64(t, x->plan);
	view_label(table_cell(t), snapshot_comm(v->s, x->comm));
	table_end(t, TABLE_PLAIN);
	table_i64(t, x->rank);
	table_i64(t, x->pid);
	units_age(table_cell(t), x->age_ns);
	table_end(t, TABLE_PLAIN);
	table_u64(t, x->iterations);
	/* Groups are numbered from 0, as everywhere. */
	if (x->running < x->groups)
		text_printf(table_cell(t), "group %u of %u", x->running, x->groups);
	else
		text_printf(table_cell(t), "- of %u", x->groups);
	table_end(t, TABLE_PLAIN);
	if (x->left) {
		table_add(t, "terminated");
		table_add(t, "-");
		return;
	}
	if (x->group < x->groups)
		text_printf(table_cell(t), "group %u: %u of %u enqueued", x->group,
			    x->group_enqueued, x->group_tasks);
	else
		text_add(table_cell(t), "-");
	table_end(t, x->enqueued && x->group < x->groups ? TABLE_WARN : TABLE_PLAIN);
	if (!n) {
		table_add(t, "-");
		return;
	}
	add_missing(missing[0], table_cell(t));
	if (n > 1)
		text_printf(table_cell(t), " and %zu more", n - 1);
	table_end(t, TABLE_PLAIN);
}

static void element(const struct view *v, struct json *j, const ncclsvc_plan_info *x)
{
	const ncclsvc_plan_task_info *missing[MISSING_SHOWN];
	size_t n = snapshot_plan_missing(v->s, x, missing, MISSING_SHOWN);
	put_object(j, NULL);
	put_u64(j, "plan", x->plan);
	put_u64(j, "comm", x->comm);
	view_json_label(j, "label", snapshot_comm(v->s, x->comm));
	put_i64(j, "rank", x->rank);
	put_i64(j, "pid", x->pid);
	put_u64(j, "session", x->session);
	put_u64(j, "epoch", x->epoch);
	put_u64(j, "age_ns", x->age_ns);
	put_u64(j, "groups", x->groups);
	put_u64(j, "tasks", x->tasks);
	put_u64(j, "iterations", x->iterations);
	put_u64(j, "running", x->running);
	put_u64(j, "group", x->group);
	put_u64(j, "group_tasks", x->group_tasks);
	put_u64(j, "group_enqueued", x->group_enqueued);
	put_u64(j, "enqueued", x->enqueued);
	put_bool(j, "terminated", x->left);
	put_u64(j, "missing_count", n);
	put_array(j, "missing");
	for (size_t i = 0; i < n && i < MISSING_SHOWN; i++) {
		put_object(j, NULL);
		put_string(j, "op", ncclsvc_op_name(missing[i]->op), SIZE_MAX);
		put_i64(j, "peer", missing[i]->peer);
		put_u64(j, "group", missing[i]->group);
		put_u64(j, "task", missing[i]->task);
		put_string(j, "label", missing[i]->label[0] ? missing[i]->label : NULL,
			   sizeof(missing[i]->label));
		put_object_end(j);
	}
	put_array_end(j);
	put_object_end(j);
	text_flush(j->out, false);
}

void view_plan(const struct view *v)
{
	const struct snapshot *s = v->s;
	size_t n = 0;
	for (size_t i = 0; i < s->nplans; i++)
		n += wanted(v, &s->plans[i]);
	if (v->args->json) {
		struct json j = view_json_begin(v);
		put_array(&j, "plans");
		for (size_t i = 0; i < s->nplans; i++)
			if (wanted(v, &s->plans[i]))
				element(v, &j, &s->plans[i]);
		put_array_end(&j);
		view_json_end(&j);
		return;
	}
	if (!n) {
		text_add(v->out, s->nplans ? "No plan matches.\n" : "No plans.\n");
		return;
	}
	struct table *t = table_new(columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < s->nplans; i++)
		if (wanted(v, &s->plans[i]))
			row(v, t, &s->plans[i]);
	table_print(t, v->out, v->colour);
	table_free(t);
}
