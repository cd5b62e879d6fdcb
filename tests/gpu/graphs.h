/* SPDX-License-Identifier: Apache-2.0
 * Helpers for tests of operations captured into CUDA graphs. */
#ifndef TESTS_GPU_GRAPHS_H
#define TESTS_GPU_GRAPHS_H

#include "kernels.h"

/* Starts capturing the stream, in relaxed mode. */
void graph_begin(CUstream stream);
/* Ends the capture, and returns the graph. */
CUgraph graph_captured(CUstream stream);
/* Ends the capture, instantiates the graph, and destroys it. */
CUgraphExec graph_end(CUstream stream);
/* Ends the capture, and destroys the graph. */
void graph_drop(CUstream stream);
CUgraphExec graph_instantiate(CUgraph graph);
void graph_launch(CUgraphExec exec, CUstream stream);
void graph_destroy(CUgraphExec exec);
/* Waits until the communicator has only n graphs: the driver destroys them on its own thread. */
void graphs_reach(struct rank *r, unsigned n);
/* Ends the capture, and updates exec from the graph, which must have the same shape, like JAX. The
 * graph is destroyed. */
void graph_update(CUgraphExec exec, CUstream stream);

CUgraph graph_new(void);
/* Adds a node with a copy of the child graph, behind node `after` unless that is NULL. The child is
 * destroyed. */
CUgraphNode graph_add_child(CUgraph graph, CUgraphNode after, CUgraph child);
/* Replaces the node's child in later launches by this one of the same shape, which is destroyed. */
void graph_set_child(CUgraphExec exec, CUgraphNode node, CUgraph child);

/* Captures an in-place sum, and checks that it has no task. */
void graph_sum(struct rank *r, CUdeviceptr p, size_t n);

#endif
