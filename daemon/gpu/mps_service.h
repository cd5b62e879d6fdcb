/* SPDX-License-Identifier: Apache-2.0
 * MPS for the GPUs' workers and their trainers (mps in ncclsvcd.conf(5)): the control daemon of
 * one's own, which is started, watched, started again and ended here, or one that was there before.
 */
#ifndef DAEMON_GPU_MPS_H
#define DAEMON_GPU_MPS_H

#include <stdbool.h>

#include "ncclsvc_types.h"
#include "wire.h"

struct client;
struct gpus;

/* Chooses, once GPUs were found, and sets this process's environment for the workers that it
 * starts. The loop has to run until gpu_mps_decided says so. */
void gpu_mps_start(struct gpus *s);
/* Can a worker be started? Only while MPS is about to come up it should wait, for 5 s at most. */
bool gpu_mps_decided(const struct gpus *s);
/* A worker that used MPS has ended. */
void gpu_mps_worker_lost(struct gpus *s);

/* The advice of HELLO to a process of this user; to: where MPS is, with SVC_MPS_JOIN. */
enum svc_mps_advice gpu_mps_advise(const struct gpus *s, uint32_t uid,
				   char to[NCCLSVC_MPS_DIRECTORY_BYTES]);
/* A session joins with a GPU, and says how CUDA uses it there. */
void gpu_mps_joined(struct gpus *s, struct client *c, const struct svc_join *join);
/* The same as it is by now, beside the GPU's worker. */
ncclsvc_mps gpu_mps_of(struct gpus *s, const struct client *c);
void gpu_mps_describe(const struct gpus *s, ncclsvc_daemon_info *info);

/* Closes what the loop knows. */
void gpu_mps_stop(struct gpus *s);
/* Ends one of the daemon's own, when the workers have ended. Blocks for 3 s at most. */
void gpu_mps_free(struct gpus *s);

#endif
