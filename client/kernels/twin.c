/* SPDX-License-Identifier: Apache-2.0
 * The kernels as C: see platform.h. */
#include "collective.cu"
