/* SPDX-License-Identifier: Apache-2.0
 * GPUs in a session, for the layers above; gpu_state.h has what this folder's files share.
 *
 * The files, bottom up; each uses only those before it:
 *   the driver, devices and MPS: cuda.c, device.c, mps.c, checkpoint.c
 *   the table of device memory: device_table.c
 *   allocations, operations' buffers: device_memory.c, device_buffers.c
 *   memory that is freed, and that the library allocates: device_forget.c, device_alloc.c
 *   streams and their timelines: page.c, stream.c
 *   kernels, in direct/: peer_module.c, peer_messages.c, peer_kernel.c; their ends: peer_task.c
 *   CUDA graphs, and the order of operations on streams: capture/capture_graph.c
 *   launching kernels: direct/peer_submit.c
 *   memory shared with other ranks, in direct/: shares.c, import_map.c, import_table.c, importer.c
 *   NCCL operations in graphs, in capture/: captured_group.c, captured_group_stream.c
 *   what streams do for tasks: stream_ops.c
 *   the life of a capture, and of kernels: direct/peer_memory.c, capture/capture.c, direct/peer.c
 *   submission, and the end: session_gpu.c
 */
#ifndef CLIENT_CUDA_SESSION_GPU_H
#define CLIENT_CUDA_SESSION_GPU_H

#include <stdbool.h>

#include "base/api.h"

struct connection;
struct op;
struct thread_state;

/* OK if the session can have GPU communicators: it has a ring and a driver. Not locked. */
ncclsvc_result gpu_usable(ncclsvc_session *s);
/* A bit for each of the daemon's devices whose memory this process cannot map. Not locked. */
uint16_t devices_out_of_reach(ncclsvc_session *s);
/* The daemon's number for this process's device. Not locked. */
ncclsvc_result device_match(ncclsvc_session *s, int device, int32_t *number);
/* Finds the communicators' devices again after a reattach. Locked; yields. */
ncclsvc_result devices_rematch(ncclsvc_session *s);
/* The stream that the thread has set. Locked. */
ncclsvc_result stream_choose(struct op *op, const struct thread_state *t);
/* Finds the streams and buffers of the GPU operations. If it returns OK but is not finished, it
 * yielded, and the caller must check everything again. *since is 0 at first. Locked; yields. */
ncclsvc_result gpu_prepare(ncclsvc_session *s, struct op *ops, unsigned n, uint64_t *since,
			   bool *finished);
/* Puts the operations, which are the n newest tasks, on their streams. Locked. */
ncclsvc_result gpu_submitted(ncclsvc_session *s, const struct op *ops, unsigned n);
/* OK, or refuses device memory on a host communicator. Locked. */
ncclsvc_result host_check(const ncclsvc_session *s, const struct op *op, const char *buffer);
/* Before the connection changes. Locked. */
void gpu_reattached(ncclsvc_session *s);
/* After a restart of the daemon, once the communicator's epoch continues: says again what the
 * member shares, and has the daemon keep the operations of its CUDA graphs again. Locked; yields.
 */
ncclsvc_result gpu_comm_resumed(ncclsvc_session *s, ncclsvc_comm *comm);
/* Its CUDA graphs no longer wait for operations on NCCL. Locked. */
void gpu_comm_release(const ncclsvc_session *s, const ncclsvc_comm *comm);
/* Registers the memory with the successor, under the same numbers. Locked; yields. */
ncclsvc_result device_regions_again(ncclsvc_session *s);
/* Whether a region of device memory has this number. Locked. */
bool device_region_registered(const ncclsvc_session *s, uint32_t id);
/* The session has come back: its importer may read logs again. Locked. */
void gpu_back(const ncclsvc_session *s);
/* Drops the pages of earlier connections. May wait for the GPU. Not locked. */
void gpu_drop_retired(ncclsvc_session *s);
/* Waits until nothing of the session runs, or will run, on GPUs. */
void gpu_quiesce(ncclsvc_session *s);
void gpu_close(ncclsvc_session *s);

/* mps.c: sets the environment for the MPS server of the daemon's workers as the connection's daemon
 * advises, unless CUDA is already initialized in this process or the user has chosen otherwise. */
void mps_join(const struct connection *c);
/* How CUDA uses the device in this process. *server is as in struct mps. */
ncclsvc_mps mps_of_device(int device, uint64_t *server);

#endif
