/* SPDX-License-Identifier: Apache-2.0
 * Medians and percentiles. */
#ifndef PERF_STAT_H
#define PERF_STAT_H

#include <stddef.h>

/* Both sort the values. n > 0. */
double median(double *values, size_t n);
/* The smallest value that at least `percent` of them do not exceed. */
double percentile(double *values, size_t n, double percent);

#endif
