/* SPDX-License-Identifier: Apache-2.0
 *
 * Through MPS, a stream that waits for a word goes on 2 us sooner if the stream that wrote it lies
 * in the same of the GPU's two queues; with ready and done, an AllReduce ends 5 us sooner. Which of
 * them a stream lies in CUDA does not tell, and the trainer's stream is not ours to choose. So a
 * slot has two streams, one in each, and tries both: for a few tasks the trainer's stream writes
 * down, behind its wait, what it has waited for (echoed). The better one is used from then on, and
 * from time to time it is tried again. Without MPS nothing would be gained: there is one stream. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/timings.h"
#include "launch.h"
#include "worker.h"

#define ROW 8 /* tasks in a row on a timeline, before it is tried */

/* CUDA chooses a stream's queue when it is first used. */
static CUresult finish(const struct worker *w, CUstream stream)
{
	CUresult error = cu.cuMemsetD8Async(w->scratch, 0, 1, stream);
	return error ? error : cu.cuStreamSynchronize(stream);
}

CUresult second_stream_make(const struct worker *w, struct comm_slot *l, int priority)
{
	CUresult error =
		cu.cuStreamCreateWithPriority(&l->stream, CU_STREAM_NON_BLOCKING, priority);
	if (error || !w->mps)
		return error;
	error = finish(w, l->stream);
	if (!error)
		error = cu.cuStreamCreateWithPriority(&l->second_stream, CU_STREAM_NON_BLOCKING,
						      priority);
	if (!error)
		error = finish(w, l->second_stream);
	if (error)
		second_stream_destroy(l->stream, l->second_stream);
	return error;
}

void second_stream_destroy(CUstream stream, CUstream second_stream)
{
	if (stream)
		cu.cuStreamDestroy(stream);
	if (second_stream)
		cu.cuStreamDestroy(second_stream);
}

/* While the slot is idle: nothing has to be ordered, and no stream waits for the other. */
static void change(struct comm_slot *l)
{
	CUstream other = l->second_stream;
	l->second_stream = l->stream;
	l->stream = other;
}

static void ask(const struct worker *w, const struct stream_probe *t, bool echo)
{
	const struct session_timelines *s = &w->sessions[t->session];
	if (s->ring)
		atomic_store_explicit(&s->host[t->timeline].echo, echo, memory_order_relaxed);
}

static void end(struct worker *w, uint64_t rest_ns)
{
	struct stream_probe *t = &w->stream_probe;
	ask(w, t, false);
	w->slots[t->slot].tried_ns = worker_clock();
	w->slots[t->slot].rest_ns = rest_ns;
	*t = (struct stream_probe){0};
}

/* Without a result the slot goes back to the stream it had, unless it has work on the other. */
static void give_up(struct worker *w)
{
	struct comm_slot *l = &w->slots[w->stream_probe.slot];
	if (w->stream_probe.side && l->comm && comm_slot_idle(w, w->stream_probe.slot))
		change(l);
	end(w, SECOND_STREAM_AGAIN_NS);
}

static void begin(struct worker *w, const struct launch *l, uint64_t now)
{
	w->stream_probe = (struct stream_probe){.on = true,
						.slot = l->slot,
						.session = l->session,
						.timeline = l->timeline,
						.begun_ns = now};
	ask(w, &w->stream_probe, true);
}

