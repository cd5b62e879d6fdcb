/* SPDX-License-Identifier: Apache-2.0
 * The order between streams and tasks. Each pair of a stream and a communicator has its own
 * timeline. A task takes the timeline's next value n; its stream writes ready = n and waits for
 * done >= n, and the worker's stream does the opposite. A timeline's counters never decrease while
 * its page lives, not even when another pair takes it over, because a stream may still have to wait
 * for an old value. Captured groups' counters do start again: the event behind them shows when no
 * stream has to wait (captured_group.h). */
#include <stdlib.h>

#include "base/error.h"
#include "core/comm_handle.h"
#include "core/op.h"
#include "core/session_handle.h"
#include "core/session_timeline.h"
#include "core/thread.h"
#include "gpu_state.h"
#include "proto/names.h"

/* Limit per stream. The driver blocks a thread that puts more on a stream than its queue holds
 * (about a thousand entries), and what the stream waits for may need this session's lock. */
#define PENDING_MAX 512

#define LAST_DEFAULT 2 /* NULL, legacy, per-thread: these handles refer to the current context */

/* A default stream belongs to the current context if that is of the device, otherwise to the
 * primary context. A thread without a context gets the primary one for the query. */
static ncclsvc_result choose_context(struct gpu *g, int device, struct stream *st)
{
	CUcontext current = NULL;
	CUdevice now, cu;
	bool is_default = (uintptr_t)st->handle <= LAST_DEFAULT;
	g->cuda->cuCtxGetCurrent(&current);
	if (current && !is_default)
		return NCCLSVC_OK;
	ncclsvc_result r = cuda_device(g->cuda, device, &cu);
	if (!r && (!current || g->cuda->cuCtxGetDevice(&now) || now != cu))
		r = gpu_primary(g, device, &st->push);
	if (is_default)
		st->context = st->push ? st->push : current;
	return r;
}

ncclsvc_result stream_context(struct gpu *g, int device, CUstream handle, CUcontext *push)
{
	struct stream st = {.handle = handle};
	ncclsvc_result r = choose_context(g, device, &st);
	*push = st.push;
	return r;
}

ncclsvc_result stream_look(struct gpu *g, int device, CUstream handle, struct stream *st)
{
	int capture = CU_STREAM_CAPTURE_STATUS_NONE;
	*st = (struct stream){.handle = handle};
	ncclsvc_result r = choose_context(g, device, st);
	if (r)
		return r;
	CUresult e = cuda_push(g->cuda, st->push);
	if (!e) {
		e = g->cuda->cuStreamIsCapturing(handle, &capture);
		/* Querying more of a capturing stream would invalidate the capture. */
		if (!e && capture == CU_STREAM_CAPTURE_STATUS_NONE)
			e = g->cuda->cuStreamGetId(handle, &st->id);
		cuda_pop(g->cuda, st->push);
	}
	st->captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
	if (e == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return error_set(NCCLSVC_UNSUPPORTED,
				 "cannot use the default stream while a stream that synchronizes "
				 "with it is being captured into a CUDA graph");
	return e ? cuda_error(g->cuda, e, "cannot use the stream") : NCCLSVC_OK;
}

ncclsvc_result stream_captured(void)
{
	return error_set(
		NCCLSVC_UNSUPPORTED,
		"the stream is being captured into a CUDA graph, and planned operations and "
		"lists cannot be captured (see ncclsvc_all_reduce and the man page)");
}

ncclsvc_result stream_identify(struct gpu *g, int device, CUstream handle, struct stream *st)
{
	ncclsvc_result r = stream_look(g, device, handle, st);
	return !r && st->captured ? stream_captured() : r;
}

/* ---- Pairs ---- */

struct svc_timeline *stream_counters(const struct gpu *g, uint32_t index)
{
	return &g->page->timelines[index];
}

/* Planned tasks run in a different order from the others, and need their own timeline. */
static struct pair *pair_find(struct gpu *g, const struct stream *st, const struct op *op)
{
	for (uint32_t n = 0; n < SVC_TIMELINES; n++) {
		uint32_t i = (g->recent + n) % SVC_TIMELINES;
		struct pair *p = &g->pairs[i];
		if (p->used && p->stream_id == st->id && p->comm_key == op->comm->key &&
		    p->context == st->context && !p->planned == !op->planned) {
			g->recent = i;
			return p;
		}
	}
	return NULL;
}

/* The least recently used pair that nothing depends on; 0: none. Its stream must have written the
 * last value: a late write would set `ready` back under the next owner. */
static uint32_t idle_pair(const struct gpu *g, uint64_t since)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < SVC_TIMELINES; i++) {
		const struct pair *p = &g->pairs[i];
		if (p->used && !p->timeline->pending && p->clock < since &&
		    atomic_load(&stream_counters(g, i)->ready) >= p->timeline->last &&
		    (!best || p->clock < g->pairs[best].clock))
			best = i;
	}
	return best;
}

