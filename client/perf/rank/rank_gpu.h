/* SPDX-License-Identifier: Apache-2.0
 * One GPU of a rank's process: the CUDA driver opened at run time, the primary context, buffers,
 * and kernels that only take time. Shared by the ranks of the service and of the NCCL baseline.
 * Functions that can fail return false and leave a sentence in gpu->text. */
#ifndef PERF_RANK_GPU_H
#define PERF_RANK_GPU_H

#include <stdbool.h>

#include "proto/abi/cuda_graph_abi.h"

struct gpu {
	struct {
#define POINTER(function, name, parameters) CUresult(*function) parameters;
		CUDA_FUNCTIONS(POINTER)
		CUDA_KERNEL_FUNCTIONS(POINTER)
#undef POINTER
	} cu;
	int ordinal;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction busy;
	/* Functions for graphs, looked up at first use. */
	CUresult (*instantiate)(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
	CUresult (*launch)(CUgraphExec exec, CUstream stream);
	CUresult (*exec_destroy)(CUgraphExec exec);
	int multiprocessors;
	char text[256];
};

/* Only opens libcuda.so.1, which is also safe before a fork. */
bool gpu_load(struct gpu *gpu);
/* Loads the driver, and makes the primary context of CUDA device `ordinal` the thread's current
 * one. */
bool gpu_open(struct gpu *gpu, int ordinal);
void gpu_close(struct gpu *gpu);

/* False unless the driver's call succeeded; names the call and the error. */
bool gpu_good(struct gpu *gpu, CUresult result, const char *call);
#define GPU_DO(gpu, call, ...) gpu_good(gpu, (gpu)->cu.call(__VA_ARGS__), #call)

/* Compiles the kernel at its first call. */
bool gpu_prepare_busy(struct gpu *gpu);
/* Puts a kernel on the stream that fills the GPU for a time proportional to `spins`. */
bool gpu_be_busy(struct gpu *gpu, CUstream stream, unsigned spins);
/* Puts the shortest possible kernel on the stream. */
bool gpu_be_short(struct gpu *gpu, CUstream stream);

/* Makes an executable graph of what the stream has captured. */
bool gpu_graph_end(struct gpu *gpu, CUstream stream, CUgraphExec *exec);
bool gpu_graph_launch(struct gpu *gpu, CUgraphExec exec, CUstream stream);
bool gpu_graph_destroy(struct gpu *gpu, CUgraphExec exec);

#endif
