/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's API as libnccl.so.2 exports it (2.28): first what this project uses, opened at run time
 * (dynlib.h), so that building needs no NCCL; then the rest, which client/nccl implements, too.
 * tests/unit/test_abi.c compares all this with nccl.h where that is installed. Element types and
 * reductions have NCCL's numbers in ncclsvc_types.h.
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
enum { NCCL_SPLIT_NOCOLOR = -1 };
enum { NCCL_SHRINK_DEFAULT = 0, NCCL_SHRINK_ABORT = 1 };
enum { NCCL_REVOKE_DEFAULT = 0 };
enum { NCCL_CTA_POLICY_DEFAULT = 0, NCCL_CTA_POLICY_EFFICIENCY = 1, NCCL_CTA_POLICY_ZERO = 2 };
enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

#define NCCL_NUM_OPS	5 /* built-in reductions; numbers from here on are made */
#define NCCL_SIM_MAGIC	0x74685283

typedef struct ncclSimInfo_v22200 {
	size_t size;
	unsigned magic;
	unsigned version;
	float estimatedTime;
} ncclSimInfo_t;

/* Of nccl_device.h. */
typedef struct ncclTeam {
	int nRanks, rank, stride;
} ncclTeam_t;

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
	X(ncclRedOpCreatePreMulSum, ncclResult_t,                                                  \
	  (ncclRedOp_t * op, void *scalar, ncclDataType_t type, int residence, ncclComm_t comm))   \
	X(ncclRedOpDestroy, ncclResult_t, (ncclRedOp_t op, ncclComm_t comm))                       \
	X(ncclMemAlloc, ncclResult_t, (void **p, size_t bytes))                                    \
	X(ncclMemFree, ncclResult_t, (void *p))                                                    \
	X(ncclCommWindowRegister, ncclResult_t,                                                    \
	  (ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window, int flags))               \
	X(ncclCommWindowDeregister, ncclResult_t, (ncclComm_t comm, ncclWindow_t window))

/* What this project does not call. */
#define NCCL_MORE_FUNCTIONS(X)                                                                     \
	X(ncclCommInitRank, ncclResult_t,                                                          \
	  (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))                              \
	X(ncclCommInitAll, ncclResult_t, (ncclComm_t * comms, int n, const int *devices))          \
	X(ncclCommInitRankScalable, ncclResult_t,                                                  \
	  (ncclComm_t * comm, int nranks, int rank, int nids, ncclUniqueId *ids,                   \
	   ncclConfig_t *config))                                                                  \
	X(ncclCommSplit, ncclResult_t,                                                             \
	  (ncclComm_t comm, int colour, int key, ncclComm_t *newcomm, ncclConfig_t *config))       \
	X(ncclCommShrink, ncclResult_t,                                                            \
	  (ncclComm_t comm, int *exclude, int n, ncclComm_t *newcomm, ncclConfig_t *config,        \
	   int flags))                                                                             \
	X(ncclCommRevoke, ncclResult_t, (ncclComm_t comm, int flags))                              \
	X(ncclCommCount, ncclResult_t, (const ncclComm_t comm, int *count))                        \
	X(ncclCommCuDevice, ncclResult_t, (const ncclComm_t comm, int *device))                    \
	X(ncclCommUserRank, ncclResult_t, (const ncclComm_t comm, int *rank))                      \
	X(ncclCommRegister, ncclResult_t,                                                          \
	  (const ncclComm_t comm, void *p, size_t bytes, void **handle))                           \
	X(ncclCommDeregister, ncclResult_t, (const ncclComm_t comm, void *handle))                 \
	X(ncclBcast, ncclResult_t,                                                                 \
	  (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,             \
	   CUstream stream))                                                                       \
	X(ncclGroupSimulateEnd, ncclResult_t, (ncclSimInfo_t * info))                              \
	X(ncclResetDebugInit, void, (void))                                                        \
	X(ncclDevCommCreate, ncclResult_t,                                                         \
	  (ncclComm_t comm, const void *requirements, void *device_comm))                          \
	X(ncclDevCommDestroy, ncclResult_t, (ncclComm_t comm, const void *device_comm))            \
	X(ncclTeamWorld, ncclTeam_t, (ncclComm_t comm))                                            \
	X(ncclTeamLsa, ncclTeam_t, (ncclComm_t comm))                                              \
	X(ncclTeamRail, ncclTeam_t, (ncclComm_t comm))                                             \
	X(ncclTeamRankToWorld, int, (ncclComm_t comm, ncclTeam_t team, int rank))                  \
	X(ncclTeamRankToLsa, int, (ncclComm_t comm, ncclTeam_t team, int rank))                    \
	X(ncclLsaBarrierCreateRequirement, ncclResult_t,                                           \
	  (ncclTeam_t team, int n, void *handle, void *requirements))                              \
	X(ncclGinBarrierCreateRequirement, ncclResult_t,                                           \
	  (ncclComm_t comm, ncclTeam_t team, int n, void *handle, void *requirements))             \
	X(ncclLLA2ACalcSlots, int, (int elements, int element_bytes))                              \
	X(ncclLLA2ACreateRequirement, ncclResult_t,                                                \
	  (int blocks, int slots, void *handle, void *requirements))

#endif
