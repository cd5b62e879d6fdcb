/* SPDX-License-Identifier: Apache-2.0
 * What differs between a GPU and the CPU reference of the kernels, in which one thread does a
 * block's work. */
#ifndef KERNELS_PLATFORM_H
#define KERNELS_PLATFORM_H

#if defined(__CUDA__) || defined(__CUDACC__)
#include "platform_gpu.h"
#else
#include "platform_cpu_ref.h"
#endif

#endif
