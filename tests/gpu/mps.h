/* SPDX-License-Identifier: Apache-2.0
 * An MPS server of the tests' own. */
#ifndef TESTS_GPU_MPS_H
#define TESTS_GPU_MPS_H

#include <stdbool.h>
#include <stddef.h>

/* Starts it; processes started from now on use it. False: text says why not. */
bool mps_start(char *text, size_t size);
/* Ends it; processes started from now on use no MPS, not even the system's. */
void mps_stop(void);
/* The same without one having run. */
void mps_avoid(void);

#endif
