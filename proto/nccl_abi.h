/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of NCCL's API that this project uses, as libnccl.so.2 exports it (2.28). Opened at run
 * time (dynlib.h), so building needs no NCCL; tests/unit/test_abi.c compares all this with nccl.h
 * where that is installed. Element types and reductions have NCCL's numbers in ncclsvc_types.h.
 */
#ifndef PROTO_NCCL_ABI_H
#define PROTO_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>

#include "cuda_abi.h"

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;

typedef struct {
	char internal[128];
} ncclUniqueId;

enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7,
};

/* Code 22800 is 2.28.0. ncclAlltoAll, ncclGather and ncclScatter came with it. */
#define NCCL_VERSION_NEEDED 22800

#define NCCL_INT_UNSET INT_MIN
#define NCCL_MAGIC     0xcafebeef

typedef struct ncclConfig_v22800 {
	size_t size;
	unsigned magic;
	unsigned version;
	int blocking;
	int cgaClusterSize;
	int minCTAs;
	int maxCTAs;
	const char *netName;
	int splitShare;
	int trafficClass;
	const char *commName;
	int collnetEnable;
	int CTAPolicy;
	int shrinkShare;
	int nvlsCTAs;
	int nChannelsPerNetPeer;
	int nvlinkCentricSched;
} ncclConfig_t;

enum { NCCL_WIN_DEFAULT = 0, NCCL_WIN_COLL_SYMMETRIC = 1 };

/* X(function, return type, (parameters)) */
#define NCCL_FUNCTIONS(X)                                                                          \
	X(ncclGetVersion, ncclResult_t, (int *version))                                            \
	X(ncclGetUniqueId, ncclResult_t, (ncclUniqueId * id))                                      \
	X(ncclCommInitRankConfig, ncclResult_t,                                                    \
	  (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))        \
	X(ncclCommFinalize, ncclResult_t, (ncclComm_t comm))                                       \
	X(ncclCommDestroy, ncclResult_t, (ncclComm_t comm))                                        \
	X(ncclCommAbort, ncclResult_t, (ncclComm_t comm))                                          \
	X(ncclCommGetAsyncError, ncclResult_t, (ncclComm_t comm, ncclResult_t * error))            \
	X(ncclGetErrorString, const char *, (ncclResult_t result))                                 \
	X(ncclGetLastError, const char *, (ncclComm_t comm))                                       \
	X(ncclGroupStart, ncclResult_t, (void))                                                    \
	X(ncclGroupEnd, ncclResult_t, (void))                                                      \
	X(ncclAllReduce, ncclResult_t,                                                             \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,          \
	   ncclComm_t comm, CUstream stream))                                                      \
	X(ncclReduce, ncclResult_t,                                                                \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,          \
	   int root, ncclComm_t comm, CUstream stream))                                            \
	X(ncclBroadcast, ncclResult_t,                                                             \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, int root,                \
	   ncclComm_t comm, CUstream stream))                                                      \
	X(ncclReduceScatter, ncclResult_t,                                                         \
	  (const void *src, void *dst, size_t recvcount, ncclDataType_t type, ncclRedOp_t op,      \
	   ncclComm_t comm, CUstream stream))                                                      \
	X(ncclAllGather, ncclResult_t,                                                             \
	  (const void *src, void *dst, size_t sendcount, ncclDataType_t type, ncclComm_t comm,     \
	   CUstream stream))                                                                       \
	X(ncclAlltoAll, ncclResult_t,                                                              \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,         \
	   CUstream stream))                                                                       \
	X(ncclGather, ncclResult_t,                                                                \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, int root,                \
	   ncclComm_t comm, CUstream stream))                                                      \
	X(ncclScatter, ncclResult_t,                                                               \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, int root,                \
	   ncclComm_t comm, CUstream stream))                                                      \
	X(ncclSend, ncclResult_t,                                                                  \
	  (const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,          \
	   CUstream stream))                                                                       \
	X(ncclRecv, ncclResult_t,                                                                  \
	  (void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,                \
	   CUstream stream))                                                                       \
	X(ncclMemAlloc, ncclResult_t, (void **p, size_t bytes))                                    \
	X(ncclMemFree, ncclResult_t, (void *p))                                                    \
	X(ncclCommWindowRegister, ncclResult_t,                                                    \
	  (ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window, int flags))               \
	X(ncclCommWindowDeregister, ncclResult_t, (ncclComm_t comm, ncclWindow_t window))

#endif
