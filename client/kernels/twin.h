/* SPDX-License-Identifier: Apache-2.0
 * The kernels' twins in C. A call runs one block, and returns when that has ended; addresses are
 * the process's. */
#ifndef KERNELS_TWIN_H
#define KERNELS_TWIN_H

#include "proto/abi/peer.h"

void ncclsvc_peer_collective(struct peer_call call);
void ncclsvc_peer_bulk(struct peer_call call);
void ncclsvc_peer_messages(struct peer_messages messages);

/* The block that this thread runs: by default the only one. A collective's blocks may run in turn,
 * or in threads; those of a kernel of messages, in threads. */
struct peer_block {
	uint32_t number, of;
};
extern _Thread_local struct peer_block ncclsvc_peer_block;

/* Called by a kernel of this thread that waits, now and then; it may leave the kernel by longjmp.
 * NULL: nothing is called. */
extern _Thread_local void (*ncclsvc_peer_rest)(void);

#endif
