/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of CUDA's driver API that this project uses, as exported by libcuda.so.1. The library is
 * opened at run time (dynlib.h), so building needs no CUDA; tests/unit/test_abi.c compares all this
 * with cuda.h where that is installed. Names and values are NVIDIA's (CUDA 12.0 and later).
 */
#ifndef PROTO_CUDA_ABI_H
#define PROTO_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUuuid_st {
	char bytes[16];
} CUuuid;
typedef struct CUipcMemHandle_st {
	char reserved[64];
} CUipcMemHandle;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_MAP_FAILED = 205,
	CUDA_ERROR_ALREADY_MAPPED = 208,
	CUDA_ERROR_ECC_UNCORRECTABLE = 214,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_LAUNCH_TIMEOUT = 702,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_SYSTEM_NOT_READY = 802,
	CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
	CUDA_ERROR_MPS_RPC_FAILURE = 806,
	CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_ERROR_UNKNOWN = 999,
};

enum {
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
	CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133, /* for this process; old drivers do not know it */
};

enum {
	CU_COMPUTEMODE_DEFAULT = 0,
	CU_COMPUTEMODE_PROHIBITED = 2,
	CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
};

enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_MAPPED = 13,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
	CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,
};

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_UNIFIED = 4 };

enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };
enum { CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2 };

enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_STREAM_WAIT_VALUE_GEQ = 0 };
enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
enum {
	CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
	CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
	CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
	CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
};

typedef union CUstreamBatchMemOpParams_union {
	int operation;
	struct {
		int operation;
		CUdeviceptr address;
		union {
			uint32_t value;
			uint64_t value64;
		};
		unsigned flags;
		CUdeviceptr alias;
	} waitValue, writeValue;
	uint64_t pad[6];
} CUstreamBatchMemOpParams;

#define CUDA_BATCH_MEM_OPS_MAX 256

enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };

