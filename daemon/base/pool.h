/* SPDX-License-Identifier: Apache-2.0
 * Helper threads that share large jobs with the scheduler's thread, chunk by chunk. Jobs take
 * turns, one chunk each, so that a small job is not stuck behind a large one. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define POOL_THREADS_MAX 64

struct job {
	void (*run)(struct job *job, uint32_t chunk);
	uint32_t chunks;
	void (*done)(struct job *job, void *arg); /* for the caller that collects the job */
	/* Private to the pool. Each thread has its own share of the chunks, and takes other
	 * threads' chunks when that is done. A job on the same buffers as before then finds them in
	 * the same core's cache. */
	uint32_t next[POOL_THREADS_MAX];
	uint32_t taken, finished;
	struct job *prev_job, *next_job;
};

struct pool;

/* helpers < POOL_THREADS_MAX. The helper that finishes a job's last chunk calls notify. Returns
 * NULL if out of memory or threads. */
struct pool *pool_create(unsigned helpers, void (*notify)(void *arg), void *arg);
/* Further threads, whose jobs pool p collects and reports. Destroy them before p. */
struct pool *pool_create_beside(struct pool *p, unsigned helpers);
/* All jobs must have been collected. */
void pool_destroy(struct pool *p);

/* The pool owns the job until pool_collect returns it. job->chunks >= 1. helped: the caller will
 * call pool_help, so one fewer helper is woken. */
void pool_submit(struct pool *p, struct job *job, bool helped);
/* Runs one chunk in the calling thread. False: no chunk is left. */
bool pool_help(struct pool *p);
/* Returns a job whose chunks have all run, or NULL. */
struct job *pool_collect(struct pool *p);

#endif
