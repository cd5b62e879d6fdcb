/* SPDX-License-Identifier: Apache-2.0
 * A rank: a process that executes ncclsvc-perf's commands. All ranks have the same commands; a
 * backend joins, submits and waits: the service on the host and on GPUs, MPI, NCCL. */
#ifndef PERF_RANK_H
#define PERF_RANK_H

#include "rank_command.h"

struct rank;

/* Each function that fails calls rank_fail and returns false. NULL: nothing to do. */
struct backend {
	/* Joins the communicator command->id. */
	bool (*join)(struct rank *r, const struct command *command);

	bool (*allocate)(struct rank *r, size_t bytes, char **p);
	/* 0 is allowed. */
	bool (*release)(struct rank *r, char *p);
	/* If the CPU cannot access the buffers: `stage` allocates r->host, and these copy to and
	 * from it. */
	bool (*stage)(struct rank *r, size_t bytes);
	bool (*put)(struct rank *r, char *to, const char *from, uint64_t bytes);
	bool (*get)(struct rank *r, char *to, const char *from, uint64_t bytes);
	/* Fills this rank's input to an AllGather, if it is elsewhere than for a plain one. */
	bool (*fill_all_gather)(struct rank *r, const struct work *w, uint64_t seed);
	/* Address of the result, if it differs from the service's. */
	char *(*result)(struct rank *r, const struct work *w, char *send, char *recv);

	/* Called before a series of the same work, for r->sync. */
	bool (*begin)(struct rank *r, const struct work *w);
	bool (*submit)(struct rank *r, const struct work *w, char *send, char *recv);
	/* With SYNC_EACH, called after each operation. */
	bool (*wait)(struct rank *r);
	/* Called after a series: waits for all of it. Returns whether all operations succeeded. */
	bool (*finish)(struct rank *r);
	/* A small operation that involves all ranks. */
	bool (*barrier)(struct rank *r);

	/* Called before the barrier that starts a round. */
	bool (*prepare)(struct rank *r);
	/* Starts kernels on another stream; waits for them. */
	bool (*compute)(struct rank *r, uint32_t kernels, uint32_t spins);
	bool (*compute_wait)(struct rank *r);
	/* Puts a short kernel on the operations' stream. */
	bool (*short_kernel)(struct rank *r);
	/* Work put on that stream between begin and end is captured, and launched instead. The end
	 * fails if anything in between did. */
	bool (*capture_begin)(struct rank *r);
	bool (*capture_end)(struct rank *r);
	bool (*launch)(struct rank *r);
	bool (*drop)(struct rank *r);
	/* Free memory of the GPU. */
	bool (*free_memory)(struct rank *r, size_t *bytes);

	/* Executes a command that only this backend has. */
	bool (*perform)(struct rank *r, const struct command *command);
};

/* The first member of a backend's own struct. */
struct rank {
	const struct backend *backend;
	int rank, nranks;
	char *send, *recv; /* the backend's memory: device pointers on a GPU */
	char *host;	   /* see backend->stage */
	uint64_t bytes;
	enum sync sync;
	uint64_t *samples; /* times of single operations in ns; NULL: not measured */
	uint32_t graph;	   /* operations in the captured graph; 0: there is none */
	bool before;	   /* a short kernel is before each operation */
	struct reply reply;
};

/* Executes commands from fd until QUIT or the end of file; after a failure, only waits for these.
 * False: a command failed. */
bool rank_serve(struct rank *r, int fd);

/* A rank that exchanges messages with a process instead of running operations. Called after fork;
 * returns its exit status. */
int pingpong_main(int fd);

/* Always returns false. */
bool rank_fail(struct rank *r, ncclsvc_result result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
