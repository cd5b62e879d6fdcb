/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver, for calls that this library makes itself. */
#ifndef NCCL_DRIVER_H
#define NCCL_DRIVER_H

#include "dropin.h"
#include "proto/cuda_driver.h"

ncclResult_t driver_open(const struct cuda **cuda);

#endif
