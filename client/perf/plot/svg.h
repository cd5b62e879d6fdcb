/* SPDX-License-Identifier: Apache-2.0
 * Text in an SVG file. */
#ifndef PERF_PLOT_SVG_H
#define PERF_PLOT_SVG_H

#include <stdio.h>

/* Writes escaped text, with '?' for unprintable characters. */
void svg_put(FILE *f, const char *text);
/* A <text> element. */
void svg_text(FILE *f, const char *attributes, double x, double y, const char *text);

#endif
