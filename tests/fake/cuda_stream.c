/* SPDX-License-Identifier: Apache-2.0
 * Streams: each has a queue and, from its first operation on, a thread. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define STREAM_LEGACY ((CUstream)1)

struct item {
	struct item *next;
	const struct fake_work *work;
	void *arg;
};

struct CUstream_st {
	struct CUctx_st *context; /* NULL: free for reuse */
	struct CUstream_st *next; /* next in the list of all streams */
	struct CUstream_st *next_free;
	unsigned long long id;
	unsigned flags;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	bool threaded, destroyed;
	struct capture_point point;
	unsigned users; /* calls that sleep on it */
	struct item *head, **tail;
	uint64_t queued, ended;
};

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *all, *unused;
static struct CUstream_st *legacy[FAKE_GPUS_MAX];
static unsigned long long last_id;

struct CUctx_st *stream_context(const struct CUstream_st *s)
{
	return s->context;
}

bool stream_legacy(const struct CUstream_st *s)
{
	return s == legacy[s->context->device];
}

bool stream_blocking(const struct CUstream_st *s)
{
	return !(s->flags & CU_STREAM_NON_BLOCKING) && !stream_legacy(s);
}

struct capture_point *stream_point(struct CUstream_st *s)
{
	return &s->point;
}

/* Handles are reused, the last one first; ids are not. Under streams_lock. */
static struct CUstream_st *stream_new(struct CUctx_st *context)
{
	struct CUstream_st *s = unused;
	if (s) {
		unused = s->next_free;
	} else {
		s = calloc(1, sizeof(*s));
		if (!s)
			return NULL;
		pthread_mutex_init(&s->lock, NULL);
		pthread_cond_init(&s->changed, NULL);
		s->next = all;
		all = s;
	}
	s->context = context;
	s->id = ++last_id;
	s->threaded = s->destroyed = false;
	s->head = NULL;
	s->tail = &s->head;
	s->queued = s->ended = 0;
	return s;
}

static void stream_free(struct CUstream_st *s)
{
	pthread_mutex_lock(&streams_lock);
	s->context = NULL;
	s->next_free = unused;
	unused = s;
	pthread_mutex_unlock(&streams_lock);
}

