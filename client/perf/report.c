/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ncclsvc.h"
#include "process.h"

static const char *redop_name(const struct work *w)
{
	return work_reduces(w->op) ? ncclsvc_redop_name(w->redop) : "none";
}

static const char *type_name(const struct work *w)
{
	return w->op == NCCLSVC_BARRIER ? "none" : ncclsvc_type_name(w->type);
}

static int shown_root(const struct work *w)
{
	return work_has_root(w->op) ? w->root : -1;
}

/* Keeps columns aligned over nine orders of magnitude. */
static const char *number(char *buf, size_t size, double v)
{
	int decimals = v < 10 ? 3 : v < 100 ? 2 : v < 1000 ? 1 : 0;
	snprintf(buf, size, "%.*f", decimals, v);
	return buf;
}

static void print_columns(const struct report *r)
{
	static const char *const lines[] = {"  %7s  %6s  %6s %6s", "  %8s %6s", "  %6s %7s %6s",
					    " %6s"};
	static const char *const titles[2][10] = {
		{"time", "algbw", "busbw", "#wrong", "base", "ratio", "daemon", "workers", "ranks",
		 "base"},
		{"(us)", "(GB/s)", "(GB/s)", "", "(us)", "", "(cores)", "", "", ""}};
	const bool cores = r->options->every_given;
	int width = 32 + (r->baseline ? 16 : 0) + (cores ? 23 : 0) + (cores && r->baseline ? 7 : 0);
	printf("#\n#%54s%*s%*s\n", "", width / 2 + 6, "out-of-place", width, "in-place");
	for (int line = 0; line < 2; line++) {
		const char *const *t = titles[line];
		if (line == 0)
			printf("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop",
			       "root");
		else
			printf("# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
		for (int place = 0; place < 2; place++) {
			printf(lines[0], t[0], t[1], t[2], t[3]);
			if (r->baseline)
				printf(lines[1], t[4], t[5]);
			if (cores)
				printf(lines[2], t[6], t[7], t[8]);
			if (cores && r->baseline)
				printf(lines[3], t[9]);
		}
		putchar('\n');
	}
}

static const char *cores_text(char *buf, size_t size, double cores)
{
	if (cores < 0)
		return "n/a";
	snprintf(buf, size, "%.3f", cores);
	return buf;
}

static void print_cores(const struct report *r, const struct figures *f)
{
	char a[32], b[32], c[32], d[32];
	double cores[CORES_PARTS] = {-1, -1, -1}, base = -1;
	if (f->measured) {
		memcpy(cores, f->cores, sizeof(cores));
		base = f->base_cores;
	}
	printf("  %6s %7s %6s", cores_text(a, sizeof(a), cores[CORES_DAEMON]),
	       cores_text(b, sizeof(b), cores[CORES_WORKERS]),
	       cores_text(c, sizeof(c), cores[CORES_RANKS]));
	if (r->baseline)
		printf(" %6s", cores_text(d, sizeof(d), base));
}

static void print_figures(const struct report *r, const struct work *w, const struct figures *f)
{
	char a[32], b[32], c[32];
	if (f->measured) {
		char wrong[24] = "N/A";
		if (f->wrong >= 0)
			snprintf(wrong, sizeof(wrong), "%" PRId64, f->wrong);
		printf("  %7s  %6s  %6s %6s", number(a, sizeof(a), f->us),
		       number(b, sizeof(b), work_algbw(w, f->us)),
		       number(c, sizeof(c), work_busbw(w, f->us)), wrong);
	} else {
		printf("  %7s  %6s  %6s %6s", "N/A", "N/A", "N/A", "N/A");
	}
	if (r->baseline && f->measured && f->base_us > 0)
		printf("  %8s %6.2f", number(a, sizeof(a), f->base_us), f->us / f->base_us);
	else if (r->baseline)
		printf("  %8s %6s", "n/a", "n/a");
	if (r->options->every_given)
		print_cores(r, f);
}

static json_t *json_wrong(int64_t wrong)
{
	return wrong < 0 ? json_null() : json_integer(wrong);
}

static json_t *json_cores(double cores)
{
	return cores < 0 ? json_null() : json_real(cores);
}

static json_t *json_figures(const struct work *w, const struct figures *f)
{
	if (!f->measured)
		return json_null();
	bool based = f->base_us > 0;
	return json_pack(
		"{s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "time_us", f->us, "algbw",
		work_algbw(w, f->us), "busbw", work_busbw(w, f->us), "wrong", json_wrong(f->wrong),
		"baseline_us", based ? json_real(f->base_us) : json_null(), "ratio",
		based ? json_real(f->us / f->base_us) : json_null(), "daemon_cores",
		json_cores(f->cores[CORES_DAEMON]), "worker_cores",
		json_cores(f->cores[CORES_WORKERS]), "rank_cores",
		json_cores(f->cores[CORES_RANKS]), "baseline_cores", json_cores(f->base_cores));
}

static json_t *json_row(const struct row *row)
{
	const struct work *w = &row->work;
	json_t *json =
		json_pack("{s:s, s:I, s:I, s:s, s:s, s:i}", "op", perf_op_name(w->op), "bytes",
			  (json_int_t)work_bytes(w), "count", (json_int_t)w->count, "type",
			  type_name(w), "redop", redop_name(w), "root", shown_root(w));
	json_t *figures = json_figures(w, &row->place[0]);
	json_t *in_place = json_figures(w, &row->place[1]);
	if (!json || json_object_update(json, figures) < 0 ||
	    json_object_set(json, "in_place", in_place) < 0) {
		json_decref(json);
		json = NULL;
	}
	json_decref(figures);
	json_decref(in_place);
	return json;
}

static bool out_of_memory(void)
{
	complain("out of memory");
	return false;
}

static const char *waiting(const struct options *o)
{
	if (o->sync == SYNC_EACH)
		return o->cuda ? "synchronising after each operation"
			       : "waiting for each operation";
	if (o->cuda && o->sync == SYNC_STREAM)
		return "synchronising at the end; each operation orders the stream";
	return o->cuda ? "synchronising at the end; the last operation orders the stream"
		       : "waiting for the last operation";
}

bool report_begin(struct report *r, const struct options *o, const char *baseline)
{
	*r = (struct report){.options = o,
			     .table = !o->json || o->json_path,
			     .progress = isatty(STDERR_FILENO),
			     .baseline = baseline};
	if (o->json) {
		r->json = report_json_new(o);
		r->rows = json_object_get(r->json, "rows");
		if (!r->rows || json_object_set_new(r->json, "ranks", json_integer(o->ranks)) < 0 ||
		    json_object_set_new(r->json, "blocking", json_boolean(o->sync == SYNC_EACH)) <
			    0 ||
		    json_object_set_new(r->json, "sync", json_string(sync_name(o))) < 0 ||
		    json_object_set_new(r->json, "rounds", json_integer(o->rounds)) < 0 ||
		    json_object_set_new(r->json, "every_us",
					o->every_given ? json_integer((json_int_t)o->every_us)
						       : json_null()) < 0 ||
		    json_object_set_new(r->json, "baseline",
					baseline ? json_string(baseline) : json_null()) < 0)
			return out_of_memory();
	}
	if (!r->table)
		return true;
	char what[64];
	snprintf(what, sizeof(what), "%s, %u ranks", perf_op_name(o->op), o->ranks);
	report_header(o, what);
	printf("# %" PRIu64 " iterations after %" PRIu64 " warm-up, %u rounds, %s\n", o->iters,
	       o->warmup, o->rounds, waiting(o));
	printf("# time: average over the ranks, median of the rounds\n");
	if (o->every_us)
		printf("# every %" PRIu64 " us, if the former operation allows; time: without the "
		       "pauses\n",
		       o->every_us);
	if (o->every_given)
		printf("# cores: CPU time of all processes of that kind together, by time, in the "
		       "rounds\n");
	if (baseline)
		printf("# baseline: %s, round by round in turn; ratio = time / base\n", baseline);
	print_columns(r);
	fflush(stdout);
	return true;
}

bool report_row(struct report *r, const struct row *row)
{
	const struct work *w = &row->work;
	for (int place = 0; place < 2; place++) {
		const struct figures *f = &row->place[place];
		if (!f->measured)
			continue;
		r->wrong += f->wrong > 0 ? (uint64_t)f->wrong : 0;
		r->busbw_sum += work_busbw(w, f->us);
		r->busbw_n++;
	}
	if (r->json && json_array_append_new(r->rows, json_row(row)) < 0)
		return out_of_memory();
	if (!r->table)
		return true;
	report_progress(r, "%s", "");
	printf("%12" PRIu64 "  %12" PRIu64 "  %8s  %6s  %6d", work_bytes(w), w->count, type_name(w),
	       redop_name(w), shown_root(w));
	print_figures(r, w, &row->place[0]);
	print_figures(r, w, &row->place[1]);
	putchar('\n');
	fflush(stdout);
	return true;
}

bool report_end(struct report *r)
{
	double busbw = r->busbw_n ? r->busbw_sum / r->busbw_n : 0;
	bool checked = r->options->checks > 0;
	report_progress(r, "%s", "");
	if (r->table) {
		if (checked)
			printf("# Out of bounds values : %" PRIu64 " %s\n", r->wrong,
			       r->wrong ? "FAILED" : "OK");
		else
			printf("# Out of bounds values : not checked\n");
		printf("# Avg bus bandwidth    : %g\n", busbw);
		fflush(stdout);
	}
	if (!r->json)
		return true;
	json_t *wrong = checked ? json_integer((json_int_t)r->wrong) : json_null();
	if (json_object_set_new(r->json, "wrong", wrong) < 0 ||
	    json_object_set_new(r->json, "avg_busbw", json_real(busbw)) < 0)
		return out_of_memory();
	return report_json_write(r->options, r->json);
}

void report_free(struct report *r)
{
	json_decref(r->json);
}

void report_progress(const struct report *r, const char *format, ...)
{
	if (!r->progress)
		return;
	va_list args;
	fputs("\r\033[K", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fflush(stderr);
}
