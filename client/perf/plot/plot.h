/* SPDX-License-Identifier: Apache-2.0
 * A plot over sizes, as an SVG file: a panel for the ratio if there is a baseline, and one for the
 * bandwidth. */
#ifndef PERF_PLOT_H
#define PERF_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A value and its range over the rounds. If value is NAN, there is none at this size. */
struct spread {
	double value, low, high;
};

enum plot_series { PLOT_RATIO, PLOT_SERVICE, PLOT_BASELINE, PLOT_SERIES };

struct plot_point {
	uint64_t bytes;
	struct spread of[PLOT_SERIES];
};

#define PLOT_NOTES 3 /* lines under the title */

/* Zero-initialized. */
struct plot {
	const char *title, *notes[PLOT_NOTES], *command;
	const char *baseline; /* the baseline's name; NULL: there is none */
	struct plot_point *points;
	size_t n;
	bool no_memory; /* some point was lost */
};

void plot_add(struct plot *plot, const struct plot_point *point);
/* Errors are left in the stream. */
void plot_write(const struct plot *plot, FILE *f);
void plot_free(struct plot *plot);

#endif
