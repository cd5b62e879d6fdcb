/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf OP: what is measured, and what is printed of it. */
#ifndef PERF_COLLECTIVE_H
#define PERF_COLLECTIVE_H

#include "cores.h"
#include "queue.h"
#include "ranks.h"
#include "report.h"

enum { SERVICE, BASELINE, SUBJECTS };

/* The times of one operation, in us. */
enum measure { MEAN, SUBMIT, MEDIAN, P99, MEASURES };

/* One side of a comparison: the service, or the baseline. */
struct subject {
	struct ranks ranks;
	struct cores cores; /* empty without --every */
	double us[MEASURES][ROUNDS_MAX];
};

struct bench {
	const struct options *options;
	struct subject subjects[SUBJECTS];
	unsigned n;	    /* subjects */
	struct queue queue; /* empty without --queued */
	struct report report;
	uint64_t seed;
	uint32_t spins; /* with --compute-ms: of a kernel */
	uint64_t wrong;
	struct value transport; /* of the service's operations in this row */
	double busbw_sum;
	unsigned busbw_n;
};

/* The figures of one row, out of place or in place. */
enum figure {
	TIME,
	ALGBW,
	BUSBW,
	WRONG,
	BASE,
	RATIO,
	LATENCIES, /* median and p99 */
	BASE_LATENCIES = LATENCIES + 2,
	CORES = BASE_LATENCIES + 2, /* one for each part */
	BASE_CORES = CORES + CORES_PARTS,
	CPU,
	BASE_CPU,
	FIGURES,
};

/* Prints the table's head, a row, and the end. */
void collective_report_begin(struct bench *b);
void collective_report_row(struct bench *b, const struct work *w, struct value figures[2][FIGURES],
			   bool in_place);
bool collective_report_end(struct bench *b);

#endif
