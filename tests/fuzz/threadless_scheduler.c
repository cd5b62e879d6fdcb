/* SPDX-License-Identifier: Apache-2.0 */
#include "threadless_scheduler.h"

#include <errno.h>
#include <pthread.h>

#include "sched/base/state.h"

static struct scheduler *scheduler;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg),
			  void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);

/* Creates no threads: scheduler_settle does the scheduler's work, and helpers' work at once. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg),
			  void *arg)
{
	(void)thread;
	(void)attr;
	if (run != scheduler_main)
		return EAGAIN;
	scheduler = arg;
	return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
	(void)thread;
	(void)result;
	return 0;
}

void fuzz_settle(void)
{
	scheduler_settle(scheduler);
}

bool fuzz_has_more(void)
{
	return scheduler->events || scheduler->commands;
}
