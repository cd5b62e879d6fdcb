/* SPDX-License-Identifier: Apache-2.0
 * The program's functions that CUDA calls: in stream order, or when a user object's last reference
 * is dropped. They must not call CUDA. */
#include <limits.h>
#include <stdlib.h>

#include "graph.h"

static _Thread_local bool calling;

bool host_calling(void)
{
	return calling;
}

struct host {
	CUhostFn function;
	void *arg;
};

static void call(const struct host *h)
{
	calling = true;
	h->function(h->arg);
	calling = false;
}

/* ---- In a stream ---- */

static void host_run(void *arg, const atomic_int *stop)
{
	if (!atomic_load(stop))
		call(arg);
}

static const struct fake_work host_work = {CU_GRAPH_NODE_TYPE_HOST, host_run, free, NULL};

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *arg)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	struct host *h = graph_alloc(1, sizeof(*h));
	*h = (struct host){function, arg};
	return stream_put(stream, &host_work, h);
}

/* ---- User objects ---- */

struct CUuserObject_st {
	struct CUuserObject_st *next; /* next in the list of all */
	struct host destroy;
	uint64_t own; /* references of the program */
	uint64_t all; /* including those of graphs */
};

struct held {
	struct held *next;
	struct CUuserObject_st *object;
	uint64_t n;
};

static struct CUuserObject_st *objects;

static void *destroy(void *arg)
{
	pthread_detach(pthread_self());
	call(arg);
	free(arg);
	return NULL;
}

/* Called later, on a CUDA thread. */
static void destroy_later(const struct host *h)
{
	pthread_t thread;
	struct host *copy = graph_alloc(1, sizeof(*copy));
	*copy = *h;
	if (pthread_create(&thread, NULL, destroy, copy))
		fake_die("no thread for the destructor of a user object");
}

static void object_unref(struct CUuserObject_st *object, uint64_t n)
{
	object->all -= n;
	if (object->all)
		return;
	struct CUuserObject_st **link = &objects;
	while (*link != object)
		link = &(*link)->next;
	*link = object->next;
	destroy_later(&object->destroy);
	free(object);
}

static void give_up(struct CUuserObject_st *object, unsigned n)
{
	if (object->own < n)
		fake_die("references to a user object are released that the program does not have");
	object->own -= n;
}

/* Enters, checks and locks. */
static CUresult lock_object(CUuserObject object, unsigned n)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!object || !n || n > INT_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	const struct CUuserObject_st *o = objects;
	while (o && o != object)
		o = o->next;
	if (!o)
		fake_die("a user object is used that does not exist, or is gone");
	return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject *object, void *arg, CUhostFn function, unsigned n,
			    unsigned flags)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!function || !n || n > INT_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	*object = graph_alloc(1, sizeof(**object));
	pthread_mutex_lock(&graph_lock);
	**object = (struct CUuserObject_st){objects, {function, arg}, n, n};
	objects = *object;
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned n)
{
	CUresult error = lock_object(object, n);
	if (error)
		return error;
	object->own += n;
	object->all += n;
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned n)
{
	CUresult error = lock_object(object, n);
	if (error)
		return error;
	give_up(object, n);
	object_unref(object, n);
	return graph_unlock(CUDA_SUCCESS);
}

/* ---- Of graphs ---- */

static struct held **held_find(struct CUgraph_st *graph, const struct CUuserObject_st *object)
{
	struct held **link = &graph->held;
	while (*link && (*link)->object != object)
		link = &(*link)->next;
	return link;
}

static void hold(struct held **link, struct CUuserObject_st *object, uint64_t n)
{
	if (!*link) {
		*link = graph_alloc(1, sizeof(**link));
		(*link)->object = object;
	}
	(*link)->n += n;
}

void held_drop(struct held *held)
{
	for (struct held *next; held; held = next) {
		next = held->next;
		object_unref(held->object, held->n);
		free(held);
	}
}

struct held *held_clone(const struct held *held)
{
	struct held *clone = NULL, **link = &clone;
	for (; held; held = held->next) {
		hold(link, held->object, held->n);
		held->object->all += held->n;
		link = &(*link)->next;
	}
	return clone;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned n, unsigned flags)
{
	CUresult error = lock_object(object, n);
	if (error)
		return error;
	if (!graph || flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	graph_check(graph);
	if (flags)
		give_up(object, n);
	else
		object->all += n;
	hold(held_find(graph, object), object, n);
	return graph_unlock(CUDA_SUCCESS);
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned n)
{
	CUresult error = lock_object(object, n);
	if (error)
		return error;
	if (!graph)
		return graph_unlock(CUDA_ERROR_INVALID_VALUE);
	graph_check(graph);
	struct held **link = held_find(graph, object), *held = *link;
	if (!held || held->n < n)
		fake_die("references to a user object are released that the graph does not have");
	held->n -= n;
	if (!held->n) {
		*link = held->next;
		free(held);
	}
	object_unref(object, n);
	return graph_unlock(CUDA_SUCCESS);
}
