/* SPDX-License-Identifier: Apache-2.0
 * The public headers. Their functions are exported; everything else is hidden. */
#ifndef CLIENT_BASE_API_H
#define CLIENT_BASE_API_H

#pragma GCC visibility push(default)
#include "ncclsvc.h"
#include "ncclsvc_plan.h"
#include "ncclsvc_tensors.h"
#include "ncclsvc_world.h"
#pragma GCC visibility pop

#endif
