/* SPDX-License-Identifier: Apache-2.0
 * The axes of a panel. Both are logarithmic: sizes and bandwidths span several powers of ten, and
 * ratios of 2 and 0.5 are equally far from 1. Lengths are in pixels. */
#ifndef PERF_PLOT_AXIS_H
#define PERF_PLOT_AXIS_H

#include <stdint.h>
#include <stdio.h>

#define AXIS_LEFT   64
#define AXIS_RIGHT  736
#define AXIS_HEIGHT 190

/* From left to right. */
struct size_axis {
	double low, high; /* powers of two */
};

struct size_axis size_axis_over(uint64_t low, uint64_t high);
double size_axis_x(const struct size_axis *axis, uint64_t bytes);
/* Draws the marks below y = bottom. */
void size_axis_draw(const struct size_axis *axis, FILE *f, double bottom);

struct marks;
/* From the bottom to the top. */
struct value_axis {
	const struct marks *marks;
	int first, last; /* marks, numbered consecutively over the powers of ten */
	double top;
};

/* An axis from the mark below `low` to the mark above `high`. 0 < low. */
struct value_axis value_axis_over(double low, double high, double top);
double value_axis_y(const struct value_axis *axis, double value);
/* Draws the marks, and lines across the panel. */
void value_axis_draw(const struct value_axis *axis, FILE *f);

#endif
