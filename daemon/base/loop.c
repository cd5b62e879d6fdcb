/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include <signal.h>
#include <stdlib.h>

#include "clock.h"
#include "nofail.h"
#include "timings.h"

#define STEPS_AT_ONCE 200000 /* of a job: about 4 ms */

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

static void on_closed(uv_handle_t *handle)
{
	struct loop *l = handle->data;
	l->handles--;
}

/* ---- Jobs ---- */

static void on_job(uv_async_t *async)
{
	struct loop *l = async->data;
	pthread_mutex_lock(&l->job_lock);
	struct loop_job *job = l->jobs_run, *next;
	l->jobs_run = NULL;
	pthread_mutex_unlock(&l->job_lock);
	for (; job; job = next) {
		next = job->next;
		pthread_join(job->thread, NULL);
		l->jobs--;
		job->done(job);
	}
	if (l->closing && !l->jobs)
		uv_close((uv_handle_t *)&l->on_job, on_closed);
}

static void *run_job(void *arg)
{
	struct loop_job *job = arg;
	struct loop *l = job->loop;
	job->run(job);
	pthread_mutex_lock(&l->job_lock);
	job->next = l->jobs_run;
	l->jobs_run = job;
	uv_async_send(&l->on_job);
	pthread_mutex_unlock(&l->job_lock);
	return NULL;
}

static bool start_thread(struct loop_job *job)
{
	sigset_t all, old;
	sigfillset(&all); /* the loop handles signals */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	const bool started = !pthread_create(&job->thread, NULL, run_job, job);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return started;
}

void loop_run_job(struct loop *l, struct loop_job *job, uint64_t steps)
{
	job->loop = l;
	if (steps > STEPS_AT_ONCE && start_thread(job)) {
		l->jobs++;
		return;
	}
	job->run(job);
	job->done(job);
}

/* ---- Deadlines ---- */

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
	l->on_job.data = l;
	uv_async_init(uv, &l->on_job, on_job);
	pthread_mutex_init(&l->job_lock, NULL);
	l->handles = 2;
}

/* libuv runs timers until none is due. So a timer set from a timer must not be due in the same
 * turn, however late it is, or the loop would run only timers forever. The loop's time does not
 * advance meanwhile (uv_update_time is never called), so the timer is set to a later time than
 * that. */
void loop_deadline(struct loop *l, uint64_t at_ns)
{
	if (l->closing || (l->next_deadline_ns && l->next_deadline_ns <= at_ns))
		return;
	const uint64_t soonest_ns = clock_now() + LOOP_PAUSE_NS;
	const uint64_t due_ms = ((at_ns > soonest_ns ? at_ns : soonest_ns) + 999999) / 1000000;
	const uint64_t loop_ms = uv_now(l->uv);
	l->next_deadline_ns = at_ns;
	uv_timer_start(&l->timer, on_timer, due_ms > loop_ms ? due_ms - loop_ms : 1, 0);
}

void loop_close(struct loop *l)
{
	l->closing = true;
	uv_close((uv_handle_t *)&l->timer, on_closed);
	if (!l->jobs)
		uv_close((uv_handle_t *)&l->on_job, on_closed);
}
