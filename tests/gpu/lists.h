/* SPDX-License-Identifier: Apache-2.0
 * Ranks that exchange lists of tensors in GPU memory. */
#ifndef TESTS_GPU_LISTS_H
#define TESTS_GPU_LISTS_H

#include "ncclsvc_tensors.h"
#include "ranks.h"

#define TENSORS 3
#define SCRATCH ((size_t)1 << 20)

extern const int64_t dims[TENSORS];

struct desk {
	struct rank r;
	ncclsvc_tensors *lists;
	CUdeviceptr memory[TENSORS], copy, scratch;
	ncclsvc_tensor tensors[TENSORS];
};

void desk_open(struct desk *d, struct client *c);
/* Checks that the communicator has not failed, waits for all ranks, and closes everything. */
void desk_close(struct desk *d);
/* Fills the tensors on the stream. late: behind a delay, so that a reader that does not wait sees
 * garbage. */
void desk_fill(struct desk *d, uint32_t value, bool late);
void desk_check(struct desk *d, uint32_t value, const char *what);
ncclsvc_message desk_message(const struct desk *d, int peer, ncclsvc_shapes shapes, int64_t tag);
/* An allocate callback that uses the tensors' existing memory. */
ncclsvc_result desk_allocate(ncclsvc_tensor *tensors, size_t n, void *arg);
/* Passes a list from rank 0 to 1 to 2 and so on; each rank adds one. */
void desk_hand_on(struct desk *d, ncclsvc_shapes shapes, uint32_t value, bool detached);

/* Checks that the last error contains this text. */
void says(const char *text);

#endif
