/* SPDX-License-Identifier: Apache-2.0
 * Graphs and their nodes. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUgraph_st *graphs;

CUresult graph_unlock(CUresult error)
{
	pthread_mutex_unlock(&graph_lock);
	return error;
}

void *graph_alloc(size_t n, size_t bytes)
{
	void *p = calloc(n ? n : 1, bytes);
	if (!p)
		fake_die("no memory for a graph");
	return p;
}

/* ---- Sets of nodes ---- */

void nodes_add(struct nodes *to, struct CUgraphNode_st *node)
{
	for (size_t i = 0; i < to->n; i++)
		if (to->at[i] == node)
			return;
	struct CUgraphNode_st **at = graph_alloc(to->n + 1, sizeof(struct CUgraphNode_st *));
	if (to->n)
		memcpy(at, to->at, to->n * sizeof(struct CUgraphNode_st *));
	at[to->n] = node;
	free(to->at);
	to->at = at;
	to->n++;
}

void nodes_add_all(struct nodes *to, const struct nodes *from)
{
	for (size_t i = 0; i < from->n; i++)
		nodes_add(to, from->at[i]);
}

void nodes_remove(struct nodes *from, const struct CUgraphNode_st *node)
{
	size_t n = 0;
	for (size_t i = 0; i < from->n; i++)
		if (from->at[i] != node)
			from->at[n++] = from->at[i];
	from->n = n;
}

void nodes_clear(struct nodes *nodes)
{
	free(nodes->at);
	*nodes = (struct nodes){0};
}

/* ---- Actions ---- */

struct action *action_new(const struct fake_work *work, void *arg)
{
	struct action *a = graph_alloc(1, sizeof(*a));
	atomic_init(&a->users, 1);
	a->work = work;
	a->arg = arg;
	a->newest = table_newest();
	return a;
}

void action_unref(struct action *a)
{
	if (!a || atomic_fetch_sub(&a->users, 1) > 1)
		return;
	a->work->drop(a->arg);
	free(a);
}

/* ---- Graphs ---- */

struct CUgraph_st *graph_new(void)
{
	struct CUgraph_st *g = graph_alloc(1, sizeof(*g));
	g->tail = &g->nodes;
	return g;
}

void graph_list(struct CUgraph_st *g)
{
	g->next = graphs;
	graphs = g;
	for (const struct CUgraphNode_st *n = g->nodes; n; n = n->next)
		if (n->child)
			graph_list(n->child);
}

/* The list does not include the clones that executable graphs run. */
static void unlist(const struct CUgraph_st *g)
{
	struct CUgraph_st **link = &graphs;
	while (*link && *link != g)
		link = &(*link)->next;
	if (*link)
		*link = g->next;
}

void graph_free(struct CUgraph_st *g)
{
	if (!g)
		return;
	unlist(g);
	for (struct CUgraphNode_st *n = g->nodes, *next; n; n = next) {
		next = n->next;
		action_unref(n->action);
		graph_free(n->child);
		nodes_clear(&n->after);
		free(n);
	}
	held_drop(g->held);
	free(g);
}

struct CUgraphNode_st *graph_add(struct CUgraph_st *g, int type, struct action *action,
				 struct CUgraph_st *child, const struct nodes *after)
{
	struct CUgraphNode_st *n = graph_alloc(1, sizeof(*n));
	*n = (struct CUgraphNode_st){
		.graph = g, .type = type, .action = action, .child = child, .index = g->n++};
	nodes_add_all(&n->after, after);
	if (child)
		child->parent = n;
	*g->tail = n;
	g->tail = &n->next;
	return n;
}

/* Clones the node without its dependencies. */
static struct CUgraphNode_st *node_clone(struct CUgraph_st *to, struct CUgraphNode_st *n,
					 bool alike)
{
	if (n->action)
		atomic_fetch_add(&n->action->users, 1);
	struct CUgraphNode_st *clone =
		graph_add(to, n->type, n->action, n->child ? graph_clone(n->child, alike) : NULL,
			  &(struct nodes){0});
	clone->original = alike ? n->original : n;
	return clone;
}

struct CUgraph_st *graph_clone(const struct CUgraph_st *graph, bool alike)
{
	struct CUgraph_st *g = graph_new();
	struct CUgraphNode_st **clones = graph_alloc(graph->n, sizeof(struct CUgraphNode_st *));
	for (struct CUgraphNode_st *n = graph->nodes; n; n = n->next)
		clones[n->index] = node_clone(g, n, alike);
	for (const struct CUgraphNode_st *n = graph->nodes; n; n = n->next)
		for (size_t i = 0; i < n->after.n; i++)
			nodes_add(&clones[n->index]->after, clones[n->after.at[i]->index]);
	free(clones);
	g->held = held_clone(graph->held);
	return g;
}

/* ---- Handles ---- */

void graph_check(CUgraph graph)
{
	const struct CUgraph_st *g = graphs;
	while (g && g != graph)
		g = g->next;
	if (!g)
		fake_die("a graph is used that does not exist, or was destroyed");
}

