/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture and graphs in CUDA's driver API, for captured work and for programs that capture,
 * in the style of cuda_abi.h. If drivers have several versions of a function, its name here
 * includes the version. */
#ifndef PROTO_CUDA_GRAPH_ABI_H
#define PROTO_CUDA_GRAPH_ABI_H

#include "cuda_abi.h"

typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUuserObject_st *CUuserObject;
typedef void (*CUhostFn)(void *arg);

enum {
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
	CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
	CUDA_ERROR_CAPTURED_EVENT = 907,
	CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
	CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
};

enum { CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2 };
enum { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1 };
enum { CU_STREAM_ADD_CAPTURE_DEPENDENCIES = 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1 };
enum { CU_EVENT_RECORD_DEFAULT = 0, CU_EVENT_RECORD_EXTERNAL = 1 };
enum { CU_EVENT_WAIT_DEFAULT = 0, CU_EVENT_WAIT_EXTERNAL = 1 };
enum { CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1, CU_GRAPH_USER_OBJECT_MOVE = 1 };

enum {
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_MEMCPY = 1,
	CU_GRAPH_NODE_TYPE_MEMSET = 2,
	CU_GRAPH_NODE_TYPE_HOST = 3,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_GRAPH_NODE_TYPE_EMPTY = 5,
	CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
	CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
	CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
};

enum {
	CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
	CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
	CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8,
};
enum { CU_LAUNCH_ATTRIBUTE_PRIORITY = 8 };
enum { CUDA_GRAPH_INSTANTIATE_SUCCESS = 0, CUDA_GRAPH_INSTANTIATE_ERROR = 1 };

enum {
	CU_GRAPH_EXEC_UPDATE_SUCCESS = 0,
	CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED = 2,
	CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED = 3,
	CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED = 5,
};

typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
	CUfunction func;
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void **kernelParams, **extra;
	void *kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef union CUlaunchAttributeValue_union {
	char pad[64];
	uint64_t aligned;
} CUlaunchAttributeValue;

typedef struct CUgraphEdgeData_st {
	unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS_st {
	uint64_t flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct CUgraphExecUpdateResultInfo_st {
	int result;
	CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

/* The library's needs for graphs that its work is captured into. */
#define CUDA_CAPTURE_FUNCTIONS(X)                                                                  \
	X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))     \
	X(cuStreamGetCaptureInfo_v2, "cuStreamGetCaptureInfo_v2",                                  \
	  (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **after,  \
	   size_t *n))                                                                             \
	X(cuStreamUpdateCaptureDependencies, "cuStreamUpdateCaptureDependencies",                  \
	  (CUstream stream, CUgraphNode * after, size_t n, unsigned flags))                        \
	X(cuEventRecordWithFlags, "cuEventRecordWithFlags",                                        \
	  (CUevent event, CUstream stream, unsigned flags))                                        \
	X(cuStreamWaitValue32, "cuStreamWaitValue32_v2",                                           \
	  (CUstream stream, CUdeviceptr p, uint32_t value, unsigned flags))                        \
	X(cuStreamWriteValue32, "cuStreamWriteValue32_v2",                                         \
	  (CUstream stream, CUdeviceptr p, uint32_t value, unsigned flags))                        \
	X(cuLaunchHostFunc, "cuLaunchHostFunc", (CUstream stream, CUhostFn function, void *arg))   \
	X(cuUserObjectCreate, "cuUserObjectCreate",                                                \
	  (CUuserObject * object, void *arg, CUhostFn destroy, unsigned n, unsigned flags))        \
	X(cuUserObjectRetain, "cuUserObjectRetain", (CUuserObject object, unsigned n))             \
	X(cuUserObjectRelease, "cuUserObjectRelease", (CUuserObject object, unsigned n))           \
	X(cuGraphAddEventRecordNode, "cuGraphAddEventRecordNode",                                  \
	  (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t n, CUevent event))  \
	X(cuGraphAddDependencies, "cuGraphAddDependencies",                                        \
	  (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n))               \
	X(cuGraphRemoveDependencies, "cuGraphRemoveDependencies",                                  \
	  (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n))               \
	X(cuGraphRetainUserObject, "cuGraphRetainUserObject",                                      \
	  (CUgraph graph, CUuserObject object, unsigned n, unsigned flags))                        \
	X(cuGraphReleaseUserObject, "cuGraphReleaseUserObject",                                    \
	  (CUgraph graph, CUuserObject object, unsigned n))

/* For programs that launch graphs. */
#define CUDA_GRAPH_FUNCTIONS(X)                                                                    \
	X(cuStreamGetCaptureInfo_v3, "cuStreamGetCaptureInfo_v3",                                  \
	  (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **after,  \
	   const CUgraphEdgeData **edges, size_t *n))                                              \
	X(cuStreamUpdateCaptureDependencies_v2, "cuStreamUpdateCaptureDependencies_v2",            \
	  (CUstream stream, CUgraphNode * after, const CUgraphEdgeData *edges, size_t n,           \
	   unsigned flags))                                                                        \
	X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                              \
	  (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                           \
	X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams",                            \
	  (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * params))             \
	X(cuGraphUpload, "cuGraphUpload", (CUgraphExec exec, CUstream stream))                     \
	X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream))                     \
	X(cuGraphExecUpdate, "cuGraphExecUpdate_v2",                                               \
	  (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo * result))                 \
	X(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams_v2",                     \
	  (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params))             \
	X(cuGraphExecChildGraphNodeSetParams, "cuGraphExecChildGraphNodeSetParams",                \
	  (CUgraphExec exec, CUgraphNode node, CUgraph child))                                     \
	X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec))                            \
	X(cuGraphGetNodes, "cuGraphGetNodes", (CUgraph graph, CUgraphNode * nodes, size_t * n))    \
	X(cuGraphNodeGetType, "cuGraphNodeGetType", (CUgraphNode node, int *type))                 \
	X(cuGraphKernelNodeGetParams, "cuGraphKernelNodeGetParams_v2",                             \
	  (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS * params))                                    \
	X(cuGraphGetRootNodes, "cuGraphGetRootNodes",                                              \
	  (CUgraph graph, CUgraphNode * nodes, size_t * n))                                        \
	X(cuGraphKernelNodeSetAttribute, "cuGraphKernelNodeSetAttribute",                          \
	  (CUgraphNode node, int id, const CUlaunchAttributeValue *value))                         \
	X(cuGraphCreate, "cuGraphCreate", (CUgraph * graph, unsigned flags))                       \
	X(cuGraphClone, "cuGraphClone", (CUgraph * clone, CUgraph graph))                          \
	X(cuGraphAddKernelNode, "cuGraphAddKernelNode_v2",                                         \
	  (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t n,                  \
	   const CUDA_KERNEL_NODE_PARAMS *params))                                                 \
	X(cuGraphAddEmptyNode, "cuGraphAddEmptyNode",                                              \
	  (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t n))                 \
	X(cuGraphAddChildGraphNode, "cuGraphAddChildGraphNode",                                    \
	  (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t n, CUgraph child))  \
	X(cuGraphChildGraphNodeGetGraph, "cuGraphChildGraphNodeGetGraph",                          \
	  (CUgraphNode node, CUgraph * child))                                                     \
	X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph",                              \
	  (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, \
	   size_t n, int mode))

#endif
