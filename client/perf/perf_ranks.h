/* SPDX-License-Identifier: Apache-2.0
 * The ranks of the service or of a baseline, as ncclsvc-perf sees them: one socket each. */
#ifndef PERF_RANKS_H
#define PERF_RANKS_H

#include <stddef.h>
#include <sys/types.h>

#include "rank_command.h"
#include "service.h"

struct member {
	int fd;
	pid_t pid;
	bool replied;
	struct reply reply;
};

/* Zero-initialized. */
struct ranks {
	const char *what; /* "rank" or "baseline rank" */
	uint32_t n;
	struct member *members;
	pid_t mpirun; /* 0: the members are this process's children */
	char library[COMMAND_TEXT_BYTES];
	struct service_options service; /* of rank 0, whose daemon makes ids */
	uint8_t id[NCCLSVC_ID_BYTES];	/* for COMMAND_JOIN */
	double start_ms;		/* time to join and run a first operation; 0: unknown */
	double start_bytes;		/* GPU memory per rank that this took; on the host 0 */
	char log[96];			/* output of other programs; empty: there are none */
	int timeout_ms;
	int grace_ms; /* time to end in */
};

/* Destroying a CUDA context takes a while. */
#define GPU_GRACE_MS 5000

/* The main function of a member's process; returns its exit status. */
typedef int rank_main_fn(void *arg, uint32_t member, int fd);

/* Each prints an error and returns false on failure; ranks_stop must still be called. */

/* Forks n processes that run `run`, and waits for each one's first reply. */
bool ranks_fork(struct ranks *ranks, const char *what, uint32_t n, rank_main_fn *run, void *arg,
		int timeout_ms);
/* Forks n ranks of the service, which have not joined yet. */
bool ranks_start_service(struct ranks *ranks, const struct service_options *options, uint32_t n);
/* Starts Open MPI's ranks under mpirun, which have joined. */
bool ranks_start_mpi(struct ranks *ranks, uint32_t n, int timeout_ms);
/* Starts NCCL's ranks on GPUs, which have not joined yet. */
bool ranks_start_nccl(struct ranks *ranks, const int *gpus, uint32_t n, int timeout_ms);
/* Forks ranks whose only operation is a message to a process and back. */
bool ranks_start_pingpong(struct ranks *ranks, uint32_t n, int timeout_ms);
/* All members join. */
bool ranks_join(struct ranks *ranks);
/* Allocates buffers of that many bytes in each member. */
bool ranks_buffers(struct ranks *ranks, uint64_t bytes);
/* The id of a new communicator of the service. */
bool ranks_new_id(const struct ranks *ranks, uint8_t id[NCCLSVC_ID_BYTES]);

/* Sends the command to members first..first+n; collect the replies later. */
void ranks_tell(struct ranks *ranks, uint32_t first, uint32_t n, const struct command *command);
/* Collects the outstanding replies. */
bool ranks_collect(struct ranks *ranks);
/* Sends the command to every member and collects the replies, within the ranks' timeout. */
bool ranks_do(struct ranks *ranks, const struct command *command);
/* A uint64_t field of the last replies, averaged over the ranks. */
double ranks_mean(const struct ranks *ranks, size_t field);
#define REPLY(field) offsetof(struct reply, field)
/* The number of wrong elements. */
uint64_t ranks_wrong(const struct ranks *ranks);
void ranks_stop(struct ranks *ranks);

#endif
