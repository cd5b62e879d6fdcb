/* SPDX-License-Identifier: Apache-2.0
 * Stream capture, as CUDA's programming guide and cuda.h describe it. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

/* A capture, from cuStreamBeginCapture on. All its streams leave it when it ends, but events may
 * keep it. */
struct capture {
	struct capture *next; /* next capture that has not ended */
	unsigned users;	      /* number of points */
	unsigned long long id;
	struct CUgraph_st *graph;
	bool given; /* the graph is not owned by the capture */
	struct CUstream_st *origin;
	int mode;
	pthread_t thread;
	bool invalid, ended;
	struct capture_point *streams;
};

static struct capture *captures;
static unsigned long long last_id;
static _Thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- Points ---- */

static void point_set(struct capture_point *p, struct capture *c, const struct nodes *after)
{
	struct nodes copy = {0};
	c->users++;
	nodes_add_all(&copy, after);
	capture_leave(p);
	p->capture = c;
	p->after = copy;
}

void capture_leave(struct capture_point *p)
{
	struct capture *c = p->capture;
	nodes_clear(&p->after);
	p->capture = NULL;
	if (c && !--c->users)
		free(c);
}

static void stream_join(struct CUstream_st *s, struct capture *c, const struct nodes *after)
{
	struct capture_point *p = stream_point(s);
	point_set(p, c, after);
	p->stream = s;
	p->next = c->streams;
	c->streams = p;
}

/* ---- What a capture forbids ---- */

/* The capture whose streams the legacy stream would wait for. */
static struct capture *blocked_by(const struct CUctx_st *context)
{
	for (struct capture *c = captures; c; c = c->next)
		for (const struct capture_point *p = c->streams; p; p = p->next)
			if (stream_blocking(p->stream) && stream_context(p->stream) == context)
				return c;
	return NULL;
}

