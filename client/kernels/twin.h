/* SPDX-License-Identifier: Apache-2.0
 * A kernel's twin in C. It returns when the operation is over; its addresses are the process's. */
#ifndef KERNELS_TWIN_H
#define KERNELS_TWIN_H

#include "proto/abi/peer.h"

void ncclsvc_peer_collective(struct peer_call call);
void ncclsvc_peer_bulk(struct peer_call call);

/* Called by a kernel of this thread that waits, now and then; it may leave the kernel by longjmp.
 * NULL: nothing is called. */
extern _Thread_local void (*ncclsvc_peer_rest)(void);

#endif
