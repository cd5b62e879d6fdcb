/* SPDX-License-Identifier: Apache-2.0
 * Which ranks come late to their communicators' collectives. */
#include <stdlib.h>

#include "base/ids.h"
#include "base/table.h"
#include "base/units.h"
#include "view.h"

/* A straggler is worth a sentence if it was last this often, and long enough to matter. */
#define STRAGGLER_OPERATIONS 20
#define STRAGGLER_NS	     UINT64_C(1000000)
#define STRAGGLER_SHARE	     10 /* of the time between operations: 1/10 */

static const struct table_column columns[] = {
	{"COMM", true},	 {"LABEL", false}, {"RANK", true},    {"PID", true},
	{"NODE", false}, {"OPS", true},	   {"LAST%", true},   {"MEDIAN", true},
	{"P99", true},	 {"MAX", true},	   {"DIRECT%", true},
};

/* Rounded down: 100 are all. */
static unsigned percent(uint64_t part, uint64_t all)
{
	return !all ? 0 : part >= all ? 100 : (unsigned)(part * 100 / all);
}

/* ---- Stragglers ---- */

static bool is_straggler(const ncclsvc_lateness_info *x)
{
	const uint64_t n = x->operations;
	return n >= STRAGGLER_OPERATIONS && x->last > n / 2 && x->median_ns > STRAGGLER_NS &&
	       x->median_ns > x->interval_ns / STRAGGLER_SHARE;
}

static bool is_straggler_in_kernels(const ncclsvc_lateness_info *x)
{
	return x->kernel_waits >= STRAGGLER_OPERATIONS &&
	       x->kernel_waited_ns > x->kernel_window_ns / STRAGGLER_SHARE;
}

/* The one that was late for the longest time in all; if none is, of those on the direct transport
 * the one that was waited for most. NULL: none is worth a sentence. */
static const ncclsvc_lateness_info *find_straggler(const struct snapshot *s)
{
	const ncclsvc_lateness_info *worst = NULL, *in_kernels = NULL;
	for (size_t i = 0; i < s->nlateness; i++) {
		const ncclsvc_lateness_info *x = &s->lateness[i];
		if (is_straggler(x) && (!worst || x->sum_ns > worst->sum_ns))
			worst = x;
		if (is_straggler_in_kernels(x) &&
		    (!in_kernels || x->kernel_waited_ns > in_kernels->kernel_waited_ns))
			in_kernels = x;
	}
	return worst ? worst : in_kernels;
}

/* "AllReduces", or "collectives" if they are of several kinds */
static void add_kinds(struct text *t, uint32_t kinds)
{
	if (kinds && !(kinds & (kinds - 1)))
		text_printf(t, "%ss", ncclsvc_op_name((unsigned)__builtin_ctz(kinds)));
	else
		text_add(t, "collectives");
}

/* "rank 3 (pid 4711, node 1 (host))" */
static void add_rank(const struct view *v, struct text *t, const char *word,
		     const ncclsvc_lateness_info *x)
{
	text_printf(t, "%s %d (pid %d", word, x->rank, x->pid);
	if (v->s->nnodes) {
		text_add(t, ", ");
		units_node(t, v->s, x->node);
	}
	text_char(t, ')');
}

static void add_comm(const struct view *v, struct text *t, const ncclsvc_lateness_info *x)
{
	const ncclsvc_comm_info *comm = snapshot_comm(v->s, x->comm);
	if (comm && comm->label[0])
		view_label(t, comm);
	else
		units_number(t, x->comm);
}

/* The caller frees it. */
static char *straggler_sentence(const struct view *v, const ncclsvc_lateness_info *x)
{
	struct text t = TEXT_INIT(-1);
	if (is_straggler(x)) {
		add_rank(v, &t, "Rank", x);
		text_printf(&t, " was last in %u %% of ", percent(x->last, x->operations));
		add_kinds(&t, x->kinds);
		text_add(&t, " on communicator ");
		add_comm(v, &t, x);
		text_add(&t, ", by ");
		units_age(&t, x->median_ns);
		text_add(&t, " (median).");
	} else {
		text_add(&t, "Kernels on communicator ");
		add_comm(v, &t, x);
		text_add(&t, " wait for ");
		add_rank(v, &t, "rank", x);
		text_printf(&t, " %u %% of the time, ",
			    percent(x->kernel_waited_ns, x->kernel_window_ns));
		units_age(&t, x->kernel_waited_ns / x->kernel_waits);
		text_add(&t, " each (mean).");
	}
	text_add(&t, " Next: `ncclsvc-ctl lateness --comm ");
	units_number(&t, x->comm);
	text_add(&t, "`.");
	return text_steal(&t);
}

void view_straggler(const struct view *v)
{
	const ncclsvc_lateness_info *x = find_straggler(v->s);
	if (!x)
		return;
	char *s = straggler_sentence(v, x);
	view_paragraph(v, 0, s);
	free(s);
}

/* ---- All ranks ---- */

static void cell_age(struct table *t, bool known, uint64_t ns)
{
	if (known)
		units_age(table_cell(t), ns);
	else
		text_char(table_cell(t), '-');
	table_end(t, TABLE_PLAIN);
}

