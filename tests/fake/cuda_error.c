/* SPDX-License-Identifier: Apache-2.0
 * Errors by name. */
#include "fake.h"

/* X(error, text) */
#define ERRORS(X)                                                                                  \
	X(CUDA_SUCCESS, "no error")                                                                \
	X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                            \
	X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                               \
	X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                      \
	X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                        \
	X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                              \
	X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                     \
	X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                    \
	X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                \
	X(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped")                                    \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                     \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported")                      \
	X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                \
	X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                    \
	X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                          \
	X(CUDA_ERROR_NOT_READY, "device not ready")                                                \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                  \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                    \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "memory has already been registered")         \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                                 \
	X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                  \
	X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                     \
	X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                     \
	X(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")                               \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS server")      \
	X(CUDA_ERROR_MPS_RPC_FAILURE, "remote procedure call to MPS server failed")                \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY, "the MPS server is not ready")                          \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,                                                   \
	  "operation not permitted when stream is capturing")                                      \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                      \
	  "operation would make the legacy stream depend on a "                                    \
	  "capturing blocking stream")                                                             \
	X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")      \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                                   \
	  "operation failed due to a previous error during capture")                               \
	X(CUDA_ERROR_STREAM_CAPTURE_MERGE,                                                         \
	  "operation would result in a merge of separate capture sequences")                       \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,                                                     \
	  "capture was not ended in the same stream as it began")                                  \
	X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                \
	X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,                                                     \
	  "dependency created on uncaptured work in another stream")                               \
	X(CUDA_ERROR_CAPTURED_EVENT,                                                               \
	  "operation not permitted on an event last recorded in a capturing stream")               \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                  \
	  "attempt to terminate a thread-local capture sequence from another thread")              \
	X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,                                                    \
	  "the graph update was not performed because it included changes which violated "         \
	  "constraints specific to instantiated graph update")                                     \
	X(CUDA_ERROR_UNKNOWN, "unknown error")

CUresult cuGetErrorName(CUresult error, const char **name)
{
	switch (error) {
#define NAME(value, text)                                                                          \
	case value:                                                                                \
		*name = #value;                                                                    \
		return CUDA_SUCCESS;
		ERRORS(NAME)
#undef NAME
	}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	switch (error) {
#define TEXT(value, sentence)                                                                      \
	case value:                                                                                \
		*text = sentence;                                                                  \
		return CUDA_SUCCESS;
		ERRORS(TEXT)
#undef TEXT
	}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
