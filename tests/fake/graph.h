/* SPDX-License-Identifier: Apache-2.0
 * Declarations shared by the libcuda stand-in's files for graphs. */
#ifndef FAKE_GRAPH_H
#define FAKE_GRAPH_H

#include "fake.h"

/* Protects all graphs, executable graphs, user objects and captures. */
extern pthread_mutex_t graph_lock;
/* Returns its argument. */
CUresult graph_unlock(CUresult error);

/* calloc, but aborts if memory runs out. */
void *graph_alloc(size_t n, size_t bytes);

/* ---- cuda_graph.c -------------------------------------------------------------------------- */

/* A node's operation. Immutable, and shared by graphs, clones and executable graphs. */
struct action {
	atomic_uint users;
	const struct fake_work *work;
	void *arg;
	uint64_t newest; /* id of the newest buffer at capture time */
};

struct action *action_new(const struct fake_work *work, void *arg);
void action_unref(struct action *action);

struct CUgraphNode_st {
	struct CUgraphNode_st *next; /* in insertion order */
	struct CUgraph_st *graph;
	int type;
	struct action *action;	  /* NULL: it has none */
	struct CUgraph_st *child; /* owned; NULL for other node types */
	struct nodes after;	  /* nodes of the graph */
	CUgraphNode original;	  /* NULL if the node is not a clone */
	size_t index;		  /* position in its graph */
	size_t step;		  /* step number, while an executable graph is built */
	bool reached;		  /* visited by a search */
	bool placed;		  /* already a step, while an executable graph is built */
};

struct held; /* user objects and their reference counts */

struct CUgraph_st {
	struct CUgraph_st *next;       /* list of graphs with handles */
	struct CUgraphNode_st *parent; /* node that owns this child graph, or NULL */
	struct CUgraphNode_st *nodes, **tail;
	size_t n;
	unsigned captures; /* active captures into this graph */
	struct held *held;
};

/* Callers hold graph_lock. */
struct CUgraph_st *graph_new(void);
void graph_free(struct CUgraph_st *graph);
/* Adds the graph and its nodes' child graphs to the list of graphs with handles. */
void graph_list(struct CUgraph_st *graph);
/* Each clone node's `original` is the node it was cloned from or, with alike, that node's own
 * original. */
struct CUgraph_st *graph_clone(const struct CUgraph_st *graph, bool alike);
/* Abort if the handle is not valid. */
void graph_check(CUgraph graph);
void node_check(CUgraphNode node);
/* Takes ownership of the action and the child. */
struct CUgraphNode_st *graph_add(struct CUgraph_st *graph, int type, struct action *action,
				 struct CUgraph_st *child, const struct nodes *after);
/* Whether all nodes belong to the graph. */
bool nodes_belong(const struct CUgraph_st *graph, const CUgraphNode *nodes, size_t n);
/* Checks all arguments and adds a node. Takes ownership of the action, even on failure, and clones
 * the child. */
CUresult graph_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
			int type, struct action *action, struct CUgraph_st *child);

void nodes_add(struct nodes *to, struct CUgraphNode_st *node); /* no effect if already present */
void nodes_add_all(struct nodes *to, const struct nodes *from);
void nodes_remove(struct nodes *from, const struct CUgraphNode_st *node);
void nodes_clear(struct nodes *nodes);

/* ---- cuda_graph_exec.c --------------------------------------------------------------------- */

/* Replaces the action of a node, which the caller names by the node of the graph that was
 * instantiated. Takes ownership of the action, even on failure. */
CUresult exec_set_action(CUgraphExec exec, CUgraphNode node, struct action *action);

/* ---- cuda_capture.c ------------------------------------------------------------------------ */

/* If the stream is captured, adds the graph as a child node. */
CUresult capture_launch(struct CUstream_st *stream, const struct CUgraph_st *graph, bool *captured);

/* ---- cuda_memop.c -------------------------------------------------------------------------- */

/* Whether an executable graph's node accepts the new operations in place of the old ones. */
bool memops_updatable(const struct action *old, const struct action *new);

/* ---- cuda_host.c: user objects ------------------------------------------------------------- */

void held_drop(struct held *held);
struct held *held_clone(const struct held *held);

#endif
