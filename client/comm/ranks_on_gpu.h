/* SPDX-License-Identifier: Apache-2.0
 * Communicators with two ranks on one GPU: NCCL refuses them, so kernels run all operations. */
#ifndef CLIENT_COMM_RANKS_ON_GPU_H
#define CLIENT_COMM_RANKS_ON_GPU_H

#include "cuda/direct/peer.h"

/* If ranks share a GPU, refuses operations that need NCCL. The operations have chosen their
 * kernels. */
ncclsvc_result ranks_on_gpu_check(const struct op *ops, unsigned n);
/* Refuses collectives of two of this session's ranks on one stream, which would wait for each
 * other. The operations are prepared, and are all kernels. Locked. */
ncclsvc_result ranks_on_gpu_check_streams(const ncclsvc_session *s, const struct op *ops,
					  unsigned n);

#endif
