/* SPDX-License-Identifier: Apache-2.0
 * Graphs: what the stand-in for NCCL was asked to do while a stream was captured, to be done on
 * every launch. Nothing else can be captured. As NCCL's, each has a wait for an event and a record
 * of it beside that, which do nothing here. */
#include <stdlib.h>

#include "fake.h"

struct CUgraphNode_st {
	struct CUgraphNode_st *next;
	struct CUgraph_st *graph;
	int type;
	struct fake_node node; /* of a kernel */
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

static struct CUgraphNode_st *add(struct CUgraph_st *g, int type)
{
	struct CUgraphNode_st *n = calloc(1, sizeof(*n));
	if (!n)
		return NULL;
	n->graph = g;
	n->type = type;
	*g->tail = n;
	g->tail = &n->next;
	g->n++;
	return n;
}

CUresult graph_add(struct CUgraph_st *g, const struct fake_node *node)
{
	const bool first = !g->n;
	if (first &&
	    (!add(g, CU_GRAPH_NODE_TYPE_WAIT_EVENT) || !add(g, CU_GRAPH_NODE_TYPE_EVENT_RECORD)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct CUgraphNode_st *n = add(g, CU_GRAPH_NODE_TYPE_KERNEL);
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n->node = *node;
	return CUDA_SUCCESS;
}

static void drop(struct CUgraphNode_st *n)
{
	if (n->node.drop)
		n->node.drop(n->node.arg);
	free(n);
}

static void unref(struct CUgraph_st *g)
{
	if (atomic_fetch_sub(&g->refs, 1) > 1)
		return;
	for (struct CUgraphNode_st *n = g->nodes, *next; n; n = next) {
		next = n->next;
		drop(n);
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
	*type = fake_fault("graph-host") ? CU_GRAPH_NODE_TYPE_HOST : node->type;
	return error;
}

CUresult cuGraphDestroyNode(CUgraphNode node)
{
	CUresult error = enter();
	if (error)
		return error;
	struct CUgraph_st *g = node->graph;
	struct CUgraphNode_st **link = &g->nodes;
	while (*link != node)
		link = &(*link)->next;
	*link = node->next;
	if (!*link)
		g->tail = link;
	g->n--;
	drop(node);
	return CUDA_SUCCESS;
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

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	CUresult error;
	struct CUstream_st *s = stream_enter(stream, &error);
	if (!s)
		return error;
	fake_note(exec->graph->n == 1 ? "graph" : "nodes");
	atomic_fetch_add(&exec->graph->refs, 1);
	for (struct CUgraphNode_st *n = exec->graph->nodes; n && !error; n = n->next)
		error = n->node.fire ? n->node.fire(n->node.arg, stream) : CUDA_SUCCESS;
	if (!error)
		error = stream_put(s, launch_ended, exec->graph);
	if (error)
		unref(exec->graph);
	return error;
}
