/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank on a GPU, and the jobs it does: the same for the service and for the NCCL baseline, which
 * differ in how they join and submit. */
#ifndef PERF_GPU_RANK_H
#define PERF_GPU_RANK_H

#include "gpu.h"
#include "command.h"

struct gpu_rank;

/* Each fails with gpu_rank_fail or gpu_rank_fail_gpu, and returns false. */
struct gpu_side {
	/* Joins the communicator job->id. */
	bool (*join)(struct gpu_rank *r, const struct job *job);
	/* Puts the work on r->stream, or submits it detached if r->sync says so. */
	bool (*submit)(struct gpu_rank *r, const struct work *w, CUdeviceptr send,
		       CUdeviceptr recv);
	/* May be NULL: before a series of submissions, for r->sync. */
	bool (*begin)(struct gpu_rank *r);
	/* May be NULL: orders r->stream after what was submitted last, after SYNC_LAST. */
	bool (*order)(struct gpu_rank *r);
	/* May be NULL: puts what this rank gives elsewhere than it is put for a plain buffer. */
	bool (*fill)(struct gpu_rank *r, const struct work *w, uint64_t seed);
	/* After r->stream is synchronised: have all operations succeeded? */
	bool (*settle)(struct gpu_rank *r);
	/* For MEMORY_LENT. */
	bool (*borrow)(struct gpu_rank *r, size_t bytes, CUdeviceptr *p);
	bool (*give_back)(struct gpu_rank *r, CUdeviceptr p);
};

struct gpu_rank {
	const struct gpu_side *side;
	void *own; /* the side's */
	int rank, nranks;
	enum memory memory;
	struct gpu gpu;
	CUstream stream, compute;
	CUdeviceptr send, recv, spot; /* spot: for meeting, and for barriers */
	void *host;		      /* where data are made and compared */
	bool pinned;
	uint64_t bytes;
	enum sync sync;
	struct job_reply reply;
};

/* Opens the GPU and the streams. On failure r->reply says why. */
bool gpu_rank_open(struct gpu_rank *r, int ordinal);
/* Does jobs from fd until QUIT or its end; after a failure only waits for that. False: a job
 * failed. */
bool gpu_rank_serve(struct gpu_rank *r, int fd);
void gpu_rank_close(struct gpu_rank *r);

bool gpu_rank_fail(struct gpu_rank *r, ncclsvc_result result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Copies from r->host + at to the device, and waits for it. */
bool gpu_rank_put(struct gpu_rank *r, CUdeviceptr to, uint64_t at, uint64_t bytes);
/* Why is in r->gpu.text. */
bool gpu_rank_fail_gpu(struct gpu_rank *r);

#endif
