/* SPDX-License-Identifier: Apache-2.0
 * Graphs: what the files of the stand-in for libcuda that deal with them share. */
#ifndef FAKE_GRAPH_H
#define FAKE_GRAPH_H

#include "fake.h"

/* All graphs, executable graphs, user objects and captures are under it. */
extern pthread_mutex_t graph_lock;
/* Returns the error. */
CUresult graph_unlock(CUresult error);

/* calloc, but dies if there is no memory. */
void *graph_alloc(size_t n, size_t bytes);

/* ---- cuda_graph.c -------------------------------------------------------------------------- */

/* What a node does. Graphs, clones and executable graphs share it, and it never changes. */
struct action {
	atomic_uint users;
	const struct fake_work *work;
	void *arg;
	uint64_t newest; /* buffer when it was captured */
};

struct action *action_new(const struct fake_work *work, void *arg);
void action_unref(struct action *action);

struct CUgraphNode_st {
	struct CUgraphNode_st *next; /* in the order in which they were added */
	struct CUgraph_st *graph;
	int type;
	struct action *action;	  /* NULL: it has none */
	struct CUgraph_st *child; /* its own; NULL: it has none */
	struct nodes after;	  /* nodes of the graph */
	CUgraphNode original;	  /* NULL: it is no clone */
	size_t index;		  /* in its graph */
	size_t step;		  /* of the executable graph that is being made */
	bool reached;		  /* by a search */
	bool placed;		  /* among the steps of the executable graph that is being made */
};

struct held; /* user objects, and how often */

struct CUgraph_st {
	struct CUgraph_st *next;       /* of all that programs have handles of */
	struct CUgraphNode_st *parent; /* it is that node's; NULL: none's */
	struct CUgraphNode_st *nodes, **tail;
	size_t n;
	unsigned captures; /* under way, into it */
	struct held *held;
};

/* All under the lock. */
struct CUgraph_st *graph_new(void);
void graph_free(struct CUgraph_st *graph);
/* From now on programs have handles of it, and of the graphs of its nodes. */
void graph_list(struct CUgraph_st *graph);
/* Without alike, the originals of the clone's nodes are the graph's nodes; with it, the originals
 * of those. */
struct CUgraph_st *graph_clone(const struct CUgraph_st *graph, bool alike);
/* Dies if there is no such graph, or node. */
void graph_check(CUgraph graph);
void node_check(CUgraphNode node);
/* Takes the action and the child. */
struct CUgraphNode_st *graph_add(struct CUgraph_st *graph, int type, struct action *action,
				 struct CUgraph_st *child, const struct nodes *after);
/* Whether all are the graph's. */
bool nodes_belong(const struct CUgraph_st *graph, const CUgraphNode *nodes, size_t n);
/* For the calls that add one: checks all. Takes the action, also if it fails, and clones the child.
 */
CUresult graph_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
			int type, struct action *action, struct CUgraph_st *child);

void nodes_add(struct nodes *to, struct CUgraphNode_st *node); /* once */
void nodes_add_all(struct nodes *to, const struct nodes *from);
void nodes_remove(struct nodes *from, const struct CUgraphNode_st *node);
void nodes_clear(struct nodes *nodes);

/* ---- cuda_graph_exec.c --------------------------------------------------------------------- */

/* Gives the node, that the program knows from the graph from which it instantiated this, another
 * action. Takes it, also if it fails. */
CUresult exec_set_action(CUgraphExec exec, CUgraphNode node, struct action *action);

/* ---- cuda_capture.c ------------------------------------------------------------------------ */

/* If the stream is captured, the graph becomes a node's. */
CUresult capture_launch(struct CUstream_st *stream, const struct CUgraph_st *graph, bool *captured);

/* ---- cuda_memop.c -------------------------------------------------------------------------- */

/* Whether a node of an executable graph that has the old operations can be given the new ones. */
bool memops_updatable(const struct action *old, const struct action *new);

/* ---- cuda_host.c: user objects ------------------------------------------------------------- */

void held_drop(struct held *held);
struct held *held_clone(const struct held *held);

#endif
