/* SPDX-License-Identifier: Apache-2.0
 * AllGather over lists of tensors: the same bytes as an AllGather of plain buffers, so that one can
 * be held against the other. */
#ifndef PERF_LISTS_H
#define PERF_LISTS_H

#include "ncclsvc_tensors.h"
#include "work.h"

#define LISTS_MAX 1024 /* tensors of each rank */

struct service_lists {
	ncclsvc_tensors *lists; /* NULL: none */
	unsigned per_rank;	/* tensors */
	int rank, nranks;
	/* What `tensors` were made for: */
	struct work work;
	char *from, *to;
	ncclsvc_tensor *tensors; /* inputs, then outputs: of all ranks */
	int64_t *dims;
	struct ncclsvc_request *under_way[3]; /* as many buffers as the library keeps for lists */
	uint64_t begun;
};

/* With the other ranks. */
ncclsvc_result lists_open(struct service_lists *l, ncclsvc_comm *comm, unsigned per_rank,
			  int timeout_ms);
/* Begins an AllGather of what lies at `from` (in the places of lists_own) to all of `to`; they may
 * be the same. */
ncclsvc_result lists_submit(struct service_lists *l, const struct work *w, void *from, void *to,
			    int timeout_ms);
/* Waits for all that has begun. */
ncclsvc_result lists_settle(struct service_lists *l, int timeout_ms);
/* The elements that this rank gives: [*first, *end) of the whole. */
void lists_own(const struct service_lists *l, const struct work *w, uint64_t *first, uint64_t *end);
void lists_close(struct service_lists *l);

#endif
