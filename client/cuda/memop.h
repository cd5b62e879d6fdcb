/* SPDX-License-Identifier: Apache-2.0
 * Stream memory operations. */
#ifndef CLIENT_CUDA_MEMOP_H
#define CLIENT_CUDA_MEMOP_H

#include "cuda.h"

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
