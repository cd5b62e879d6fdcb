/* SPDX-License-Identifier: Apache-2.0
 * The ranks of one side, seen from the coordinator: one socket for each. */
#ifndef PERF_CREW_H
#define PERF_CREW_H

#include <sys/types.h>

#include "command.h"
#include "rank.h"

struct crew_member {
	int fd;
	pid_t pid;
	bool replied;
	struct job_reply reply;
};

struct crew {
	const char *what; /* "rank" or "baseline rank" */
	uint32_t n;
	struct crew_member *members;
	pid_t leader; /* mpirun; 0: the members are this process's children */
	char library[JOB_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES]; /* for JOB_INIT */
	double start_ms;	      /* to join and do a first AllReduce; 0: not known */
	double start_bytes;	      /* of each GPU's memory, that was free before */
	char log[96];		      /* what other programs printed; empty: there are none */
	int timeout_ms;
	int grace_ms; /* to end in */
};

/* Tearing a CUDA context down takes a while. */
#define CREW_GPU_GRACE_MS 5000

/* Runs in a member's process; returns its exit status. */
typedef int crew_main(void *arg, uint32_t member, int fd);

/* Each complains and returns false on failure; crew_stop is then still to be called. */

/* Forks n processes that run `run` and waits for each one's first reply. */
bool crew_fork(struct crew *crew, const char *what, uint32_t n, crew_main *run, void *arg,
	       int timeout_ms);
/* Forks n ranks of the service and waits until all have joined. */
bool crew_start(struct crew *crew, const struct rank_options *options, uint32_t n);
/* The same on GPUs; they are still to join, with crew_init. */
bool crew_start_cuda(struct crew *crew, const struct rank_options *options, uint32_t n);
/* Starts the baseline under mpirun. */
bool crew_start_mpi(struct crew *crew, uint32_t n, int timeout_ms);
/* Starts the baseline on GPUs; crew_init makes its communicator. */
bool crew_start_nccl(struct crew *crew, const int *gpus, uint32_t n, int timeout_ms);
/* The members of a crew on GPUs join. */
bool crew_init(struct crew *crew);
/* Buffers of so many bytes in each rank. */
bool crew_buffers(struct crew *crew, uint64_t bytes);
/* Of a new communicator of the service. */
bool crew_new_id(uint8_t id[NCCLSVC_ID_BYTES]);
/* Gives the job to members first..first+n, to be collected. */
void crew_tell(struct crew *crew, uint32_t first, uint32_t n, const struct job *job);
/* Gives every member the job and collects the replies, within the crew's timeout. */
bool crew_do(struct crew *crew, const struct job *job);
/* Nanoseconds of one iteration, averaged over the ranks, and wrong elements of the last job. */
double crew_ns(const struct crew *crew, uint64_t iters);
/* The same of the CPU time of the thread that submits. */
double crew_cpu_ns(const struct crew *crew, uint64_t iters);
uint64_t crew_wrong(const struct crew *crew);
/* Collects the replies that are due. */
bool crew_collect(struct crew *crew);
void crew_stop(struct crew *crew);

#endif
