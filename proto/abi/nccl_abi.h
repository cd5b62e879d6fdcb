/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's API as libnccl.so.2 exports it (2.32): first what this project uses, opened at run time
 * (dynlib.h), so that building needs no NCCL; then the rest, which client/nccl implements, too.
 * tests/unit/test_abi.c compares all this with nccl.h where that is installed, and
 * tests/unit/nccl_names has every release's names. Element types and reductions have NCCL's numbers
 * in ncclsvc_types.h.
 *
 * Structs whose first field is a size grow at their end from release to release: the size says
 * which fields a program's copy has.
 */
#ifndef PROTO_NCCL_ABI_H
#define PROTO_NCCL_ABI_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
	ncclTimeout = 8,
};

/* Code 22800 is 2.28.0, which introduced ncclAlltoAll, ncclGather and ncclScatter. */
#define NCCL_VERSION_NEEDED 22800

#define NCCL_INT_UNSET INT_MIN
#define NCCL_MAGIC     0xcafebeef

typedef struct ncclConfig_v23200 {
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
	int nvlinkCentricSched; /* the last field of 2.28 */
	int graphUsageMode;
	int numRmaCtx;
	int maxP2pPeers;
	int graphStreamOrdering;
	int launchOrderImplicit;
	int numRmaSig;
	int rmaEagerInit;
	int hostCftMode;
	int nvlsHostMode;
} ncclConfig_t;
/* The size of ncclConfig_t in the release that the daemon needs. */
#define NCCL_CONFIG_NEEDED_BYTES offsetof(ncclConfig_t, graphUsageMode)

/* The configuration of one collective. */
typedef struct ncclCollConfig_v23200 {
	size_t size;
	unsigned magic;
	unsigned version;
	const void *ext;
	int minCTAs;
	int maxCTAs;
	int nvlsCTAs;
	int cgaClusterSize;
	const char *algSelection;
	int forceAlgSelection;
	int CTAPolicy;
	uint64_t userProfilerTag;
	CUevent launchCompletionEvent;
} ncclCollConfig_t;

typedef struct ncclEncryptionConfig_v23200 {
	size_t size;
	unsigned magic;
	unsigned version;
	int mode;
	const char *psk;
} ncclEncryptionConfig_t;
enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 };

enum { NCCL_WIN_DEFAULT = 0, NCCL_WIN_COLL_SYMMETRIC = 1, NCCL_WIN_STRICT_ORDERING = 2 };
enum { NCCL_SPLIT_NOCOLOR = -1 };
enum { NCCL_SHRINK_DEFAULT = 0, NCCL_SHRINK_ABORT = 1 };
enum { NCCL_REVOKE_DEFAULT = 0 };
enum { NCCL_SUSPEND_MEM = 1 };
enum {
	ncclStatGpuMemSuspend = 0,
	ncclStatGpuMemSuspended = 1,
	ncclStatGpuMemPersist = 2,
	ncclStatGpuMemTotal = 3,
};
enum { NCCL_CTA_POLICY_DEFAULT = 0, NCCL_CTA_POLICY_EFFICIENCY = 1, NCCL_CTA_POLICY_ZERO = 2 };
enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

#define NCCL_NUM_OPS   5 /* built-in reductions; higher numbers are user-defined */
#define NCCL_SIM_MAGIC 0x74685283

typedef struct ncclSimInfo_v22200 {
	size_t size;
	unsigned magic;
	unsigned version;
	float estimatedTime;
} ncclSimInfo_t;

