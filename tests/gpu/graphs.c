/* SPDX-License-Identifier: Apache-2.0 */
#include "graphs.h"

/* A driver function that only programs call: the library's tables do not have it. */
static void *function(const char *name)
{
	void *f = gpu_function(name);
	CHECK(f);
	return f;
}

#define CALL(name, type, ...)                                                                      \
	do {                                                                                       \
		CUresult(*call) type;                                                              \
		*(void **)&call = function(#name);                                                 \
		CHECK_CU(call(__VA_ARGS__));                                                       \
	} while (0)

void graph_begin(CUstream stream)
{
	CHECK_CU(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

CUgraphExec graph_instantiate(CUgraph graph)
{
	CUgraphExec exec;
	CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long), &exec,
	     graph, 0);
	return exec;
}

CUgraph graph_captured(CUstream stream)
{
	CUgraph graph;
	CHECK_CU(cu.cuStreamEndCapture(stream, &graph));
	return graph;
}

CUgraphExec graph_end(CUstream stream)
{
	CUgraph graph = graph_captured(stream);
	CUgraphExec exec = graph_instantiate(graph);
	CHECK_CU(cu.cuGraphDestroy(graph));
	return exec;
}

void graph_update(CUgraphExec exec, CUstream stream)
{
	CUgraph graph = graph_captured(stream);
	CUgraphExecUpdateResultInfo info;
	CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *), exec,
	     graph, &info);
	CHECK_CU(cu.cuGraphDestroy(graph));
}

CUgraph graph_new(void)
{
	CUgraph graph;
	CALL(cuGraphCreate, (CUgraph *, unsigned), &graph, 0);
	return graph;
}

CUgraphNode graph_add_child(CUgraph graph, CUgraphNode after, CUgraph child)
{
	CUgraphNode node;
	CALL(cuGraphAddChildGraphNode,
	     (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph), &node, graph, &after,
	     after != NULL, child);
	CHECK_CU(cu.cuGraphDestroy(child));
	return node;
}

void graph_set_child(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	CALL(cuGraphExecChildGraphNodeSetParams, (CUgraphExec, CUgraphNode, CUgraph), exec, node,
	     child);
	CHECK_CU(cu.cuGraphDestroy(child));
}

void graph_drop(CUstream stream)
{
	CUgraph graph = graph_captured(stream);
	if (graph)
		CHECK_CU(cu.cuGraphDestroy(graph));
}

void graph_launch(CUgraphExec exec, CUstream stream)
{
	CALL(cuGraphLaunch, (CUgraphExec, CUstream), exec, stream);
}

void graph_destroy(CUgraphExec exec)
{
	CALL(cuGraphExecDestroy, (CUgraphExec), exec);
}

void graphs_reach(struct rank *r, unsigned n)
{
	for (const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	     ncclsvc_comm_graphs(r->comm) != n; sleep_ms(1))
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__,
				     "the communicator has %u graphs after %d ms, not %u",
				     ncclsvc_comm_graphs(r->comm), WAIT_MS, n);
}

void graph_sum(struct rank *r, CUdeviceptr p, size_t n)
{
	ncclsvc_task task = 1;
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), n, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task));
	CHECK_EQ(task, 0);
}
