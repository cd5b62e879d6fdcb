/* SPDX-License-Identifier: Apache-2.0
 * For tests of operations that are captured into CUDA graphs. */
#ifndef TESTS_GPU_GRAPHS_H
#define TESTS_GPU_GRAPHS_H

#include "kernels.h"

/* From here on the stream is captured, without regard for other threads' calls. */
void graph_begin(CUstream stream);
/* What was captured. */
CUgraph graph_captured(CUstream stream);
/* The same, ready to be launched. The graph itself is destroyed. */
CUgraphExec graph_end(CUstream stream);
/* The capture is over; what was captured goes. */
void graph_drop(CUstream stream);
CUgraphExec graph_instantiate(CUgraph graph);
void graph_launch(CUgraphExec exec, CUstream stream);
void graph_destroy(CUgraphExec exec);
/* Gives it what the stream has captured, which is alike; as JAX does. The graph is destroyed. */
void graph_update(CUgraphExec exec, CUstream stream);

CUgraph graph_new(void);
/* A node with a copy of the child, which is destroyed, behind another node or none (NULL). */
CUgraphNode graph_add_child(CUgraph graph, CUgraphNode after, CUgraph child);
/* Later launches run this child, which is alike, in the node's place. It is destroyed. */
void graph_set_child(CUgraphExec exec, CUgraphNode node, CUgraph child);

/* A sum in place, captured: it is no task. */
void graph_sum(struct rank *r, CUdeviceptr p, size_t n);

#endif
