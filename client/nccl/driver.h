/* SPDX-License-Identifier: Apache-2.0
 * CUDA's driver, as far as this library asks it itself. */
#ifndef NCCL_DRIVER_H
#define NCCL_DRIVER_H

#include "dropin.h"
#include "proto/cuda_abi.h"

#define DRIVER_POINTER(function, name, parameters) CUresult(*function) parameters;
struct driver {
	/* Only those that driver.c looks up are set. */
	CUDA_FUNCTIONS(DRIVER_POINTER)
};
#undef DRIVER_POINTER

ncclResult_t driver_open(const struct driver **cuda);

#endif
