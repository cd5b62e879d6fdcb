/* SPDX-License-Identifier: Apache-2.0
 * Operations as data: their inputs, their expected outputs, and the call. */
#ifndef TESTS_GPU_VALUES_H
#define TESTS_GPU_VALUES_H

#include "ranks.h"

#define TYPES  12 /* NCCL's types */
#define MOVED  5  /* other types, which cannot be reduced */
#define REDOPS 5

struct call {
	ncclsvc_op op;
	ncclsvc_type type;
	ncclsvc_redop redop;
	size_t count;
	int rank, n, root;
	bool in_place;
};

bool op_reduces(ncclsvc_op op);
/* How many elements this rank reads, and writes. */
size_t call_sends(const struct call *c);
size_t call_receives(const struct call *c);
/* In place: offset in elements of the smaller buffer in the larger one. */
size_t call_shift(const struct call *c);

/* Element i of a rank's input: exact in every type, and so are all sums and products. */
double value_input(const struct call *c, int rank, size_t i);
/* The expected element i of this rank's output. */
double value_expected(const struct call *c, size_t i, bool *exact);
void value_store(void *buf, size_t i, ncclsvc_type type, double value);
double value_load(const void *buf, size_t i, ncclsvc_type type);
bool value_close(const struct call *c, double is, double want, bool exact);

/* Submits the call. An empty buffer is NULL. */
ncclsvc_result call_submit(const struct call *c, ncclsvc_comm *comm, CUdeviceptr send,
			   CUdeviceptr recv, ncclsvc_task *task);

#endif
