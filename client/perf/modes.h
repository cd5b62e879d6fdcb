/* SPDX-License-Identifier: Apache-2.0
 * What ncclsvc-perf measures. Each takes the daemon's socket (NULL: the library's default) and
 * returns the exit status. */
#ifndef PERF_MODES_H
#define PERF_MODES_H

#include "options.h"

int collective_run(const struct options *options, const char *socket);
int sessions_run(const struct options *options, const char *socket);
int join_run(const struct options *options, const char *socket);
/* Starts its own daemons. */
int crossover_run(const struct options *options);

#endif