static int by_size(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* Not the least: sometimes a stream hears of the other queue at once, by chance. */
static uint64_t median(struct stream_probe *t)
{
	uint64_t *times = t->nsharp == PROBE_SHARP ? t->sharp : t->all;
	const unsigned n = t->nsharp == PROBE_SHARP ? t->nsharp : t->nall;
	qsort(times, n, sizeof(*times), by_size);
	return times[n / 2];
}

static bool timed(const struct stream_probe *t)
{
	return t->nsharp == PROBE_SHARP || t->nall == PROBE_SAMPLES;
}

/* One stream has been timed. */
static void next(struct worker *w)
{
	struct stream_probe *t = &w->stream_probe;
	struct comm_slot *l = &w->slots[t->slot];
	const uint64_t ns = median(t);
	if (t->side == 0) {
		change(l);
		t->side = 1;
		t->first_ns = ns;
		t->nall = t->nsharp = t->ntasks = 0;
		return;
	}
	if (ns < t->first_ns / 5 * 3)
		log_info("NCCL communicator %u: uses its second stream (signal after %.1f us "
			 "instead of %.1f)",
			 t->slot, (double)ns / 1000, (double)t->first_ns / 1000);
	else
		change(l);
	end(w, SECOND_STREAM_STALE_NS);
}

void second_stream_before(struct worker *w, const struct launch *l)
{
	struct stream_probe *t = &w->stream_probe;
	if (!w->mps || !l->timeline || !launch_usable(w, l) || w->slots[l->slot].nranks == 1)
		return;
	struct comm_slot *slot = &w->slots[l->slot];
	const uint64_t now = worker_clock();
	if (t->on && now - t->begun_ns > SECOND_STREAM_PROBE_NS)
		give_up(w);
	if (slot->user_session != l->session || slot->user_timeline != l->timeline) {
		slot->user_session = l->session;
		slot->user_timeline = l->timeline;
		slot->row = 0;
		if (slot->rest_ns > SECOND_STREAM_AGAIN_NS)
			slot->rest_ns = SECOND_STREAM_AGAIN_NS;
	}
	if (t->on) {
		if (t->slot == l->slot && timed(t) && comm_slot_idle(w, l->slot))
			next(w);
	} else if (slot->row < ROW) {
		slot->row++;
	} else if (now - slot->tried_ns >= slot->rest_ns) {
		begin(w, l, now);
	}
	t->launched_ns = now;
}

void second_stream_after(struct worker *w, const struct launch *l)
{
	struct stream_probe *t = &w->stream_probe;
	if (!t->on || t->ntasks == PROBE_TASKS || t->slot != l->slot || t->session != l->session ||
	    t->timeline != l->timeline)
		return;
	t->tasks[t->ntasks].seq = l->seq;
	t->tasks[t->ntasks].value = l->value;
	if (!t->ntasks++) {
		t->before_ns = t->looked_ns = t->launched_ns;
		t->over_ns = 0;
	}
}

void second_stream_forget(struct worker *w, uint32_t session)
{
	if (w->stream_probe.on && w->stream_probe.session == session)
		give_up(w);
	for (uint32_t i = 0; i < w->high_slot; i++)
		if (w->slots[i].user_session == session)
			w->slots[i].user_timeline = w->slots[i].rest_ns = 0;
}

static void count(struct stream_probe *t, uint64_t least_ns, uint64_t most_ns)
{
	const uint64_t blur = most_ns - least_ns;
	t->all[t->nall++] = most_ns;
	if (blur <= SECOND_STREAM_SHARP_NS || blur <= most_ns / 4)
		t->sharp[t->nsharp++] = most_ns;
}

void second_stream_watch(struct worker *w)
{
	struct stream_probe *t = &w->stream_probe;
	const struct session_timelines *s = &w->sessions[t->session];
	if (!s->ring || !w->slots[t->slot].comm) {
		give_up(w);
		return;
	}
	const uint64_t now = worker_clock(), value = t->tasks[0].value;
	const bool over = atomic_load_explicit(&w->queue->slots[t->slot].completed,
					       memory_order_acquire) >= t->tasks[0].seq;
	const uint64_t echoed =
		atomic_load_explicit(&s->host[t->timeline].echoed, memory_order_acquire);
	if (over && !t->over_ns)
		t->over_ns = now;
	if (echoed < value) {
		t->looked_ns = now;
		if (!over)
			t->before_ns = now;
		return;
	}
	/* More: it was submitted before we asked, or with others. */
	if (echoed == value && !timed(t))
		count(t, t->over_ns && t->looked_ns > t->over_ns ? t->looked_ns - t->over_ns : 0,
		      now - t->before_ns);
	t->over_ns = 0;
	t->looked_ns = now;
	memmove(t->tasks, t->tasks + 1, --t->ntasks * sizeof(t->tasks[0]));
}
