/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf OP: what is measured and printed. */
#ifndef PERF_COLLECTIVE_H
#define PERF_COLLECTIVE_H

#include "cores.h"
#include "perf_output.h"
#include "perf_ranks.h"
#include "plot.h"
#include "queue.h"

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
	struct plot plot; /* empty without --plot */
	uint64_t seed;
	uint32_t spins; /* length of a kernel beside the operations; 0: there are none */
	uint64_t wrong;
	struct value transport; /* transport of the service's operations in this row */
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
	TIME_RANGE, /* minimum and maximum of the rounds */
	BASE_RANGE = TIME_RANGE + 2,
	RATIO_RANGE = BASE_RANGE + 2,
	FIGURES = RATIO_RANGE + 2,
};

/* ---- turns.c: the subjects take turns ---- */

/* Kernels per round beside the operations: several, so that other streams' work fits in between. */
#define TURNS_KERNELS 20

uint64_t turns_seed(struct bench *b);
/* How many iterations fit into the time of a round. One cold operation, and if it was slow a warm
 * one, tells how long they take. */
bool turns_fit(struct bench *b, struct ranks *ranks, const struct work *w, uint64_t *iters);
bool turns_round(struct subject *s, const struct command *command, unsigned round);
/* The first n subjects take turns, and alternate in going first. */
bool turns_run(struct bench *b, const struct command *command, unsigned n);
/* Finds the kernel length at which a round's kernels take `ms`. All subjects then run the same. */
bool turns_calibrate(struct bench *b, unsigned ms);

/* ---- collective_report.c ---- */

/* Prints the table's head, a row, and the end. */
void collective_report_begin(struct bench *b);
void collective_report_row(struct bench *b, const struct work *w, struct value figures[2][FIGURES],
			   bool in_place);
bool collective_report_end(struct bench *b);
/* Describes when the ranks wait. */
const char *collective_waits(const struct options *o);

/* ---- collective_plot.c: does nothing without --plot ---- */

void collective_plot_row(struct bench *b, const struct work *w,
			 const struct value figures[2][FIGURES]);
/* Writes the file. False: an error was printed. */
bool collective_plot_end(struct bench *b);

#endif
