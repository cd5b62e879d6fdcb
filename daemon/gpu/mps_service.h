/* SPDX-License-Identifier: Apache-2.0
 * MPS for the GPUs' workers and their trainers (mps in ncclsvcd.conf(5)): either the daemon's own
 * control daemon, which is started, watched, restarted and ended here, or an existing one.
 */
#ifndef DAEMON_GPU_MPS_H
#define DAEMON_GPU_MPS_H

#include <stdbool.h>

#include "proto/ncclsvc_types.h"
#include "proto/wire.h"

struct session;
struct tenant;
struct gpus;

/* Chooses a control daemon, once GPUs were found, and sets this process's environment for the
 * workers it starts. The loop must run until gpu_mps_decided is true. */
void gpu_mps_start(struct gpus *s);
/* Can a worker be started? If MPS is about to come up, it should wait, for 5 s at most. */
bool gpu_mps_decided(const struct gpus *s);
/* A worker that used MPS has ended. */
void gpu_mps_worker_lost(struct gpus *s);

/* The advice in HELLO's reply to a process of this tenant; to: the directory, with SVC_MPS_JOIN. A
 * fault ends all contexts of an MPS server, so tenants share none. */
enum svc_mps_advice gpu_mps_advise(const struct gpus *s, const struct tenant *tenant,
				   char to[NCCLSVC_MPS_DIRECTORY_BYTES]);
/* A session joins with a GPU, and reports how CUDA uses the GPU there. */
void gpu_mps_joined(struct gpus *s, struct session *c, const struct svc_join *join);
/* The session's current state of this, relative to the GPU's worker. */
ncclsvc_mps gpu_mps_of(struct gpus *s, const struct session *c);
void gpu_mps_describe(const struct gpus *s, ncclsvc_daemon_info *info);

/* Closes the handles in the loop. */
void gpu_mps_stop(struct gpus *s);
/* Ends the daemon's own control daemon, after the workers. Blocks for 3 s at most. */
void gpu_mps_free(struct gpus *s);

#endif