static void arrived(ncclsvc_session *s)
{
	bool restored;
	checkpoint_look(s, s->gpu, &restored);
}

static const struct stream_callbacks stream_callbacks = {.arrived = arrived, .ended = device_unpin};

static ncclsvc_result no_line(void)
{
	return error_set(
		NCCLSVC_LIMIT,
		"all %d timelines of the session are in use: wait for tasks, or use fewer streams "
		"and communicators at once; each epoch of a communicator with NCCL operations in "
		"CUDA graphs holds one until it is over and these graphs are destroyed",
		SVC_TIMELINES - 1);
}

/* A member's captured groups had it, and neither streams nor the daemon use it any more. Tasks may
 * have ended without being looked at. */
static bool is_given(const ncclsvc_session *s, const struct gpu *g, uint32_t i)
{
	return atomic_load_explicit(&g->page->given, memory_order_acquire) >> i & 1 &&
	       !atomic_load(&stream_counters(g, i)->captured_groups) &&
	       (!s->timelines[i]->pending || !tasks_on_timeline(s, i));
}

static void words_clear(struct svc_timeline *words)
{
	atomic_store(&words->ready, 0);
	atomic_store(&words->done, 0);
	atomic_store(&words->go, 0);
	atomic_store(&words->launched, 0);
	atomic_store(&words->ended, 0);
	atomic_store(&words->taken, 0);
	atomic_store(&words->taken_launch, 0);
	atomic_store(&words->once, 0);
	atomic_store(&words->did, 0);
	atomic_store(&words->did_before, 0);
}

/* 0: none is free. */
static ncclsvc_result new_line(ncclsvc_session *s, struct gpu *g, uint32_t *index)
{
	uint32_t i = 1;
	while (i < SVC_TIMELINES && s->timelines[i] && !is_given(s, g, i))
		i++;
	*index = i < SVC_TIMELINES ? i : 0;
	if (!*index)
		return NCCLSVC_OK;
	ncclsvc_timeline *t = s->timelines[i];
	if (!t)
		t = calloc(1, sizeof(*t));
	if (!t)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	*t = (ncclsvc_timeline){
		.session = s, .index = i, .of_stream = &stream_callbacks, .pending = t->pending};
	s->timelines[i] = t;
	atomic_fetch_and_explicit(&g->page->given, ~(UINT64_C(1) << i), memory_order_relaxed);
	words_clear(stream_counters(g, i));
	g->pairs[i] = (struct pair){0};
	return NCCLSVC_OK;
}

/* Makes room for one more pair. */
static ncclsvc_result pair_room(ncclsvc_session *s, struct gpu *g, uint64_t since, uint32_t *index,
				bool *yielded)
{
	ncclsvc_result r = new_line(s, g, index);
	if (r || *index)
		return r;
	*index = idle_pair(g, since);
	if (*index)
		return NCCLSVC_OK;
	tasks_look(s);
	*yielded = true;
	if (g->page && !idle_pair(g, since))
		return no_line();
	return NCCLSVC_OK;
}

ncclsvc_result stream_timeline(ncclsvc_session *s, struct gpu *g, uint32_t *index)
{
	ncclsvc_result r = new_line(s, g, index);
	return r || *index ? r : no_line();
}

static bool stands_alone(const struct gpu *g, const struct stream *st)
{
	unsigned flags = 0;
	CUresult e = st->context ? CUDA_ERROR_INVALID_VALUE : cuda_push(g->cuda, st->push);
	if (e)
		return false;
	e = g->cuda->cuStreamGetFlags(st->handle, &flags);
	cuda_pop(g->cuda, st->push);
	return !e && flags & CU_STREAM_NON_BLOCKING;
}

ncclsvc_result stream_page(ncclsvc_session *s, struct gpu *g, const ncclsvc_comm *comm,
			   const struct stream *st, CUdeviceptr *address)
{
	CUdevice device, due;
	ncclsvc_result r = page_register(s, g, comm->device);
	if (!r)
		r = page_address(g, st, &device, address);
	if (!r)
		r = cuda_device(g->cuda, comm->device, &due);
	if (!r && device != due)
		r = error_argument("the stream belongs to GPU %d, communicator %s to GPU %d: set a "
				   "stream of the communicator's GPU",
				   device, comm->label, comm->device);
	return r;
}

