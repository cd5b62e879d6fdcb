/* SPDX-License-Identifier: Apache-2.0
 * Setup for tests of transport = mpi. */
#ifndef TESTS_GPU_STAGED_SETUP_H
#define TESTS_GPU_STAGED_SETUP_H

#include "ranks.h"
#include "tests/integration/node_daemons.h"

#define MIB ((size_t)1 << 20)

/* Makes daemons started later use transport = mpi. bytes: size of the staging memory; NULL: the
 * default. */
void stage_memory(const char *bytes);
/* Skips the test if mpirun is missing. */
void need_mpi(void);
/* Starts two daemons with transport = mpi, with that many GPUs each. */
void staged_nodes_start(struct cluster *c, int gpus);

#endif
