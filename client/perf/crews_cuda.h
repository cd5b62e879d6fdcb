/* SPDX-License-Identifier: Apache-2.0
 * Both sides of a measurement on GPUs. */
#ifndef PERF_CREWS_CUDA_H
#define PERF_CREWS_CUDA_H

#include "crew.h"
#include "options.h"

/* Each complains and returns false on failure; crew_stop is then still to be called. */

/* Ranks of the service, with contexts, that have yet to join. */
bool crew_cuda_service(struct crew *crew, const struct options *options, const char *socket);
/* The same of plain NCCL. */
bool crew_cuda_base(struct crew *crew, const struct options *options);
/* Buffers of so many bytes in each rank. */
bool crew_buffers(struct crew *crew, uint64_t bytes);
/* The service, and the baseline if there is one: joined, with buffers. */
bool crews_start_cuda(struct crew *service, struct crew *base, const struct options *options,
		      const char *socket, uint64_t bytes);

/* The AllReduce of float32 sums that modes are about. */
struct work work_all_reduce(const struct options *options, uint64_t bytes);

#endif
