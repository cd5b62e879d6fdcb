/* SPDX-License-Identifier: Apache-2.0
 * Events. An event that was never recorded counts as done, so that nothing waits for it. */
#include <stdlib.h>
#include <time.h>

#include "graph.h"

#define RECORDS 1024 /* more than can be in flight */

struct CUevent_st {
	atomic_uint refs; /* held by its handle, running operations and nodes */
	struct CUctx_st *context;
	bool timing;
	atomic_bool destroyed;
	struct capture_point point; /* of its last record, if captured */
	pthread_mutex_t lock;
	uint64_t recorded; /* number of records */
	/* The records that streams have reached, by number % RECORDS: those of several streams
	 * complete in any order. */
	uint64_t done[RECORDS];
	uint64_t newest;      /* newest record reached */
	struct timespec when; /* time of the newest */
};

struct event_op {
	struct CUevent_st *event;
	uint64_t number; /* for a node: that of its launch */
};

static void event_unref(struct CUevent_st *e)
{
	if (atomic_fetch_sub(&e->refs, 1) > 1)
		return;
	pthread_mutex_destroy(&e->lock);
	free(e);
}

static bool event_done(struct CUevent_st *e, uint64_t number)
{
	pthread_mutex_lock(&e->lock);
	bool done = e->done[number % RECORDS] >= number;
	pthread_mutex_unlock(&e->lock);
	return done;
}

static uint64_t event_recorded(struct CUevent_st *e)
{
	pthread_mutex_lock(&e->lock);
	uint64_t number = e->recorded;
	pthread_mutex_unlock(&e->lock);
	return number;
}

static struct event_op *op_new(struct CUevent_st *e, uint64_t number)
{
	struct event_op *op = malloc(sizeof(*op));
	if (!op)
		return NULL;
	*op = (struct event_op){e, number};
	atomic_fetch_add(&e->refs, 1);
	return op;
}

static void op_drop(void *arg)
{
	struct event_op *op = arg;
	event_unref(op->event);
	free(op);
}

static void record_run(void *arg, const atomic_int *stop)
{
	const struct event_op *op = arg;
	if (atomic_load(stop))
		return;
	pthread_mutex_lock(&op->event->lock);
	op->event->done[op->number % RECORDS] = op->number;
	if (op->number > op->event->newest) {
		op->event->newest = op->number;
		clock_gettime(CLOCK_MONOTONIC, &op->event->when);
	}
	pthread_mutex_unlock(&op->event->lock);
}

static void wait_run(void *arg, const atomic_int *stop)
{
	const struct event_op *op = arg;
	unsigned round = 0;
	while (!atomic_load(stop) && !event_done(op->event, op->number))
		fake_pause(&round);
}

/* ---- Nodes: launches record and wait like calls ---- */

static struct CUevent_st *node_event(void *arg)
{
	struct CUevent_st *e = ((struct event_op *)arg)->event;
	if (atomic_load(&e->destroyed))
		fake_die("a graph is launched that uses an event that was destroyed");
	return e;
}

static void *record_again(void *arg)
{
	struct CUevent_st *e = node_event(arg);
	capture_leave(&e->point);
	pthread_mutex_lock(&e->lock);
	const uint64_t number = ++e->recorded;
	pthread_mutex_unlock(&e->lock);
	return op_new(e, number);
}

static void *wait_again(void *arg)
{
	struct CUevent_st *e = node_event(arg);
	return op_new(e, event_recorded(e));
}

static const struct fake_work record_work = {CU_GRAPH_NODE_TYPE_EVENT_RECORD, record_run, op_drop,
					     record_again};
static const struct fake_work wait_work = {CU_GRAPH_NODE_TYPE_WAIT_EVENT, wait_run, op_drop,
					   wait_again};

static CUresult node_put(struct CUstream_st *stream, struct CUevent_st *e,
			 const struct fake_work *work)
{
	if (!capture_active(stream))
		return CUDA_ERROR_INVALID_VALUE;
	struct event_op *op = op_new(e, 0);
	return op ? stream_put(stream, work, op) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- Calls ---- */

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUevent_st *e = calloc(1, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	atomic_init(&e->refs, 1);
	e->context = context;
	e->timing = !(flags & CU_EVENT_DISABLE_TIMING);
	pthread_mutex_init(&e->lock, NULL);
	*event = e;
	return CUDA_SUCCESS;
}

static CUresult record_put(struct CUstream_st *stream, struct CUevent_st *e)
{
	struct event_op *op = op_new(e, 0);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	checkpoint_wait();
	/* Under the lock, so that the records of two threads run in the order of their numbers. */
	pthread_mutex_lock(&e->lock);
	op->number = e->recorded + 1;
	CUresult error = stream_queue(stream, &record_work, op);
	if (!error)
		e->recorded++;
	pthread_mutex_unlock(&e->lock);
	if (error)
		op_drop(op);
	return error;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
	CUresult error;
	bool captured;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	if (!event || event->context != stream_context(stream))
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		return node_put(stream, event, &record_work);
	error = capture_record(stream, &event->point, &captured);
	return error || captured ? error : record_put(stream, event);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
	CUresult error;
	bool captured;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		return node_put(stream, event, &wait_work);
	error = capture_wait(stream, &event->point, event_recorded(event), &captured);
	if (error || captured)
		return error;
	struct event_op *op = op_new(event, event_recorded(event));
	return op ? stream_put(stream, &wait_work, op) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* For queries that an event cannot answer if it was last recorded in a capture. */
static CUresult enter_event(CUevent event, struct CUctx_st **context)
{
	CUresult error = enter_context(context);
	if (!error && !event)
		error = CUDA_ERROR_INVALID_HANDLE;
	return error ? error : capture_asked(&event->point);
}

CUresult cuEventQuery(CUevent event)
{
	struct CUctx_st *context;
	CUresult error = enter_event(event, &context);
	if (!error)
		error = capture_unsafe();
	if (error)
		return error;
	return event_done(event, event_recorded(event)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
	struct CUctx_st *context;
	CUresult error = enter_event(event, &context);
	if (!error)
		error = capture_unsafe();
	if (error)
		return error;
	uint64_t number = event_recorded(event);
	unsigned round = 0;
	while (!atomic_load(&context->error) && !event_done(event, number))
		fake_pause(&round);
	return atomic_load(&context->error);
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	struct CUctx_st *context;
	CUresult error = enter_event(from, &context);
	if (!error)
		error = enter_event(to, &context);
	if (error)
		return error;
	if (!from->timing || !to->timing || !event_recorded(from) || !event_recorded(to))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!event_done(from, event_recorded(from)) || !event_done(to, event_recorded(to)))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)(to->when.tv_sec - from->when.tv_sec) * 1e3 +
		      (double)(to->when.tv_nsec - from->when.tv_nsec) * 1e-6);
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
	CUresult error = enter();
	if (error)
		return error;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&graph_lock);
	capture_leave(&event->point);
	pthread_mutex_unlock(&graph_lock);
	atomic_store(&event->destroyed, true);
	event_unref(event);
	return CUDA_SUCCESS;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
				   size_t n, CUevent event)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	struct event_op *op = op_new(event, 0);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return graph_add_node(node, graph, after, n, record_work.type, action_new(&record_work, op),
			      NULL);
}
