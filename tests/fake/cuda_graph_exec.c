/* SPDX-License-Identifier: Apache-2.0
 * Executable graphs. A launch is one operation of its stream, which runs the nodes as steps in
 * dependency order, on as many threads as there are independent branches. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

#define NONE SIZE_MAX

/* ---- Programs: steps that executable graphs run. An update replaces the program. ---- */

struct step {
	const struct action *action; /* NULL: it does nothing */
	size_t branch;
	size_t *after, n; /* earlier steps */
};

struct program {
	atomic_uint users; /* the executable graph, and launches */
	struct CUgraph_st *graph;
	struct step *steps;
	size_t n, branches;
};

struct CUgraphExec_st {
	struct CUgraphExec_st *next; /* next in the list of executable graphs with handles */
	unsigned users;		     /* its handle, and launches; under the lock */
	struct program *program;
	uint64_t launched;
	_Atomic uint64_t ended;
};

static struct CUgraphExec_st *execs;

static size_t steps_of(const struct CUgraph_st *g)
{
	size_t n = 0;
	for (const struct CUgraphNode_st *at = g->nodes; at; at = at->next)
		n += at->child ? 2 + steps_of(at->child) : 1;
	return n;
}

static struct step *step_add(struct program *p, const struct action *action, size_t room)
{
	struct step *s = &p->steps[p->n++];
	*s = (struct step){.action = action, .after = graph_alloc(room, sizeof(size_t))};
	return s;
}

static void step_follows(struct step *s, size_t other)
{
	s->after[s->n++] = other;
}

static void steps_add(struct program *p, const struct CUgraph_st *g, size_t begin);

/* begin: the step before all of its graph's nodes, or NONE. */
static void node_steps_add(struct program *p, struct CUgraphNode_st *n, size_t begin)
{
	struct step *s = step_add(p, n->action, n->after.n + 1);
	for (size_t i = 0; i < n->after.n; i++)
		step_follows(s, n->after.at[i]->step);
	if (begin != NONE)
		step_follows(s, begin);
	n->step = p->n - 1;
	if (!n->child)
		return;
	if (!n->child->n)
		fake_die("an executable graph is made of a node with an empty graph");
	const size_t first = n->step;
	steps_add(p, n->child, first);
	s = step_add(p, NULL, n->child->n + 1);
	step_follows(s, first);
	for (const struct CUgraphNode_st *c = n->child->nodes; c; c = c->next)
		step_follows(s, c->step);
	n->step = p->n - 1;
}

static bool may_be_placed(const struct CUgraphNode_st *n)
{
	bool all = !n->placed;
	for (size_t i = 0; all && i < n->after.n; i++)
		all = n->after.at[i]->placed;
	return all;
}

/* In the order in which they were added, but after their dependencies. */
static void steps_add(struct program *p, const struct CUgraph_st *g, size_t begin)
{
	size_t left = g->n;
	for (struct CUgraphNode_st *n = g->nodes; n; n = n->next)
		n->placed = false;
	for (size_t before = 0; left != before;) {
		before = left;
		for (struct CUgraphNode_st *n = g->nodes; n; n = n->next) {
			if (!may_be_placed(n))
				continue;
			node_steps_add(p, n, begin);
			n->placed = true;
			left--;
		}
	}
	if (left)
		fake_die("an executable graph is made of nodes that depend on each other");
}

/* ---- Branches ---- */

/* A step joins a branch only if it depends, directly or not, on the branch's last step. So it never
 * waits for a step that it does not depend on. */
struct branches {
	size_t words;	  /* words per set of steps */
	uint64_t *before; /* for each step, the set of its dependencies */
	size_t *last;	  /* last step of each branch */
};

static bool is_before(const struct branches *b, size_t step, size_t other)
{
	return b->before[step * b->words + other / 64] >> other % 64 & 1;
}

static void before_set(const struct branches *b, const struct step *s, size_t step)
{
	uint64_t *before = &b->before[step * b->words];
	for (size_t i = 0; i < s->n; i++) {
		const size_t other = s->after[i];
		for (size_t w = 0; w < b->words; w++)
			before[w] |= b->before[other * b->words + w];
		before[other / 64] |= UINT64_C(1) << other % 64;
	}
}

static void branches_set(struct program *p)
{
	struct branches b = {.words = p->n / 64 + 1};
	b.before = graph_alloc(p->n * b.words, sizeof(uint64_t));
	b.last = graph_alloc(p->n, sizeof(size_t));
	for (size_t i = 0; i < p->n; i++) {
		struct step *s = &p->steps[i];
		before_set(&b, s, i);
		while (s->branch < p->branches && !is_before(&b, i, b.last[s->branch]))
			s->branch++;
		if (s->branch == p->branches)
			p->branches++;
		b.last[s->branch] = i;
	}
	free(b.before);
	free(b.last);
}

/* Takes ownership of the graph. */
static struct program *program_new(struct CUgraph_st *graph)
{
	struct program *p = graph_alloc(1, sizeof(*p));
	atomic_init(&p->users, 1);
	p->graph = graph;
	p->steps = graph_alloc(steps_of(graph), sizeof(struct step));
	steps_add(p, graph, NONE);
	branches_set(p);
	return p;
}

