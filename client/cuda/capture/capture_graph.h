/* SPDX-License-Identifier: Apache-2.0
 * CUDA graphs that contain a communicator's operations, and the order of all its operations on
 * streams, in graphs and outside. */
#ifndef CLIENT_CUDA_CAPTURE_GRAPH_H
#define CLIENT_CUDA_CAPTURE_GRAPH_H

#include "capture.h"

/* A graph into which the communicator's operations were captured. Its user object keeps this record
 * alive. */
struct capture_graph {
	struct capture_graph *next; /* next in capture.graphs */
	uint64_t id;		    /* the driver's id of the capture */
	uint32_t number;	    /* number among the member's graphs in the epoch, from 1 */
	uint32_t operations;	    /* how many operations it has */
	CUgraph graph;		    /* valid while it is being captured */
	CUstream stream;	    /* stream of the newest operation */
	CUgraphNode last;	    /* its last node */
	CUgraphNode record;	    /* node that records capture.order behind it */
	struct capture *capture;
	atomic_bool gone; /* the graph and all its instances are destroyed */
};

/* Sets the error of a refused capture. */
ncclsvc_result capture_cannot_detach(void);
ncclsvc_result capture_unsupported(void);
/* Makes `stream` wait for the work that is on `from` now. */
CUresult capture_follow(const struct capture *c, CUevent event, CUstream from, CUstream stream);
/* Makes the kernel's stream wait for the work on the operations' streams. `done`: the one whose
 * work it already waits for. */
CUresult capture_streams_join(const struct op *ops, unsigned n, const struct capture *c,
			      CUstream stream, const struct op *done);
/* Captures beside kernels (captured_group.c). Except for _position, call with the turn held and the
 * stream's context current; the graph is that of the stream's capture. */
struct capture_position {
	uint32_t graph, operation; /* numbers of the next operation, from 0 */
};
ncclsvc_result capture_position(const struct op *op, struct capture_position *at);
/* Orders the stream's next entry behind everything of the communicator in the graph. */
CUresult capture_graph_follow(struct capture *c, CUstream stream);
/* Notes that the last entry contains that many operations. */
CUresult capture_graph_note(const struct op *op, unsigned n, CUstream stream);
/* Calls gone(arg) when the graph is gone, or at once if this fails. Call without the turn. */
CUresult capture_graph_hold(const struct capture *c, CUstream stream, void *arg,
			    void (*gone)(void *));
/* Whether streams are done with everything that recorded the ordering event. */
bool capture_order_reached(const struct capture *c);
/* Whether all launched graphs have ended. */
bool capture_graphs_quiet(const struct capture *c);
/* Frees the records of graphs that are gone. Call with the turn, or with the only reference to c.
 */
void capture_graphs_sweep(struct capture *c);

#endif
