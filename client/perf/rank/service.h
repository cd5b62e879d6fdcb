/* SPDX-License-Identifier: Apache-2.0
 * The service as its ranks use it, on the host and on GPUs. */
#ifndef PERF_SERVICE_H
#define PERF_SERVICE_H

#include "ncclsvc.h"
#include "ncclsvc_plan.h"
#include "ncclsvc_tensors.h"
#include "rank.h"
#include "rank_gpu.h"

/* A rank of the service. */
struct service_options {
	const char *socket; /* NULL: the library's default; %r stands for the rank's node */
	uint32_t nodes;	    /* 0 or 1: one node */
	bool dealt;	    /* ranks go to the nodes in turn, not in blocks */
	bool no_ring;
	bool planned;	 /* SendRecv as a plan */
	unsigned lists;	 /* AllGather over lists of this many tensors per rank; 0: no lists */
	unsigned blocks; /* as in ncclsvc_comm_tuning_next */
	bool copy_engines;
	int timeout_ms;
	int nranks, rank;
	const int *gpus; /* CUDA ordinals, by rank; NULL: on the host */
};

/* The ranks' programs: each opens a session, reports that on fd, and executes commands from fd
 * until QUIT or the end of file. Called after fork; returns the process's exit status. */
int service_host_main(const struct service_options *options, int fd);
int service_cuda_main(const struct service_options *options, int fd);

ncclsvc_result service_open(const struct service_options *options, ncclsvc_session **session);
/* device: a CUDA device number or NCCLSVC_DEVICE_HOST. */
ncclsvc_result service_join(ncclsvc_session *session, const struct service_options *options,
			    const uint8_t id[NCCLSVC_ID_BYTES], int device, ncclsvc_comm **comm);
/* Submits the work. task[1] is the second task of SendRecv, or 0. */
ncclsvc_result service_submit(ncclsvc_session *session, ncclsvc_comm *comm, const struct work *w,
			      void *send, void *recv, ncclsvc_task task[2]);
/* How long to wait for a task: longer than its own deadline, because its error names the missing
 * rank. */
int service_patience_ms(const struct service_options *options);
/* Runs a barrier and waits for its end. */
ncclsvc_result service_barrier(ncclsvc_session *session, const struct service_options *options,
			       ncclsvc_comm *comm);
/* The direct transport's largest operation, in bytes, in this process's communicators. */
ncclsvc_result service_limit(ncclsvc_session *session, uint64_t *bytes);
/* Executes COMMAND_JOIN_AND_PLAN; device as above. */
ncclsvc_result service_join_and_plan(ncclsvc_session *session,
				     const struct service_options *options, int device,
				     const struct command *command, struct reply *reply);
/* Stores the thread's last failure in a reply. */
void service_explain(struct reply *reply, ncclsvc_result result);

/* ---- SendRecv as a plan, repeated ---- */

struct service_plan {
	ncclsvc_plan *plan; /* NULL: none */
	unsigned at;	    /* the current group */
};

/* Commits the plan, together with the other ranks. */
ncclsvc_result service_plan_start(struct service_plan *p, ncclsvc_comm *comm, int timeout_ms);
ncclsvc_result service_plan_submit(struct service_plan *p, ncclsvc_comm *comm, const struct work *w,
				   void *send, void *recv, int timeout_ms, ncclsvc_task task[2]);

/* ---- AllGather over lists of tensors: the same bytes as a plain AllGather ---- */

#define LISTS_MAX 1024 /* tensors per rank */

struct service_lists {
	ncclsvc_tensors *lists; /* NULL: none */
	unsigned per_rank;	/* number of tensors */
	int rank, nranks;
	/* The work for which `tensors` was made: */
	struct work work;
	char *from, *to;
	ncclsvc_tensor *tensors; /* inputs, then outputs, of all ranks */
	int64_t *dims;
	struct ncclsvc_request *under_way[3]; /* as many as the library keeps buffers for */
	uint64_t begun;
};

/* Together with the other ranks. */
ncclsvc_result lists_open(struct service_lists *l, ncclsvc_comm *comm, unsigned per_rank,
			  int timeout_ms);
/* Begins an AllGather from `from` (at lists_own's offsets) to all of `to`; they may be the same. */
ncclsvc_result lists_submit(struct service_lists *l, const struct work *w, void *from, void *to,
			    int timeout_ms);
/* Waits for everything that has begun. */
ncclsvc_result lists_finish(struct service_lists *l, int timeout_ms);
/* The elements that this rank contributes: [*first, *end) of the whole. */
void lists_own(const struct service_lists *l, const struct work *w, uint64_t *first, uint64_t *end);
void lists_close(struct service_lists *l);

#endif
