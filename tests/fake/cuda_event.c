/* SPDX-License-Identifier: Apache-2.0
 * Events. One that was never recorded counts as done: a wait for it is no wait. */
#include <stdlib.h>
#include <time.h>

#include "fake.h"

#define RECORDS 1024 /* more than can be under way */

struct CUevent_st {
	atomic_uint refs; /* its handle, and operations under way */
	bool timing;
	pthread_mutex_t lock;
	uint64_t recorded; /* how often */
	/* The records that streams have come to, by number % RECORDS: those of several streams are
	 * done in any order. */
	uint64_t done[RECORDS];
	uint64_t newest;      /* of those */
	struct timespec when; /* of the newest */
};

struct event_op {
	struct CUevent_st *event;
	uint64_t number;
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

static void record_run(void *arg, const atomic_int *stop)
{
	struct event_op *op = arg;
	if (!atomic_load(stop)) {
		pthread_mutex_lock(&op->event->lock);
		op->event->done[op->number % RECORDS] = op->number;
		if (op->number > op->event->newest) {
			op->event->newest = op->number;
			clock_gettime(CLOCK_MONOTONIC, &op->event->when);
		}
		pthread_mutex_unlock(&op->event->lock);
	}
	event_unref(op->event);
	free(op);
}

static void wait_run(void *arg, const atomic_int *stop)
{
	struct event_op *op = arg;
	unsigned round = 0;
	while (!atomic_load(stop) && !event_done(op->event, op->number))
		fake_pause(&round);
	event_unref(op->event);
	free(op);
}

static CUresult event_put(struct CUstream_st *stream, struct CUevent_st *e, fake_op *run,
			  uint64_t number)
{
	struct event_op *op = malloc(sizeof(*op));
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*op = (struct event_op){e, number};
	atomic_fetch_add(&e->refs, 1);
	CUresult error = stream_put(stream, run, op);
	if (error) {
		event_unref(e);
		free(op);
	}
	return error;
}

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
	e->timing = !(flags & CU_EVENT_DISABLE_TIMING);
	pthread_mutex_init(&e->lock, NULL);
	*event = e;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	/* Under the lock, so that two threads' records run in the order of their numbers. */
	pthread_mutex_lock(&event->lock);
	error = event_put(stream, event, record_run, event->recorded + 1);
	if (!error)
		event->recorded++;
	pthread_mutex_unlock(&event->lock);
	return error;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
	CUresult error;
	struct CUstream_st *stream = stream_enter(handle, &error);
	if (!stream)
		return error;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return event_put(stream, event, wait_run, event_recorded(event));
}

CUresult cuEventQuery(CUevent event)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	return event_done(event, event_recorded(event)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	uint64_t number = event_recorded(event);
	unsigned round = 0;
	while (!atomic_load(&context->error) && !event_done(event, number))
		fake_pause(&round);
	return atomic_load(&context->error);
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (!from || !to || !from->timing || !to->timing || !event_recorded(from) ||
	    !event_recorded(to))
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
	event_unref(event);
	return CUDA_SUCCESS;
}
