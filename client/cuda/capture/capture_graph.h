/* SPDX-License-Identifier: Apache-2.0
 * CUDA graphs that contain a communicator's operations, and the order of all its operations on
 * streams, in graphs and outside. */
#ifndef CLIENT_CUDA_CAPTURE_GRAPH_H
#define CLIENT_CUDA_CAPTURE_GRAPH_H

#include "cuda/direct/peer.h"

/* A graph into which the communicator's kernels were captured. Its user object keeps this record
 * alive. */
struct peer_graph {
	struct peer_graph *next; /* next in peer.graphs */
	uint64_t capture;	 /* the driver's id of the capture */
	uint32_t number;	 /* number among the member's graphs in the epoch, from 1 */
	uint32_t operations;	 /* how many operations it has */
	CUgraph graph;		 /* valid while it is being captured */
	CUstream stream;	 /* stream of the newest kernel */
	CUgraphNode kernel;	 /* node of this kernel */
	CUgraphNode record;	 /* node that records peer.order behind it */
	struct peer *peer;
	atomic_bool gone; /* the graph and all its instances are destroyed */
};

/* Sets the error of a refused capture. */
ncclsvc_result peer_cannot_detach(void);
ncclsvc_result peer_cannot_capture(void);
/* Makes the stream wait until all blocks of the kernel, or of later ones, have reported their end.
 * The context must be current, also for the next functions. */
CUresult peer_wait_ended(const struct peer *p, CUstream stream, uint32_t kernel_seq,
			 unsigned blocks);
/* Makes `stream` wait for the work that is on `from` now. */
CUresult peer_follow(const struct peer *p, CUevent event, CUstream from, CUstream stream);
/* Makes the kernel's stream wait for the work on the operations' streams. `done`: the one whose
 * work it already waits for. */
CUresult peer_streams_join(const struct op *ops, unsigned n, const struct peer *p, CUstream stream,
			   const struct op *done);
/* Whether any graph can still be launched. */
static inline bool peer_graphs_live(const struct peer *p)
{
	return atomic_load_explicit(&p->ngraphs, memory_order_acquire) !=
		       atomic_load_explicit(&p->graphs_gone, memory_order_acquire) ||
	       atomic_load_explicit(&p->ncaptured_groups, memory_order_acquire) !=
		       atomic_load_explicit(&p->captured_groups_gone, memory_order_acquire);
}
/* Captures beside kernels (captured_group.c). Except for _position, call with the turn held and the
 * stream's context current; the graph is that of the stream's capture. */
struct peer_graph_position {
	uint32_t graph, operation; /* numbers of the next operation, from 0 */
};
ncclsvc_result peer_graph_position(const struct op *op, struct peer_graph_position *at);
/* Orders the stream's next entry behind everything of the communicator in the graph. */
CUresult peer_graph_follow(struct peer *p, CUstream stream);
/* Notes that the last entry contains that many operations. */
CUresult peer_graph_note(const struct op *op, unsigned n, CUstream stream);
/* Calls gone(arg) when the graph is gone, or at once if this fails. Call without the turn. */
CUresult peer_graph_hold(const struct peer *p, CUstream stream, void *arg, void (*gone)(void *));
/* Whether streams are done with everything that recorded the ordering event. */
bool peer_order_reached(const struct peer *p);
/* Whether all launched graphs have ended. */
bool peer_graphs_quiet(const struct peer *p);
/* Frees the records of graphs that are gone. Call with the turn, or with the only reference to p.
 */
void peer_graphs_sweep(struct peer *p);

#endif