/* A signal that ncclWaitSignal waits for. */
typedef struct {
	int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;
typedef struct ncclParamHandle *ncclParamHandle_t;

/* From nccl_device.h. */
typedef struct ncclTeam {
	int nRanks, rank, stride;
} ncclTeam_t;

/* From nccl_device.h. (In 2.29.2, ginType is one byte; this has padding there.) */
typedef struct ncclCommProperties {
	size_t size;
	unsigned magic;
	unsigned version;
	int rank;
	int nRanks;
	int cudaDev;
	int nvmlDev;
	bool deviceApiSupport;
	bool multimemSupport;
	int ginType;
	int nLsaTeams;
	bool hostRmaSupport;
	int railedGinType;
	uint64_t commHash;
	int ginMinStride;
	int ginConnectionType;
	bool ginSupport[64];
	size_t devCommRuntimeVersionSize;
	bool cftSupport;
	bool cftMulticastSupport;
	bool cftCountedSupport;
} ncclCommProperties_t;

/* From nccl_device.h; passed by value. */
typedef struct ncclMultimemHandle {
	void *mcBasePtr;
} ncclMultimemHandle_t;

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
	X(ncclRedOpDestroy, ncclResult_t, (ncclRedOp_t op, ncclComm_t comm))

/* Functions that this project does not call. */
#define NCCL_MORE_FUNCTIONS(X)                                                                     \
	X(ncclMemAlloc, ncclResult_t, (void **p, size_t bytes))                                    \
	X(ncclMemFree, ncclResult_t, (void *p))                                                    \
	X(ncclCommWindowRegister, ncclResult_t,                                                    \
	  (ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window, int flags))               \
	X(ncclCommWindowDeregister, ncclResult_t, (ncclComm_t comm, ncclWindow_t window))          \
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
	X(ncclResetDebugInitInternal, void, (void))                                                \
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
	  (int blocks, int slots, void *handle, void *requirements))                               \
	X(ncclCommGetUniqueId, ncclResult_t, (ncclComm_t comm, ncclUniqueId * id))                 \
	X(ncclCommGrow, ncclResult_t,                                                              \
	  (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,     \
	   ncclConfig_t *config))                                                                  \
	X(ncclCommSuspend, ncclResult_t, (ncclComm_t comm, int flags))                             \
	X(ncclCommResume, ncclResult_t, (ncclComm_t comm))                                         \
	X(ncclCommMemStats, ncclResult_t, (ncclComm_t comm, int stat, uint64_t *value))            \
	X(ncclCommQueryProperties, ncclResult_t,                                                   \
	  (ncclComm_t comm, ncclCommProperties_t * properties))                                    \
	X(ncclWinGetUserPtr, ncclResult_t, (ncclComm_t comm, ncclWindow_t window, void **p))       \
	X(ncclPutSignal, ncclResult_t,                                                             \
	  (const void *src, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,      \
	   size_t offset, int signal, int context, unsigned flags, ncclComm_t comm,                \
	   CUstream stream))                                                                       \
	X(ncclSignal, ncclResult_t,                                                                \
	  (int peer, int signal, int context, unsigned flags, ncclComm_t comm, CUstream stream))   \
	X(ncclWaitSignal, ncclResult_t,                                                            \
	  (int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, CUstream stream))                \
	X(ncclAllReduceConfig, ncclResult_t,                                                       \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,          \
	   ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config))                      \
	X(ncclBroadcastConfig, ncclResult_t,                                                       \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, int root,                \
	   ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config))                      \
	X(ncclReduceConfig, ncclResult_t,                                                          \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,          \
	   int root, ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config))            \
	X(ncclAllGatherConfig, ncclResult_t,                                                       \
	  (const void *src, void *dst, size_t sendcount, ncclDataType_t type, ncclComm_t comm,     \
	   CUstream stream, const ncclCollConfig_t *config))                                       \
	X(ncclReduceScatterConfig, ncclResult_t,                                                   \
	  (const void *src, void *dst, size_t recvcount, ncclDataType_t type, ncclRedOp_t op,      \
	   ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config))                      \
	X(ncclAlltoAllConfig, ncclResult_t,                                                        \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,         \
	   CUstream stream, const ncclCollConfig_t *config))                                       \
	X(ncclGatherConfig, ncclResult_t,                                                          \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, int root,                \
	   ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config))                      \
	X(ncclScatterConfig, ncclResult_t,                                                         \
	  (const void *src, void *dst, size_t count, ncclDataType_t type, int root,                \
	   ncclComm_t comm, CUstream stream, const ncclCollConfig_t *config))                      \
	X(ncclSetEncryption, ncclResult_t, (const ncclEncryptionConfig_t *config))                 \
	X(ncclParamBind, ncclResult_t, (ncclParamHandle_t * handle, const char *key))              \
	X(ncclParamGetI8, ncclResult_t, (ncclParamHandle_t handle, int8_t * out))                  \
	X(ncclParamGetI16, ncclResult_t, (ncclParamHandle_t handle, int16_t * out))                \
	X(ncclParamGetI32, ncclResult_t, (ncclParamHandle_t handle, int32_t * out))                \
	X(ncclParamGetI64, ncclResult_t, (ncclParamHandle_t handle, int64_t * out))                \
	X(ncclParamGetU8, ncclResult_t, (ncclParamHandle_t handle, uint8_t * out))                 \
	X(ncclParamGetU16, ncclResult_t, (ncclParamHandle_t handle, uint16_t * out))               \
	X(ncclParamGetU32, ncclResult_t, (ncclParamHandle_t handle, uint32_t * out))               \
	X(ncclParamGetU64, ncclResult_t, (ncclParamHandle_t handle, uint64_t * out))               \
	X(ncclParamGetStr, ncclResult_t, (ncclParamHandle_t handle, const char **out))             \
	X(ncclParamGet, ncclResult_t, (ncclParamHandle_t handle, void *out, int size, int *bytes)) \
	X(ncclParamGetParameter, ncclResult_t, (const char *key, const char **value, int *bytes))  \
	X(ncclParamGetAllParameterKeys, ncclResult_t, (const char ***keys, int *n))                \
	X(ncclParamDumpAll, void, (void))                                                          \
	X(ncclTeamCft, ncclTeam_t, (ncclComm_t comm, int mode))                                    \
	X(ncclTeamCftMultimem, ncclTeam_t, (ncclComm_t comm))                                      \
	X(ncclGetLsaDevicePointer, ncclResult_t,                                                   \
	  (ncclWindow_t window, size_t offset, int rank, void **p))                                \
	X(ncclGetPeerDevicePointer, ncclResult_t,                                                  \
	  (ncclWindow_t window, size_t offset, int peer, void **p))                                \
	X(ncclGetLsaMultimemDevicePointer, ncclResult_t,                                           \
	  (ncclWindow_t window, size_t offset, void **p))                                          \
	X(ncclGetMultimemDevicePointer, ncclResult_t,                                              \
	  (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void **p))           \
	X(ncclGetPeerDeviceLeInfo, ncclResult_t,                                                   \
	  (ncclWindow_t window, size_t offset, int peer, uint32_t *id, size_t *at))                \
	X(ncclGetCftDeviceLeInfo, ncclResult_t,                                                    \
	  (ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, uint32_t *id,            \
	   size_t *at))                                                                            \
	X(ncclGetMultimemDeviceLeInfo, ncclResult_t,                                               \
	  (ncclWindow_t window, size_t offset, uint32_t * id, size_t * at))                        \
	X(ncclCftBarrierCreateRequirement, ncclResult_t,                                           \
	  (ncclTeam_t team, int n, void *handle, void *requirements))                              \
	X(ncclGinOutboxCreateRequirement, ncclResult_t,                                            \
	  (int blocks, int size_log2, void *handle, void *requirements))                           \
	X(ncclGinInboxA2ACreateRequirement, ncclResult_t,                                          \
	  (ncclTeam_t peers, int blocks, int size_log2, void *handle, void *requirements))

#endif
