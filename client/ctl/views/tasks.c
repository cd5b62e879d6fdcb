/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ids.h"
#include "base/table.h"
#include "base/units.h"
#include "view.h"

#include <stdlib.h>

/* The first is shown if several nodes were asked. */
static const struct table_column columns[] = {
	{"NODE", true},	      {"TASK", true},	 {"STATE", false},     {"AGE", true},
	{"COMM", false},      {"SEQ", true},	 {"OP", false},	       {"TYPE", false},
	{"REDUCTION", false}, {"COUNT", true},	 {"BYTES", true},      {"RANK", true},
	{"PID", true},	      {"TENANT", false}, {"WAITS FOR", false},
};

static int order_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_place(const void *pa, const void *pb)
{
	const ncclsvc_task_info *a = *(const ncclsvc_task_info *const *)pa;
	const ncclsvc_task_info *b = *(const ncclsvc_task_info *const *)pb;
	int order = order_u64(a->comm, b->comm);
	if (!order)
		order = order_u64(a->seq, b->seq);
	if (!order)
		order = (a->rank > b->rank) - (a->rank < b->rank);
	return order ? order : order_u64(a->task, b->task);
}

static int by_age(const void *pa, const void *pb)
{
	const ncclsvc_task_info *a = *(const ncclsvc_task_info *const *)pa;
	const ncclsvc_task_info *b = *(const ncclsvc_task_info *const *)pb;
	int order = order_u64(b->age_ns, a->age_ns);
	return order ? order : by_place(pa, pb);
}

/* Consecutive tasks often have the same communicator, so remember the last one found. */
struct label_cache {
	uint64_t id;
	bool valid;
	const ncclsvc_comm_info *comm;
};

static const ncclsvc_comm_info *comm_of(const struct snapshot *s, struct label_cache *cache,
					uint64_t id)
{
	if (!cache->valid || cache->id != id)
		*cache = (struct label_cache){id, true, snapshot_comm(s, id)};
	return cache->comm;
}

static bool wanted(const struct ctl_args *args, const ncclsvc_task_info *x,
		   const ncclsvc_comm_info *comm)
{
	return (args->rank < 0 || args->rank == x->rank) &&
	       (args->pid < 0 || args->pid == x->pid) &&
	       (!args->state || args->state == x->state) &&
	       (!args->stuck_ns || (task_is_pending(x) && x->age_ns >= args->stuck_ns)) &&
	       view_comm_wanted(args, x->comm, comm) &&
	       view_job_wanted(args, comm ? comm->job : NULL);
}

static enum table_style style(unsigned state)
{
	switch (state) {
	case NCCLSVC_WAITING_PEERS:
	case NCCLSVC_WAITING_INPUT:
	case NCCLSVC_WAITING_GROUP:
		return TABLE_WARN;
	case NCCLSVC_LAUNCHED:
		return TABLE_GOOD;
	case NCCLSVC_FAILED:
		return TABLE_BAD;
	}
	return TABLE_PLAIN;
}

/* "3, 5; ask node 2 (host)" */
static void waits(const struct view *v, const ncclsvc_task_info *x, struct text *out)
{
	if (x->waits_count || !x->ask_count)
		units_waits(out, x->waits_for, task_waits_shown(x), x->waits_count);
	if (!x->ask_count)
		return;
	text_add(out, x->waits_count ? "; ask " : "ask ");
	units_nodes(out, v->s, x->ask_nodes, task_asks_shown(x), x->ask_count);
}

static void row(const struct view *v, struct table *t, const ncclsvc_task_info *x,
		const ncclsvc_comm_info *comm)
{
	bool moves = x->op != NCCLSVC_BARRIER;
	if (v->s->answers)
		table_u64(t, view_task_node(v->s, x));
	if (x->graph && ids_number(x->task)) {
		units_number(table_cell(t), x->task);
		text_printf(table_cell(t), ", graph %u", x->graph);
	} else if (x->graph) {
		text_printf(table_cell(t), "graph %u", x->graph);
	} else if (x->kernel) {
		text_add(table_cell(t), "direct");
	} else {
		units_number(table_cell(t), x->task);
	}
	table_end(t, TABLE_PLAIN);
	text_add(table_cell(t), ncclsvc_state_name(x->state));
	table_end(t, style(x->state));
	units_age(table_cell(t), x->age_ns);
	table_end(t, TABLE_PLAIN);
	if (comm && comm->label[0])
		view_label(table_cell(t), comm);
	else
		units_number(table_cell(t), x->comm);
	table_end(t, TABLE_PLAIN);
	table_u64(t, x->seq);
	text_add(table_cell(t), ncclsvc_op_name(x->op));
	text_quoted(table_cell(t), x->label, sizeof(x->label));
	table_end(t, TABLE_PLAIN);
	table_add(t, moves ? ncclsvc_type_name(x->type) : "-");
	table_add(t, op_reduces(x->op) ? ncclsvc_redop_name(x->redop) : "-");
	table_u64(t, x->count);
	units_bytes(table_cell(t), x->bytes);
	table_end(t, TABLE_PLAIN);
	table_i64(t, x->rank);
	table_i64(t, x->pid);
	view_job_cell(t, x->tenant);
	waits(v, x, table_cell(t));
	table_end(t, TABLE_PLAIN);
}

