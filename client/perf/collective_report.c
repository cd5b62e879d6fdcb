/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "collective.h"

enum { WITH_BASELINE = 1, WITH_CPU = 2, WITH_LATENCY = 4, WITH_GPUS = 8 };

static const struct column work_columns[] = {
	{"size", "(B)", "bytes", 10, 0, 0}, {"count", "(elements)", "count", 14, 0, 0},
	{"type", "", "type", 10, 0, 0},	    {"redop", "", "redop", 8, 0, 0},
	{"root", "", "root", 8, 0, 0},	    {"transport", "", "transport", 11, 0, WITH_GPUS},
	{NULL, NULL, "op", 0, 0, 0},
};

static const struct column figure_columns[FIGURES] = {
	[TIME] = {"time", "(us)", "time_us", 9, DIGITS, 0},
	[ALGBW] = {"algbw", "(GB/s)", "algbw", 8, DIGITS, 0},
	[BUSBW] = {"busbw", "(GB/s)", "busbw", 8, DIGITS, 0},
	[WRONG] = {"#wrong", "", "wrong", 7, 0, 0},
	[BASE] = {"base", "(us)", "baseline_us", 10, DIGITS, WITH_BASELINE},
	[RATIO] = {"ratio", "", "ratio", 7, 2, WITH_BASELINE},
	[LATENCIES] = {"median", "(us)", "median_us", 9, DIGITS, WITH_LATENCY},
	[LATENCIES + 1] = {"p99", "(us)", "p99_us", 9, DIGITS, WITH_LATENCY},
	[BASE_LATENCIES] = {"base", "median", "baseline_median_us", 9, DIGITS,
			    WITH_LATENCY | WITH_BASELINE},
	[BASE_LATENCIES + 1] = {"base", "p99", "baseline_p99_us", 9, DIGITS,
				WITH_LATENCY | WITH_BASELINE},
	[CORES + CORES_DAEMON] = {"daemon", "(cores)", "daemon_cores", 9, 5, WITH_CPU},
	[CORES + CORES_WORKERS] = {"workers", "", "worker_cores", 9, 5, WITH_CPU},
	[CORES + CORES_RANKS] = {"ranks", "", "rank_cores", 9, 5, WITH_CPU},
	[BASE_CORES] = {"base", "", "baseline_cores", 9, 5, WITH_CPU | WITH_BASELINE},
	[CPU] = {"submit", "(us)", "submit_cpu_us", 8, DIGITS, WITH_CPU},
	[BASE_CPU] = {"base", "(us)", "baseline_submit_cpu_us", 8, DIGITS,
		      WITH_CPU | WITH_BASELINE},
	[TIME_RANGE] = {NULL, NULL, "time_min_us", 0, DIGITS, 0},
	[TIME_RANGE + 1] = {NULL, NULL, "time_max_us", 0, DIGITS, 0},
	[BASE_RANGE] = {NULL, NULL, "baseline_min_us", 0, DIGITS, 0},
	[BASE_RANGE + 1] = {NULL, NULL, "baseline_max_us", 0, DIGITS, 0},
	[RATIO_RANGE] = {NULL, NULL, "ratio_min", 0, DIGITS, 0},
	[RATIO_RANGE + 1] = {NULL, NULL, "ratio_max", 0, DIGITS, 0},
};

#define WORK_COLUMNS (sizeof(work_columns) / sizeof(work_columns[0]))

const char *collective_waits(const struct options *o)
{
	if (o->sync == SYNC_EACH)
		return o->cuda ? "synchronising after each operation"
			       : "waiting for each operation";
	if (o->cuda && o->sync == SYNC_STREAM)
		return "synchronising at the end; each operation orders the stream";
	return o->cuda ? "synchronising at the end; the last operation orders the stream"
		       : "waiting for the last operation";
}

/* Open MPI's ranks join before they connect, so their join time is unknown. */
static bool start_known(const struct subject *s)
{
	return s->ranks.start_ms > 0;
}

static void note_start(struct bench *b, const struct subject *s, const char *who)
{
	const double ms = s->ranks.start_ms, mib = s->ranks.start_bytes / (1 << 20);
	if (!start_known(s))
		return;
	if (b->options->cuda)
		report_note(&b->report,
			    "%s: %.2f ms to join and do a first operation, %.1f MiB of each GPU",
			    who, ms, mib);
	else
		report_note(&b->report, "%s: %.2f ms to join and do a first operation", who, ms);
}

