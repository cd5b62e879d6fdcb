/* SPDX-License-Identifier: Apache-2.0
 * Tests of transport = mpi: how they begin. */
#ifndef TESTS_GPU_STAGED_H
#define TESTS_GPU_STAGED_H

#include "ranks.h"
#include "tests/integration/cluster.h"

#define MIB ((size_t)1 << 20)

/* Daemons that start from now on have it; bytes: of staging memory, NULL: as they choose. */
void stage_memory(const char *bytes);
/* Skips the test where there is no mpirun. */
void need_mpi(void);
/* Two daemons that have it, with so many GPUs each. */
void staged_nodes_start(struct cluster *c, int gpus);

#endif
