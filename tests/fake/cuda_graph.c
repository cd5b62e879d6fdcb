/* SPDX-License-Identifier: Apache-2.0
 * Graphs: what the stand-in for NCCL was asked to do while a stream was captured, to be done on
 * every launch. Nothing else can be captured. */
#include <stdlib.h>
#include <time.h>

#include "fake.h"

#define SLOW_NS 12000000

struct CUgraphNode_st {
	struct CUgraphNode_st *next;
	struct fake_node node;
};

/* An executable one shares it, and so does every launch until it has ended. */
struct CUgraph_st {
	atomic_uint refs;
	struct CUgraphNode_st *nodes, **tail;
	size_t n;
};

struct CUgraphExec_st {
	struct CUgraph_st *graph;
};

struct CUgraph_st *graph_new(void)
{
	struct CUgraph_st *g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	atomic_init(&g->refs, 1);
	g->tail = &g->nodes;
	return g;
}

CUresult graph_add(struct CUgraph_st *g, const struct fake_node *node)
{
	struct CUgraphNode_st *n = calloc(1, sizeof(*n));
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n->node = *node;
	*g->tail = n;
	g->tail = &n->next;
	g->n++;
	return CUDA_SUCCESS;
}

static void unref(struct CUgraph_st *g)
{
	if (atomic_fetch_sub(&g->refs, 1) > 1)
		return;
	for (struct CUgraphNode_st *n = g->nodes, *next; n; n = next) {
		next = n->next;
		n->node.drop(n->node.arg);
		free(n);
	}
	free(g);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult error = enter();
	if (!error)
		unref(graph);
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
	(void)node;
	*type = fake_fault("graph-host") ? CU_GRAPH_NODE_TYPE_HOST : CU_GRAPH_NODE_TYPE_KERNEL;
	return error;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CUresult error = enter();
	if (error)
		return error;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	*exec = fake_fault("graph-none") ? NULL : malloc(sizeof(**exec));
	if (!*exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*exec)->graph = graph;
	atomic_fetch_add(&graph->refs, 1);
	return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult error = enter();
	if (error)
		return error;
	unref(exec->graph);
	free(exec);
	return CUDA_SUCCESS;
}

static void launch_ended(void *arg, const atomic_int *stop)
{
	(void)stop;
	unref(arg);
}

static void slow(void *arg, const atomic_int *stop)
{
	(void)arg;
	(void)stop;
	nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	CUresult error;
	struct CUstream_st *s = stream_enter(stream, &error);
	if (!s)
		return error;
	static atomic_uint launches;
	fake_note("graph");
	if (fake_fault("graph-slow") && atomic_fetch_add(&launches, 1) % 4)
		error = stream_put(s, slow, NULL);
	atomic_fetch_add(&exec->graph->refs, 1);
	for (struct CUgraphNode_st *n = exec->graph->nodes; n && !error; n = n->next)
		error = n->node.fire(n->node.arg, stream);
	if (!error)
		error = stream_put(s, launch_ended, exec->graph);
	if (error)
		unref(exec->graph);
	return error;
}
