/* SPDX-License-Identifier: Apache-2.0
 * The drop-in libnccl.so.2, used as any NCCL program would use NCCL. */
#ifndef TESTS_GPU_DROPIN_H
#define TESTS_GPU_DROPIN_H

#include "proto/abi/nccl_abi.h"
#include "ranks.h"
#include "values.h"

#define NCCL_POINTER(function, type, parameters) type(*function) parameters;
struct dropin {
	NCCL_FUNCTIONS(NCCL_POINTER)
	NCCL_MORE_FUNCTIONS(NCCL_POINTER)
	/* The driver's, as a program calls it that preloads the drop-in. */
	int (*cuMemFree)(unsigned long long p);
};
#undef NCCL_POINTER
extern struct dropin nc;

#define CHECK_NC(call)		    check_nccl(__FILE__, __LINE__, #call, call, ncclSuccess)
#define CHECK_NC_IS(call, expected) check_nccl(__FILE__, __LINE__, #call, call, expected)
void check_nccl(const char *file, int line, const char *call, ncclResult_t is,
		ncclResult_t expected);
/* ncclGetLastError has the words in it. */
#define CHECK_SAYS(comm, part) check_says(__FILE__, __LINE__, comm, part)
void check_says(const char *file, int line, ncclComm_t comm, const char *part);

/* Loads it, for this daemon. Skips the test if there is none. */
void dropin_open(const struct daemon *d);
ncclUniqueId dropin_id(const struct client *c);
/* Another id that all ranks know. */
ncclUniqueId dropin_id_number(const struct client *c, int n);
/* Loads it, and joins all ranks' communicator. */
ncclComm_t dropin_join(struct client *c);

#define DROPIN_WORDS 1000
/* Device memory of so many words, each with the value. */
CUdeviceptr dropin_words(uint32_t value);
/* Sums such over all ranks, in place. */
ncclResult_t dropin_sum(CUdeviceptr p, ncclComm_t comm, CUstream s);
/* NCCL_CONFIG_INITIALIZER */
ncclConfig_t dropin_config(void);

/* The call on a communicator; its root, or peer of a Send or Recv, is call->root. */
ncclResult_t dropin_call(const struct call *c, CUdeviceptr send, CUdeviceptr recv, ncclComm_t comm,
			 CUstream stream);
/* Sums rank + 1 over all ranks on a stream of its own, and checks. */
void dropin_check_usable(ncclComm_t comm);
/* Waits for ncclCommGetAsyncError to say something else than ncclInProgress or ncclSuccess. */
ncclResult_t dropin_fails(ncclComm_t comm, unsigned ms);
/* The same for the end of ncclInProgress. */
ncclResult_t dropin_finishes(ncclComm_t comm);

#define MEMBER_COUNT 3001 /* elements of 8 bytes, for each rank */
#define MEMBER_BYTES ((size_t)MEMBER_COUNT * 8 * RANKS_MAX)

/* A GPU's rank, and what it works with. */
struct member {
	int gpu;
	ncclComm_t comm;
	CUstream stream;
	CUdeviceptr send, recv; /* MEMBER_BYTES */
	struct call call;
};
/* All but the communicator. */
void member_open(struct member *s, int gpu);
/* The same, and the communicator of all ranks. */
void member_join(struct member *s, struct client *c);
/* The communicator, too. */
void member_close(struct member *s);

#endif