static void cell_percent(struct table *t, uint64_t part, uint64_t all, enum table_style style)
{
	if (all)
		text_u64(table_cell(t), percent(part, all));
	else
		text_char(table_cell(t), '-');
	table_end(t, style);
}

static void row(const struct view *v, struct table *t, const ncclsvc_lateness_info *x)
{
	const ncclsvc_node_info *node = snapshot_node(v->s, x->node);
	units_number(table_cell(t), x->comm);
	table_end(t, TABLE_PLAIN);
	view_label(table_cell(t), snapshot_comm(v->s, x->comm));
	table_end(t, TABLE_PLAIN);
	table_i64(t, x->rank);
	table_i64(t, x->pid);
	if (node) {
		text_printf(table_cell(t), "%u (", x->node);
		text_name(table_cell(t), node->host, sizeof(node->host));
		text_char(table_cell(t), ')');
	} else {
		text_char(table_cell(t), '-');
	}
	table_end(t, TABLE_PLAIN);
	table_u64(t, x->operations);
	cell_percent(t, x->last, x->operations, is_straggler(x) ? TABLE_WARN : TABLE_PLAIN);
	cell_age(t, x->operations, x->median_ns);
	cell_age(t, x->operations, x->p99_ns);
	cell_age(t, x->operations, x->max_ns);
	cell_percent(t, x->kernel_waited_ns, x->kernel_window_ns,
		     is_straggler_in_kernels(x) ? TABLE_WARN : TABLE_PLAIN);
}

static void put_numbers(const struct view *v, struct json *j, const ncclsvc_lateness_info *x)
{
	const ncclsvc_node_info *node = snapshot_node(v->s, x->node);
	view_json_comm(v->s, j, x->comm);
	view_json_label(j, "label", snapshot_comm(v->s, x->comm));
	put_i64(j, "rank", x->rank);
	put_i64(j, "pid", x->pid);
	put_u64(j, "session", ids_session_number(v->s, x->session));
	put_u64(j, "epoch", x->epoch);
	put_u64_or_null(j, "node", node, x->node);
	put_string(j, "host", node ? node->host : NULL, node ? sizeof(node->host) : 0);
	put_u64(j, "operations", x->operations);
	put_u64(j, "last", x->last);
	put_array(j, "ops");
	for (unsigned op = 0; op < 32; op++)
		if (x->kinds >> op & 1)
			put_string(j, NULL, ncclsvc_op_name(op), SIZE_MAX);
	put_array_end(j);
	put_u64(j, "sum_ns", x->sum_ns);
	put_u64(j, "median_ns", x->median_ns);
	put_u64(j, "p99_ns", x->p99_ns);
	put_u64(j, "max_ns", x->max_ns);
	put_u64(j, "interval_ns", x->interval_ns);
	put_u64(j, "age_ns", x->age_ns);
	put_array(j, "histogram");
	for (unsigned i = 0; i < NCCLSVC_LATENESS_BINS; i++)
		put_u64(j, NULL, x->histogram[i]);
	put_array_end(j);
	put_u64(j, "kernel_waits", x->kernel_waits);
	put_u64(j, "kernel_waited_ns", x->kernel_waited_ns);
	put_u64(j, "kernel_window_ns", x->kernel_window_ns);
}

void view_straggler_json(const struct view *v, struct json *j)
{
	const ncclsvc_lateness_info *x = find_straggler(v->s);
	if (!x) {
		put_null(j, "straggler");
		return;
	}
	char *s = straggler_sentence(v, x);
	put_object(j, "straggler");
	put_numbers(v, j, x);
	put_string(j, "text", s, SIZE_MAX);
	put_object_end(j);
	free(s);
}

static bool wanted(const struct view *v, const ncclsvc_lateness_info *x)
{
	return view_comm_wanted(v->args, x->comm, snapshot_comm(v->s, x->comm));
}

static void lateness_json(const struct view *v)
{
	const struct snapshot *s = v->s;
	struct json j = view_json_begin(v);
	put_array(&j, "lateness");
	for (size_t i = 0; i < s->nlateness; i++) {
		if (!wanted(v, &s->lateness[i]))
			continue;
		put_object(&j, NULL);
		put_numbers(v, &j, &s->lateness[i]);
		put_object_end(&j);
		text_flush(j.out, false);
	}
	put_array_end(&j);
	view_straggler_json(v, &j);
	view_json_answers(v, &j);
	view_json_end(&j);
}

void view_lateness(const struct view *v)
{
	const struct snapshot *s = v->s;
	size_t n = 0;
	for (size_t i = 0; i < s->nlateness; i++)
		n += wanted(v, &s->lateness[i]);
	if (v->args->json) {
		lateness_json(v);
		return;
	}
	if (!n) {
		text_add(v->out, s->nlateness ? "No rank matches.\n"
					      : "No rank was late in the last minute.\n");
		view_silence(v, NULL);
		return;
	}
	struct table *t = table_new(columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < s->nlateness; i++)
		if (wanted(v, &s->lateness[i]))
			row(v, t, &s->lateness[i]);
	table_print(t, v->out, v->colour);
	table_free(t);
	view_straggler(v);
	view_silence(v, NULL);
}
