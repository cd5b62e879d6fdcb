/* SPDX-License-Identifier: Apache-2.0
 * The expected results of collectives, computed element by element in wide types without any of the
 * service's code. */
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/ncclsvc_types.h"

/* Input element i of that rank: a small integer that is exact in every type, as are sums and
 * products over up to seven ranks. */
int reference_input(int rank, size_t i, ncclsvc_type type, ncclsvc_redop redop);
/* The same with fractions that no binary type represents exactly. */
double reference_fraction(int rank, size_t i);

void element_store(void *buf, size_t i, ncclsvc_type type, double value);
double element_load(const void *buf, size_t i, ncclsvc_type type);
bool type_is_float(ncclsvc_type type);

/* The reduction of element i over all ranks, as stored in `type`. exact: false for results that may
 * be rounded (an average of floats). */
double reference_reduced(int nranks, size_t i, ncclsvc_type type, ncclsvc_redop redop, bool *exact);
/* Half the distance between neighbours near 1. */
double type_epsilon(ncclsvc_type type);

#endif