void node_check(CUgraphNode node)
{
	for (const struct CUgraph_st *g = graphs; g; g = g->next)
		for (const struct CUgraphNode_st *n = g->nodes; n; n = n->next)
			if (n == node)
				return;
	fake_die("a node is used whose graph does not exist, or was destroyed");
}

bool nodes_belong(const struct CUgraph_st *graph, const CUgraphNode *nodes, size_t n)
{
	if (n && !nodes)
		return false;
	for (size_t i = 0; i < n; i++) {
		node_check(nodes[i]);
		if (nodes[i]->graph != graph)
			return false;
	}
	return true;
}

/* Enters, checks and locks. */
static CUresult lock_graph(CUgraph graph)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	graph_check(graph);
	return CUDA_SUCCESS;
}

static CUresult lock_node(CUgraphNode node)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!node)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	node_check(node);
	return CUDA_SUCCESS;
}

/* ---- Calls ---- */

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	CUresult error = enter();
	if (error)
		return error;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	graph_list(*graph = graph_new());
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
	CUresult error = lock_graph(graph);
	if (error)
		return error;
	graph_list(*clone = graph_clone(graph, false));
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult error = capture_unsafe();
	if (!error)
		error = lock_graph(graph);
	if (error)
		return error;
	if (graph->parent)
		fake_die("a graph is destroyed that is a node's");
	if (graph->captures)
		fake_die("a graph is destroyed while a stream is captured into it");
	graph_free(graph);
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
	CUresult error = lock_graph(graph);
	if (error)
		return error;
	size_t i = 0;
	for (struct CUgraphNode_st *at = graph->nodes; nodes && at && i < *n; at = at->next)
		nodes[i++] = at;
	*n = nodes ? i : graph->n;
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
	CUresult error = lock_graph(graph);
	if (error)
		return error;
	size_t i = 0;
	for (struct CUgraphNode_st *at = graph->nodes; at && (!nodes || i < *n); at = at->next)
		if (!at->after.n) {
			if (nodes)
				nodes[i] = at;
			i++;
		}
	*n = i;
	return graph_unlock(CUDA_SUCCESS);
}

/* Priorities have no effect here. */
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int id,
				       const CUlaunchAttributeValue *value)
{
	CUresult error = lock_node(node);
	if (error)
		return error;
	const bool good = node->type == CU_GRAPH_NODE_TYPE_KERNEL && value &&
			  id == CU_LAUNCH_ATTRIBUTE_PRIORITY;
	return graph_unlock(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	CUresult error = lock_node(node);
	if (error)
		return error;
	*type = node->type;
	return graph_unlock(CUDA_SUCCESS);
}

CUresult graph_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
			int type, struct action *action, struct CUgraph_st *child)
{
	CUresult error = lock_graph(graph);
	if (error) {
		action_unref(action);
		return error;
	}
	struct nodes set = {0};
	if (!node || !nodes_belong(graph, after, n))
		error = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !error && i < n; i++) {
		nodes_add(&set, after[i]);
		if (set.n <= i)
			error = CUDA_ERROR_INVALID_VALUE;
	}
	if (error) {
		action_unref(action);
	} else {
		if (child)
			graph_list(child = graph_clone(child, false));
		*node = graph_add(graph, type, action, child, &set);
	}
	nodes_clear(&set);
	return graph_unlock(error);
}

/* Whether all (there) or none of these edges exist. */
static bool edges_are(const CUgraphNode *from, const CUgraphNode *to, size_t n, bool there)
{
	for (size_t i = 0; i < n; i++) {
		bool found = false;
		for (size_t k = 0; k < to[i]->after.n; k++)
			found = found || to[i]->after.at[k] == from[i];
		if (found != there || from[i] == to[i])
			return false;
	}
	return true;
}

static CUresult edges_change(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
			     size_t n, bool add)
{
	CUresult error = lock_graph(graph);
	if (error)
		return error;
	if (!nodes_belong(graph, from, n) || !nodes_belong(graph, to, n) ||
	    !edges_are(from, to, n, !add))
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < n; i++)
		if (add)
			nodes_add(&to[i]->after, from[i]);
		else
			nodes_remove(&to[i]->after, from[i]);
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				size_t n)
{
	return edges_change(graph, from, to, n, true);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				   size_t n)
{
	return edges_change(graph, from, to, n, false);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n)
{
	return graph_add_node(node, graph, after, n, CU_GRAPH_NODE_TYPE_EMPTY, NULL, NULL);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
				  size_t n, CUgraph child)
{
	CUresult error = lock_graph(child);
	if (error)
		return error;
	graph_unlock(CUDA_SUCCESS);
	return graph_add_node(node, graph, after, n, CU_GRAPH_NODE_TYPE_GRAPH, NULL, child);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child)
{
	CUresult error = lock_node(node);
	if (error)
		return error;
	*child = node->child;
	return graph_unlock(node->child ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
