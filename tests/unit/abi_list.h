/* SPDX-License-Identifier: Apache-2.0
 * What test_abi.c compares: everything in proto/abi's CUDA and NCCL headers that has a number.
 * Compiled twice, in abi_ours.c and abi_real.c, against our headers and the real ones. */
#ifndef TESTS_ABI_LIST_H
#define TESTS_ABI_LIST_H

#include <stddef.h>

struct abi_value {
	const char *name;
	long long value;
};
struct abi_symbol {
	const char *function, *exported;
};

extern const struct abi_value ours_cuda[], ours_nccl[], ours_nccl_new[];
extern const struct abi_value real_cuda[], real_nccl[], real_nccl_new[];
extern const size_t n_ours_cuda, n_ours_nccl, n_ours_nccl_new;
extern const size_t n_real_cuda, n_real_nccl, n_real_nccl_new;
extern const struct abi_symbol ours_symbols[], real_symbols[];
extern const size_t n_ours_symbols, n_real_symbols;

/* C: a constant. S: a type's size. O: a field's offset and size. P: two names of one number. */
/* clang-format off */
#define ABI_CUDA(C, S, O)                                                                          \
	C(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) C(CU_COMPUTEMODE_DEFAULT)                      \
	C(CU_COMPUTEMODE_PROHIBITED) C(CU_COMPUTEMODE_EXCLUSIVE_PROCESS) S(CUmodule) S(CUfunction) \
	C(CUDA_SUCCESS) C(CUDA_ERROR_INVALID_VALUE) C(CUDA_ERROR_OUT_OF_MEMORY)                    \
	C(CUDA_ERROR_NOT_INITIALIZED) C(CUDA_ERROR_DEINITIALIZED) C(CUDA_ERROR_NO_DEVICE)          \
	C(CUDA_ERROR_INVALID_DEVICE) C(CUDA_ERROR_INVALID_CONTEXT) C(CUDA_ERROR_MAP_FAILED)        \
	C(CUDA_ERROR_ALREADY_MAPPED) C(CUDA_ERROR_ECC_UNCORRECTABLE)                               \
	C(CUDA_ERROR_INVALID_HANDLE) C(CUDA_ERROR_NOT_FOUND) C(CUDA_ERROR_NOT_READY)               \
	C(CUDA_ERROR_ILLEGAL_ADDRESS) C(CUDA_ERROR_LAUNCH_TIMEOUT)                                 \
	C(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) C(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)            \
	C(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)         \
	C(CUDA_ERROR_HARDWARE_STACK_ERROR) C(CUDA_ERROR_LAUNCH_FAILED)                             \
	C(CUDA_ERROR_NOT_PERMITTED) C(CUDA_ERROR_NOT_SUPPORTED) C(CUDA_ERROR_SYSTEM_NOT_READY)     \
	C(CUDA_ERROR_MPS_CONNECTION_FAILED) C(CUDA_ERROR_MPS_SERVER_NOT_READY)                     \
	C(CUDA_ERROR_MPS_RPC_FAILURE) C(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) \
	C(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)                           \
	C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) C(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)             \
	C(CUDA_ERROR_UNKNOWN) C(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                      \
	C(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) C(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)        \
	C(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)                                 \
	C(CU_POINTER_ATTRIBUTE_CONTEXT) C(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                        \
	C(CU_POINTER_ATTRIBUTE_BUFFER_ID) C(CU_POINTER_ATTRIBUTE_IS_MANAGED)                       \
	C(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                                     \
	C(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)                                         \
	C(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) C(CU_POINTER_ATTRIBUTE_RANGE_SIZE)                \
	C(CU_POINTER_ATTRIBUTE_MAPPED) C(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)                \
	C(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) C(CU_POINTER_ATTRIBUTE_MAPPING_SIZE)                \
	C(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR) C(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)          \
	C(CU_MEMORYTYPE_HOST) C(CU_MEMORYTYPE_DEVICE) C(CU_MEMORYTYPE_UNIFIED)                     \
	C(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) C(CU_MEMHOSTREGISTER_PORTABLE)                       \
	C(CU_MEMHOSTREGISTER_DEVICEMAP) C(CU_STREAM_DEFAULT) C(CU_STREAM_NON_BLOCKING)             \
	C(CU_EVENT_DEFAULT) C(CU_EVENT_BLOCKING_SYNC) C(CU_EVENT_DISABLE_TIMING)                   \
	C(CU_STREAM_CAPTURE_STATUS_NONE) C(CU_STREAM_CAPTURE_STATUS_ACTIVE)                        \
	C(CU_STREAM_CAPTURE_MODE_GLOBAL) C(CU_STREAM_CAPTURE_MODE_RELAXED)                         \
	C(CU_STREAM_WAIT_VALUE_GEQ) C(CU_STREAM_WRITE_VALUE_DEFAULT)                               \
	C(CU_STREAM_MEM_OP_WAIT_VALUE_32) C(CU_STREAM_MEM_OP_WAIT_VALUE_64)                        \
	C(CU_STREAM_MEM_OP_WRITE_VALUE_32) C(CU_STREAM_MEM_OP_WRITE_VALUE_64)                      \
	C(CU_MEM_ALLOCATION_TYPE_PINNED) C(CU_MEM_LOCATION_TYPE_DEVICE)                            \
	C(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) C(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)          \
	C(CU_MEM_ALLOC_GRANULARITY_MINIMUM) C(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) S(CUresult)    \
	S(CUdevice) S(CUdeviceptr) S(CUcontext) S(CUstream) S(CUevent) S(CUgraph)                  \
	S(CUmemGenericAllocationHandle) S(CUuuid) S(CUipcMemHandle) S(CUstreamBatchMemOpParams)    \
	S(CUmemLocation) S(CUmemAllocationProp) S(CUmemAccessDesc)                                 \
	O(CUstreamBatchMemOpParams, operation) O(CUstreamBatchMemOpParams, waitValue.operation)    \
	O(CUstreamBatchMemOpParams, waitValue .address)                                            \
	O(CUstreamBatchMemOpParams, waitValue.value)                                               \
	O(CUstreamBatchMemOpParams, waitValue.value64)                                             \
	O(CUstreamBatchMemOpParams, waitValue .flags)                                              \
	O(CUstreamBatchMemOpParams, waitValue.alias)                                               \
	O(CUstreamBatchMemOpParams, writeValue .operation)                                         \
	O(CUstreamBatchMemOpParams, writeValue .address)                                           \
	O(CUstreamBatchMemOpParams, writeValue .value64)                                           \
	O(CUstreamBatchMemOpParams, writeValue .flags)                                             \
	O(CUstreamBatchMemOpParams, writeValue .alias) O(CUmemLocation, type)                      \
	O(CUmemLocation, id) O(CUmemAllocationProp, type)                                          \
	O(CUmemAllocationProp, requestedHandleTypes) O(CUmemAllocationProp, location)              \
	O(CUmemAllocationProp, win32HandleMetaData) O(CUmemAllocationProp, allocFlags)             \
	O(CUmemAllocationProp, allocFlags .compressionType)                                        \
	O(CUmemAllocationProp, allocFlags .gpuDirectRDMACapable)                                   \
	O(CUmemAllocationProp, allocFlags .usage) O(CUmemAccessDesc, location)                     \
	O(CUmemAccessDesc, flags) ABI_CUDA_GRAPHS(C, S, O)
#define ABI_CUDA_GRAPHS(C, S, O)                                                                   \
	C(CUDA_ERROR_ILLEGAL_STATE) C(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)                       \
	C(CUDA_ERROR_STREAM_CAPTURE_MERGE) C(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)                  \
	C(CUDA_ERROR_STREAM_CAPTURE_UNJOINED) C(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)               \
	C(CUDA_ERROR_CAPTURED_EVENT) C(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)                     \
	C(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) C(CU_STREAM_CAPTURE_STATUS_INVALIDATED)            \
	C(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) C(CU_STREAM_ADD_CAPTURE_DEPENDENCIES)               \
	C(CU_STREAM_SET_CAPTURE_DEPENDENCIES) C(CU_EVENT_RECORD_DEFAULT)                           \
	C(CU_EVENT_RECORD_EXTERNAL) C(CU_EVENT_WAIT_DEFAULT) C(CU_EVENT_WAIT_EXTERNAL)             \
	C(CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) C(CU_GRAPH_USER_OBJECT_MOVE)                          \
	C(CU_GRAPH_NODE_TYPE_KERNEL)                                                               \
	C(CU_GRAPH_NODE_TYPE_MEMCPY) C(CU_GRAPH_NODE_TYPE_MEMSET) C(CU_GRAPH_NODE_TYPE_HOST)       \
	C(CU_GRAPH_NODE_TYPE_GRAPH) C(CU_GRAPH_NODE_TYPE_EMPTY) C(CU_GRAPH_NODE_TYPE_WAIT_EVENT)   \
	C(CU_GRAPH_NODE_TYPE_EVENT_RECORD) C(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)                      \
	C(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) C(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)   \
	C(CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) C(CU_LAUNCH_ATTRIBUTE_PRIORITY)           \
	C(CUDA_GRAPH_INSTANTIATE_SUCCESS) C(CUDA_GRAPH_INSTANTIATE_ERROR)                          \
	C(CU_GRAPH_EXEC_UPDATE_SUCCESS) C(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED)             \
	C(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED)                                            \
	C(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED) S(CUgraphNode) S(CUgraphExec)             \
	S(CUuserObject) S(CUhostFn) S(CUDA_KERNEL_NODE_PARAMS) S(CUlaunchAttributeValue)           \
	S(CUgraphEdgeData) S(CUDA_GRAPH_INSTANTIATE_PARAMS) S(CUgraphExecUpdateResultInfo)         \
	O(CUDA_KERNEL_NODE_PARAMS, func) O(CUDA_KERNEL_NODE_PARAMS, gridDimX)                      \
	O(CUDA_KERNEL_NODE_PARAMS, gridDimY) O(CUDA_KERNEL_NODE_PARAMS, gridDimZ)                  \
	O(CUDA_KERNEL_NODE_PARAMS, blockDimX) O(CUDA_KERNEL_NODE_PARAMS, blockDimY)                \
	O(CUDA_KERNEL_NODE_PARAMS, blockDimZ) O(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes)           \
	O(CUDA_KERNEL_NODE_PARAMS, kernelParams) O(CUDA_KERNEL_NODE_PARAMS, extra)                 \
	O(CUDA_KERNEL_NODE_PARAMS, kern) O(CUDA_KERNEL_NODE_PARAMS, ctx)                           \
	O(CUgraphEdgeData, from_port) O(CUgraphEdgeData, to_port) O(CUgraphEdgeData, type)         \
	O(CUDA_GRAPH_INSTANTIATE_PARAMS, flags) O(CUDA_GRAPH_INSTANTIATE_PARAMS, hUploadStream)    \
	O(CUDA_GRAPH_INSTANTIATE_PARAMS, hErrNode_out)                                             \
	O(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out) O(CUgraphExecUpdateResultInfo, result)        \
	O(CUgraphExecUpdateResultInfo, errorNode) O(CUgraphExecUpdateResultInfo, errorFromNode)
#define ABI_NCCL(C, S, O, P)                                                                       \
	C(ncclSuccess) C(ncclUnhandledCudaError) C(ncclSystemError) C(ncclInternalError)           \
	C(ncclInvalidArgument) C(ncclInvalidUsage) C(ncclRemoteError) C(ncclInProgress)            \
	C(NCCL_WIN_DEFAULT) C(NCCL_WIN_COLL_SYMMETRIC) P(NCCL_INT_UNSET, NCCL_CONFIG_UNDEF_INT)    \
	S(ncclComm_t) S(ncclWindow_t) S(ncclResult_t) S(ncclDataType_t) S(ncclRedOp_t)             \
	S(ncclUniqueId) O(ncclConfig_t, size) O(ncclConfig_t, magic)               \
	O(ncclConfig_t, version) O(ncclConfig_t, blocking) O(ncclConfig_t, cgaClusterSize)         \
	O(ncclConfig_t, minCTAs) O(ncclConfig_t, maxCTAs) O(ncclConfig_t, netName)                 \
	O(ncclConfig_t, splitShare) O(ncclConfig_t, trafficClass) O(ncclConfig_t, commName)        \
	O(ncclConfig_t, collnetEnable) O(ncclConfig_t, CTAPolicy) O(ncclConfig_t, shrinkShare)     \
	O(ncclConfig_t, nvlsCTAs) O(ncclConfig_t, nChannelsPerNetPeer)                             \
	O(ncclConfig_t, nvlinkCentricSched) P(NCCLSVC_INT8, ncclInt8)                              \
	P(NCCLSVC_UINT8, ncclUint8) P(NCCLSVC_INT32, ncclInt32) P(NCCLSVC_UINT32, ncclUint32)      \
	P(NCCLSVC_INT64, ncclInt64) P(NCCLSVC_UINT64, ncclUint64)                                  \
	P(NCCLSVC_FLOAT16, ncclFloat16) P(NCCLSVC_FLOAT32, ncclFloat32)                            \
	P(NCCLSVC_FLOAT64, ncclFloat64) P(NCCLSVC_BFLOAT16, ncclBfloat16)                          \
	P(NCCLSVC_FLOAT8E4M3, ncclFloat8e4m3) P(NCCLSVC_FLOAT8E5M2, ncclFloat8e5m2)                \
	C(NCCL_SPLIT_NOCOLOR) C(NCCL_SHRINK_DEFAULT) C(NCCL_SHRINK_ABORT) C(NCCL_REVOKE_DEFAULT)   \
	C(NCCL_CTA_POLICY_DEFAULT) C(NCCL_CTA_POLICY_EFFICIENCY) C(NCCL_CTA_POLICY_ZERO)           \
	C(ncclScalarDevice) C(ncclScalarHostImmediate) P(NCCL_NUM_OPS, ncclNumOps)                 \
	S(ncclSimInfo_t) O(ncclSimInfo_t, magic) O(ncclSimInfo_t, estimatedTime)                   \
	P(NCCLSVC_SUM, ncclSum) P(NCCLSVC_PROD, ncclProd) P(NCCLSVC_MAX, ncclMax)                  \
	P(NCCLSVC_MIN, ncclMin) P(NCCLSVC_AVG, ncclAvg)

/* Values that NCCL 2.32 added. */
#define ABI_NCCL_NEW(C, S, O)                                                                      \
	C(ncclTimeout) C(NCCL_WIN_STRICT_ORDERING) C(NCCL_SUSPEND_MEM) C(ncclStatGpuMemSuspend)    \
	C(ncclStatGpuMemSuspended) C(ncclStatGpuMemPersist) C(ncclStatGpuMemTotal)                 \
	C(NCCL_ENCRYPTION_MODE_NONE) C(NCCL_ENCRYPTION_MODE_PSK) S(ncclConfig_t)                   \
	O(ncclConfig_t, graphUsageMode) O(ncclConfig_t, numRmaCtx) O(ncclConfig_t, maxP2pPeers)    \
	O(ncclConfig_t, graphStreamOrdering) O(ncclConfig_t, launchOrderImplicit)                  \
	O(ncclConfig_t, numRmaSig) O(ncclConfig_t, rmaEagerInit) O(ncclConfig_t, hostCftMode)      \
	O(ncclConfig_t, nvlsHostMode) S(ncclCollConfig_t) O(ncclCollConfig_t, size)                \
	O(ncclCollConfig_t, magic) O(ncclCollConfig_t, ext) O(ncclCollConfig_t, minCTAs)           \
	O(ncclCollConfig_t, algSelection) O(ncclCollConfig_t, forceAlgSelection)                   \
	O(ncclCollConfig_t, userProfilerTag) O(ncclCollConfig_t, launchCompletionEvent)            \
	S(ncclEncryptionConfig_t) O(ncclEncryptionConfig_t, mode) O(ncclEncryptionConfig_t, psk)   \
	S(ncclWaitSignalDesc_t) S(ncclParamHandle_t)

/* F: a function of cuda.h, whose macros append the versions to the names. */
#define ABI_CUDA_FUNCTIONS(F)                                                                      \
	F(cuInit) F(cuDriverGetVersion) F(cuGetErrorName) F(cuGetErrorString)                      \
	F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName) F(cuDeviceGetUuid)                   \
	F(cuDeviceTotalMem) F(cuDeviceGetAttribute) F(cuDeviceGetPCIBusId)                         \
	F(cuDeviceCanAccessPeer) F(cuDevicePrimaryCtxRetain) F(cuDevicePrimaryCtxRelease)          \
	F(cuCtxSetCurrent) F(cuCtxGetCurrent) F(cuCtxGetDevice) F(cuCtxPushCurrent)                \
	F(cuCtxPopCurrent) F(cuCtxSynchronize) F(cuCtxEnablePeerAccess) F(cuMemGetInfo) F(cuMemAlloc) F(cuMemFree)          \
	F(cuMemAllocAsync) F(cuMemFreeAsync) F(cuMemcpyHtoD) F(cuMemcpyDtoH)                       \
	F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync) F(cuMemcpyDtoDAsync) F(cuMemsetD8Async)          \
	F(cuMemsetD32Async) F(cuMemGetAddressRange) F(cuPointerGetAttribute)                       \
	F(cuPointerGetAttributes) F(cuIpcGetMemHandle) F(cuIpcOpenMemHandle)                       \
	F(cuIpcCloseMemHandle) F(cuMemHostRegister) F(cuMemHostUnregister)                         \
	F(cuMemHostGetDevicePointer) F(cuMemCreate) F(cuMemRelease) F(cuMemAddressReserve)         \
	F(cuMemAddressFree) F(cuMemMap) F(cuMemUnmap) F(cuMemSetAccess)                            \
	F(cuMemExportToShareableHandle) F(cuMemImportFromShareableHandle)                          \
	F(cuMemRetainAllocationHandle) F(cuMemGetAllocationGranularity)                            \
	F(cuMemGetAllocationPropertiesFromHandle) F(cuStreamCreate)                                \
	F(cuStreamCreateWithPriority) F(cuCtxGetStreamPriorityRange) F(cuStreamDestroy)            \
	F(cuStreamSynchronize) F(cuStreamQuery) F(cuStreamGetFlags) F(cuStreamGetCtx)              \
	F(cuStreamGetId) F(cuStreamIsCapturing) F(cuStreamBeginCapture) F(cuStreamEndCapture)      \
	F(cuGraphDestroy)                                                                          \
	F(cuStreamWaitValue64) F(cuStreamWriteValue64) F(cuStreamBatchMemOp)                       \
	F(cuStreamWaitEvent) F(cuEventCreate) F(cuEventRecord) F(cuEventQuery)                     \
	F(cuEventSynchronize) F(cuEventElapsedTime) F(cuEventDestroy)                              \
	F(cuModuleLoadData) F(cuModuleUnload) F(cuModuleGetFunction) F(cuLaunchKernel)        \
	F(cuFuncLoad)                                                                              \
	F(cuThreadExchangeStreamCaptureMode) F(cuStreamGetCaptureInfo_v2)                          \
	F(cuStreamUpdateCaptureDependencies) F(cuEventRecordWithFlags) F(cuStreamWaitValue32)      \
	F(cuStreamWriteValue32) F(cuLaunchHostFunc) F(cuUserObjectCreate) F(cuUserObjectRetain)    \
	F(cuUserObjectRelease) F(cuGraphAddEventRecordNode) F(cuGraphAddDependencies)              \
	F(cuGraphRemoveDependencies) F(cuGraphRetainUserObject) F(cuGraphReleaseUserObject)        \
	F(cuStreamGetCaptureInfo_v3) F(cuStreamUpdateCaptureDependencies_v2)                       \
	F(cuGraphInstantiateWithFlags) F(cuGraphInstantiateWithParams) F(cuGraphUpload)            \
	F(cuGraphLaunch) F(cuGraphExecUpdate) F(cuGraphExecKernelNodeSetParams)                    \
	F(cuGraphExecChildGraphNodeSetParams) F(cuGraphExecDestroy) F(cuGraphGetNodes)             \
	F(cuGraphNodeGetType) F(cuGraphKernelNodeGetParams) F(cuGraphGetRootNodes)                 \
	F(cuGraphKernelNodeSetAttribute) F(cuGraphCreate) F(cuGraphClone) F(cuGraphAddKernelNode)  \
	F(cuGraphAddEmptyNode) F(cuGraphAddChildGraphNode) F(cuGraphChildGraphNodeGetGraph)        \
	F(cuStreamBeginCaptureToGraph)

#define ABI_C(name) {#name, (long long)(name)},
#define ABI_S(type) {"sizeof " #type, sizeof(type)},
#define ABI_O(type, field)                                                                         \
	{#type "." #field, offsetof(type, field)},                                                 \
		{"sizeof " #type "." #field, sizeof(((type *)0)->field)},

/* clang-format on */
#endif
