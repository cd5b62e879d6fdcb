/* SPDX-License-Identifier: Apache-2.0
 * The CPU reference: the kernels built for the CPU. A call runs one block, and returns when it has
 * ended; addresses are those of the process. */
#ifndef KERNELS_CPU_REF_H
#define KERNELS_CPU_REF_H

#include "proto/abi/peer_abi.h"

void ncclsvc_peer_collective(struct peer_call call);
void ncclsvc_peer_direct(struct peer_call call); /* runs the variant for the call */
void ncclsvc_peer_messages(struct peer_messages messages);

/* The block that this thread runs; by default it is the only one. A collective's blocks may run in
 * turn or in threads; those of a message kernel must run in threads. */
struct peer_block {
	uint32_t number, of;
};
extern _Thread_local struct peer_block ncclsvc_peer_block;

/* Called now and then by a kernel that waits in this thread; it may leave the kernel by longjmp.
 * NULL: no call. */
extern _Thread_local void (*ncclsvc_peer_rest)(void);

/* Returns where this process accesses an address of a peer's buffer, which a kernel has looked up.
 * NULL: there. */
extern _Thread_local uint64_t (*ncclsvc_peer_reach)(uint64_t at);

#endif
