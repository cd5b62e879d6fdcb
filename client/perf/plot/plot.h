/* SPDX-License-Identifier: Apache-2.0
 * A plot over sizes, as an SVG file: a panel with the ratio where there is a baseline, and one with
 * the bandwidth. */
#ifndef PERF_PLOT_H
#define PERF_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A value and its range over the rounds. value NAN: there is none at this size. */
struct spread {
	double value, low, high;
};

enum plot_series { PLOT_RATIO, PLOT_SERVICE, PLOT_BASELINE, PLOT_SERIES };

struct plot_point {
	uint64_t bytes;
	struct spread of[PLOT_SERIES];
};

#define PLOT_NOTES 3 /* lines under the title */

/* Zero at first. */
struct plot {
	const char *title, *notes[PLOT_NOTES], *command;
	const char *baseline; /* its name; NULL: there is none */
	struct plot_point *points;
	size_t n;
	bool no_memory; /* some point is lost */
};

void plot_add(struct plot *plot, const struct plot_point *point);
/* Errors are the stream's. */
void plot_write(const struct plot *plot, FILE *f);
void plot_free(struct plot *plot);

#endif
