/* SPDX-License-Identifier: Apache-2.0
 * The service as its ranks use it, on the host and on GPUs. */
#ifndef PERF_SERVICE_H
#define PERF_SERVICE_H

#include "gpu.h"
#include "ncclsvc.h"
#include "ncclsvc_plan.h"
#include "ncclsvc_tensors.h"
#include "rank.h"

/* A rank of the service. */
struct service_options {
	const char *socket; /* NULL: the library's default; %r in it is the rank's node */
	uint32_t nodes;	    /* 0, 1: one */
	bool dealt;	    /* to the nodes in turn, not in blocks */
	bool no_ring;
	bool planned;	/* SendRecv by a plan */
	unsigned lists; /* AllGather over lists of so many tensors of each rank; 0: not */
	enum memory memory;
	int timeout_ms;
	int nranks, rank;
	const int *gpus; /* CUDA ordinals, by rank; NULL: on the host */
};

/* The programs of the ranks: each opens a session, says so on fd, and does commands from there
 * until QUIT or the end of fd. Returns the process's exit status. Called after fork. */
int service_host_main(const struct service_options *options, int fd);
int service_cuda_main(const struct service_options *options, int fd);

ncclsvc_result service_open(const struct service_options *options, ncclsvc_session **session);
/* device: a CUDA ordinal or NCCLSVC_DEVICE_HOST. */
ncclsvc_result service_join(ncclsvc_session *session, const struct service_options *options,
			    const uint8_t id[NCCLSVC_ID_BYTES], int device, ncclsvc_comm **comm);
/* Submits the work. task[1] is SendRecv's second, or 0. */
ncclsvc_result service_submit(ncclsvc_session *session, ncclsvc_comm *comm, const struct work *w,
			      void *send, void *recv, ncclsvc_task task[2]);
/* How long to wait for a task: longer than its own deadline, whose message names who is missing. */
int service_patience_ms(const struct service_options *options);
/* A barrier, to its end. */
ncclsvc_result service_barrier(ncclsvc_session *session, const struct service_options *options,
			       ncclsvc_comm *comm);
/* The most bytes of an operation in kernels, in the communicators that this process is in. */
ncclsvc_result service_limit(ncclsvc_session *session, uint64_t *bytes);
/* Does COMMAND_JOIN_AND_PLAN; device as above. */
ncclsvc_result service_join_and_plan(ncclsvc_session *session,
				     const struct service_options *options, int device,
				     const struct command *command, struct reply *reply);
/* The thread's last failure as a reply. */
void service_explain(struct reply *reply, ncclsvc_result result);

/* ---- SendRecv by the planned service, again and again ---- */

struct service_plan {
	ncclsvc_plan *plan; /* NULL: none */
	unsigned at;	    /* group */
};

/* Commits it, with the other ranks. */
ncclsvc_result service_plan_start(struct service_plan *p, ncclsvc_comm *comm, int timeout_ms);
ncclsvc_result service_plan_submit(struct service_plan *p, ncclsvc_comm *comm, const struct work *w,
				   void *send, void *recv, int timeout_ms, ncclsvc_task task[2]);

/* ---- AllGather over lists of tensors: the same bytes as an AllGather of plain buffers ---- */

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
ncclsvc_result lists_finish(struct service_lists *l, int timeout_ms);
/* The elements that this rank gives: [*first, *end) of the whole. */
void lists_own(const struct service_lists *l, const struct work *w, uint64_t *first, uint64_t *end);
void lists_close(struct service_lists *l);

#endif
