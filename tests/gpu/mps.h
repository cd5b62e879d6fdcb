/* SPDX-License-Identifier: Apache-2.0
 * A private MPS server for the tests. */
#ifndef TESTS_GPU_MPS_H
#define TESTS_GPU_MPS_H

#include <stdbool.h>
#include <stddef.h>

/* Starts it; processes started later use it. False: text says why not. */
bool mps_start(char *text, size_t size);
/* Stops it; processes started later use no MPS, not even the system's. */
void mps_stop(void);
/* The same without a server having run. */
void mps_avoid(void);

#endif
