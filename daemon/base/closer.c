/* SPDX-License-Identifier: Apache-2.0 */
#include "closer.h"
#include "clock.h"
#include "nofail.h"
#include "timings.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The address space is locked during each call, so large mappings are unmapped in pieces. */
#define PIECE ((size_t)4 << 20)

struct job {
	struct job *next;
	enum closer_kind kind;
	int fd; /* for CLOSER_FD */
	void *base;
	struct closer_amount amount;
};

struct closer {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct job *first, *last;
	unsigned left;	/* including the current one */
	bool collected; /* closer_closed has returned all finished work */
	bool awaited;	/* the next finished job must be reported */
	struct closer_amount done[CLOSER_KINDS];
	pthread_t thread;
	bool running;  /* the thread is still working or about to report */
	bool joinable; /* there is or was a thread that has not been joined */
	bool ending;   /* no more work will be added; the thread ends when it has finished */
	bool orphaned; /* the thread frees it when it ends */
	void (*closed)(void *arg);
	void *arg;
};

struct closer *closer_create(void (*closed)(void *arg), void *arg)
{
	struct closer *c = calloc(1, sizeof(*c));
	pthread_condattr_t attr;
	if (!c)
		return NULL;
	c->collected = true;
	c->closed = closed;
	c->arg = arg;
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
	free(c);
}

/* Called with the lock held. False: the time has come. */
static bool wait_until(struct closer *c, uint64_t ns)
{
	const struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
	return !pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

/* Called with the lock held. False: no work came for a while. */
static bool wait_for_more(struct closer *c)
{
	const uint64_t until_ns = clock_now() + CLOSER_IDLE_NS;
	while (!c->first && !c->ending)
		if (!wait_until(c, until_ns))
			break;
	return c->first;
}

static void unmap(char *base, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PIECE)
		munmap(base + at, bytes - at < PIECE ? bytes - at : PIECE);
}

/* Called with the lock held, which is released while the first job runs. */
static void do_first(struct closer *c)
{
	struct job *job = c->first;
	c->first = job->next;
	pthread_mutex_unlock(&c->lock);
	if (job->kind == CLOSER_FD)
		close(job->fd);
	else
		unmap(job->base, job->amount.bytes);
	pthread_mutex_lock(&c->lock);
	c->done[job->kind].n += job->amount.n;
	c->done[job->kind].bytes += job->amount.bytes;
	free(job);
	c->collected = false;
	c->left--;
	if ((!c->left || c->awaited) && !c->ending)
		c->closed(c->arg);
	c->awaited = false;
}

static void *run(void *arg)
{
	struct closer *c = arg;
	pthread_mutex_lock(&c->lock);
	while (wait_for_more(c))
		do_first(c);
	c->running = false;
	pthread_cond_broadcast(&c->changed);
	if (!c->ending)
		c->closed(c->arg);
	const bool orphaned = c->orphaned;
	pthread_mutex_unlock(&c->lock);
	if (orphaned)
		release(c);
	return NULL;
}

/* The thread has ended, or is about to end. */
static void join(struct closer *c)
{
	if (c->joinable)
		pthread_join(c->thread, NULL);
	c->joinable = false;
}

/* Called with the lock held. */
static bool start(struct closer *c)
{
	pthread_attr_t attr;
	sigset_t all, old;
	join(c);
	sigfillset(&all); /* the supervisor handles signals */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 4 * PTHREAD_STACK_MIN);
	c->running = c->joinable = !pthread_create(&c->thread, &attr, run, c);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return c->running;
}

static struct job *make_job(enum closer_kind kind, uint64_t n)
{
	struct job *job = nofail_calloc(1, sizeof(*job), "what a session has left");
	job->kind = kind;
	job->amount.n = n;
	return job;
}

/* Called with the lock held. */
static void append(struct closer *c, struct job *job)
{
	if (c->first)
		c->last->next = job;
	else
		c->first = job;
	c->last = job;
	c->left++;
}

/* Called with the lock held. */
static void begin(struct closer *c)
{
	if (c->running || start(c))
		pthread_cond_signal(&c->changed);
	else
		while (c->first)
			do_first(c);
}

void closer_add(struct closer *c, const int *fds, unsigned n)
{
	pthread_mutex_lock(&c->lock);
	for (unsigned i = 0; i < n; i++) {
		struct job *job = make_job(CLOSER_FD, 1);
		job->fd = fds[i];
		append(c, job);
	}
	begin(c);
	pthread_mutex_unlock(&c->lock);
}

void closer_unmap(struct closer *c, enum closer_kind kind, void *base, size_t bytes, uint64_t n)
{
	struct job *job = make_job(kind, n);
	job->base = base;
	job->amount.bytes = bytes;
	pthread_mutex_lock(&c->lock);
	append(c, job);
	begin(c);
	pthread_mutex_unlock(&c->lock);
}

bool closer_busy(struct closer *c)
{
	pthread_mutex_lock(&c->lock);
	const bool busy = c->left || !c->collected;
	c->awaited = true;
	pthread_mutex_unlock(&c->lock);
	return busy;
}

void closer_closed(struct closer *c, struct closer_amount closed[CLOSER_KINDS])
{
	pthread_mutex_lock(&c->lock);
	memcpy(closed, c->done, sizeof(c->done));
	memset(c->done, 0, sizeof(c->done));
	c->collected = true;
	pthread_mutex_unlock(&c->lock);
}

bool closer_running(struct closer *c)
{
	pthread_mutex_lock(&c->lock);
	const bool running = c->running;
	pthread_mutex_unlock(&c->lock);
	return running;
}

void closer_end(struct closer *c)
{
	pthread_mutex_lock(&c->lock);
	c->ending = true;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

void closer_destroy(struct closer *c, uint64_t until_ns)
{
	if (!c)
		return;
	closer_end(c);
	pthread_mutex_lock(&c->lock);
	while (c->running && wait_until(c, until_ns))
		;
	c->orphaned = c->running;
	if (c->orphaned)
		pthread_detach(c->thread);
	else
		join(c);
	const bool orphaned = c->orphaned;
	pthread_mutex_unlock(&c->lock);
	if (!orphaned)
		release(c);
}
