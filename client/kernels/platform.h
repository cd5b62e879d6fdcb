/* SPDX-License-Identifier: Apache-2.0
 *
 * The few things that differ between a GPU and the kernels' twin in C, where one thread does the
 * work of a block. */
#ifndef KERNELS_PLATFORM_H
#define KERNELS_PLATFORM_H

#if defined(__CUDA__) || defined(__CUDACC__)
#include "platform_gpu.h"
#else
#include "platform_twin.h"
#endif

#endif