typedef struct CUmemLocation_st {
	int type;
	int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

/* X(function, exported name, (parameters)); all return CUresult. */
#define CUDA_FUNCTIONS(X)                                                                          \
	X(cuInit, "cuInit", (unsigned flags))                                                      \
	X(cuDriverGetVersion, "cuDriverGetVersion", (int *version))                                \
	X(cuGetErrorName, "cuGetErrorName", (CUresult error, const char **name))                   \
	X(cuGetErrorString, "cuGetErrorString", (CUresult error, const char **text))               \
	X(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                      \
	X(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                            \
	X(cuDeviceGetName, "cuDeviceGetName", (char *name, int size, CUdevice device))             \
	X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (CUuuid * uuid, CUdevice device))                 \
	X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, CUdevice device))              \
	X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int what, CUdevice device))   \
	X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *id, int size, CUdevice device))       \
	X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *can, CUdevice from, CUdevice to))  \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * c, CUdevice device))  \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))            \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                 \
	X(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                               \
	X(cuCtxGetDevice, "cuCtxGetDevice", (CUdevice * device))                                   \
	X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                            \
	X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                            \
	X(cuCtxSynchronize, "cuCtxSynchronize", (void))                                            \
	X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", (CUcontext peer, unsigned flags))        \
	X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * unused, size_t * total))                      \
	X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * p, size_t bytes))                            \
	X(cuMemFree, "cuMemFree_v2", (CUdeviceptr p))                                              \
	X(cuMemAllocAsync, "cuMemAllocAsync", (CUdeviceptr * p, size_t bytes, CUstream stream))    \
	X(cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr p, CUstream stream))                      \
	X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr to, const void *from, size_t bytes))       \
	X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, CUdeviceptr from, size_t bytes))             \
	X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                               \
	  (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                       \
	X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                                               \
	  (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                             \
	X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                               \
	  (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                       \
	X(cuMemsetD8Async, "cuMemsetD8Async",                                                      \
	  (CUdeviceptr p, unsigned char value, size_t bytes, CUstream stream))                     \
	X(cuMemsetD32Async, "cuMemsetD32Async",                                                    \
	  (CUdeviceptr p, unsigned value, size_t words, CUstream stream))                          \
	X(cuMemGetAddressRange, "cuMemGetAddressRange_v2",                                         \
	  (CUdeviceptr * base, size_t * bytes, CUdeviceptr p))                                     \
	X(cuPointerGetAttribute, "cuPointerGetAttribute", (void *value, int what, CUdeviceptr p))  \
	X(cuPointerGetAttributes, "cuPointerGetAttributes",                                        \
	  (unsigned n, int *what, void **values, CUdeviceptr p))                                   \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle * handle, CUdeviceptr p))        \
	X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2",                                             \
	  (CUdeviceptr * p, CUipcMemHandle handle, unsigned flags))                                \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr p))                             \
	X(cuMemHostRegister, "cuMemHostRegister_v2", (void *p, size_t bytes, unsigned flags))      \
	X(cuMemHostUnregister, "cuMemHostUnregister", (void *p))                                   \
	X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2",                               \
	  (CUdeviceptr * p, void *host, unsigned flags))                                           \
	X(cuMemCreate, "cuMemCreate",                                                              \
	  (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,   \
	   unsigned long long flags))                                                              \
	X(cuMemRelease, "cuMemRelease", (CUmemGenericAllocationHandle handle))                     \
	X(cuMemAddressReserve, "cuMemAddressReserve",                                              \
	  (CUdeviceptr * p, size_t bytes, size_t alignment, CUdeviceptr at,                        \
	   unsigned long long flags))                                                              \
	X(cuMemAddressFree, "cuMemAddressFree", (CUdeviceptr p, size_t bytes))                     \
	X(cuMemMap, "cuMemMap",                                                                    \
	  (CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,        \
	   unsigned long long flags))                                                              \
	X(cuMemUnmap, "cuMemUnmap", (CUdeviceptr p, size_t bytes))                                 \
	X(cuMemSetAccess, "cuMemSetAccess",                                                        \
	  (CUdeviceptr p, size_t bytes, const CUmemAccessDesc *access, size_t n))                  \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                            \
	  (void *shareable, CUmemGenericAllocationHandle handle, int type,                         \
	   unsigned long long flags))                                                              \
	X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle",                        \
	  (CUmemGenericAllocationHandle * handle, void *shareable, int type))                      \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle",                              \
	  (CUmemGenericAllocationHandle * handle, void *p))                                        \
	X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                          \
	  (size_t * bytes, const CUmemAllocationProp *prop, int option))                           \
	X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle",        \
	  (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))                       \
	X(cuStreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags))                   \
	X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority",                                \
	  (CUstream * stream, unsigned flags, int priority))                                       \
	X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *least, int *greatest)) \
	X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                \
	X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                           \
	X(cuStreamQuery, "cuStreamQuery", (CUstream stream))                                       \
	X(cuStreamGetFlags, "cuStreamGetFlags", (CUstream stream, unsigned *flags))                \
	X(cuStreamGetCtx, "cuStreamGetCtx", (CUstream stream, CUcontext * context))                \
	X(cuStreamGetId, "cuStreamGetId", (CUstream stream, unsigned long long *id))               \
	X(cuStreamIsCapturing, "cuStreamIsCapturing", (CUstream stream, int *status))              \
	X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode))            \
	X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))            \
	X(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))                                       \
	X(cuStreamWaitValue64, "cuStreamWaitValue64_v2",                                           \
	  (CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags))                        \
	X(cuStreamWriteValue64, "cuStreamWriteValue64_v2",                                         \
	  (CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags))                        \
	X(cuStreamBatchMemOp, "cuStreamBatchMemOp_v2",                                             \
	  (CUstream stream, unsigned n, CUstreamBatchMemOpParams *ops, unsigned flags))            \
	X(cuStreamWaitEvent, "cuStreamWaitEvent",                                                  \
	  (CUstream stream, CUevent event, unsigned flags))                                        \
	X(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                       \
	X(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                        \
	X(cuEventQuery, "cuEventQuery", (CUevent event))                                           \
	X(cuEventSynchronize, "cuEventSynchronize", (CUevent event))                               \
	X(cuEventElapsedTime, "cuEventElapsedTime", (float *ms, CUevent from, CUevent to))         \
	X(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))

/* Custom kernels. */
#define CUDA_KERNEL_FUNCTIONS(X)                                                                   \
	X(cuModuleLoadData, "cuModuleLoadData", (CUmodule * module, const void *image))            \
	X(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                     \
	X(cuModuleGetFunction, "cuModuleGetFunction",                                              \
	  (CUfunction * function, CUmodule module, const char *name))                              \
	X(cuLaunchKernel, "cuLaunchKernel",                                                        \
	  (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
	   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,            \
	   CUstream stream, void **parameters, void **extra))

/* Missing in drivers older than CUDA 12.4. */
#define CUDA_OPTIONAL_FUNCTIONS(X) X(cuFuncLoad, "cuFuncLoad", (CUfunction function))

#endif
