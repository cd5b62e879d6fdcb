/* SPDX-License-Identifier: Apache-2.0
 * Joins and rejoins run in their own thread, one at a time. An abort ends the wait for the thread
 * but not the join, which all ranks must complete together: the next call that needs the world
 * waits for it again. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "ort.h"

static struct {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool running;
	unsigned runs;
	background_call_fn *call;
	/* The result of the last completed run. */
	ncclsvc_result result;
	char text[ERROR_BYTES];
} background = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static void *run(void *arg)
{
	(void)arg;
	const ncclsvc_result result = background.call();
	pthread_mutex_lock(&background.lock);
	background.result = result;
	if (result)
		snprintf(background.text, sizeof(background.text), "%s", ncclsvc_last_error());
	background.running = false;
	pthread_cond_broadcast(&background.ended);
	pthread_mutex_unlock(&background.lock);
	return NULL;
}

/* Signals of the program are for its own threads. Locked. */
static ncclsvc_result begin(background_call_fn *call)
{
	pthread_t thread;
	sigset_t all, before;
	background.call = call;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	const int error = pthread_create(&thread, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return ncclsvc_set_error(NCCLSVC_NO_MEMORY, "cannot start a thread");
	pthread_detach(thread);
	background.running = true;
	background.runs++;
	return NCCLSVC_OK;
}

/* Locked, except while it queries Python: a thread that holds Python's lock may want this one. */
static bool await(unsigned number, unsigned mark)
{
	while (background.running && background.runs == number) {
		const struct timespec until = abort_look();
		pthread_cond_clockwait(&background.ended, &background.lock, CLOCK_MONOTONIC,
				       &until);
		pthread_mutex_unlock(&background.lock);
		const bool aborted = abort_came(mark);
		pthread_mutex_lock(&background.lock);
		if (aborted)
			return !background.running;
	}
	return true;
}

ncclsvc_result background_run(background_call_fn *call, unsigned mark)
{
	pthread_mutex_lock(&background.lock);
	ncclsvc_result r = background.running ? NCCLSVC_OK : begin(call);
	if (!r && !await(background.runs, mark))
		r = ncclsvc_set_error(NCCLSVC_CANCELLED, ABORTED
				      "; the join continues, and the next operation waits for it");
	else if (!r && background.result)
		r = ncclsvc_set_error(background.result, "%s", background.text);
	pthread_mutex_unlock(&background.lock);
	return r;
}

bool background_runs(void)
{
	pthread_mutex_lock(&background.lock);
	const bool running = background.running;
	pthread_mutex_unlock(&background.lock);
	return running;
}
