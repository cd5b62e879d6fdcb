/* SPDX-License-Identifier: Apache-2.0
 * libcuda and libnccl, opened by this process. Errors are reported as one sentence. */
#ifndef WORKER_GPU_API_H
#define WORKER_GPU_API_H

#include <stdbool.h>

#include "proto/abi/nccl_abi.h"
#include "proto/cuda_driver.h"

#define GPU_API_NCCL(function, type, args) type(*function) args;
struct nccl_api {
	NCCL_FUNCTIONS(GPU_API_NCCL)
};

extern struct cuda cu;
extern struct nccl_api nccl;

/* Opens the driver, checks its version and initializes it. False with a sentence in text. */
bool gpu_api_open_cuda(int *version, char *text, size_t size);
bool gpu_api_open_nccl(int *version, char *text, size_t size);

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)". Static buffer of the thread. */
const char *gpu_api_cuda_error(CUresult error);

#endif