static void show_head(struct bench *b)
{
	const struct options *o = b->options;
	struct report *r = &b->report;
	report_note(r, "%" PRIu64 " iterations after %" PRIu64 " warm-up, %u rounds, %s", o->iters,
		    o->warmup, o->rounds, collective_waits(o));
	report_note(r, "time: average over the ranks, median of the rounds");
	if (o->compute_ms)
		report_note(r,
			    "beside kernels on another stream, %u ms in each round; time: until "
			    "both are over",
			    o->compute_ms);
	if (o->graph)
		report_note(r, "in CUDA graphs of %u operations each; time: a part of a launch's",
			    o->graph);
	if (o->before)
		report_note(r, "a short kernel before each operation; time: with that");
	if (o->every_us)
		report_note(r,
			    "every %" PRIu64 " us, if the former operation allows; time: "
			    "without the pauses",
			    o->every_us);
	if (o->with_cpu) {
		report_note(r, "cores: CPU time of all processes of that kind together, by time, "
			       "in the rounds");
		report_note(r, "submit: CPU time of a rank's thread for an operation, without the "
			       "wait at the end");
	}
	if (b->n > BASELINE)
		report_note(r, "baseline: %s, round by round in turn; ratio = time / base",
			    b->subjects[BASELINE].ranks.library);
	note_start(b, &b->subjects[SERVICE], "service");
	note_start(b, &b->subjects[BASELINE], "baseline");
	if (!r->table)
		return;
	int place = report_width(r, figure_columns, FIGURES);
	printf("#\n# %*s%*s%*s\n", report_width(r, work_columns, WORK_COLUMNS), "", place / 2 + 6,
	       "out-of-place", place, "in-place");
	for (int units = 0; units < 2; units++) {
		printf("# ");
		report_title_line(r, work_columns, WORK_COLUMNS, units);
		report_title_line(r, figure_columns, FIGURES, units);
		report_title_line(r, figure_columns, FIGURES, units);
		putchar('\n');
	}
	fflush(stdout);
}

static void set_start(struct bench *b, const struct subject *s, const char *ms, const char *bytes)
{
	const bool known = start_known(s);
	report_set_number(&b->report, ms, known ? s->ranks.start_ms : NAN);
	report_set_number(&b->report, bytes,
			  known && b->options->cuda ? s->ranks.start_bytes : NAN);
}

void collective_report_begin(struct bench *b)
{
	const struct options *o = b->options;
	struct report *r = &b->report;
	char what[64];
	snprintf(what, sizeof(what), "%s, %u ranks", perf_op_name(o->op), o->ranks);
	report_begin(r, o, what);
	r->shown = (b->n > BASELINE ? WITH_BASELINE : 0) | (o->with_cpu ? WITH_CPU : 0) |
		   (o->latency ? WITH_LATENCY : 0) | (o->cuda ? WITH_GPUS : 0);
	report_set(r, "ranks", json_integer(o->ranks));
	report_set(r, "blocking", json_boolean(o->sync == SYNC_EACH));
	report_set(r, "sync", json_string(sync_name(o)));
	report_set(r, "rounds", json_integer(o->rounds));
	report_set(r, "blocks", json_integer(o->blocks));
	report_set(r, "copy_engines", json_boolean(o->copy_engines));
	report_set(r, "compute_ms", json_integer(o->compute_ms));
	report_set(r, "graph", json_integer(o->graph));
	report_set(r, "kernel", json_boolean(o->before));
	report_set(r, "every_us",
		   o->with_cpu ? json_integer((json_int_t)o->every_us) : json_null());
	report_set(r, "baseline",
		   b->n > BASELINE ? json_string(b->subjects[BASELINE].ranks.library)
				   : json_null());
	set_start(b, &b->subjects[SERVICE], "start_ms", "start_gpu_bytes");
	set_start(b, &b->subjects[BASELINE], "baseline_start_ms", "baseline_start_gpu_bytes");
	show_head(b);
}

void collective_report_row(struct bench *b, const struct work *w, struct value figures[2][FIGURES],
			   bool in_place)
{
	struct report *r = &b->report;
	const struct value cells[WORK_COLUMNS] = {
		NUMBER(work_bytes(w)),
		NUMBER(w->count),
		TEXT(w->op == NCCLSVC_BARRIER ? "none" : ncclsvc_type_name(w->type)),
		TEXT(work_reduces(w->op) ? ncclsvc_redop_name(w->redop) : "none"),
		NUMBER(work_has_root(w->op) ? w->root : -1),
		b->options->cuda ? b->transport : UNKNOWN,
		TEXT(perf_op_name(w->op)),
	};
	json_t *row = r->rows ? json_object() : NULL;
	json_t *second = row && in_place ? json_object() : NULL;
	report_progress(r, "%s", "");
	if (r->table)
		printf("  ");
	report_cells(r, work_columns, WORK_COLUMNS, cells, row);
	report_cells(r, figure_columns, FIGURES, figures[0], row);
	report_cells(r, figure_columns, FIGURES, figures[1], second);
	if (row && json_object_set_new(row, "in_place", second ? second : json_null()) < 0)
		r->no_memory = true;
	report_row_end(r, row);
}

bool collective_report_end(struct bench *b)
{
	struct report *r = &b->report;
	double busbw = b->busbw_n ? b->busbw_sum / b->busbw_n : 0;
	bool checked = b->options->checks > 0;
	if (checked)
		report_note(r, "Out of bounds values : %" PRIu64 " %s", b->wrong,
			    b->wrong ? "FAILED" : "OK");
	else
		report_note(r, "Out of bounds values : not checked");
	report_note(r, "Avg bus bandwidth    : %g", busbw);
	if (b->options->queued) {
		if (!queue_figures(&b->queue))
			return report_end(r, false);
		report_note(r,
			    "%" PRIu64 " tasks were listed once a second, in %.1f ms, %.1f ms at "
			    "worst",
			    b->queue.listed, b->queue.list_ms, b->queue.list_worst_ms);
		report_set(r, "listed", json_integer((json_int_t)b->queue.listed));
		report_set_number(r, "list_ms", b->queue.list_ms);
		report_set_number(r, "list_worst_ms", b->queue.list_worst_ms);
	}
	report_set(r, "wrong", checked ? json_integer((json_int_t)b->wrong) : json_null());
	report_set_number(r, "avg_busbw", busbw);
	return report_end(r, true);
}
