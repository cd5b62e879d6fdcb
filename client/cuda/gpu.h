/* SPDX-License-Identifier: Apache-2.0
 * GPUs in a session, as the layers above use them; state.h has what this folder's files share. */
#ifndef CLIENT_CUDA_GPU_H
#define CLIENT_CUDA_GPU_H

#include <stdbool.h>

#include "base/api.h"

struct op;
struct thread_state;

/* OK if the session can have GPU communicators: there is a ring and a driver. Not locked. */
ncclsvc_result gpu_usable(ncclsvc_session *s);
/* Bits: the daemon's devices whose memory this process cannot map for its own `device`. Not locked.
 */
uint16_t devices_out_of_reach(ncclsvc_session *s, int device);
/* The daemon's number for this process's device. Not locked. */
ncclsvc_result device_match(ncclsvc_session *s, int device, int32_t *number);
/* After a reattach: finds the communicators' devices again. Locked; yields. */
ncclsvc_result devices_rematch(ncclsvc_session *s);
/* The stream that the thread has set. Locked. */
ncclsvc_result stream_choose(struct op *op, const struct thread_state *t);
/* Finds streams and buffers of the operations that are on GPUs. Not finished, though OK: it
 * yielded, and everything is to be checked again. *since is 0 at first. Locked; yields. */
ncclsvc_result gpu_prepare(ncclsvc_session *s, struct op *ops, unsigned n, uint64_t *since,
			   bool *finished);
/* The n newest tasks are the operations: puts them on their streams. Locked. */
ncclsvc_result gpu_submitted(ncclsvc_session *s, const struct op *ops, unsigned n);
/* OK, or a refusal of device memory on a communicator of the host. Locked. */
ncclsvc_result host_check(const ncclsvc_session *s, const struct op *op, const char *buffer);
void gpu_reattached(ncclsvc_session *s); /* before the connection changes; locked */
/* May wait for the GPU. Not locked, by the only thread that reattaches. */
void gpu_drop_retired(ncclsvc_session *s);
/* Waits until nothing of the session's runs on GPUs, or will. */
void gpu_quiesce(ncclsvc_session *s);
void gpu_close(ncclsvc_session *s);

#endif
