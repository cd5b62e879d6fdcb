/* SPDX-License-Identifier: Apache-2.0 */
#include "dump.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/table.h"
#include "base/units.h"
#include "proto/json/operation_json.h"

static const struct table_column columns[] = {
	{"COMM", false}, {"EPOCH", true},      {"SEQ", true},	  {"OP", false},
	{"TYPE", false}, {"COUNT", true},      {"RANK", true},	  {"PEER", true},
	{"PID", true},	 {"SUBMITTED", true},  {"MATCHED", true}, {"STARTED", true},
	{"DONE", true},	 {"TRANSPORT", false}, {"RESULT", false},
};

/* ---- Which ---- */

static bool comm_wanted(const struct ctl_args *args, const ncclsvc_operation_info *x)
{
	char *end;
	if (!args->comm)
		return true;
	if (isdigit((unsigned char)args->comm[0]) && strtoull(args->comm, &end, 10) == x->comm &&
	    !*end)
		return true;
	return strlen(args->comm) < sizeof(x->comm_label) &&
	       !strncmp(args->comm, x->comm_label, sizeof(x->comm_label));
}

static bool wanted(const struct ctl_args *args, const ncclsvc_operation_info *x)
{
	return (args->rank < 0 || args->rank == x->rank) &&
	       (args->pid < 0 || args->pid == x->pid) && comm_wanted(args, x);
}

static int order(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_operation(const ncclsvc_operation_info *a, const ncclsvc_operation_info *b)
{
	int o = order(a->comm, b->comm);
	if (!o)
		o = order(a->epoch, b->epoch);
	if (!o)
		o = order(a->submitted_ns, b->submitted_ns);
	if (!o)
		o = order(a->session, b->session);
	if (!o)
		o = (a->rank > b->rank) - (a->rank < b->rank);
	return o ? o : order(a->seq, b->seq);
}

/* Sorts by operation; among the entries of one operation, pending ones come last. */
static int by_time(const void *pa, const void *pb)
{
	const ncclsvc_operation_info *a = *(const ncclsvc_operation_info *const *)pa;
	const ncclsvc_operation_info *b = *(const ncclsvc_operation_info *const *)pb;
	const int o = by_operation(a, b);
	return o ? o : (a->result == NCCLSVC_IN_PROGRESS) - (b->result == NCCLSVC_IN_PROGRESS);
}

struct dump dump_of(const struct view *v)
{
	const struct snapshot *s = v->s;
	struct dump d = {.list = ctl_calloc(s->noperations, sizeof(d.list[0]))};
	size_t n = 0;
	for (size_t i = 0; i < s->noperations; i++)
		if (wanted(v->args, &s->operations[i]))
			d.list[n++] = &s->operations[i];
	qsort(d.list, n, sizeof(d.list[0]), by_time);
	/* One that has ended while the daemon was asked is listed twice. */
	for (size_t i = 0; i < n; i++)
		if (d.list[i]->result != NCCLSVC_IN_PROGRESS || !d.n ||
		    by_operation(d.list[d.n - 1], d.list[i]))
			d.list[d.n++] = d.list[i];
	return d;
}

void dump_free(struct dump *d)
{
	free(d->list);
}

/* ---- As a table ---- */

/* After its submission. */
static void cell_after(struct table *t, const ncclsvc_operation_info *x, uint64_t then)
{
	if (!then) {
		text_char(table_cell(t), '-');
	} else {
		text_char(table_cell(t), '+');
		units_age(table_cell(t), then > x->submitted_ns ? then - x->submitted_ns : 0);
	}
	table_end(t, TABLE_PLAIN);
}

static void cell_result(struct table *t, const ncclsvc_operation_info *x)
{
	if (x->result == NCCLSVC_IN_PROGRESS) {
		table_add(t, ncclsvc_state_name(x->state));
	} else {
		text_add(table_cell(t), ncclsvc_result_name(x->result));
		table_end(t, x->result ? TABLE_BAD : TABLE_PLAIN);
	}
}

static void row(const struct view *v, struct table *t, const ncclsvc_operation_info *x)
{
	text_u64(table_cell(t), x->comm);
	text_quoted(table_cell(t), x->comm_label, sizeof(x->comm_label));
	table_end(t, TABLE_PLAIN);
	table_u64(t, x->epoch);
	text_u64(table_cell(t), x->seq);
	if (x->graph)
		text_printf(table_cell(t), " of graph %u", x->graph);
	table_end(t, TABLE_PLAIN);
	text_add(table_cell(t), ncclsvc_op_name(x->op));
	text_quoted(table_cell(t), x->label, sizeof(x->label));
	table_end(t, TABLE_PLAIN);
	table_add(t, x->op == NCCLSVC_BARRIER ? "-" : ncclsvc_type_name(x->type));
	table_u64(t, x->count);
	table_i64(t, x->rank);
	if (x->peer < 0)
		table_add(t, "-");
	else
		table_i64(t, x->peer);
	table_i64(t, x->pid);
	units_age(table_cell(t),
		  v->monotonic_ns > x->submitted_ns ? v->monotonic_ns - x->submitted_ns : 0);
	table_end(t, TABLE_PLAIN);
	cell_after(t, x, x->matched_ns);
	cell_after(t, x, x->started_ns);
	cell_after(t, x, x->done_ns);
	table_add(t, x->transport == NCCLSVC_OPERATION_KERNEL ? "direct"
							      : svc_transport_name(x->transport));
	cell_result(t, x);
}

static void dump_table(const struct view *v, const struct dump *d)
{
	if (!d->n) {
		text_add(v->out,
			 v->s->noperations ? "No operation matches.\n" : "No operations.\n");
		return;
	}
	struct table *t = table_new(columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < d->n; i++)
		row(v, t, d->list[i]);
	table_print(t, v->out, v->colour);
	table_free(t);
}

static void dump_json(const struct view *v, const struct dump *d)
{
	char text[SVC_OPERATION_JSON];
	struct json j = view_json_begin(v);
	put_u64(&j, "monotonic_ns", v->monotonic_ns);
	put_u64(&j, "total", d->n);
	put_array(&j, "operations");
	for (size_t i = 0; i < d->n; i++) {
		put_raw(&j, NULL, svc_operation_json(d->list[i], text));
		text_flush(j.out, false);
	}
	put_array_end(&j);
	view_json_end(&j);
}

void view_dump(const struct view *v)
{
	struct dump d = dump_of(v);
	if (v->args->json)
		dump_json(v, &d);
	else
		dump_table(v, &d);
	dump_free(&d);
}
