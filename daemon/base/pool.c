/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <utlist.h>

struct pool {
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct job *open;	/* with chunks left to take; the head is next */
	struct job *done;	/* all chunks have run; includes jobs of other pools */
	struct pool *collector; /* the pool that collects this one's jobs */
	unsigned sleeping;
	cpu_set_t cpus;	      /* that this process may use */
	_Atomic int busy_cpu; /* of the submitting thread */
	bool stop;
	void (*notify)(void *arg);
	void *arg;
	unsigned helpers, started;
	pthread_t threads[];
};

static uint32_t share_begin(const struct pool *p, const struct job *job, unsigned thread)
{
	return (uint32_t)((uint64_t)job->chunks * thread / (p->helpers + 1));
}

/* Takes a chunk of the first job and moves that job to the end of the queue. Called with the lock
 * held. */
static struct job *take(struct pool *p, unsigned thread, uint32_t *chunk)
{
	struct job *job = p->open;
	unsigned owner = thread;
	if (!job)
		return NULL;
	while (job->next[owner] >= share_begin(p, job, owner + 1))
		owner = (owner + 1) % (p->helpers + 1);
	*chunk = job->next[owner]++;
	DL_DELETE2(p->open, job, prev_job, next_job);
	if (++job->taken < job->chunks)
		DL_APPEND2(p->open, job, prev_job, next_job);
	return job;
}

/* Returns true if that was the job's last chunk. Called with the lock held. */
static bool give(struct pool *p, struct job *job)
{
	struct pool *to = p->collector;
	if (++job->finished < job->chunks)
		return false;
	if (to != p)
		pthread_mutex_lock(&to->lock);
	DL_APPEND2(to->done, job, prev_job, next_job);
	if (to != p)
		pthread_mutex_unlock(&to->lock);
	return true;
}

/* If clients poll on every other core, the kernel's scheduler may queue a helper behind the
 * submitting thread on one core, where it is of no use. */
static void keep_away(struct pool *p)
{
	int cpu = atomic_load_explicit(&p->busy_cpu, memory_order_relaxed);
	cpu_set_t others = p->cpus;
	if (cpu < 0 || cpu >= CPU_SETSIZE || cpu != sched_getcpu())
		return;
	CPU_CLR(cpu, &others);
	if (CPU_COUNT(&others))
		sched_setaffinity(0, sizeof(others), &others);
}

static void *helper(void *arg)
{
	struct pool *p = arg;
	uint32_t chunk;
	pthread_mutex_lock(&p->lock);
	unsigned thread = ++p->started;
	while (!p->stop) {
		struct job *job = take(p, thread, &chunk);
		if (!job) {
			p->sleeping++;
			pthread_cond_wait(&p->work, &p->lock);
			p->sleeping--;
			pthread_mutex_unlock(&p->lock);
			keep_away(p);
			pthread_mutex_lock(&p->lock);
			continue;
		}
		pthread_mutex_unlock(&p->lock);
		job->run(job, chunk);
		pthread_mutex_lock(&p->lock);
		if (give(p, job))
			p->notify(p->arg);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static struct pool *create(struct pool *collector, unsigned helpers, void (*notify)(void *arg),
			   void *arg)
{
	sigset_t all, old;
	struct pool *p = calloc(1, sizeof(*p) + helpers * sizeof(p->threads[0]));
	if (!p)
		return NULL;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	if (sched_getaffinity(0, sizeof(p->cpus), &p->cpus))
		CPU_ZERO(&p->cpus);
	atomic_store(&p->busy_cpu, -1);
	p->collector = collector ? collector : p;
	p->notify = notify;
	p->arg = arg;
	sigfillset(&all); /* the supervisor handles signals, except this thread's faults */
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_mutex_lock(&p->lock);
	while (p->helpers < helpers && !pthread_create(&p->threads[p->helpers], NULL, helper, p))
		p->helpers++;
	pthread_mutex_unlock(&p->lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (p->helpers < helpers) {
		pool_destroy(p);
		return NULL;
	}
	return p;
}

struct pool *pool_create(unsigned helpers, void (*notify)(void *arg), void *arg)
{
	return create(NULL, helpers, notify, arg);
}

struct pool *pool_create_beside(struct pool *p, unsigned helpers)
{
	return create(p, helpers, p->notify, p->arg);
}

void pool_destroy(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->helpers; i++)
		pthread_join(p->threads[i], NULL);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void pool_submit(struct pool *p, struct job *job, bool helped)
{
	job->taken = job->finished = 0;
	atomic_store_explicit(&p->busy_cpu, sched_getcpu(), memory_order_relaxed);
	for (unsigned i = 0; i <= p->helpers; i++)
		job->next[i] = share_begin(p, job, i);
	pthread_mutex_lock(&p->lock);
	DL_APPEND2(p->open, job, prev_job, next_job);
	unsigned wanted = job->chunks - helped;
	if (wanted > p->sleeping)
		wanted = p->sleeping;
	for (unsigned i = 0; i < wanted; i++)
		pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
}

bool pool_help(struct pool *p)
{
	uint32_t chunk;
	pthread_mutex_lock(&p->lock);
	struct job *job = take(p, 0, &chunk);
	pthread_mutex_unlock(&p->lock);
	if (!job)
		return false;
	job->run(job, chunk);
	pthread_mutex_lock(&p->lock);
	give(p, job);
	pthread_mutex_unlock(&p->lock);
	return true;
}

struct job *pool_collect(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	struct job *job = p->done;
	if (job)
		DL_DELETE2(p->done, job, prev_job, next_job);
	pthread_mutex_unlock(&p->lock);
	return job;
}
