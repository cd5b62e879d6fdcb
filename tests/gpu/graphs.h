/* SPDX-License-Identifier: Apache-2.0
 * For tests of operations captured into CUDA graphs. */
#ifndef TESTS_GPU_GRAPHS_H
#define TESTS_GPU_GRAPHS_H

#include "kernels.h"

/* Starts capturing the stream, in the mode that ignores other threads' calls. */
void graph_begin(CUstream stream);
/* Ends the capture, and returns the graph. */
CUgraph graph_captured(CUstream stream);
/* The same, instantiated. The graph itself is destroyed. */
CUgraphExec graph_end(CUstream stream);
/* Ends the capture, and destroys the graph. */
void graph_drop(CUstream stream);
CUgraphExec graph_instantiate(CUgraph graph);
void graph_launch(CUgraphExec exec, CUstream stream);
void graph_destroy(CUgraphExec exec);
/* Updates it with what the stream has captured, of the same shape, as JAX does. The graph is
 * destroyed. */
void graph_update(CUgraphExec exec, CUstream stream);

CUgraph graph_new(void);
/* Adds a node with a copy of the child graph, which is destroyed, after another node or none
 * (NULL). */
CUgraphNode graph_add_child(CUgraph graph, CUgraphNode after, CUgraph child);
/* Later launches run this child, of the same shape, in the node's place. The child is destroyed. */
void graph_set_child(CUgraphExec exec, CUgraphNode node, CUgraph child);

/* Captures an in-place sum, which is not a task. */
void graph_sum(struct rank *r, CUdeviceptr p, size_t n);

#endif
