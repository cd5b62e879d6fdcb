/* SPDX-License-Identifier: Apache-2.0 */
#include "graphs.h"

/* Calls of a program, which the library does not use. */
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

CUgraphExec graph_end(CUstream stream)
{
	CUgraph graph;
	CHECK_CU(cu.cuStreamEndCapture(stream, &graph));
	CUgraphExec exec = graph_instantiate(graph);
	CHECK_CU(cu.cuGraphDestroy(graph));
	return exec;
}

void graph_update(CUgraphExec exec, CUstream stream)
{
	CUgraph graph;
	CUgraphExecUpdateResultInfo info;
	CHECK_CU(cu.cuStreamEndCapture(stream, &graph));
	CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *), exec,
	     graph, &info);
	CHECK_CU(cu.cuGraphDestroy(graph));
}

void graph_drop(CUstream stream)
{
	CUgraph graph;
	CHECK_CU(cu.cuStreamEndCapture(stream, &graph));
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

void graph_sum(struct rank *r, CUdeviceptr p, size_t n)
{
	ncclsvc_task task = 1;
	CHECK_OK(ncclsvc_all_reduce(at(p), at(p), n, NCCLSVC_UINT32, NCCLSVC_SUM, r->comm, &task));
	CHECK_EQ(task, 0);
}
