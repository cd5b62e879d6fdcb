/* SPDX-License-Identifier: Apache-2.0 */
#include "stat.h"

#include <math.h>
#include <stdlib.h>

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

double percentile(double *values, size_t n, double percent)
{
	qsort(values, n, sizeof(*values), compare);
	size_t rank = (size_t)ceil(percent / 100 * (double)n);
	return values[rank ? rank - 1 : 0];
}
