/* SPDX-License-Identifier: Apache-2.0
 * What collectives ought to yield, computed element by element in wide types and without any of the
 * service's code. */
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/ncclsvc_types.h"

/* Input element i of that rank: a small integer, exact in every type, as are sums and products of
 * up to seven ranks. */
int reference_input(int rank, size_t i, ncclsvc_type type, ncclsvc_redop redop);
/* The same with fractions that no binary type holds exactly. */
double reference_fraction(int rank, size_t i);

void element_store(void *buf, size_t i, ncclsvc_type type, double value);
double element_load(const void *buf, size_t i, ncclsvc_type type);
bool type_is_float(ncclsvc_type type);

/* The reduction of element i over all ranks, as `type` holds it. exact: false for results that may
 * be rounded (an average of floats). */
double reference_reduced(int nranks, size_t i, ncclsvc_type type, ncclsvc_redop redop, bool *exact);
/* Half the distance of neighbours near 1. */
double type_epsilon(ncclsvc_type type);

#endif