static void *stream_run(void *arg)
{
	struct CUstream_st *s = arg;
	pthread_mutex_lock(&s->lock);
	for (;;) {
		while (!s->head && !s->destroyed)
			pthread_cond_wait(&s->changed, &s->lock);
		struct item *item = s->head;
		if (!item)
			break;
		s->head = item->next;
		if (!s->head)
			s->tail = &s->head;
		pthread_mutex_unlock(&s->lock);
		connection_await(&s->context->error);
		item->work->run(item->arg, &s->context->error);
		if (item->work->drop)
			item->work->drop(item->arg);
		free(item);
		pthread_mutex_lock(&s->lock);
		s->ended++;
		pthread_cond_broadcast(&s->changed);
	}
	while (s->users)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Frees a stream that was destroyed while it had work. */
static void *stream_bury(void *arg)
{
	struct CUstream_st *s = arg;
	pthread_detach(pthread_self());
	pthread_join(s->thread, NULL);
	stream_free(s);
	return NULL;
}

struct CUstream_st *stream_enter(CUstream handle, CUresult *error)
{
	struct CUctx_st *context;
	*error = enter_context(&context);
	if (*error)
		return NULL;
	pthread_mutex_lock(&streams_lock);
	struct CUstream_st *s = NULL;
	if (!handle || handle == STREAM_LEGACY) {
		s = legacy[context->device];
		if (!s)
			s = legacy[context->device] = stream_new(context);
		if (!s)
			*error = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		for (s = all; s && (s != handle || !s->context || s->destroyed); s = s->next)
			;
		*error = s ? atomic_load(&s->context->error) : CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_mutex_unlock(&streams_lock);
	return *error ? NULL : s;
}

CUresult stream_queue(struct CUstream_st *s, const struct fake_work *work, void *arg)
{
	struct item *item = malloc(sizeof(*item));
	if (!item)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*item = (struct item){.work = work, .arg = arg};
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&s->lock);
	if (!s->threaded && pthread_create(&s->thread, NULL, stream_run, s))
		error = CUDA_ERROR_OUT_OF_MEMORY;
	if (!error) {
		s->threaded = true;
		*s->tail = item;
		s->tail = &item->next;
		s->queued++;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
	if (error)
		free(item);
	return error;
}

CUresult stream_put(struct CUstream_st *s, const struct fake_work *work, void *arg)
{
	checkpoint_wait();
	bool captured;
	CUresult error = capture_put(s, work, arg, &captured);
	if (!error && !captured)
		error = stream_queue(s, work, arg);
	if (error)
		work->drop(arg);
	return error;
}

CUresult fake_stream_enqueue(CUstream handle, const struct fake_work *work, void *arg)
{
	CUresult error;
	checkpoint_wait();
	struct CUstream_st *s = stream_enter(handle, &error);
	if (!error)
		error = capture_refuse(s);
	return error ? error : stream_queue(s, work, arg);
}

static void drain(struct CUstream_st *s)
{
	pthread_mutex_lock(&s->lock);
	uint64_t until = s->queued;
	s->users++;
	while (s->ended < until)
		pthread_cond_wait(&s->changed, &s->lock);
	s->users--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

CUresult stream_wait(struct CUstream_st *s)
{
	struct CUctx_st *context = s->context;
	drain(s);
	return atomic_load(&context->error);
}

CUresult streams_wait(struct CUctx_st *context)
{
	/* Stream objects are never freed. If a stream is destroyed meanwhile, its object is idle or
	 * already serves a new stream. */
	pthread_mutex_lock(&streams_lock);
	for (struct CUstream_st *s = all; s; s = s->next) {
		if (s->context != context)
			continue;
		pthread_mutex_unlock(&streams_lock);
		drain(s);			   /* its context may be gone */
		pthread_mutex_lock(&streams_lock); /* s is still in the list */
	}
	pthread_mutex_unlock(&streams_lock);
	return atomic_load(&context->error);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	(void)priority; /* out-of-range values are clamped, as in the driver */
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (error)
		return error;
	if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&streams_lock);
	*stream = stream_new(context);
	if (*stream)
		(*stream)->flags = flags;
	pthread_mutex_unlock(&streams_lock);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct CUctx_st *context;
	CUresult error = enter_context(&context);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return error;
}

CUresult cuStreamDestroy(CUstream handle)
{
	/* Also in a failed context, so that nothing leaks. */
	CUresult error = enter();
	if (error)
		return error;
	pthread_mutex_lock(&streams_lock);
	struct CUstream_st *s = all;
	while (s && (s != handle || !s->context || s->destroyed))
		s = s->next;
	if (!s) {
		pthread_mutex_unlock(&streams_lock);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	if (capture_active(s))
		fake_die("a stream is destroyed while it is captured");
	pthread_mutex_lock(&s->lock);
	s->destroyed = true;
	pthread_mutex_unlock(&streams_lock);
	bool idle = s->ended == s->queued && s->users == 0;
	bool threaded = s->threaded;
	struct CUctx_st *context = s->context;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	error = atomic_load(&context->error);
	pthread_t undertaker;
	if (!threaded) {
		stream_free(s);
	} else if (idle || pthread_create(&undertaker, NULL, stream_bury, s)) {
		pthread_join(s->thread, NULL);
		stream_free(s);
	}
	return error;
}

CUresult cuStreamSynchronize(CUstream handle)
{
	CUresult error;
	struct CUstream_st *s = stream_enter(handle, &error);
	if (!error)
		error = capture_refuse(s);
	if (!error)
		error = capture_unsafe();
	return error ? error : stream_wait(s);
}

CUresult cuStreamQuery(CUstream handle)
{
	CUresult error;
	checkpoint_wait();
	struct CUstream_st *s = stream_enter(handle, &error);
	if (!error)
		error = capture_refuse(s);
	if (!error)
		error = capture_unsafe();
	if (error)
		return error;
	pthread_mutex_lock(&s->lock);
	if (s->ended < s->queued)
		error = CUDA_ERROR_NOT_READY;
	pthread_mutex_unlock(&s->lock);
	return error ? error : atomic_load(&s->context->error);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags)
{
	CUresult error;
	const struct CUstream_st *s = stream_enter(handle, &error);
	if (s)
		*flags = s->flags;
	return error;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
	CUresult error;
	struct CUstream_st *s = stream_enter(handle, &error);
	if (s)
		*context = s->context;
	return error;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	CUresult error;
	struct CUstream_st *s = stream_enter(handle, &error);
	if (s)
		*id = s->id;
	return error;
}
