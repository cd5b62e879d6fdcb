/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in for libnccl.so.2, only for tests. A communicator is a file in NCCLSVC_FAKE_DIR that
 * all ranks map: data passes through it, and the streams' threads do all computation. */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include "fake_cuda.h"
#include "proto/abi/nccl_abi.h"

#pragma GCC visibility push(default)
#define FAKE_DECLARE(function, result, parameters) result function parameters;
NCCL_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
#pragma GCC visibility pop

#endif
