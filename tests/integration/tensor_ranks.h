/* SPDX-License-Identifier: Apache-2.0
 * Ranks that exchange lists of tensors in host memory. */
#ifndef TESTS_TENSOR_RANKS_H
#define TESTS_TENSOR_RANKS_H

#include "harness.h"
#include "ncclsvc_tensors.h"

/* One rank's objects. */
struct side {
	struct client *me;
	ncclsvc_session *s;
	ncclsvc_comm *comm;
	ncclsvc_tensors *lists;
	int peer; /* the other of two ranks */
};

/* Joins the communicator and opens lists, in that session or in a new one. */
struct side side_on(struct client *me, ncclsvc_session *s);
struct side side_open(struct client *me);
/* Checks that the communicator has not failed, waits for all ranks, and closes everything. */
void side_close(struct side *x);
/* Starts a daemon and n ranks (at most 4), or two, that run `main`. */
void run_ranks(int n, client_main *main);
void run_pair(client_main *main);

/* A message to or from the peer. */
ncclsvc_message message(const struct side *x, ncclsvc_shapes shapes, int64_t tag, size_t n,
			const ncclsvc_tensor *tensors);
/* Checks that the last error contains this text. */
void says(const char *text);
size_t bytes_of(const ncclsvc_tensor *t);

/* A receiver's allocations: the arg of the allocate callback. */
struct got {
	size_t n;
	ncclsvc_tensor tensors[256];
	int64_t dims[256][4];
	ncclsvc_result refuse; /* if not OK, the callback refuses with it */
	int calls;
};

ncclsvc_result allocate(ncclsvc_tensor *tensors, size_t n, void *arg);
void got_free(struct got *g);

/* Fills in five tensors of several types and shapes, without memory; returns how many. */
size_t some_list(ncclsvc_tensor *t);
/* Allocates their memory, with values from the seed; seed 0, for a receiver: other values. */
void memory_of(ncclsvc_tensor *t, size_t n, unsigned seed);
void check_list(ncclsvc_tensor *t, size_t n, unsigned seed);
void memory_free(ncclsvc_tensor *t, size_t n);
/* Sends one valid list from rank 0 to rank 1, to check that both are still in step. */
void check_in_step(struct side *x, unsigned seed);

#endif
