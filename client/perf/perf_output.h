/* SPDX-License-Identifier: Apache-2.0
 * The output: a table, or JSON with the same rows, and a progress line on a terminal. */
#ifndef PERF_OUTPUT_H
#define PERF_OUTPUT_H

#include <jansson.h>
#include <math.h>

#include "options.h"

/* A column of the table, and under `key` a member of the JSON's rows. */
struct column {
	const char *title, *unit, *key;
	int width;     /* in the table, including the gap before it; 0: only in the JSON */
	int decimals;  /* decimals of a number; 0: an integer; or DIGITS */
	unsigned when; /* shown in the table if report.shown has all of these bits */
};

/* As many decimals as keep a column aligned over nine orders of magnitude. */
#define DIGITS (-1)

struct value {
	double number;	  /* NAN: unknown, which is "n/a" in the table and null in the JSON */
	const char *text; /* instead of a number; NULL: none */
};

#define NUMBER(n) ((struct value){.number = (double)(n)})
#define TEXT(t)	  ((struct value){.text = (t)})
#define UNKNOWN	  NUMBER(NAN)

/* Of this machine. */
void report_cpu_model(char *buf, size_t size);

struct report {
	const struct options *options;
	bool table, progress;
	unsigned shown;	     /* see column.when */
	json_t *json, *rows; /* NULL: without --json */
	bool no_memory;	     /* for the JSON; report_end reports it */
};

/* Before the measurement: whether the JSON and the plot can be written. False: an error was
 * printed. */
bool report_possible(const struct options *options);

/* Prints what is measured and where. Must be followed by report_end. */
void report_begin(struct report *r, const struct options *options, const char *what);
/* A line after "# ", in the table only. */
void report_note(const struct report *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Adds a member to the JSON, beside the rows. */
void report_set(struct report *r, const char *key, json_t *value);
void report_set_number(struct report *r, const char *key, double value);
/* Prints the columns' names. */
void report_titles(const struct report *r, const struct column *columns, size_t n);
void report_row(struct report *r, const struct column *columns, size_t n,
		const struct value *values);
/* Writes the JSON if everything succeeded so far, and frees it. False: something failed, and an
 * error was printed. */
bool report_end(struct report *r, bool good);

/* Parts of the above, for rows that have the same columns twice. */
void report_title_line(const struct report *r, const struct column *columns, size_t n, bool units);
/* row: receives the values in the JSON; may be NULL. */
void report_cells(struct report *r, const struct column *columns, size_t n,
		  const struct value *values, json_t *row);
/* The report takes ownership of the row. */
void report_row_end(struct report *r, json_t *row);
int report_width(const struct report *r, const struct column *columns, size_t n);

/* Shows the run's progress; the next line of output overwrites it. */
void report_progress(const struct report *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Sorts the values. n > 0. */
double median(double *values, size_t n);
#endif
