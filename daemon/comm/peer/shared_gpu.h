/* SPDX-License-Identifier: Apache-2.0
 * Two ranks of one communicator on one GPU. */
#ifndef COMM_SHARED_GPU_H
#define COMM_SHARED_GPU_H

#include "comm/communicator.h"

struct shared_gpu {
	uint32_t ranks[2];
	int32_t pids[2];
	int32_t device;
};

/* Do two ranks of the epoch that runs or is about to begin use one GPU? If so, names them. */
bool comm_shared_gpu(const struct communicator *m, struct shared_gpu *shared);
/* The same, but false if device memory is staged, which needs neither kernels nor NCCL. */
bool comm_needs_kernels(const struct communicator *m, struct shared_gpu *shared);
/* False: NCCL can run m's operations. True: the text says why it cannot run this one. */
bool comm_lacks_nccl(const struct communicator *m, const char *what, char text[SVC_TEXT_BYTES]);
/* Logs the cost, once for each communicator. */
void comm_shared_gpu_log(struct communicator *m);

#endif