static void program_unref(struct program *p)
{
	if (atomic_fetch_sub(&p->users, 1) > 1)
		return;
	for (size_t i = 0; i < p->n; i++)
		free(p->steps[i].after);
	free(p->steps);
	graph_free(p->graph);
	free(p);
}

/* ---- Launches ---- */

struct launch {
	struct CUgraphExec_st *exec;
	struct program *program;
	uint64_t number;
	void **args; /* for each step; NULL: its action's argument */
	const atomic_int *stop;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool *done; /* for each step */
};

struct branch {
	struct launch *launch;
	size_t number;
	pthread_t thread;
};

static void step_run(struct launch *l, size_t i)
{
	const struct action *a = l->program->steps[i].action;
	if (!a)
		return;
	connection_await(l->stop);
	table_replay(a->newest);
	a->work->run(l->args[i] ? l->args[i] : a->arg, l->stop);
	table_replay(0);
}

static bool may_run(const struct launch *l, const struct step *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (!l->done[s->after[i]])
			return false;
	return true;
}

static void *branch_run(void *arg)
{
	const struct branch *b = arg;
	struct launch *l = b->launch;
	pthread_mutex_lock(&l->lock);
	for (size_t i = 0; i < l->program->n; i++) {
		const struct step *s = &l->program->steps[i];
		if (s->branch != b->number)
			continue;
		while (!may_run(l, s))
			pthread_cond_wait(&l->changed, &l->lock);
		pthread_mutex_unlock(&l->lock);
		step_run(l, i);
		pthread_mutex_lock(&l->lock);
		l->done[i] = true;
		pthread_cond_broadcast(&l->changed);
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* The calling thread runs the first branch. */
static void branches_run(struct launch *l)
{
	const size_t n = l->program->branches;
	struct branch *branches = graph_alloc(n, sizeof(struct branch));
	for (size_t i = 0; i < n; i++) {
		branches[i] = (struct branch){.launch = l, .number = i};
		if (i && pthread_create(&branches[i].thread, NULL, branch_run, &branches[i]))
			fake_die("no thread for a branch of a graph");
	}
	if (n)
		branch_run(&branches[0]);
	for (size_t i = 1; i < n; i++)
		pthread_join(branches[i].thread, NULL);
	free(branches);
}

/* Launches of one executable graph run one after the other. */
static void launch_run(void *arg, const atomic_int *stop)
{
	struct launch *l = arg;
	unsigned round = 0;
	l->stop = stop;
	while (!atomic_load(stop) && atomic_load(&l->exec->ended) + 1 < l->number)
		fake_pause(&round);
	branches_run(l);
}

/* Under the lock. */
static void exec_unref(struct CUgraphExec_st *e)
{
	if (--e->users)
		return;
	program_unref(e->program);
	free(e);
}

static void launch_drop(void *arg)
{
	struct launch *l = arg;
	for (size_t i = 0; i < l->program->n; i++)
		if (l->args[i])
			l->program->steps[i].action->work->drop(l->args[i]);
	pthread_mutex_lock(&graph_lock);
	atomic_store(&l->exec->ended, l->number);
	program_unref(l->program);
	exec_unref(l->exec);
	pthread_mutex_unlock(&graph_lock);
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->changed);
	free(l->args);
	free(l->done);
	free(l);
}

static const struct fake_work launch_work = {CU_GRAPH_NODE_TYPE_GRAPH, launch_run, launch_drop,
					     NULL};

/* Under the lock. */
static struct launch *launch_new(struct CUgraphExec_st *e)
{
	struct launch *l = graph_alloc(1, sizeof(*l));
	struct program *p = e->program;
	atomic_fetch_add(&p->users, 1);
	e->users++;
	l->exec = e;
	l->program = p;
	l->number = ++e->launched;
	l->args = graph_alloc(p->n, sizeof(void *));
	l->done = graph_alloc(p->n, sizeof(bool));
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->changed, NULL);
	for (size_t i = 0; i < p->n; i++) {
		const struct action *a = p->steps[i].action;
		if (a && a->work->again && !(l->args[i] = a->work->again(a->arg)))
			fake_die("no memory for the launch of a graph");
	}
	return l;
}

/* ---- Calls ---- */

static void exec_check(CUgraphExec exec)
{
	const struct CUgraphExec_st *e = execs;
	while (e && e != exec)
		e = e->next;
	if (!e)
		fake_die("an executable graph is used that does not exist, or was destroyed");
}

static CUresult lock_exec(CUgraphExec exec)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	exec_check(exec);
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!graph ||
	    flags & ~(unsigned long long)(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
					  CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	graph_check(graph);
	if (graph->captures)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	struct CUgraphExec_st *e = graph_alloc(1, sizeof(*e));
	e->users = 1;
	e->program = program_new(graph_clone(graph, false));
	e->next = execs;
	*exec = execs = e;
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	const uint64_t upload = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	CUresult error = cuGraphInstantiateWithFlags(exec, graph, params->flags & ~upload);
	if (!error && params->flags & upload)
		error = cuGraphUpload(*exec, params->hUploadStream);
	params->hErrNode_out = NULL;
	params->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return error;
}

