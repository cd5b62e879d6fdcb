/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "build_config.h"
#include "child_process.h"

void report_cpu_model(char *buf, size_t size)
{
	char line[512];
	FILE *f = fopen("/proc/cpuinfo", "re");
	snprintf(buf, size, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		char *value = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !value)
			continue;
		value[strcspn(value, "\n")] = '\0';
		snprintf(buf, size, "%s", value + 1 + strspn(value + 1, " "));
		break;
	}
	if (f)
		fclose(f);
}

static int cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* Other work on the machine affects the figures, so the report shows the load. */
static double load(void)
{
	double average = 0;
	return getloadavg(&average, 1) == 1 ? average : 0;
}

/* ---- The JSON ---- */

static json_t *new_json(const struct options *o)
{
	char model[128];
	struct utsname system;
	report_cpu_model(model, sizeof(model));
	uname(&system);
	return json_pack("{s:s, s:s, s:i, s:s, s:f, s:s, s:s, s:b, s:b, s:i, s:[]}", "version",
			 NCCLSVC_VERSION_STRING, "command", o->command_line, "cpus", cpus(),
			 "cpu_model", model, "load", load(), "kernel", system.release, "device",
			 o->cuda ? "cuda" : "host", "ring", !o->no_ring, "plan", o->planned, "list",
			 (int)o->lists, "rows");
}

/* 0, or errno. Neither changes an existing file nor creates one. */
static int try_file(const char *path)
{
	char dir[PATH_MAX] = ".";
	struct stat st;
	const char *slash = strrchr(path, '/');
	if (slash)
		snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path) + 1, path);
	if (!stat(path, &st)) {
		/* Opening and closing a pipe would look like the end of the output to its reader.
		 */
		if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))
			return access(path, W_OK) ? errno : 0;
		int fd = open(path, O_WRONLY | O_CLOEXEC);
		return fd < 0 || close(fd) ? errno : 0;
	}
	return errno != ENOENT || !*path || access(dir, W_OK | X_OK) ? errno : 0;
}

bool report_possible(const struct options *o)
{
	const char *const paths[] = {o->json_path, o->plot_path};
	for (int i = 0; i < 2; i++) {
		int error = paths[i] ? try_file(paths[i]) : 0;
		if (error) {
			complain("can't write the %s to %s: %s", i ? "plot" : "JSON", paths[i],
				 strerror(error));
			return false;
		}
	}
	return true;
}

static bool write_json(const struct options *o, const json_t *json)
{
	FILE *f = o->json_path ? fopen(o->json_path, "we") : stdout;
	bool good = f && json_dumpf(json, f, JSON_INDENT(2)) == 0 && fputc('\n', f) != EOF;
	if (f)
		good = (o->json_path ? fclose(f) : fflush(f)) == 0 && good;
	if (!good)
		complain("can't write the JSON to %s", o->json_path ? o->json_path : "stdout");
	return good;
}

static json_t *json_value(const struct column *c, const struct value *v)
{
	if (v->text)
		return json_string(v->text);
	if (isnan(v->number))
		return json_null();
	return c->decimals ? json_real(v->number) : json_integer((json_int_t)v->number);
}

void report_set(struct report *r, const char *key, json_t *value)
{
	if (!r->json)
		json_decref(value);
	else if (json_object_set_new(r->json, key, value) < 0)
		r->no_memory = true;
}

void report_set_number(struct report *r, const char *key, double value)
{
	report_set(r, key, isnan(value) ? json_null() : json_real(value));
}

/* ---- The table ---- */

static bool is_shown(const struct report *r, const struct column *c)
{
	return c->width && !(c->when & ~r->shown);
}

static const char *cell(const struct column *c, const struct value *v, char *buf, size_t size)
{
	if (v->text)
		return v->text;
	if (isnan(v->number))
		return "n/a";
	double n = v->number;
	int decimals = c->decimals;
	if (decimals == DIGITS)
		decimals = n < 10 ? 3 : n < 100 ? 2 : n < 1000 ? 1 : 0;
	snprintf(buf, size, "%.*f", decimals, n);
	return buf;
}

int report_width(const struct report *r, const struct column *columns, size_t n)
{
	int width = 0;
	for (size_t i = 0; i < n; i++)
		width += is_shown(r, &columns[i]) ? columns[i].width : 0;
	return width;
}

void report_title_line(const struct report *r, const struct column *columns, size_t n, bool units)
{
	for (size_t i = 0; i < n; i++) {
		const struct column *c = &columns[i];
		if (is_shown(r, c))
			printf("%*s", c->width, units ? c->unit : c->title);
	}
}

void report_titles(const struct report *r, const struct column *columns, size_t n)
{
	if (!r->table)
		return;
	printf("#\n# ");
	report_title_line(r, columns, n, false);
	printf("\n# ");
	report_title_line(r, columns, n, true);
	putchar('\n');
	fflush(stdout);
}

void report_cells(struct report *r, const struct column *columns, size_t n,
		  const struct value *values, json_t *row)
{
	char buf[32];
	for (size_t i = 0; i < n; i++) {
		const struct column *c = &columns[i];
		if (r->table && is_shown(r, c))
			printf("%*s", c->width, cell(c, &values[i], buf, sizeof(buf)));
		if (row && json_object_set_new(row, c->key, json_value(c, &values[i])) < 0)
			r->no_memory = true;
	}
}

void report_row_end(struct report *r, json_t *row)
{
	if (r->table)
		putchar('\n');
	fflush(stdout);
	if (!r->rows)
		json_decref(row);
	else if (json_array_append_new(r->rows, row) < 0)
		r->no_memory = true;
}

void report_row(struct report *r, const struct column *columns, size_t n,
		const struct value *values)
{
	json_t *row = r->rows ? json_object() : NULL;
	report_progress(r, "%s", "");
	if (r->table)
		printf("  ");
	report_cells(r, columns, n, values, row);
	report_row_end(r, row);
}

void report_begin(struct report *r, const struct options *o, const char *what)
{
	*r = (struct report){.options = o,
			     .table = !o->json || o->json_path,
			     .progress = isatty(STDERR_FILENO),
			     .json = o->json ? new_json(o) : NULL};
	r->rows = json_object_get(r->json, "rows");
	r->no_memory = o->json && !r->rows;
	if (!r->table)
		return;
	char model[128];
	report_cpu_model(model, sizeof(model));
	printf("# ncclsvc-perf %s: %s\n", NCCLSVC_VERSION_STRING, what);
	printf("# %d CPUs (load %.1f), %s; device %s%s%s", cpus(), load(), model,
	       o->cuda ? "cuda" : "host", o->no_ring ? ", no ring" : "",
	       o->planned ? ", planned" : "");
	if (o->lists)
		printf(", lists of %u tensors a rank", o->lists);
	putchar('\n');
}

void report_note(const struct report *r, const char *format, ...)
{
	va_list args;
	report_progress(r, "%s", "");
	if (!r->table)
		return;
	printf("# ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

bool report_end(struct report *r, bool good)
{
	report_progress(r, "%s", "");
	if (r->no_memory)
		complain("out of memory for the JSON");
	good = good && !r->no_memory && (!r->json || write_json(r->options, r->json));
	json_decref(r->json);
	return good;
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

/* ---- Figures ---- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double median(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), compare);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
