/* SPDX-License-Identifier: Apache-2.0
 * A private MPS server for the tests. */
#ifndef TESTS_GPU_MPS_SERVER_H
#define TESTS_GPU_MPS_SERVER_H

#include <stdbool.h>
#include <stddef.h>

/* Starts the server; processes started later use it. False: text has the reason. */
bool mps_start(char *text, size_t size);
/* Stops the server; processes started later use no MPS, not even the system's. */
void mps_stop(void);
/* Makes processes started later use no MPS. */
void mps_avoid(void);

#endif
