/* SPDX-License-Identifier: Apache-2.0
 * From operations to kernels. */
#ifndef CLIENT_CUDA_PEER_KERNEL_H
#define CLIENT_CUDA_PEER_KERNEL_H

#include "peer.h"

/* ---- peer_kernel.c ---- */

/* The kernel for an operation. All members choose the same. */
enum kernel peer_choose(const struct op *op);
/* Decides how many of the n operations the first one's kernel does, and notes it in each of them.
 */
unsigned peer_join(struct op *ops, unsigned n);
uint64_t peer_header_of(const struct svc_record *r);
/* Puts the kernel of n operations on the stream. graph: the graph into which it is captured, or
 * NULL. The context must be current. */
CUresult peer_put(const struct op *ops, unsigned n, const struct peer *p, CUstream stream,
		  const struct capture_graph *graph);

/* ---- copies.c ---- */

/* The most entries that an operation puts on a stream. */
#define COPIES_ENTRIES 24

/* Whether copy engines do the operation, which is one for KERNEL_DIRECT. */
bool copies_choose(const struct op *op);
/* Puts the copies on the stream, with kernels between them, and at the end, even after a failure.
 * call: the argument of the last kernel. The context must be current. */
CUresult copies_put(const struct op *op, const struct peer *p, const struct peer_call *call,
		    CUstream stream);

#endif