/* Checks any use of the stream. */
static CUresult usable(struct CUstream_st *s)
{
	struct capture *c = stream_legacy(s) ? blocked_by(stream_context(s)) : NULL;
	if (c) {
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	c = stream_point(s)->capture;
	return c && c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static CUresult invalidate(struct capture *c, CUresult error)
{
	if (c)
		c->invalid = true;
	return error;
}

CUresult capture_refuse(struct CUstream_st *s)
{
	pthread_mutex_lock(&graph_lock);
	CUresult error = usable(s);
	struct capture *c = stream_point(s)->capture;
	if (!error && c)
		error = invalidate(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return graph_unlock(error);
}

CUresult capture_refuse_context(const struct CUctx_st *context)
{
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&graph_lock);
	for (struct capture *c = captures; c; c = c->next)
		for (const struct capture_point *p = c->streams; p; p = p->next)
			if (stream_context(p->stream) == context)
				error = invalidate(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return graph_unlock(error);
}

/* Whether the capture forbids unsafe calls in this thread. */
static bool prohibits(const struct capture *c)
{
	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
	    c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	return pthread_equal(c->thread, pthread_self()) ||
	       (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
		c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult capture_unsafe(void)
{
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&graph_lock);
	for (struct capture *c = captures; c; c = c->next)
		if (prohibits(c))
			error = invalidate(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return graph_unlock(error);
}

bool capture_active(struct CUstream_st *s)
{
	pthread_mutex_lock(&graph_lock);
	const bool active = stream_point(s)->capture;
	pthread_mutex_unlock(&graph_lock);
	return active;
}

/* ---- Nodes ---- */

static void take(struct capture_point *p, int type, struct action *action, struct CUgraph_st *child)
{
	struct CUgraphNode_st *n = graph_add(p->capture->graph, type, action, child, &p->after);
	nodes_clear(&p->after);
	nodes_add(&p->after, n);
}

CUresult capture_put(struct CUstream_st *s, const struct fake_work *work, void *arg, bool *captured)
{
	pthread_mutex_lock(&graph_lock);
	struct capture_point *p = stream_point(s);
	CUresult error = usable(s);
	*captured = !error && p->capture;
	if (*captured)
		take(p, work->type, action_new(work, arg), NULL);
	return graph_unlock(error);
}

CUresult capture_launch(struct CUstream_st *s, const struct CUgraph_st *graph, bool *captured)
{
	struct capture_point *p = stream_point(s);
	CUresult error = usable(s);
	*captured = !error && p->capture;
	if (!*captured)
		return error;
	struct CUgraph_st *child = graph_clone(graph, false);
	graph_list(child);
	take(p, CU_GRAPH_NODE_TYPE_GRAPH, NULL, child);
	return CUDA_SUCCESS;
}

/* ---- Events ---- */

CUresult capture_record(struct CUstream_st *s, struct capture_point *event, bool *captured)
{
	pthread_mutex_lock(&graph_lock);
	const struct capture_point *p = stream_point(s);
	CUresult error = usable(s);
	*captured = !error && p->capture;
	if (*captured)
		point_set(event, p->capture, &p->after);
	else if (!error)
		capture_leave(event);
	return graph_unlock(error);
}

/* The stream joins the event's capture, if it has not yet. */
static CUresult follow(struct CUstream_st *s, const struct capture_point *event)
{
	struct capture_point *p = stream_point(s);
	struct capture *c = event->capture;
	if (c->ended)
		return invalidate(p->capture, CUDA_ERROR_CAPTURED_EVENT);
	if (c->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (p->capture && p->capture != c) {
		invalidate(c, CUDA_SUCCESS);
		return invalidate(p->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	if (stream_legacy(s))
		return invalidate(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (p->capture)
		nodes_add_all(&p->after, &event->after);
	else
		stream_join(s, c, &event->after);
	return CUDA_SUCCESS;
}

CUresult capture_wait(struct CUstream_st *s, struct capture_point *event, bool recorded,
		      bool *captured)
{
	pthread_mutex_lock(&graph_lock);
	struct capture_point *p = stream_point(s);
	CUresult error = usable(s);
	*captured = event->capture || p->capture;
	if (!error && event->capture)
		error = follow(s, event);
	else if (!error && p->capture && recorded)
		error = invalidate(p->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	return graph_unlock(error);
}

CUresult capture_asked(const struct capture_point *event)
{
	pthread_mutex_lock(&graph_lock);
	CUresult error = event->capture ? invalidate(event->capture, CUDA_ERROR_CAPTURED_EVENT)
					: CUDA_SUCCESS;
	return graph_unlock(error);
}

/* ---- Begin and end ---- */

static CUresult begin(CUstream handle, int mode, CUgraph graph, const struct nodes *after)
{
	CUresult error;
	struct CUstream_st *s = stream_enter(handle, &error);
	if (!s)
		return error;
	if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream_legacy(s))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	pthread_mutex_lock(&graph_lock);
	if (stream_point(s)->capture)
		return graph_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (graph)
		graph_check(graph);
	if (graph && !nodes_belong(graph, after->at, after->n))
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	struct capture *c = graph_alloc(1, sizeof(*c));
	*c = (struct capture){.next = captures,
			      .id = ++last_id,
			      .graph = graph ? graph : graph_new(),
			      .given = graph,
			      .origin = s,
			      .mode = mode,
			      .thread = pthread_self()};
	if (!graph)
		graph_list(c->graph);
	c->graph->captures++;
	captures = c;
	stream_join(s, c, after);
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuStreamBeginCapture(CUstream stream, int mode)
{
	return begin(stream, mode, NULL, &(struct nodes){0});
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
				     const CUgraphEdgeData *edges, size_t n, int mode)
{
	if (!graph || edges || (n && !after))
		return CUDA_ERROR_INVALID_VALUE;
	return begin(stream, mode, graph, &(struct nodes){(CUgraphNode *)(uintptr_t)after, n});
}

static void reach(struct CUgraphNode_st *n)
{
	if (n->reached)
		return;
	n->reached = true;
	for (size_t i = 0; i < n->after.n; i++)
		reach(n->after.at[i]);
}

/* Whether the origin's last nodes depend on those of all other streams. */
static bool joined(const struct capture *c)
{
	const struct nodes *last = &stream_point(c->origin)->after;
	for (struct CUgraphNode_st *n = c->graph->nodes; n; n = n->next)
		n->reached = false;
	for (size_t i = 0; i < last->n; i++)
		reach(last->at[i]);
	for (const struct capture_point *p = c->streams; p; p = p->next)
		for (size_t i = 0; i < p->after.n; i++)
			if (!p->after.at[i]->reached)
				return false;
	return true;
}

static void end(struct capture *c)
{
	struct capture **link = &captures;
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	c->ended = true;
	c->graph->captures--;
	for (struct capture_point *p = c->streams, *next; p; p = next) {
		next = p->next;
		capture_leave(p); /* the last of its users frees the capture */
	}
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	CUresult error;
	struct CUstream_st *s = stream_enter(handle, &error);
	if (!s)
		return error;
	*graph = NULL;
	pthread_mutex_lock(&graph_lock);
	struct capture *c = stream_point(s)->capture;
	if (!c)
		return graph_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
		return graph_unlock(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	if (s != c->origin)
		return graph_unlock(invalidate(c, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
	if (c->invalid)
		error = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!joined(c))
		error = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	struct CUgraph_st *captured = c->graph;
	const bool given = c->given;
	end(c);
	if (!error)
		*graph = captured;
	else if (!given)
		graph_free(captured);
	return graph_unlock(error);
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	CUresult error = enter();
	if (error)
		return error;
	if (*mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	const int previous = thread_mode;
	thread_mode = *mode;
	*mode = previous;
	return CUDA_SUCCESS;
}

/* ---- Queries ---- */

/* Enters, and locks if it returns the stream. */
static struct CUstream_st *lock_stream(CUstream handle, CUresult *error)
{
	struct CUstream_st *s = stream_enter(handle, error);
	if (!s)
		return NULL;
	pthread_mutex_lock(&graph_lock);
	if (!stream_legacy(s) || !blocked_by(stream_context(s)))
		return s;
	*error = graph_unlock(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return NULL;
}

static int status_of(const struct capture *c)
{
	return !c	    ? CU_STREAM_CAPTURE_STATUS_NONE
	       : c->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
			    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
	CUresult error;
	struct CUstream_st *s = lock_stream(handle, &error);
	if (!s)
		return error;
	*status = status_of(stream_point(s)->capture);
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **after, const CUgraphEdgeData **edges,
				   size_t *n)
{
	CUresult error;
	if (!status || (edges && !after))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUstream_st *s = lock_stream(handle, &error);
	if (!s)
		return error;
	const struct capture_point *p = stream_point(s);
	*status = status_of(p->capture);
	if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return graph_unlock(CUDA_SUCCESS);
	if (id)
		*id = p->capture->id;
	if (graph)
		*graph = p->capture->graph;
	if (after)
		*after = p->after.at;
	if (edges)
		*edges = NULL; /* all edges are plain dependencies */
	if (n)
		*n = p->after.n;
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **after, size_t *n)
{
	return cuStreamGetCaptureInfo_v3(stream, status, id, graph, after, NULL, n);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *after, size_t n,
					   unsigned flags)
{
	CUresult error;
	struct CUstream_st *s = lock_stream(handle, &error);
	if (!s)
		return error;
	struct capture_point *p = stream_point(s);
	const struct nodes more = {after, n};
	if (!p->capture)
		return graph_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (p->capture->invalid)
		return graph_unlock(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
	    !nodes_belong(p->capture->graph, after, n))
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	/* They may be in the stream's own array. */
	struct nodes set = {0};
	if (flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES)
		nodes_add_all(&set, &p->after);
	nodes_add_all(&set, &more);
	nodes_clear(&p->after);
	p->after = set;
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *after,
					      const CUgraphEdgeData *edges, size_t n,
					      unsigned flags)
{
	return edges ? CUDA_ERROR_INVALID_VALUE
		     : cuStreamUpdateCaptureDependencies(stream, after, n, flags);
}
