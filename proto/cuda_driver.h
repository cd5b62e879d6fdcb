/* SPDX-License-Identifier: Apache-2.0
 * CUDA's driver, opened at run time. */
#ifndef PROTO_CUDA_DRIVER_H
#define PROTO_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "abi/cuda_graph_abi.h"

#define CUDA_DRIVER_SONAME	   "libcuda.so.1"
#define CUDA_DRIVER_VERSION_NEEDED 12000

#define CUDA_POINTER(function, name, parameters) CUresult(*function) parameters;
struct cuda {
	CUDA_FUNCTIONS(CUDA_POINTER)
	CUDA_KERNEL_FUNCTIONS(CUDA_POINTER)
	/* NULL if the driver does not have it. */
	CUDA_CAPTURE_FUNCTIONS(CUDA_POINTER)
	CUDA_OPTIONAL_FUNCTIONS(CUDA_POINTER)
};
#undef CUDA_POINTER

/* Opens the library, fills the table and checks the driver's version, without initializing the
 * driver. False, with a sentence in text, if it is missing or too old. */
bool cuda_driver_load(struct cuda *cuda, int *version, char *text, size_t size);

/* The driver, loaded and initialized at the process's first call. NULL if it cannot be used; then
 * *why gives the reason, at every call. */
const struct cuda *cuda_driver(const char **why);

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)". cuda must be loaded. */
void cuda_driver_error(const struct cuda *cuda, CUresult error, char *text, size_t size);

/* Until relaxed_end, this thread's calls do not invalidate a capture of a stream that they do not
 * name. Returns the argument for relaxed_end. */
static inline int relaxed_begin(const struct cuda *cuda)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (!cuda->cuThreadExchangeStreamCaptureMode)
		return -1;
	return cuda->cuThreadExchangeStreamCaptureMode(&mode) ? -1 : mode;
}

static inline void relaxed_end(const struct cuda *cuda, int mode)
{
	if (mode >= 0)
		cuda->cuThreadExchangeStreamCaptureMode(&mode);
}

#endif
