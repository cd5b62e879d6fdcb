/* SPDX-License-Identifier: Apache-2.0
 * CUDA graphs that have a communicator's operations: peer_capture.c. */
#ifndef CLIENT_CUDA_PEER_GRAPH_H
#define CLIENT_CUDA_PEER_GRAPH_H

#include "peer.h"

/* A graph that the communicator's kernels were captured into. Its user object keeps it. */
struct peer_graph {
	struct peer_graph *next; /* in peer.graphs */
	uint64_t capture;	 /* the driver's number of that */
	uint32_t number;	 /* among the member's in the epoch, from 1 */
	uint32_t operations;	 /* that it has */
	CUgraph graph;		 /* as long as it is being captured */
	CUstream stream;	 /* of the newest kernel */
	CUgraphNode kernel;	 /* that one */
	CUgraphNode record;	 /* of peer.order, behind it */
	struct peer *peer;
	bool gone; /* neither the graph nor what was instantiated of it is there; atomic */
};

/* Captures the kernel of n operations, whose streams are all captured into one graph. Not locked.
 */
ncclsvc_result peer_capture(const struct op *ops, unsigned n);
/* The same of an operation of a communicator of one rank: a copy. Locked. */
ncclsvc_result peer_capture_alone(const struct gpu *g, struct op *op);
/* Some graph can still be launched. */
static inline bool peer_graphs_live(const struct peer *p)
{
	return __atomic_load_n(&p->ngraphs, __ATOMIC_ACQUIRE) !=
		       __atomic_load_n(&p->graphs_gone, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&p->ntriggers, __ATOMIC_ACQUIRE) !=
		       __atomic_load_n(&p->triggers_gone, __ATOMIC_ACQUIRE);
}
/* Captures beside kernels (trigger.c). Called with the turn, and the context of the stream,
 * whose capture's graph is meant, but for _place. */
struct peer_graph_place {
	uint32_t graph, operation; /* the next one's, from 0 */
};
ncclsvc_result peer_graph_place(const struct op *op, struct peer_graph_place *at);
/* The stream's next entry comes behind all that the graph has of the communicator. */
CUresult peer_graph_follow(struct peer *p, CUstream stream);
/* So many operations are in what came last. */
CUresult peer_graph_note(const struct op *op, unsigned n, CUstream stream);
/* gone(arg) is called when the graph is gone, or at once, if this fails. Without the turn. */
CUresult peer_graph_hold(const struct peer *p, CUstream stream, void *arg, void (*gone)(void *));
/* Streams are through with all that recorded the event of the order. */
bool peer_order_reached(const struct peer *p);
/* The graphs that were launched have ended. */
bool peer_graphs_quiet(const struct peer *p);
/* Tells the GPU that later launches of the graphs do nothing. */
void peer_graphs_end(const struct peer *p);
/* Frees the records of graphs that are gone. With the turn, or when nobody else has p. */
void peer_graphs_sweep(struct peer *p);

#endif
