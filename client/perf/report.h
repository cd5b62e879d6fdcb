/* SPDX-License-Identifier: Apache-2.0
 * What is printed: the table of nccl-tests, or JSON, and a progress line on a terminal. */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

#include <jansson.h>

#include "cores.h"
#include "options.h"
#include "work.h"

/* One row, out of place or in place. */
struct figures {
	bool measured;
	double us;
	int64_t wrong;			       /* -1: not checked */
	double base_us;			       /* 0: no baseline, or none for this work */
	double cores[CORES_PARTS], base_cores; /* < 0: unknown, or not asked for */
};

struct row {
	struct work work;
	struct figures place[2]; /* out of place, in place */
};

struct report {
	const struct options *options;
	json_t *json, *rows; /* NULL unless --json */
	bool table;	     /* unless the JSON goes to stdout */
	bool progress;
	const char *baseline; /* "Open MPI v4.1.4", or NULL */
	uint64_t wrong;
	double busbw_sum;
	unsigned busbw_n;
};

/* Each returns false if memory is short (complained). */
bool report_begin(struct report *r, const struct options *options, const char *baseline);
bool report_row(struct report *r, const struct row *row);
/* Prints the footer and writes the JSON. False: it can't be written (complained). */
bool report_end(struct report *r);
void report_free(struct report *r);

/* Shows where we are; wiped by the next line of output. */
void report_progress(const struct report *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* For the other modes: an object with "version", "command", "cpus", ... and an empty "rows". NULL:
 * out of memory. */
json_t *report_json_new(const struct options *options);
/* Before all is measured in vain: can it be written? False: complained. */
bool report_json_possible(const struct options *options);
/* Writes json to where --json says. */
bool report_json_write(const struct options *options, json_t *json);
/* The same, if it is asked for and was made, and lets go of it: the end of a report. False: it was
 * not made, for want of memory, or could not be written; both have been complained of. */
bool report_json_finish(const struct options *options, json_t *json, bool made);
/* "# ..." lines on stdout: version, machine. */
void report_header(const struct options *options, const char *what);

#endif
