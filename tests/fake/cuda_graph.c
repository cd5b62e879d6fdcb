/* SPDX-License-Identifier: Apache-2.0
 * Graphs: what the stand-in for NCCL was asked to do while a stream was captured, as one kernel
 * that can be launched, and launches of kernels. Nothing else can be captured. As NCCL's, each has
 * a wait for an event and a record of one beside its kernels, which do nothing here. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#pragma GCC visibility push(default)
#define DECLARE(function, exported, parameters) CUresult function parameters __asm__(exported);
CUDA_GRAPH_FUNCTIONS(DECLARE)
#undef DECLARE
#pragma GCC visibility pop

#define DOMAIN_REMOTE 1 /* every kernel's attribute */

struct CUgraphNode_st {
	struct CUgraphNode_st *next;
	int type;
	struct fake_node node; /* of a kernel */
};

struct CUgraph_st {
	struct CUgraphNode_st *nodes, **tail;
	size_t n;
	atomic_uint users; /* the graph itself, and what was instantiated from it */
};

struct CUgraph_st *graph_new(void)
{
	struct CUgraph_st *g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	g->tail = &g->nodes;
	atomic_init(&g->users, 1);
	return g;
}

static CUresult add(struct CUgraph_st *g, int type, const struct fake_node *node)
{
	struct CUgraphNode_st *n = calloc(1, sizeof(*n));
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n->type = type;
	if (node)
		n->node = *node;
	*g->tail = n;
	g->tail = &n->next;
	g->n++;
	return CUDA_SUCCESS;
}

CUresult graph_add(struct CUgraph_st *g, const struct fake_node *node)
{
	if (!g->n && (add(g, CU_GRAPH_NODE_TYPE_WAIT_EVENT, NULL) ||
		      add(g, CU_GRAPH_NODE_TYPE_EVENT_RECORD, NULL)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return add(g, CU_GRAPH_NODE_TYPE_KERNEL, node);
}

static void unref(struct CUgraph_st *graph)
{
	if (atomic_fetch_sub(&graph->users, 1) > 1)
		return;
	for (struct CUgraphNode_st *n = graph->nodes, *next; n; n = next) {
		next = n->next;
		if (n->node.drop)
			n->node.drop(n->node.arg);
		free(n);
	}
	free(graph);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult error = enter();
	if (!error)
		unref(graph);
	return error;
}

/* Captured graphs do not change: the handle of one that was instantiated is its own. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	atomic_fetch_add(&graph->users, 1);
	*exec = (CUgraphExec)graph;
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	const struct CUgraph_st *graph = (const struct CUgraph_st *)exec;
	CUresult error;
	if (!stream_enter(stream, &error))
		return error;
	for (const struct CUgraphNode_st *n = graph->nodes; !error && n; n = n->next)
		if (n->type == CU_GRAPH_NODE_TYPE_KERNEL)
			error = n->node.fire(n->node.arg, stream);
	return error;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult error = enter();
	if (!error)
		unref((struct CUgraph_st *)exec);
	return error;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
	CUresult error = enter();
	if (error)
		return error;
	size_t i = 0;
	for (struct CUgraphNode_st *at = graph->nodes; nodes && at && i < *n; at = at->next)
		nodes[i++] = at;
	*n = nodes ? i : graph->n;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	CUresult error = enter();
	*type = fake_fault("graph-host") ? CU_GRAPH_NODE_TYPE_HOST : node->type;
	return error;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
	CUresult error = enter();
	if (error)
		return error;
	if (node->type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_fault("graph-none"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*params = (CUDA_KERNEL_NODE_PARAMS){.func = (CUfunction)node,
					    .gridDimX = 1,
					    .gridDimY = 1,
					    .gridDimZ = 1,
					    .blockDimX = 1,
					    .blockDimY = 1,
					    .blockDimZ = 1,
					    .extra = (void **)node};
	return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, int id, CUlaunchAttributeValue *value)
{
	CUresult error = enter();
	if (error)
		return error;
	if (node->type != CU_GRAPH_NODE_TYPE_KERNEL || id != CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN)
		return CUDA_ERROR_INVALID_VALUE;
	const int domain = DOMAIN_REMOTE;
	memset(value, 0, sizeof(*value));
	memcpy(value, &domain, sizeof(domain));
	return CUDA_SUCCESS;
}

/* Of a captured kernel, as it was captured. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
			  void **extra)
{
	CUresult error;
	if (!stream_enter(config->hStream, &error))
		return error;
	struct CUgraphNode_st *node = (struct CUgraphNode_st *)function;
	int domain = 0;
	if (config->numAttrs == 1 && config->attrs->id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN)
		memcpy(&domain, &config->attrs->value, sizeof(domain));
	if (params || extra != (void **)node || domain != DOMAIN_REMOTE || config->gridDimX != 1 ||
	    config->gridDimY != 1 || config->gridDimZ != 1 || config->blockDimX != 1 ||
	    config->blockDimY != 1 || config->blockDimZ != 1 || config->sharedMemBytes)
		return CUDA_ERROR_INVALID_VALUE;
	fake_note("replay");
	return node->node.fire(node->node.arg, config->hStream);
}
