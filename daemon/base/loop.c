/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include <stdlib.h>

#include "clock.h"
#include "nofail.h"

#define STEPS_AT_ONCE 200000 /* of a job: some 4 ms */

static void *uv_malloc(size_t bytes)
{
	return nofail_malloc(bytes, "the event loop");
}

static void *uv_realloc(void *p, size_t bytes)
{
	return nofail_realloc(p, bytes, "the event loop");
}

static void *uv_calloc(size_t n, size_t bytes)
{
	return nofail_calloc(n, bytes, "the event loop");
}

void loop_init_memory(void)
{
	uv_replace_allocator(uv_malloc, uv_realloc, uv_calloc, free);
}

static void on_timer(uv_timer_t *timer)
{
	struct loop *l = timer->data;
	l->next_deadline_ns = 0;
	const uint64_t next = l->expire(l->arg, clock_now());
	if (next)
		loop_deadline(l, next);
}

void loop_open(struct loop *l, uv_loop_t *uv, uint64_t (*expire)(void *arg, uint64_t now),
	       void *arg)
{
	l->uv = uv;
	l->expire = expire;
	l->arg = arg;
	l->timer.data = l;
	uv_timer_init(uv, &l->timer);
	l->handles = 1;
}

void loop_deadline(struct loop *l, uint64_t at_ns)
{
	if (l->closing || (l->next_deadline_ns && l->next_deadline_ns <= at_ns))
		return;
	const uint64_t now = clock_now();
	l->next_deadline_ns = at_ns;
	uv_update_time(l->uv);
	uv_timer_start(&l->timer, on_timer, at_ns > now ? (at_ns - now + 999999) / 1000000 : 0, 0);
}

static void on_work(uv_work_t *work)
{
	struct loop_job *job = work->data;
	job->run(job);
}

static void on_work_done(uv_work_t *work, int status)
{
	struct loop_job *job = work->data;
	(void)status; /* nothing cancels it */
	job->loop->handles--;
	job->done(job);
}

void loop_run_job(struct loop *l, struct loop_job *job, uint64_t steps)
{
	if (steps <= STEPS_AT_ONCE) {
		job->run(job);
		job->done(job);
		return;
	}
	job->loop = l;
	job->work.data = job;
	l->handles++;
	uv_queue_work(l->uv, &job->work, on_work, on_work_done);
}

static void on_timer_closed(uv_handle_t *handle)
{
	struct loop *l = handle->data;
	l->handles--;
}

void loop_close(struct loop *l)
{
	l->closing = true;
	uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}
