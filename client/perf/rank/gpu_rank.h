/* SPDX-License-Identifier: Apache-2.0
 * What ranks of the service and of NCCL share on a GPU. */
#ifndef PERF_GPU_RANK_H
#define PERF_GPU_RANK_H

#include "rank.h"
#include "rank_gpu.h"

/* The first member of a backend's own struct. */
struct gpu_rank {
	struct rank rank;
	struct gpu gpu;
	CUstream stream, compute;
	char *spot;  /* 64 bytes, for barriers */
	bool pinned; /* rank.host is pinned */
	CUgraphExec graph;
};

/* Opens the GPU and the streams. On failure rank.reply has the reason. */
bool gpu_rank_open(struct gpu_rank *g, int ordinal);
void gpu_rank_close(struct gpu_rank *g);

/* Functions of a backend. */
bool gpu_rank_allocate(struct rank *r, size_t bytes, char **p);
bool gpu_rank_release(struct rank *r, char *p);
bool gpu_rank_stage(struct rank *r, size_t bytes);
bool gpu_rank_put(struct rank *r, char *to, const char *from, uint64_t bytes);
bool gpu_rank_get(struct rank *r, char *to, const char *from, uint64_t bytes);
bool gpu_rank_wait(struct rank *r);
bool gpu_rank_barrier(struct rank *r);
bool gpu_rank_prepare(struct rank *r);
bool gpu_rank_compute(struct rank *r, uint32_t kernels, uint32_t spins);
bool gpu_rank_compute_wait(struct rank *r);
bool gpu_rank_short_kernel(struct rank *r);
bool gpu_rank_capture_begin(struct rank *r);
bool gpu_rank_capture_end(struct rank *r);
bool gpu_rank_launch(struct rank *r);
bool gpu_rank_drop(struct rank *r);
bool gpu_rank_free_memory(struct rank *r, size_t *bytes);

/* The functions that all GPU backends share. */
#define GPU_RANK_BACKEND                                                                           \
	.stage = gpu_rank_stage, .put = gpu_rank_put, .get = gpu_rank_get, .wait = gpu_rank_wait,  \
	.barrier = gpu_rank_barrier, .prepare = gpu_rank_prepare, .compute = gpu_rank_compute,     \
	.compute_wait = gpu_rank_compute_wait, .short_kernel = gpu_rank_short_kernel,              \
	.capture_begin = gpu_rank_capture_begin, .capture_end = gpu_rank_capture_end,              \
	.launch = gpu_rank_launch, .drop = gpu_rank_drop, .free_memory = gpu_rank_free_memory

#endif
