/* SPDX-License-Identifier: Apache-2.0
 * The ranks that launchers give to the processes that they start, by environment variables. */
#ifndef CLIENT_COMM_LAUNCHER_H
#define CLIENT_COMM_LAUNCHER_H

#include "base/api.h"

/* This process's rank in a world of so many ranks, as the launchers say whose job has that size.
 * INVALID_ARGUMENT: none does, two differ, or what one says is no rank. */
ncclsvc_result launcher_rank(int world, int *rank);

#endif
