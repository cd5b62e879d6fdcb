/* SPDX-License-Identifier: Apache-2.0
 * The differences between a GPU and the kernels' CPU reference, where one thread does a block's
 * work. */
#ifndef KERNELS_PLATFORM_H
#define KERNELS_PLATFORM_H

#if defined(__CUDA__) || defined(__CUDACC__)
#include "platform_gpu.h"
#else
#include "platform_cpu_ref.h"
#endif

#endif
