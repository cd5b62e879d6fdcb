/* SPDX-License-Identifier: Apache-2.0
 * The modes beside OP. Each takes the daemon's socket (NULL: the library's default) and returns the
 * exit status. */
#ifndef PERF_MODES_H
#define PERF_MODES_H

#include "options.h"

int submit_run(const struct options *options, const char *socket);
int listing_run(const struct options *options, const char *socket);
int sessions_run(const struct options *options, const char *socket);
int idle_run(const struct options *options, const char *socket);
int idle_cuda_run(const struct options *options, const char *socket);
int cpu_run(const struct options *options, const char *socket);
int overlap_run(const struct options *options, const char *socket);
int start_run(const struct options *options, const char *socket);
int join_run(const struct options *options, const char *socket);
int gpu_memory_run(const struct options *options, const char *socket);

#endif
