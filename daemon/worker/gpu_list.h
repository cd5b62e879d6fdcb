/* SPDX-License-Identifier: Apache-2.0
 * The GPUs that this process may use, and whether through an MPS server. */
#ifndef WORKER_GPU_LIST_H
#define WORKER_GPU_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu_api.h"
#include "proto/worker_protocol.h"

struct gpu_entry {
	CUdevice device;
	uint8_t uuid[16];
	uint64_t bytes;
	char name[NCCLSVC_NAME_BYTES];
};

/* False: there is no GPU i, or the driver does not report it. The driver must be open. */
bool gpu_list_get(int i, struct gpu_entry *e);

/* 1 + the number of its device file /dev/nvidiaN; 0: unknown. */
uint32_t gpu_list_device_file(CUdevice device);

/* Bitmap of the GPUs, by the same numbers, whose memory GPU i can access. */
uint32_t gpu_list_reach(int i);

/* Returns ncclsvc_mps; *server identifies the server. Call it after creating the context. */
uint32_t gpu_list_mps(CUdevice device, uint64_t *server);

#endif
