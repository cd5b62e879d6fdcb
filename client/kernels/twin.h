/* SPDX-License-Identifier: Apache-2.0
 * A kernel's twin in C. It returns when the operation is over; its addresses are the process's. */
#ifndef KERNELS_TWIN_H
#define KERNELS_TWIN_H

#include "proto/abi/peer.h"

void ncclsvc_peer_collective(struct peer_call call);

#endif
