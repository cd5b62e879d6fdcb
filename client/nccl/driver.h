/* SPDX-License-Identifier: Apache-2.0
 * CUDA's driver, as far as this library asks it itself. */
#ifndef NCCL_DRIVER_H
#define NCCL_DRIVER_H

#include "dropin.h"
#include "proto/cuda_driver.h"

ncclResult_t driver_open(const struct cuda **cuda);

#endif