ncclsvc_result stream_find(ncclsvc_session *s, struct gpu *g, struct op *op,
			   const struct stream *st, uint64_t since, bool *yielded)
{
	CUdeviceptr address;
	uint32_t index;
	const ncclsvc_comm *comm = op->comm;
	struct pair *p = pair_find(g, st, op);
	ncclsvc_result r;
	if (!p) {
		CUcontext unused;
		r = stream_page(s, g, comm, st, &address);
		/* It is queried again when the page goes. */
		if (!r)
			r = gpu_primary(g, comm->device, &unused);
		if (!r)
			r = pair_room(s, g, since, &index, yielded);
		if (r || *yielded)
			return r;
		p = &g->pairs[index];
		*p = (struct pair){
			.used = true,
			.timeline = s->timelines[index],
			.stream_id = st->id,
			.context = st->context,
			.comm_key = comm->key,
			.planned = op->planned,
			.device = comm->device,
			.alone = stands_alone(g, st),
			.ready = address + index * sizeof(struct svc_timeline),
		};
	}
	if (p->planned > op->planned)
		return error_argument(
			"%s: a task of a later group was already submitted on this stream: on one "
			"stream, follow the order of the plan's groups",
			svc_op_name(op->record.op));
	if (p->timeline->last - atomic_load(&stream_counters(g, (uint32_t)(p - g->pairs))->done) >=
	    PENDING_MAX)
		return error_set(NCCLSVC_AGAIN,
				 "the stream has %d pending tasks on %s: wait for one", PENDING_MAX,
				 comm->label);
	p->clock = g->clock;
	p->stream = st->handle;
	p->push = st->push;
	p->touched = false;
	p->wait_to = 0;
	op->record.timeline = (uint32_t)(p - g->pairs);
	return NCCLSVC_OK;
}

void streams_number(struct gpu *g, struct op *op)
{
	struct pair *p = &g->pairs[op->record.timeline];
	if (!p->touched)
		p->rested =
			p->alone && atomic_load(&stream_counters(g, op->record.timeline)->done) >=
					    p->timeline->last;
	op->record.flags |= SVC_TASK_TIMELINE;
	op->record.value = ++p->timeline->last;
	p->planned = op->planned;
	p->touched = true;
	if (!op->detached)
		p->wait_to = p->timeline->last;
}

void streams_forget(ncclsvc_session *s)
{
	struct gpu *g = s->gpu;
	timelines_release(s);
	for (uint32_t i = 1; i < SVC_TIMELINES; i++) {
		if (!s->timelines[i] || !s->timelines[i]->of_stream)
			continue;
		free(s->timelines[i]);
		s->timelines[i] = NULL;
		g->pairs[i] = (struct pair){0};
	}
}

/* ---- The stream that a thread has set ---- */

ncclsvc_result stream_choose(struct op *op, const struct thread_state *t)
{
	if (!t)
		return NCCLSVC_OK;
	if (atomic_load_explicit(&t->timeline, memory_order_relaxed))
		return error_set(NCCLSVC_UNSUPPORTED,
				 "a timeline is set on this thread, but GPU tasks are ordered by "
				 "their stream: set it to NULL first");
	op->stream = t->stream;
	op->detached = t->stream_flags & NCCLSVC_STREAM_DETACHED;
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_stream_set(ncclsvc_session *s, CUstream stream, unsigned flags)
{
	ncclsvc_result r = NCCLSVC_OK;
	if (!s)
		return error_argument("ncclsvc_stream_set: the session is NULL");
	if (flags & ~NCCLSVC_STREAM_DETACHED)
		return error_argument(
			"ncclsvc_stream_set: flags are %#x, which this library does not support",
			flags);
	struct thread_state *t = thread_own(s);
	bool clears = t && !stream && !flags && (t->stream || t->stream_flags);
	if (t && !clears) { /* clearing it may free the state */
		t->stream = stream;
		t->stream_flags = flags;
		return NCCLSVC_OK;
	}
	session_lock(s);
	t = stream || flags ? thread_make(s) : thread_find(s);
	if (t) {
		t->stream = stream;
		t->stream_flags = flags;
		thread_tidy(s, t);
	} else if (stream || flags) {
		r = error_set(NCCLSVC_NO_MEMORY, "out of memory");
	}
	session_unlock(s);
	return r;
}
