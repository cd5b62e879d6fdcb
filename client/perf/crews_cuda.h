/* SPDX-License-Identifier: Apache-2.0
 * Both sides of a measurement on GPUs. */
#ifndef PERF_CREWS_CUDA_H
#define PERF_CREWS_CUDA_H

#include "ranks.h"
#include "options.h"

/* The service, and the baseline if there is one: joined, with buffers. Complains and returns false
 * on failure; crew_stop is then still to be called. */
bool crews_start_cuda(struct crew *service, struct crew *base, const struct options *options,
		      const char *socket, uint64_t bytes);

#endif
