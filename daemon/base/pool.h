/* SPDX-License-Identifier: Apache-2.0
 * Helper threads that share large jobs with the engine's thread, chunk by chunk. Jobs run in turn,
 * one chunk each, so that a small one is not stuck behind a large one. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define POOL_THREADS_MAX 64

struct job {
	void (*run)(struct job *job, uint32_t chunk);
	uint32_t chunks;
	void (*over)(struct job *job, void *arg); /* for whoever collects it */
	/* The pool's. Each thread has a share of the chunks of its own, and takes others' when that
	 * is done: who works on the same buffers again finds them in its own core's cache. */
	uint32_t next[POOL_THREADS_MAX];
	uint32_t taken, finished;
	struct job *prev_job, *next_job;
};

struct pool;

/* helpers < POOL_THREADS_MAX. notify is called by a helper that finished a job's last chunk.
 * Returns NULL if out of memory or threads. */
struct pool *pool_create(unsigned helpers, void (*notify)(void *arg), void *arg);
/* Other threads, whose jobs the pool p collects, and notifies of. They go before p does. */
struct pool *pool_create_beside(struct pool *p, unsigned helpers);
/* All jobs must have been collected. */
void pool_destroy(struct pool *p);

/* The job is the pool's until pool_collect returns it. job->chunks >= 1. helped: the caller will
 * call pool_help, so one helper less is woken. */
void pool_submit(struct pool *p, struct job *job, bool helped);
/* Runs one chunk in the calling thread. False: no chunk is left to take. */
bool pool_help(struct pool *p);
/* A job whose chunks have all run, or NULL. */
struct job *pool_collect(struct pool *p);

#endif