/* There is nothing to upload here. */
CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
	CUresult error = lock_exec(exec);
	if (error)
		return error;
	graph_unlock(CUDA_SUCCESS);
	struct CUstream_st *stream = stream_enter(handle, &error);
	return stream ? capture_refuse(stream) : error;
}

/* Keeps the graph's lock, so that streams get launches in the order of their numbers. */
CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	bool captured;
	CUresult error;
	checkpoint_wait();
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!error)
		error = lock_exec(exec);
	if (error)
		return error;
	error = capture_launch(stream, exec->program->graph, &captured);
	if (error || captured)
		return graph_unlock(error);
	struct launch *l = launch_new(exec);
	error = stream_queue(stream, &launch_work, l);
	graph_unlock(CUDA_SUCCESS);
	if (error)
		launch_drop(l);
	return error;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult error = capture_unsafe();
	if (!error)
		error = lock_exec(exec);
	if (error)
		return error;
	struct CUgraphExec_st **link = &execs;
	while (*link != exec)
		link = &(*link)->next;
	*link = exec->next;
	exec_unref(exec);
	return graph_unlock(CUDA_SUCCESS);
}

/* ---- Updates ---- */

/* Takes ownership of the graph. Running launches keep their program. */
static void exec_set_graph(CUgraphExec exec, struct CUgraph_st *graph)
{
	program_unref(exec->program);
	exec->program = program_new(graph);
}

/* Gives the new nodes the originals of the old ones. Reports the first node that differs in
 * *result. */
static bool pair(struct CUgraph_st *new, const struct CUgraph_st *old,
		 CUgraphExecUpdateResultInfo *result)
{
	struct CUgraphNode_st *n = new->nodes;
	const struct CUgraphNode_st *o = old->nodes;
	result->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
	if (new->n != old->n)
		return false;
	for (; n; n = n->next, o = o->next) {
		result->errorNode = n->original;
		result->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		if (n->after.n != o->after.n)
			return false;
		for (size_t i = 0; i < n->after.n; i++)
			if (n->after.at[i]->index != o->after.at[i]->index)
				return false;
		result->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
		if (n->type != o->type)
			return false;
		result->result = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
		if (n->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP &&
		    !memops_updatable(o->action, n->action))
			return false;
		if (n->child && !pair(n->child, o->child, result))
			return false;
		n->original = o->original;
	}
	*result = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
	return true;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *result)
{
	CUgraphExecUpdateResultInfo unused;
	CUresult error = lock_exec(exec);
	if (error)
		return error;
	if (!graph)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	graph_check(graph);
	result = result ? result : &unused;
	*result = (CUgraphExecUpdateResultInfo){0};
	struct CUgraph_st *new = graph_clone(graph, false);
	if (pair(new, exec->program->graph, result)) {
		exec_set_graph(exec, new);
	} else {
		graph_free(new);
		error = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	return graph_unlock(error);
}

static struct CUgraphNode_st *find(const struct CUgraph_st *g, CUgraphNode original)
{
	for (struct CUgraphNode_st *n = g->nodes; n; n = n->next) {
		struct CUgraphNode_st *found = n->original == original ? n
					       : n->child	       ? find(n->child, original)
								       : NULL;
		if (found)
			return found;
	}
	return NULL;
}

/* For the clone that the executable graph runs. NULL: there is none, and the lock is released. */
static CUresult lock_update(CUgraphExec exec, CUgraphNode original, struct CUgraph_st **graph,
			    struct CUgraphNode_st **node)
{
	CUresult error = lock_exec(exec);
	if (error)
		return error;
	node_check(original);
	*graph = graph_clone(exec->program->graph, true);
	*node = find(*graph, original);
	if (*node)
		return CUDA_SUCCESS;
	graph_free(*graph);
	return graph_unlock(CUDA_ERROR_INVALID_VALUE);
}

CUresult exec_set_action(CUgraphExec exec, CUgraphNode original, struct action *action)
{
	struct CUgraph_st *graph;
	struct CUgraphNode_st *node;
	CUresult error = lock_update(exec, original, &graph, &node);
	if (error) {
		action_unref(action);
		return error;
	}
	if (node->type != action->work->type)
		fake_die("a node's parameters are those of another kind");
	action_unref(node->action);
	node->action = action;
	exec_set_graph(exec, graph);
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode original, CUgraph child)
{
	struct CUgraph_st *graph;
	struct CUgraphNode_st *node;
	CUgraphExecUpdateResultInfo unused;
	CUresult error = lock_update(exec, original, &graph, &node);
	if (error)
		return error;
	graph_check(child);
	struct CUgraph_st *new = graph_clone(child, false);
	if (!node->child || !pair(new, node->child, &unused)) {
		graph_free(new);
		graph_free(graph);
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	graph_free(node->child);
	node->child = new;
	new->parent = node;
	exec_set_graph(exec, graph);
	return graph_unlock(CUDA_SUCCESS);
}
