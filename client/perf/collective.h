/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-perf OP. */
#ifndef PERF_COLLECTIVE_H
#define PERF_COLLECTIVE_H

#include "options.h"

/* socket: the daemon's, or NULL for the library's default. Returns the exit status. */
int collective_run(const struct options *options, const char *socket);

#endif
