/* SPDX-License-Identifier: Apache-2.0
 * A rank's GPU: the driver, a context, buffers. Only processes that the tests fork may use it,
 * because CUDA does not work in children of a process that has initialized it. Errors are CHECK
 * failures. */
#ifndef TESTS_GPU_CONTEXT_H
#define TESTS_GPU_CONTEXT_H

#include "proto/abi/cuda_graph_abi.h"
#include "tests/integration/harness.h"

#define DRIVER_POINTER(function, name, parameters) CUresult(*function) parameters;
struct driver {
	CUDA_FUNCTIONS(DRIVER_POINTER)
	CUDA_CAPTURE_FUNCTIONS(DRIVER_POINTER)
};
#undef DRIVER_POINTER
extern struct driver cu;

void check_cuda(const char *file, int line, const char *call, CUresult result);
#define CHECK_CU(call) check_cuda(__FILE__, __LINE__, #call, call)

/* Opens the driver. Returns the number of GPUs; or -1, with the reason in text. */
int gpu_driver_open(char *text, size_t size);
/* A driver function by name; NULL if the driver, or the stand-in, lacks it. */
void *gpu_function(const char *name);

/* Makes the GPU's primary context current on this thread. */
void gpu_use(int ordinal);
size_t gpu_unused_memory(void);
/* Waits until that much memory is unused: freed memory may take a moment. False: timeout_ms has
 * passed. */
bool gpu_has_unused(size_t least, unsigned timeout_ms);
/* Compute capability, such as 90 for 9.0. */
int gpu_capability(int ordinal);
CUstream gpu_stream(void);

enum memory_kind { MEMORY_ALLOC, MEMORY_VMM, MEMORY_SESSION, MEMORY_KINDS };
const char *memory_name(enum memory_kind kind);

struct buffer {
	enum memory_kind kind;
	ncclsvc_session *session; /* for MEMORY_SESSION */
	CUdeviceptr p;
	size_t bytes;
};
/* VMM memory can be exported as a POSIX fd. */
void buffer_make(struct buffer *b, enum memory_kind kind, int ordinal, ncclsvc_session *session,
		 size_t bytes);
void buffer_free(struct buffer *b);

/* A device address as a pointer, for the client's API. */
static inline void *at(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

/* Both return when the copy is complete. */
void gpu_put(CUdeviceptr to, const void *from, size_t bytes);
void gpu_get(void *to, CUdeviceptr from, size_t bytes);
/* gpu_fill writes n words of one value; gpu_check checks them. */
void gpu_fill(CUdeviceptr to, uint32_t value, size_t n);
void gpu_check(CUdeviceptr p, uint32_t value, size_t n, const char *what);

/* Keeps the stream busy for a while: rounds of filling scratch memory. */
void gpu_delay(CUstream stream, CUdeviceptr scratch, size_t bytes, unsigned rounds);
/* Waits up to ms, without blocking in the driver, until the stream has run everything. False: it
 * has not. */
bool gpu_stream_ends(CUstream stream, unsigned ms);

#endif
