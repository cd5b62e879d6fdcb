/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver in a session; its errors become the library's. */
#ifndef CLIENT_CUDA_H
#define CLIENT_CUDA_H

#include "base/error.h"
#include "proto/cuda_driver.h"

/* NULL, with the error set (UNSUPPORTED), if there is no usable driver. Returns the same each time.
 */
const struct cuda *cuda_open(void);
/* Whether this library, or the program before it, has initialized CUDA. */
bool cuda_is_initialized(void);
/* Sets the error: what failed, and CUDA's name and description of the reason. */
ncclsvc_result cuda_error(const struct cuda *cuda, CUresult error, const char *what);
/* OK or INVALID_ARGUMENT. */
ncclsvc_result cuda_device(const struct cuda *cuda, int ordinal, CUdevice *device);

/* Whether the driver has all functions that captures need. */
bool cuda_captures(const struct cuda *cuda);

/* Makes the context current, unless it is NULL. On success, cuda_pop undoes it. */
static inline CUresult cuda_push(const struct cuda *cuda, CUcontext context)
{
	return context ? cuda->cuCtxPushCurrent(context) : CUDA_SUCCESS;
}

static inline void cuda_pop(const struct cuda *cuda, CUcontext context)
{
	if (context)
		cuda->cuCtxPopCurrent(&context);
}

/* ---- Stream memory operations ---- */

static inline CUstreamBatchMemOpParams memop_write_32(CUdeviceptr address, uint32_t value)
{
	return (CUstreamBatchMemOpParams){
		.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
			       .address = address,
			       .value = value}};
}

static inline CUstreamBatchMemOpParams memop_write_64(CUdeviceptr address, uint64_t value)
{
	return (CUstreamBatchMemOpParams){
		.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
			       .address = address,
			       .value64 = value,
			       .flags = CU_STREAM_WRITE_VALUE_DEFAULT}};
}

/* Waits until the word has that value, or more. */
static inline CUstreamBatchMemOpParams memop_wait_64(CUdeviceptr address, uint64_t value)
{
	return (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
							.address = address,
							.value64 = value,
							.flags = CU_STREAM_WAIT_VALUE_GEQ}};
}

#endif
