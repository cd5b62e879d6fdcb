/* SPDX-License-Identifier: Apache-2.0
 * The ranks of the service or of a baseline, seen from ncclsvc-perf: one socket for each. */
#ifndef PERF_RANKS_H
#define PERF_RANKS_H

#include <stddef.h>
#include <sys/types.h>

#include "command.h"
#include "service.h"

struct member {
	int fd;
	pid_t pid;
	bool replied;
	struct reply reply;
};

/* Zero at first. */
struct ranks {
	const char *what; /* "rank" or "baseline rank" */
	uint32_t n;
	struct member *members;
	pid_t mpirun; /* 0: the members are this process's children */
	char library[COMMAND_TEXT_BYTES];
	uint8_t id[NCCLSVC_ID_BYTES]; /* for COMMAND_JOIN */
	double start_ms;	      /* to join and do a first operation; 0: not known */
	double start_bytes;	      /* of each GPU's memory that was free before; on the host 0 */
	char log[96];		      /* what other programs printed; empty: there are none */
	int timeout_ms;
	int grace_ms; /* to end in */
};

/* Tearing a CUDA context down takes a while. */
#define GPU_GRACE_MS 5000

/* Runs in a member's process; returns its exit status. */
typedef int rank_main(void *arg, uint32_t member, int fd);

/* Each complains and returns false on failure; ranks_stop is then still to be called. */

/* Forks n processes that run `run` and waits for each one's first reply. */
bool ranks_fork(struct ranks *ranks, const char *what, uint32_t n, rank_main *run, void *arg,
		int timeout_ms);
/* Forks n ranks of the service; they have yet to join. */
bool ranks_start_service(struct ranks *ranks, const struct service_options *options, uint32_t n);
/* Starts Open MPI's ranks under mpirun. They have joined. */
bool ranks_start_mpi(struct ranks *ranks, uint32_t n, int timeout_ms);
/* Starts NCCL's ranks on GPUs; they have yet to join. */
bool ranks_start_nccl(struct ranks *ranks, const int *gpus, uint32_t n, int timeout_ms);
/* Forks ranks that know no operation, but a message to a process and back. */
bool ranks_start_pingpong(struct ranks *ranks, uint32_t n, int timeout_ms);
/* All members join. */
bool ranks_join(struct ranks *ranks);
/* Buffers of so many bytes in each member. */
bool ranks_buffers(struct ranks *ranks, uint64_t bytes);
/* Of a new communicator of the service. */
bool ranks_new_id(uint8_t id[NCCLSVC_ID_BYTES]);

/* Gives the command to members first..first+n, to be collected. */
void ranks_tell(struct ranks *ranks, uint32_t first, uint32_t n, const struct command *command);
/* Collects the replies that are due. */
bool ranks_collect(struct ranks *ranks);
/* Gives every member the command and collects the replies, within the ranks' timeout. */
bool ranks_do(struct ranks *ranks, const struct command *command);
/* A field of the last replies, a uint64_t, averaged over the ranks. */
double ranks_mean(const struct ranks *ranks, size_t field);
#define REPLY(field) offsetof(struct reply, field)
/* Wrong elements. */
uint64_t ranks_wrong(const struct ranks *ranks);
void ranks_stop(struct ranks *ranks);

#endif
