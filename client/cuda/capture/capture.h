/* SPDX-License-Identifier: Apache-2.0
 * What a communicator needs on streams, in one epoch. Locked. */
#ifndef CLIENT_CUDA_CAPTURE_H
#define CLIENT_CUDA_CAPTURE_H

#include "cuda/direct/peer.h"

/* A member's part with its lock, and nothing else. NULL: out of memory. */
struct peer *peer_allocate(void);
/* Gets context, streams, events, and if wanted, kernels. */
bool peer_prepare_gpu(ncclsvc_session *s, struct peer *p, int device, bool kernels);
/* Gives a communicator without kernels the streams and events that captures need. */
ncclsvc_result peer_bare(ncclsvc_session *s, ncclsvc_comm *comm);
/* Whether nothing of it runs; asks the GPU if nothing else reports the end. */
bool peer_becomes_quiet(struct peer *p);
/* Frees the parts of which nothing runs any more, or can be launched. */
void peers_kept_sweep(void);
/* Whether any part that is kept uses the session's kernels. */
bool peers_kept_use(const struct gpu *g);

#endif
