/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank: a process that does what ncclsvc-perf tells it. The commands are the same for all ranks;
 * a backend joins, submits and waits: the service on the host and on GPUs, MPI, NCCL. */
#ifndef PERF_RANK_H
#define PERF_RANK_H

#include "command.h"

struct rank;

/* Each fails with rank_fail and returns false. NULL where nothing is to be done. */
struct backend {
	/* Joins the communicator command->id. */
	bool (*join)(struct rank *r, const struct command *command);

	bool (*allocate)(struct rank *r, size_t bytes, char **p);
	/* 0 is allowed. */
	bool (*release)(struct rank *r, char *p);
	/* Where the processor does not reach the buffers, r->host is made by `stage`, and these
	 * copy from it and to it. */
	bool (*stage)(struct rank *r, size_t bytes);
	bool (*put)(struct rank *r, char *to, const char *from, uint64_t bytes);
	bool (*get)(struct rank *r, char *to, const char *from, uint64_t bytes);
	/* Makes what this rank gives to an AllGather, if it lies elsewhere than for a plain one. */
	bool (*fill_all_gather)(struct rank *r, const struct work *w, uint64_t seed);
	/* Where the result is, if it is elsewhere than the service leaves it. */
	char *(*result)(struct rank *r, const struct work *w, char *send, char *recv);

	/* Before a series of the same work, for r->sync. */
	bool (*begin)(struct rank *r, const struct work *w);
	bool (*submit)(struct rank *r, const struct work *w, char *send, char *recv);
	/* With SYNC_EACH, after each operation. */
	bool (*wait)(struct rank *r);
	/* After a series: waits for all of it. Have all operations succeeded? */
	bool (*finish)(struct rank *r);
	/* A small operation that needs all ranks. */
	bool (*barrier)(struct rank *r);

	/* Before the barrier before a round. */
	bool (*prepare)(struct rank *r);
	/* Starts kernels on another stream; and waits for them. */
	bool (*compute)(struct rank *r, uint32_t kernels, uint32_t spins);
	bool (*compute_wait)(struct rank *r);
	/* Puts a short kernel on the operations' stream. */
	bool (*short_kernel)(struct rank *r);
	/* From begin to end, what is put on that stream is captured, and launched instead. The end
	 * fails if anything did. */
	bool (*capture_begin)(struct rank *r);
	bool (*capture_end)(struct rank *r);
	bool (*launch)(struct rank *r);
	bool (*drop)(struct rank *r);
	/* Of the GPU. */
	bool (*free_memory)(struct rank *r, size_t *bytes);

	/* Does a command that is this backend's alone. */
	bool (*perform)(struct rank *r, const struct command *command);
};

/* Backends have it as the first member of theirs. */
struct rank {
	const struct backend *backend;
	int rank, nranks;
	char *send, *recv; /* the backend's memory: device pointers on a GPU */
	char *host;	   /* see backend->stage */
	uint64_t bytes;
	enum sync sync;
	uint64_t *samples; /* of each operation, in ns; NULL: not wanted */
	uint32_t graph;	   /* operations in the one that was captured; 0: there is none */
	bool before;	   /* a short kernel is before each operation */
	struct reply reply;
};

/* Does commands from fd until QUIT or its end; after a failure only waits for that. False: one has
 * failed. */
bool rank_serve(struct rank *r, int fd);

/* The program of a rank whose operations are messages to a process and back. Called after fork;
 * returns its exit status. */
int pingpong_main(int fd);

/* Always false. */
bool rank_fail(struct rank *r, ncclsvc_result result, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
