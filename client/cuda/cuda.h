/* SPDX-License-Identifier: Apache-2.0
 * CUDA's driver in a session: errors are the library's. */
#ifndef CLIENT_CUDA_H
#define CLIENT_CUDA_H

#include "base/error.h"
#include "proto/cuda_driver.h"

/* NULL, with the error set (UNSUPPORTED), if there is no driver to use. The same each time. */
const struct cuda *cuda_open(void);
/* By this library, or by the program before. */
bool cuda_is_initialized(void);
/* Sets the error: what failed, and CUDA's name and words for why. */
ncclsvc_result cuda_error(const struct cuda *cuda, CUresult error, const char *what);
/* OK or INVALID_ARGUMENT. */
ncclsvc_result cuda_device(const struct cuda *cuda, int ordinal, CUdevice *device);

/* The driver has all that captures need. */
bool cuda_captures(const struct cuda *cuda);

/* Until relaxed_end, no call of this thread's spoils a capture of a stream that it does not name.
 * Returns what relaxed_end takes. */
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

/* Makes the context current, unless it is NULL. If that succeeds, cuda_pop undoes it. */
static inline CUresult cuda_push(const struct cuda *cuda, CUcontext context)
{
	return context ? cuda->cuCtxPushCurrent(context) : CUDA_SUCCESS;
}

static inline void cuda_pop(const struct cuda *cuda, CUcontext context)
{
	if (context)
		cuda->cuCtxPopCurrent(&context);
}

#endif
