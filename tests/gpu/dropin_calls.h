/* SPDX-License-Identifier: Apache-2.0
 * The drop-in libnccl.so.2, called as any NCCL program calls it. */
#ifndef TESTS_GPU_DROPIN_CALLS_H
#define TESTS_GPU_DROPIN_CALLS_H

#include "proto/abi/nccl_abi.h"
#include "ranks.h"
#include "values.h"

#define NCCL_POINTER(function, type, parameters) type(*function) parameters;
struct dropin {
	NCCL_FUNCTIONS(NCCL_POINTER)
	NCCL_MORE_FUNCTIONS(NCCL_POINTER)
	/* The drop-in's, which a program that preloads it calls instead of the driver's. */
	int (*cuMemFree)(unsigned long long p);
};
#undef NCCL_POINTER
extern struct dropin nc;

#define CHECK_NC(call)		    check_nccl(__FILE__, __LINE__, #call, call, ncclSuccess)
#define CHECK_NC_IS(call, expected) check_nccl(__FILE__, __LINE__, #call, call, expected)
void check_nccl(const char *file, int line, const char *call, ncclResult_t is,
		ncclResult_t expected);
/* Checks that ncclGetLastError contains the text. */
#define CHECK_SAYS(comm, part) check_says(__FILE__, __LINE__, comm, part)
void check_says(const char *file, int line, ncclComm_t comm, const char *part);

/* Loads the drop-in, for this daemon. Skips the test if it is missing. */
void dropin_open(const struct daemon *d);
ncclUniqueId dropin_id(const struct client *c);
/* An id that differs from dropin_id's, and is the same on all ranks. */
ncclUniqueId dropin_id_number(const struct client *c, int n);
/* Loads the drop-in, and joins the communicator of all ranks. */
ncclComm_t dropin_join(struct client *c);

#define DROPIN_WORDS 1000
/* Allocates DROPIN_WORDS words of device memory, each with the value. */
CUdeviceptr dropin_words(uint32_t value);
/* Sums DROPIN_WORDS words over all ranks, in place. */
ncclResult_t dropin_sum(CUdeviceptr p, ncclComm_t comm, CUstream s);
/* The same as NCCL_CONFIG_INITIALIZER. */
ncclConfig_t dropin_config(void);

/* Runs the call on a communicator. c->root is its root, or the peer of a Send or Recv. */
ncclResult_t dropin_call(const struct call *c, CUdeviceptr send, CUdeviceptr recv, ncclComm_t comm,
			 CUstream stream);
/* Sums rank + 1 over all ranks on a separate stream, and checks the result. */
void dropin_check_usable(ncclComm_t comm);
/* Waits until ncclCommGetAsyncError reports an error, and returns it. */
ncclResult_t dropin_fails(ncclComm_t comm, unsigned ms);
/* Waits until ncclCommGetAsyncError no longer reports ncclInProgress. */
ncclResult_t dropin_finishes(ncclComm_t comm);

#define MEMBER_COUNT 3001 /* elements of 8 bytes, per rank */
#define MEMBER_BYTES ((size_t)MEMBER_COUNT * 8 * RANKS_MAX)

/* A rank with its GPU, buffers and communicator. */
struct member {
	int gpu;
	ncclComm_t comm;
	CUstream stream;
	CUdeviceptr send, recv; /* MEMBER_BYTES */
	struct call call;
};
/* Opens everything except the communicator. */
void member_open(struct member *s, int gpu);
/* Opens everything, and joins the communicator of all ranks. */
void member_join(struct member *s, struct client *c);
/* Closes the communicator and everything else. */
void member_close(struct member *s);

#endif
