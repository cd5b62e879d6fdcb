/* SPDX-License-Identifier: Apache-2.0
 * A rank of the service: a process of its own with its own session. */
#ifndef PERF_RANK_H
#define PERF_RANK_H

#include "gpu.h"
#include "ncclsvc.h"

struct rank_options {
	const char *socket; /* NULL: the library's default; %r in it is the rank's node */
	uint32_t nodes;	    /* 0, 1: one */
	bool dealt;	    /* to the nodes in turn, not in blocks */
	bool no_ring;
	bool planned;	/* SendRecv by a plan */
	unsigned lists; /* AllGather over lists of so many tensors of each rank; 0: not */
	enum memory memory;
	int timeout_ms;
	int nranks, rank;
	ncclsvc_unique_id id;
	/* On GPUs: */
	const int *gpus; /* CUDA ordinals, by rank */
};

/* Opens a session, joins, says so on fd, and does jobs from there until QUIT or the end of fd.
 * Returns the process's exit status. Called after fork. */
int rank_main(const struct rank_options *options, int fd);
/* The same on a GPU, but joins with JOB_INIT, which brings the id. */
int rank_cuda_main(const struct rank_options *options, int fd);

#endif
