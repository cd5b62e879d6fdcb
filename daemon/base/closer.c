/* SPDX-License-Identifier: Apache-2.0 */
#include "closer.h"
#include "timings.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct closer {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int *fds;
	unsigned n, room;
	bool running;	/* there is a thread */
	bool destroyed; /* the thread frees it at its end */
	_Atomic uint32_t closed;
};

struct closer *closer_create(void)
{
	struct closer *c = calloc(1, sizeof(*c));
	pthread_condattr_t attr;
	if (!c)
		return NULL;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, &attr);
	pthread_condattr_destroy(&attr);
	return c;
}

static void release(struct closer *c)
{
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->changed);
	free(c->fds);
	free(c);
}

/* Locked. False: nothing came for a while. */
static bool wait_for_more(struct closer *c)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += CLOSER_IDLE_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	while (!c->n && !c->destroyed)
		if (pthread_cond_timedwait(&c->changed, &c->lock, &until))
			break;
	return c->n;
}

static void *run(void *arg)
{
	struct closer *c = arg;
	pthread_mutex_lock(&c->lock);
	while (wait_for_more(c)) {
		const int fd = c->fds[--c->n];
		pthread_mutex_unlock(&c->lock);
		close(fd);
		atomic_fetch_add(&c->closed, 1);
		pthread_mutex_lock(&c->lock);
	}
	c->running = false;
	const bool destroyed = c->destroyed;
	pthread_mutex_unlock(&c->lock);
	if (destroyed)
		release(c);
	return NULL;
}

/* Locked. */
static bool start(struct closer *c)
{
	pthread_t thread;
	pthread_attr_t attr;
	sigset_t all, old;
	sigfillset(&all); /* signals are the supervisor's */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 4 * PTHREAD_STACK_MIN);
	c->running = !pthread_create(&thread, &attr, run, c);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return c->running;
}

/* Locked. */
static bool make_room(struct closer *c, unsigned n)
{
	if (n <= c->room - c->n)
		return true;
	const unsigned room = 2 * (c->n + n);
	int *fds = realloc(c->fds, room * sizeof(*fds));
	if (!fds)
		return false;
	c->fds = fds;
	c->room = room;
	return true;
}

void closer_add(struct closer *c, const int *fds, unsigned n)
{
	pthread_mutex_lock(&c->lock);
	const bool taken = make_room(c, n) && (c->running || start(c));
	if (taken) {
		memcpy(c->fds + c->n, fds, n * sizeof(*fds));
		c->n += n;
		pthread_cond_signal(&c->changed);
	}
	pthread_mutex_unlock(&c->lock);
	for (unsigned i = 0; !taken && i < n; i++) {
		close(fds[i]);
		atomic_fetch_add(&c->closed, 1);
	}
}

uint32_t closer_closed(struct closer *c)
{
	return atomic_exchange(&c->closed, 0);
}

void closer_destroy(struct closer *c)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	const bool running = c->running;
	c->destroyed = true;
	pthread_cond_signal(&c->changed);
	pthread_mutex_unlock(&c->lock);
	if (!running)
		release(c);
}