static void element(const struct view *v, struct json *j, const ncclsvc_task_info *x,
		    const ncclsvc_comm_info *comm)
{
	put_object(j, NULL);
	view_json_node(v->s, j, view_task_node(v->s, x));
	put_u64(j, "task", ids_number(x->task));
	put_u64_or_null(j, "kernel", x->kernel, x->kernel);
	put_u64_or_null(j, "graph", x->graph, x->graph);
	put_string(j, "state", ncclsvc_state_name(x->state), SIZE_MAX);
	put_u64(j, "age_ns", x->age_ns);
	put_u64(j, "state_ns", x->state_ns);
	view_json_comm(v->s, j, x->comm);
	view_json_label(j, "label", comm);
	put_string(j, "job", comm && comm->job[0] ? comm->job : NULL, NCCLSVC_JOB_BYTES);
	put_string(j, "tenant", x->tenant[0] ? x->tenant : NULL, sizeof(x->tenant));
	put_u64(j, "seq", x->seq);
	put_string(j, "op", ncclsvc_op_name(x->op), SIZE_MAX);
	put_string(j, "type", x->op == NCCLSVC_BARRIER ? NULL : ncclsvc_type_name(x->type),
		   SIZE_MAX);
	put_string(j, "redop", op_reduces(x->op) ? ncclsvc_redop_name(x->redop) : NULL, SIZE_MAX);
	put_u64(j, "count", x->count);
	put_u64(j, "bytes", x->bytes);
	put_i64(j, "rank", x->rank);
	put_i64_or_null(j, "peer", x->peer >= 0, x->peer);
	put_u64(j, "nranks", x->nranks);
	put_i64(j, "pid", x->pid);
	put_u64(j, "session", ids_session_number(v->s, x->session));
	put_u64(j, "epoch", x->epoch);
	put_u64_or_null(j, "group", x->group, x->group);
	put_string(j, "plan_label", x->label[0] ? x->label : NULL, sizeof(x->label));
	put_array(j, "waits_for");
	for (uint32_t i = 0; i < task_waits_shown(x); i++)
		put_i64(j, NULL, x->waits_for[i]);
	put_array_end(j);
	put_u64(j, "waits_count", x->waits_count);
	put_array(j, "ask_nodes");
	for (uint32_t i = 0; i < task_asks_shown(x); i++)
		put_u64(j, NULL, x->ask_nodes[i]);
	put_array_end(j);
	put_u64(j, "ask_count", x->ask_count);
	put_object_end(j);
	text_flush(j->out, false);
}

static void tasks_table(const struct view *v, const ncclsvc_task_info **list, size_t n, size_t all)
{
	struct label_cache cache = {0};
	if (!n) {
		text_add(v->out, v->s->ntasks ? "No task matches.\n" : "No tasks.\n");
		view_silence(v, NULL);
		return;
	}
	const unsigned skip = v->s->answers ? 0 : 1;
	struct table *t = table_new(columns + skip, sizeof(columns) / sizeof(columns[0]) - skip);
	for (size_t i = 0; i < n; i++)
		row(v, t, list[i], comm_of(v->s, &cache, list[i]->comm));
	table_print(t, v->out, v->colour);
	table_free(t);
	if (n < all)
		text_printf(v->out, "%zu of %zu tasks shown.\n", n, all);
	view_silence(v, NULL);
}

static void tasks_json(const struct view *v, const ncclsvc_task_info **list, size_t n, size_t all)
{
	struct label_cache cache = {0};
	struct json j = view_json_begin(v);
	put_u64(&j, "total", all);
	put_array(&j, "tasks");
	for (size_t i = 0; i < n; i++)
		element(v, &j, list[i], comm_of(v->s, &cache, list[i]->comm));
	put_array_end(&j);
	view_json_answers(v, &j);
	view_json_end(&j);
}

void view_tasks(const struct view *v)
{
	const struct snapshot *s = v->s;
	struct label_cache cache = {0};
	const ncclsvc_task_info **list = ctl_calloc(s->ntasks, sizeof(list[0]));
	size_t n = 0;
	for (size_t i = 0; i < s->ntasks; i++)
		if (wanted(v->args, &s->tasks[i], comm_of(s, &cache, s->tasks[i].comm)))
			list[n++] = &s->tasks[i];
	qsort(list, n, sizeof(list[0]), v->args->sort == CTL_SORT_AGE ? by_age : by_place);
	size_t shown = v->args->limit && v->args->limit < n ? v->args->limit : n;
	if (v->args->json)
		tasks_json(v, list, shown, n);
	else
		tasks_table(v, list, shown, n);
	free(list);
}
